"""Bound on a device's upload bytes in flight that leaves the link free for requests (§5.2).

Uploads fill every buffer on the way, and a request would wait behind them. As LEDBAT does (RFC 6817), the bound follows
the delay: a delay above the least one means that bytes wait in a buffer. Losses and slow commits also delay single
acknowledgements, so the least delay of a short time is compared.
"""

import collections

_TARGET_S = 0.025  # of waiting in buffers
_LEAST_BYTES = 32 << 10
_FIRST_BYTES = 64 << 10
_STEP_BYTES = 16 << 10  # that the bound grows by in a round trip, at most
_RECENT_S = 0.3  # of which the least delay counts as the present one
_BASE_S = 60.0  # the least delay of that time is the link's own; routes change


class InFlightBound:
    """The bound, in bytes on the wire; `acknowledged` moves it."""

    def __init__(self, most_bytes: int) -> None:
        self.limit_bytes = min(_FIRST_BYTES, most_bytes)
        self._most_bytes = most_bytes
        self._least_bytes = min(_LEAST_BYTES, most_bytes)
        self._starting = True  # doubles each round trip, until bytes begin to wait
        self._shrunk_s = -1.0
        self._recent: collections.deque[tuple[float, float]] = collections.deque()
        self._base: tuple[float, float] | None = None  # (time, delay)
        self._next_base: tuple[float, float] | None = None

    def acknowledged(self, size_bytes: int, delay_s: float, now_s: float) -> None:
        """Take note that `size_bytes` were acknowledged `delay_s` after they were written."""
        queued_s = self._current(delay_s, now_s) - self._least(delay_s, now_s)
        if queued_s <= _TARGET_S:
            share = 1.0 if self._starting else (1 - queued_s / _TARGET_S) * _STEP_BYTES / self.limit_bytes
            self.limit_bytes = min(self._most_bytes, self.limit_bytes + int(size_bytes * share))
        elif now_s - self._shrunk_s > delay_s:  # once a round trip
            self._starting = False
            self._shrunk_s = now_s
            kept = max(0.5, _TARGET_S / queued_s)
            self.limit_bytes = max(self._least_bytes, int(self.limit_bytes * kept))

    def _current(self, delay_s: float, now_s: float) -> float:
        recent = self._recent
        while recent and recent[-1][1] >= delay_s:  # kept ascending, so that the first is the least
            recent.pop()
        recent.append((now_s, delay_s))
        while recent[0][0] < now_s - _RECENT_S:
            recent.popleft()
        return recent[0][1]

    def _least(self, delay_s: float, now_s: float) -> float:
        if self._base is None or delay_s <= self._base[1]:
            self._base = self._next_base = (now_s, delay_s)
        elif self._next_base is None or delay_s <= self._next_base[1]:
            self._next_base = (now_s, delay_s)  # set before `_base` is too old, since this delay is one
        if now_s - self._base[0] > _BASE_S:
            self._base, self._next_base = self._next_base, None
        return self._base[1]
