"""Pulls that failed by the network, and when the directive of each may try again.

Directives come with the answers to an app's own requests, which may be many a second: without a pause, each of them
would pull from a store that is down or full, and so would each device when it is back.
"""

import dataclasses
import random

from walle.base.backoff import Backoff
from walle.base.clock import Clock

_FIRST_S = 0.5
_MOST_S = 300.0


@dataclasses.dataclass
class _Retry:
    number: tuple[int, int]  # epoch and serial of the directive
    backoff: Backoff
    due_s: float = 0.0  # time of the next try, by the monotonic clock


class PullRetries:
    """The pauses of one device's pulls, in memory: one for each task whose last pull failed."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._retries: dict[str, _Retry] = {}

    def left_s(self, task: str, number: tuple[int, int]) -> float:
        """Return the seconds until this directive may pull. Another directive than the one that failed may at once."""
        retry = self._retries.get(task)
        return max(0.0, retry.due_s - self._clock.monotonic()) if retry is not None and retry.number == number else 0.0

    def failed(self, task: str, number: tuple[int, int], asked_s: float, *, has_progressed: bool) -> None:
        """Take note of a pull that failed; the server asked for a pause of `asked_s` at least.

        One that brought a part of the files continues from there: its link drops, and pauses do not grow for that.
        """
        retry = self._retries.get(task)
        if retry is None or retry.number != number:
            retry = self._retries[task] = _Retry(number, Backoff(self._rng, first_s=_FIRST_S, most_s=_MOST_S))
        if has_progressed:
            retry.backoff.worked()
        retry.due_s = self._clock.monotonic() + retry.backoff.failed(asked_s)

    def forget(self, task: str) -> None:
        """Forget a task whose pull is done or not wanted any more."""
        self._retries.pop(task, None)
