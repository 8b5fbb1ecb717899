"""Pauses between attempts: exponential backoff with full jitter, and the pace of requests that are made periodically.

A fleet that lost its cloud must not come back all at once. So the n-th failure in a row is followed by a pause that is
uniformly random from 0 to `first_s` * 2**n, cut at `most_s` ("full jitter": of the usual ways the one with the fewest
requests in all; M. Brooker, "Exponential backoff and jitter", AWS, 2015). A time that the server asked for
(Retry-After) comes before that pause, not in its place: devices that it refused in one moment do not return in one.
"""

import email.utils
import random

LONGEST_ASKED_S = 3600.0  # longest wait that a server can ask of a device
_MAX_DOUBLINGS = 30
_SPREAD = 0.2  # part of an interval, to either side, so that devices do not stay in step
_LONGEST_INTERVALS = 30  # limit for a periodic request, in intervals: the longest pause between two attempts that fail


class Backoff:
    """The pauses after failures of one kind of attempt. `failures` counts those in a row."""

    def __init__(self, rng: random.Random, *, first_s: float, most_s: float) -> None:
        self.failures = 0
        self._rng = rng
        self._first_s = first_s
        self._most_s = most_s

    @property
    def spread_s(self) -> float:
        """The longest pause after the present number of failures."""
        return min(self._most_s, self._first_s * 2.0 ** min(self.failures, _MAX_DOUBLINGS))

    def worked(self) -> None:
        """Take note of an attempt that worked."""
        self.failures = 0

    def failed(self, asked_s: float = 0.0) -> float:
        """Take note of one that failed; return the seconds to the next. The server asked for `asked_s` at least."""
        self.failures += 1
        return min(max(0.0, asked_s), LONGEST_ASKED_S) + self._rng.uniform(0.0, self.spread_s)


class Pace:
    """The pauses of a periodic request: its interval, give or take a fifth, and a backoff while it fails."""

    def __init__(self, rng: random.Random, interval_s: float) -> None:
        self._rng = rng
        self._interval_s = interval_s
        self._backoff = Backoff(rng, first_s=interval_s, most_s=_LONGEST_INTERVALS * interval_s)

    def worked(self, least_s: float = 0.0) -> float:
        """Return the seconds to the next request after one that worked; of an interval of `least_s` at least."""
        self._backoff.worked()
        return max(self._interval_s, least_s) * self._rng.uniform(1 - _SPREAD, 1 + _SPREAD)

    def failed(self, asked_s: float = 0.0) -> float:
        """Return the seconds to the next request after one that failed, as `Backoff.failed`."""
        return self._backoff.failed(asked_s)


def retry_after_s(header: str | None, now_s: float) -> float:
    """Return the seconds that a Retry-After header asks for, 0 where it is missing or wrong.

    `now_s` is the time since the epoch; a header may name a date. At most LONGEST_ASKED_S are returned.
    """
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_ASKED_S)
    try:
        asked_s = email.utils.parsedate_to_datetime(text).timestamp() - now_s
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, asked_s), LONGEST_ASKED_S)
