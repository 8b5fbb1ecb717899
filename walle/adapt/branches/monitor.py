"""The choice of a branch from observed latency and memory (§6: foreground path). Pure logic; times are arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_OVER = 1.0 + 1e-9  # rounding of a latency that is the budget itself


@dataclass(frozen=True, slots=True)
class Need:
    """Resources of a run with a branch: seconds on a machine without other load, and bytes."""

    latency_s: float
    memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run: seconds, and bytes; infinite where there is none."""

    latency_s: float = math.inf
    memory_bytes: float = math.inf


class Monitor:
    """The branch to run next, the last being the best and costliest.

    A run over the budget goes down at once, to the best branch that is expected to meet it. It goes up after `runs`
    runs in which a better branch would have met the budget with `margin` left, a share of the budget. Expected
    latencies are the needs, times the slowdown of the branch at hand.

    A branch that breaks the budget at once, on its first run after a way up, is not tried again for `hold_s` seconds,
    and for twice as long each further time: needs that are wrong do not make it go up and down.
    """

    def __init__(
        self, needs: Sequence[Need], budget: Budget, *, runs: int = 8, margin: float = 0.1, hold_s: float = 10.0
    ) -> None:
        if not needs:
            raise ValueError("a monitor needs at least one branch")
        self.needs = tuple(needs)
        self.budget = budget
        self._runs, self._margin, self._hold_s = runs, margin, hold_s
        self._slowdown = 1.0
        self._good = 0  # runs that allowed a better branch, one after the other
        self._better = 0  # the best branch that all of them allowed
        self._is_first = False  # says that the next run is the first after a way up
        self._failures = [0] * len(needs)
        self._held_until_s = [-math.inf] * len(needs)
        self.branch = self._best(len(needs) - 1, 0.0, -math.inf)

    def change(self, budget: Budget) -> int:
        """Take another budget, and return the branch: a lower one at once where the budget asks for it."""
        self.budget = budget
        self._good = 0
        self.branch = min(self.branch, self._best(self.branch, 0.0, -math.inf))
        return self.branch

    def observe(self, latency_s: float, now_s: float, memory_bytes: float = math.inf) -> int:
        """Take a run of the branch at hand, and return the branch of the next.

        `memory_bytes` are those that a run can have now; `now_s` is the time of any clock that does not go back.
        """
        was_first, self._is_first = self._is_first, False
        self._slowdown = latency_s / self.needs[self.branch].latency_s
        available = min(memory_bytes, self.budget.memory_bytes)
        is_late = latency_s > self.budget.latency_s * _OVER
        if is_late or self.needs[self.branch].memory_bytes > available:
            if is_late and was_first:
                self._hold(self.branch, now_s)
            self._good = 0
            if self.branch > 0:
                self.branch = self._best(self.branch - 1, 0.0, -math.inf, available)
            return self.branch
        if was_first:
            self._failures[self.branch] = 0
        better = self._best(len(self.needs) - 1, self._margin, now_s, available)
        if better <= self.branch:
            self._good = 0
            return self.branch
        self._better = better if self._good == 0 else min(self._better, better)
        self._good += 1
        if self._good >= self._runs:
            self._good = 0
            self._is_first = True
            self.branch = self._better
        return self.branch

    def _hold(self, branch: int, now_s: float) -> None:
        self._held_until_s[branch] = now_s + self._hold_s * 2.0 ** self._failures[branch]
        self._failures[branch] += 1

    def _best(self, most: int, margin: float, now_s: float, available: float | None = None) -> int:
        """Return the best branch up to `most` that is expected to meet the budget and is not held; 0 where none is.

        A time of minus infinity does not look at what is held.
        """
        limit_s = self.budget.latency_s * (1.0 - margin) * _OVER
        limit_bytes = self.budget.memory_bytes if available is None else available
        for branch in range(most, 0, -1):
            need = self.needs[branch]
            is_held = now_s > -math.inf and now_s < self._held_until_s[branch]
            if not is_held and need.latency_s * self._slowdown <= limit_s and need.memory_bytes <= limit_bytes:
                return branch
        return 0
