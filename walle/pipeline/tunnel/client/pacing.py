"""Bound on a device's upload bytes in flight that leaves the link free for requests (§5.2).

Uploads fill every buffer on the way, and a request would wait behind them. As LEDBAT does (RFC 6817), the bound follows
the delay: a delay above the least one means that bytes wait in a buffer. Losses and slow commits also delay single
acknowledgements, so the least delay of a short time is compared.

A request also waits for each lost packet before it in the stream, a round trip, and the more are in flight, the more
likely there is one. So while requests are likely, the bound is halved when an acknowledgement is as late as a loss
makes it. A device that makes no requests keeps more in flight, and uploads faster on a link that loses packets.
"""

import collections

from walle.pipeline.tunnel.round_trip import RoundTrip

_TARGET_S = 0.01  # waiting time in buffers that is aimed at while there are requests
_ALONE_S = 0.15  # waiting time that is aimed at without requests
_REQUESTS_S = 10.0  # after a request, others are expected
_LEAST_BYTES = 16 << 10
_FIRST_BYTES = 64 << 10
_STEP_BYTES = 2 << 10  # most that the bound grows by in a round trip, while there are requests
_ALONE_STEP_BYTES = 16 << 10  # most that the bound grows by in a round trip without requests
_LOSS_SHARE = 1.75  # multiple of the least delay that shows a loss: it adds a round trip
_RECENT_S = 0.3  # span whose least delay counts as the present one; six round trips at least


class InFlightBound:
    """The bound, in bytes on the wire; `acknowledged` moves it."""

    def __init__(self, most_bytes: int) -> None:
        self.limit_bytes = min(_FIRST_BYTES, most_bytes)
        self._most_bytes = most_bytes
        self._least_bytes = min(_LEAST_BYTES, most_bytes)
        self._starting = True  # doubles each round trip, until bytes begin to wait
        self._shrunk_s = -1.0
        self._requests_until_s = -1.0
        self._recent: collections.deque[tuple[float, float]] = collections.deque()
        self._round_trip = RoundTrip()

    def note_request(self, now_s: float) -> None:
        """Take note that a request was made."""
        self._requests_until_s = now_s + _REQUESTS_S

    def expects_requests(self, now_s: float) -> bool:
        """Return whether a request was made a short time ago, so that others are likely."""
        return now_s < self._requests_until_s

    def acknowledged(self, size_bytes: int, delay_s: float, now_s: float) -> None:
        """Take note that `size_bytes` were acknowledged `delay_s` after they were written."""
        least_s = self._round_trip.note(delay_s, now_s)
        current_s = self._current(delay_s, now_s, max(_RECENT_S, 6 * least_s))
        if self._starting:  # doubling fills the buffers before the least delay of any time shows it
            current_s = delay_s
        queued_s = current_s - least_s
        with_requests = self.expects_requests(now_s)
        target_s, step_bytes = (_TARGET_S, _STEP_BYTES) if with_requests else (_ALONE_S, _ALONE_STEP_BYTES)
        is_late = with_requests and delay_s > _LOSS_SHARE * least_s + target_s
        if queued_s <= target_s and not is_late:
            share = 1.0 if self._starting else (1 - queued_s / target_s) * step_bytes / self.limit_bytes
            self.limit_bytes = min(self._most_bytes, self.limit_bytes + int(size_bytes * share))
        elif now_s - self._shrunk_s > delay_s:  # once a round trip
            self._starting = False
            self._shrunk_s = now_s
            kept = 0.5 if is_late else max(0.5, target_s / queued_s)
            self.limit_bytes = max(self._least_bytes, int(self.limit_bytes * kept))

    def _current(self, delay_s: float, now_s: float, recent_s: float) -> float:
        recent = self._recent
        while recent and recent[-1][1] >= delay_s:  # kept ascending, so that the first is the least
            recent.pop()
        recent.append((now_s, delay_s))
        while recent[0][0] < now_s - recent_s:
            recent.popleft()
        return recent[0][1]
