"""Goals that no model can meet or that contradict each other, named before hours are spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from walle.adapt.goals.goal import UNITS, Goal
from walle.errors import ConfigError


class UnmetGoalError(ConfigError):
    """Goals that no model can meet, or that contradict each other."""


def problems_of(goals: Sequence[Goal], least: Mapping[str, float], accuracy: float) -> list[str]:
    """Return what is wrong with goals for a model whose least costs and own accuracy are these; each names its goal."""
    found = []
    for goal in goals:
        for name, budget in goal.budgets.items():
            if budget < least[name]:
                found.append(
                    f"goal {goal.name!r}: {name} {budget:g} is below {least[name]:g} {UNITS[name]}".rstrip()
                    + ", which the model costs with one channel in each layer"
                )
        if goal.accuracy is not None and goal.accuracy > accuracy:
            found.append(
                f"goal {goal.name!r}: accuracy {goal.accuracy:g} is above that of the whole model, {accuracy:.4g}"
            )
    budgets: dict[tuple[tuple[str, float], ...], Goal] = {}
    for goal in goals:
        key = tuple(sorted(goal.budgets.items()))
        if (other := budgets.setdefault(key, goal)) is not goal and other.accuracy == goal.accuracy:
            found.append(f"goals {other.name!r} and {goal.name!r} have the same budgets")
    return found
