"""Pings behind the last frame of a flight, so that TCP learns of a lost tail from their acknowledgement (§5.2).

TCP learns of a lost packet from acknowledgements of later ones. Behind the last packet there is none, and TCP waits for
a timer: twice the round trip, or the retransmission timeout. A Ping that follows takes the place of the later packet:
its selective acknowledgement is back one round trip after it, and the lost packet is sent again at once (RACK,
RFC 8985). The cloud's Pong does the same for an Ack or a Response that it follows. The timers of TCP remain behind it.

There is one probe for each time that the device falls silent while an answer is due, and a second one where the answer
is late, so that something was probably lost: a packet that was sent again is lost as well, or the answer. Probes cost
bytes and no wake-up of the radio, which is on for the frame before them.

The answer of a slow handler comes when the Pongs have gone, so that nothing follows it. The cloud then sends a Pong of
its own (`answer_probe_delay_s`).
"""

from walle.pipeline.tunnel.round_trip import RoundTrip

_LEAST_ROUND_TRIP_S = 0.01  # TCP's own timers are short enough below
_LEAST_DELAY_S, _MOST_DELAY_S = 0.01, 0.25
_POSTPONED = 1.25  # times the delay before
_LEAST_SHARE = 0.2  # part of the round trip; 0.27, which is above _RACK_SHARE, was no better
_LARGEST_SHARE = 0.5
_SLOWER, _FASTER = 1.25, 0.98
_LATE_SHARE = 1.75  # multiple of the least round trip, from the first probe to the second
_RACK_SHARE = 0.25  # part of the least round trip for which RACK waits in case packets come out of order


def answer_probe_delay_s(round_trip_s: float | None) -> float:
    """Return the seconds from an answer to the Pong behind it; `round_trip_s` is the least one, None if unknown.

    When the acknowledgement of a Pong that left so late arrives, RACK takes the answer for lost without another timer.
    """
    return min(_MOST_DELAY_S, max(_LEAST_DELAY_S, _RACK_SHARE * (round_trip_s or 0.0)))


class TailProbe:
    """The time of the next probe is `due_s`, None if there is none; `is_second` says which. `count` are those sent.

    A Pong protects an Ack only if it comes behind it. So the delay of first probes grows while Pongs come before Acks,
    because the cloud takes longer to store an upload, and shrinks slowly otherwise.
    """

    def __init__(self, round_trip: RoundTrip) -> None:
        self.due_s: float | None = None
        self.count = 0
        self._round_trip = round_trip
        self._share = _LEAST_SHARE
        self._delay_s = 0.0
        self.is_second = False
        self._sent: tuple[int, int, float] | None = None  # (token, last upload, time) of the latest probe

    def wrote(self, now_s: float) -> None:
        """Take note of a frame that the cloud is to answer; the probe of an earlier one is no longer due."""
        least_s = self._round_trip.least_s
        self.is_second = False
        is_short = least_s is None or least_s < _LEAST_ROUND_TRIP_S
        self._delay_s = min(_MOST_DELAY_S, max(_LEAST_DELAY_S, self._share * (least_s or 0.0)))
        self.due_s = None if is_short else now_s + self._delay_s

    def postpone(self, now_s: float) -> None:
        """Set a later time: the frame has not left yet, and the probe would share its last packet."""
        self._delay_s = min(_MOST_DELAY_S, _POSTPONED * self._delay_s)
        self.due_s = now_s + self._delay_s

    def settle(self) -> None:
        """Take note that nothing is unanswered any more."""
        self.due_s = None

    def sent(self, last_upload: int, now_s: float) -> int:
        """Take note of a probe, behind the upload of that number, and return its token."""
        self.due_s = None if self.is_second else now_s + _LATE_SHARE * (self._round_trip.least_s or 0.0)
        self.count += 1
        token = int(now_s * 1_000_000)
        if not self.is_second:
            self._sent = (token, last_upload, now_s)
        self.is_second = True
        return token

    def answered(self, token: int, acked: int, now_s: float) -> None:
        """Take note of a Pong, which came when uploads up to `acked` were acknowledged. Unknown tokens are ignored."""
        if self._sent is None or self._sent[0] != token:
            return
        _, last_upload, sent_s = self._sent
        self._sent = None
        self._round_trip.note(now_s - sent_s, now_s)
        change = _SLOWER if last_upload > acked else _FASTER
        self._share = min(_LARGEST_SHARE, max(_LEAST_SHARE, self._share * change))
