"""A goal: what one fitted model may cost, and how exact it must be (§4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Constraint → its unit, without prefix.
UNITS = {"operations": "FLOP", "parameters": "", "memory": "B", "latency": "s"}
CONSTRAINTS = tuple(UNITS)


@dataclass(frozen=True, slots=True)
class Goal:
    """Budgets by constraint: multiply-adds, parameters, bytes of weights, seconds. `accuracy` is the least, 0 to 1.

    `rule` says which devices get the model when it is released, "" for all others.
    """

    name: str
    budgets: Mapping[str, float]
    accuracy: float | None = None
    rule: str = ""

    def is_met_by(self, costs: Mapping[str, float]) -> bool:
        """Return whether no cost is above its budget."""
        return all(costs[name] <= budget for name, budget in self.budgets.items())

    def reduction(self, costs: Mapping[str, float]) -> float:
        """Return the part of the costs that the goal takes away, of the constraint that takes most; 0 if it is met."""
        return max(1 - budget / max(costs[name], budget) for name, budget in self.budgets.items())

    def describe(self) -> str:
        """Return the budgets as text."""
        parts = [f"{name} ≤ {budget:g} {UNITS[name]}".rstrip() for name, budget in self.budgets.items()]
        return ", ".join([*parts, *([] if self.accuracy is None else [f"accuracy ≥ {self.accuracy:g}"])])


def constraints_of(goals: Iterable[Goal]) -> list[str]:
    """Return the constraints that any of the goals has, in a fixed order."""
    used = {name for goal in goals for name in goal.budgets}
    return [name for name in CONSTRAINTS if name in used]


def budget_rows(goals: Sequence[Goal], whole: Mapping[str, float]) -> list[list[float]]:
    """Return budgets as shares of the costs of the whole model, a row for each goal; infinite where a goal has none."""
    names = constraints_of(goals)
    return [[goal.budgets.get(name, float("inf")) / whole[name] for name in names] for goal in goals]
