"""Pull budget of a gateway: how many pulls, and how many bytes of them, its answers begin in a second.

A release is due to all its devices at once, and they would all pull at once. Directives beyond the budget are left out
of the answer, which says when to come back; nothing is kept for a device that waits. Rollbacks and removals are not
counted. A device that was admitted is sent the same directives again for `again_s` without a second charge: it makes
requests while it pulls. So a device that asks all the time, or never carries out what it gets, takes one pull in that
time, and the memory is bounded by the budget.
"""

import collections
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.metrics.table import counter
from walle.protocol import Directive

AGAIN_S = 60.0
MAX_ADMITTED = 100_000  # pulls that are known to be under way
MIN_WAIT_S = 5
MAX_WAIT_S = 900


class PullRate(NamedTuple):
    """Bounds of a gateway, 0 for none."""

    pulls_s: float = 0.0
    bytes_s: float = 0.0


class PullBudget:
    """Token bucket of pulls and bytes, which holds as much as comes in `burst_s`.

    `size_of` is the bytes of the version of a directive. A pull may begin while there is anything in the bucket, and
    leaves a debt where it is larger: if it waited for its size, smaller ones would take that from it again and again.
    """

    def __init__(
        self,
        rate: PullRate,
        clock: Clock,
        size_of: Callable[[Directive], int],
        *,
        burst_s: float = 2.0,
        again_s: float = AGAIN_S,
        random_source: random.Random | None = None,
    ) -> None:
        self.admitted = 0  # pulls
        self.delayed = 0  # answers from which directives were left out
        self._clock = clock
        self._size_of = size_of
        self._again_s = again_s
        self._rates = tuple(rate)
        self._most = tuple(max(one * burst_s, 1.0) for one in rate)
        self._left = list(self._most)
        self._filled_s = clock.monotonic()
        self._under_way: collections.OrderedDict[tuple[str, str, str], float] = collections.OrderedDict()
        self._random = random_source or random.Random()
        self._waiting = [0.0, 0.0]  # pulls that were delayed lately, and their bytes; they fade within half a minute

    def admit(self, device_id: str, directives: tuple[Directive, ...]) -> tuple[tuple[Directive, ...], int]:
        """Return the directives that may go to a device now, and after how many seconds to ask for others; 0: none."""
        now_s = self._clock.monotonic()
        self._fill(now_s)
        chosen: set[str] = set()  # tasks
        delayed_bytes = 0
        first = self._random.randrange(len(directives)) if directives else 0  # what always fails delays no other
        for directive in directives[first:] + directives[:first]:
            key = device_id, directive.task, directive.manifest
            size = self._size_of(directive)
            if key in self._under_way:
                chosen.add(directive.task)
            elif self._has_room():
                self._left = [left - cost for left, cost in zip(self._left, (1.0, size), strict=True)]
                self._under_way[key] = now_s + self._again_s
                self.admitted += 1
                chosen.add(directive.task)
            else:
                delayed_bytes += size
        while len(self._under_way) > MAX_ADMITTED:
            self._under_way.popitem(last=False)
        if len(chosen) == len(directives):
            return directives, 0
        self.delayed += 1
        self._waiting[0] += len(directives) - len(chosen)
        self._waiting[1] += delayed_bytes
        return tuple(one for one in directives if one.task in chosen), self._wait_s()

    def health(self) -> Mapping[str, Any]:
        """Return the counts; there is nothing that can fail."""
        return {"ok": True, "under_way": len(self._under_way), "admitted": self.admitted, "delayed": self.delayed}

    def metrics(self) -> list[Metric]:
        counts = counter("walle_pulls_total")
        counts.add_metric(["admitted"], self.admitted)
        counts.add_metric(["delayed"], self.delayed)
        return [counts]

    def _has_room(self) -> bool:
        return all(not rate or left >= 1 for rate, left in zip(self._rates, self._left, strict=True))

    def _fill(self, now_s: float) -> None:
        passed_s, self._filled_s = now_s - self._filled_s, now_s
        bounds = zip(self._left, self._rates, self._most, strict=True)
        self._left = [min(most, left + rate * passed_s) for left, rate, most in bounds]
        self._waiting = [waiting * math.exp(-passed_s / 30.0) for waiting in self._waiting]
        while self._under_way and next(iter(self._under_way.values())) <= now_s:
            self._under_way.popitem(last=False)

    def _wait_s(self) -> int:
        """Return a time within which the devices that wait would be admitted, one after another."""
        needed = [waiting / rate for waiting, rate in zip(self._waiting, self._rates, strict=True) if rate]
        return math.ceil(max(MIN_WAIT_S, min(MAX_WAIT_S, max(needed, default=0.0))))
