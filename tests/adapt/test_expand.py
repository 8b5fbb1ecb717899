"""Widths of a model that is made wider for looser goals."""

from __future__ import annotations

import pytest

from tests.adapt.networks import NAMES, network
from walle.adapt.costs.formula import CostFormula
from walle.adapt.expand import widths_for
from walle.adapt.goals.goal import Goal
from walle.adapt.structure.network import find_structure


def _formula(name: str) -> CostFormula:
    model, inputs = network(name)
    return CostFormula(find_structure(model, inputs), None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("constraint", ["operations", "parameters", "memory"])
def test_the_loosest_goal_is_filled_and_not_exceeded(name: str, constraint: str) -> None:
    formula = _formula(name)
    own, most = formula.whole()[constraint], formula.of([2 * width for width in formula.structure.widths])[constraint]
    loose = Goal("loose", {constraint: (own + most) / 2})
    tight = Goal("tight", {constraint: own / 2})
    widths = widths_for(formula, [tight, loose], 4.0)
    assert all(width >= before for width, before in zip(widths, formula.structure.widths, strict=True))
    assert sum(widths) > sum(formula.structure.widths)
    assert own < formula.of(widths)[constraint] <= loose.budgets[constraint]
    factor = min((width + 1) / before for width, before in zip(widths, formula.structure.widths, strict=True))
    more = [int(before * factor * 1.2) + 1 for before in formula.structure.widths]
    assert formula.of(more)[constraint] > loose.budgets[constraint]


def test_all_budgets_of_a_goal_count_and_the_limit_holds() -> None:
    formula = _formula("residual")
    own = list(formula.structure.widths)
    costs = formula.whole()
    free = Goal("free", {"operations": 1e12})
    assert widths_for(formula, [free], 2.0) == [2 * width for width in own]
    assert widths_for(formula, [free], 1.0) == own
    both = Goal("both", {"operations": 1e12, "parameters": costs["parameters"]})
    assert widths_for(formula, [both], 2.0) == own
    assert widths_for(formula, [both, free], 1.5) == [int(1.5 * width) for width in own]
    close = Goal("close", {"operations": 1.05 * costs["operations"]})
    assert widths_for(formula, [close], 2.0) == own
    assert widths_for(formula, [], 2.0) == own
