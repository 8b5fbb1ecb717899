"""Pace of a store's commits: whether the next one may run on the event loop, without a thread.

A hop to a thread and back costs a lone upload two wake-ups, which are a quarter of its time, and most of its 99th
percentile where other programs use the processors. A disk that stalls would stop pings and requests, however; so the
event loop commits only while the disk is quick, and one slow commit is what it can wait for.
"""

import contextlib
from collections.abc import Iterator

from walle.base.clock import Clock

_QUICK_S = 0.002  # mean of recent commits up to which the disk counts as quick
_SLOW_S = 0.02  # time from which one commit counts as slow
_REST_S = 60.0  # time that commits stay in the thread after a slow one
_WEIGHT = 1 / 16  # share of the latest commit in the mean


class CommitPace:
    """The times of a store's commits, whichever thread ran them.

    `is_quick` begins after about 20 quick commits, ends with a mean above 2 ms, and for a minute with a commit that
    takes more than 20 ms.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mean_s = 4 * _QUICK_S  # nothing is known of the disk yet
        self._rest_until_s = 0.0

    @property
    def is_quick(self) -> bool:
        return self._mean_s <= _QUICK_S and self._clock.monotonic() >= self._rest_until_s

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the block as a commit, also if it fails: a broken disk may take long to say so."""
        began_s = self._clock.monotonic()
        try:
            yield
        finally:
            self.add(self._clock.monotonic() - began_s)

    def add(self, commit_s: float) -> None:
        """Count a commit that took `commit_s` seconds."""
        if commit_s > _SLOW_S:
            self._rest_until_s = self._clock.monotonic() + _REST_S
        else:
            self._mean_s += (commit_s - self._mean_s) * _WEIGHT
