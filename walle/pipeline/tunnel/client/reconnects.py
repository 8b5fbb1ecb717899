"""Times of a device's attempts to connect: exponential backoff with full jitter, brought forward while work waits.

A fleet that lost its cloud must not come back all at once, so attempt n follows after a random time of up to
`backoff_s` * 2**n, a minute at most. A device on which a request waits for the cloud would then find it up to a minute
late, and the request is lost before that. So waiting work shortens the random time: to a second at first, and to an
eighth of the time for which work has been waiting, so that it is found late by about that share and the number of
attempts grows with the logarithm of the outage. The time that the cloud asked for is kept in any case.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator

from walle.base.backoff import Backoff
from walle.base.clock import Clock

IDLE_S = 30.0  # time without work, after which new work counts as the first
_SOON_S = 1.0  # the first attempt for waiting work comes within this time, at random
_SHARE = 1 / 8  # pause as a share of the time for which work has been waiting
_SPREAD_S = 0.25  # shortest time over which devices that get work at one moment connect


class Reconnects:
    """The pauses between one device's attempts.

    Times are of `clock`. `begin` starts a pause that ends at `due_s`; `hurry` brings that forward, once in a pause, and
    sets `was_hurried`. Work that waits longer is announced by `waiting`, so that it counts in the next pauses too.
    """

    def __init__(self, clock: Clock, rng: random.Random, *, backoff_s: float, backoff_max_s: float) -> None:
        self.due_s = 0.0
        self.was_hurried = asyncio.Event()
        self._clock = clock
        self._rng = rng
        self._backoff = Backoff(rng, first_s=backoff_s, most_s=backoff_max_s)
        self._base_s = 0.0  # the cloud wants no attempt before this time
        self._spread_s = 0.0
        self._random = 0.0  # random factor of this pause, from 0 to 1
        self._waiting = 0
        self._work_since_s: float | None = None  # None: none since the cloud was last there
        self._work_last_s = 0.0
        self._seq: int | None = None  # number of the latest upload that was seen
        self._upload_s: float | None = None

    def begin(self, failures: int, retry_s: float) -> None:
        """Begin the pause after the connection or attempt that ended now; `retry_s` is what the cloud asked for.

        `failures` counts the attempts in a row before it that came to nothing.
        """
        if failures == 0:
            self._work_since_s = None
        now_s = self._clock.monotonic()
        self._base_s = now_s + retry_s
        self._backoff.failures = failures
        self._spread_s = self._backoff.spread_s
        self._random = self._rng.random()
        self.due_s = self._base_s + self._random * self._spread_s
        self.was_hurried.clear()
        if self._waiting:
            self.hurry()

    @property
    def left_s(self) -> float:
        """Seconds until the next attempt."""
        return max(0.0, self.due_s - self._clock.monotonic())

    def hurry(self) -> None:
        """Bring the next attempt forward, as there is work for a connection."""
        now_s = self._clock.monotonic()
        if self._work_since_s is None or now_s - self._work_last_s > IDLE_S:
            self._work_since_s = now_s
        self._work_last_s = now_s
        if self.was_hurried.is_set():
            return
        self.was_hurried.set()
        spread_s = max(_SOON_S, (now_s - self._work_since_s) * _SHARE)
        earliest_s = max(self._base_s, now_s) + self._random * _SPREAD_S
        self.due_s = min(self.due_s, max(self._base_s + self._random * spread_s, earliest_s))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Hurry now, and in each pause that begins within the block."""
        self._waiting += 1
        self.hurry()
        try:
            yield
        finally:
            self._waiting -= 1

    def note_uploads(self, last_seq: int) -> None:
        """Take note of the outbox's highest number; hurry for an upload after a long time without one.

        A device that makes uploads all the time does not hurry for them: they are durable, and wait.
        """
        if last_seq == self._seq:
            return
        is_first_look, self._seq = self._seq is None, last_seq
        if is_first_look:
            return
        now_s = self._clock.monotonic()
        was_idle = self._upload_s is None or now_s - self._upload_s > IDLE_S
        self._upload_s = now_s
        if was_idle:
            self.hurry()
