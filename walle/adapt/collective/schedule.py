"""Structure-loss scheduling: how much each constraint counts on the way to a goal (§4.3)."""

from __future__ import annotations

from collections.abc import Mapping

from walle.adapt.goals.goal import Goal

PERIOD_STEPS = 200  # steps between two changes of the weights (§4.3, k)


class LossSchedule:
    """Weights by share: each constraint by how far its cost still is from its budget, as part of the whole way."""

    def __init__(self, goal: Goal, costs: Mapping[str, float], period_steps: int = PERIOD_STEPS) -> None:
        self._goal, self._first, self._period = goal, dict(costs), period_steps
        self._next = 0
        self.weights = dict.fromkeys(goal.budgets, 1.0 / len(goal.budgets))

    def update(self, costs: Mapping[str, float], steps: int) -> Mapping[str, float]:
        """Return the weights, which change with these costs once in a period of steps."""
        if steps >= self._next + self._period:
            self._next = steps
            shares = {name: self._share(name, costs) for name in self._goal.budgets}
            total = sum(shares.values())
            if total > 0:
                self.weights = {name: share / total for name, share in shares.items()}
        return self.weights

    def _share(self, name: str, costs: Mapping[str, float]) -> float:
        budget, first, now = self._goal.budgets[name], self._first[name], costs[name]
        if now <= budget:
            return 0.0
        return (budget - now) / (budget - first) if first > budget else 1.0
