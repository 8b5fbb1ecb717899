"""The expanding step of MorphNet (Gordon et al. 2018, §4.2 of the paper): a model made wider for looser goals."""

from __future__ import annotations

from collections.abc import Sequence

from walle.adapt.costs.formula import CostFormula
from walle.adapt.goals.goal import Goal
from walle.adapt.structure.widen import can_widen

_HALVINGS = 20
_LEAST = 1.125  # a model that grows by less does not repay the training of the new channels


def widths_for(formula: CostFormula, goals: Sequence[Goal], most: float) -> list[int]:
    """Return the widest widths, in the proportions of the network's own, that the loosest of the goals allows.

    No group has more than `most` times its channels; those that cannot be copied keep theirs, and all do where the
    loosest goal allows less than an eighth more.
    """
    groups = formula.structure.groups

    def scaled(factor: float) -> list[int]:
        return [int(one.count * factor) if can_widen(one) else one.count for one in groups]

    def allows(factor: float) -> bool:
        costs = formula.of(scaled(factor))
        return any(goal.is_met_by(costs) for goal in goals)

    low, high = _LEAST, most
    if high < low or not allows(low):
        return scaled(1.0)
    if allows(high):
        return scaled(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if allows(middle) else (low, middle)
    return scaled(low)
