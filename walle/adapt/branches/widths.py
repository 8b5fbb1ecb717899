"""Widths of branches: each meets a share of the tail's cost, and all together a limit of parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from walle.adapt.costs.formula import CostFormula
from walle.adapt.structure.network import Structure
from walle.adapt.structure.widen import can_widen

type Widths = tuple[int, ...]

_LEAST, _MOST = 1.0 / 3.0, 3.0  # costs of the first and the last branch, as shares of the tail's (§6)
_TILTS = (0.0, 0.2, 0.4, 0.6, 0.8)
_NARROWEST = 0.25  # share of a group's channels that a branch keeps
_FAR = math.log(1.2)  # largest distance of a branch's cost from the one that is wanted
_ROUNDS = 20


def factors_of(count: int) -> list[float]:
    """Return the costs of the branches as shares of the tail's: from a third to three times, at equal ratios."""
    return [_LEAST * (_MOST / _LEAST) ** (at / (count - 1)) for at in range(count)]


def plan_widths(structure: Structure, factors: Sequence[float], parameters: float) -> list[Widths] | None:
    """Return the widths of each branch, whose operations are about these shares of the structure's, or None.

    `parameters` is the limit of all branches together. Groups are scaled alike where that meets it; otherwise those
    that bring more operations for a parameter are made wider, and the others narrower, as little as is needed.
    """
    formula = CostFormula(structure, None)
    ratios = _ratios(formula)
    for tilt in _TILTS:
        planned = [_scaled(formula, ratios, factor, tilt) for factor in factors]
        if all(one is not None for one in planned):
            found = [one for one in planned if one is not None]
            if sum(formula.of(one)["parameters"] for one in found) <= parameters:
                return found
    return None


def least_parameters(structure: Structure, factors: Sequence[float]) -> float:
    """Return the fewest parameters of all branches together; infinite where there are none of these costs."""
    formula = CostFormula(structure, None)
    ratios = _ratios(formula)
    totals = [math.inf]
    for tilt in _TILTS:
        planned = [_scaled(formula, ratios, factor, tilt) for factor in factors]
        totals.append(sum(math.inf if one is None else formula.of(one)["parameters"] for one in planned))
    return min(totals)


def _ratios(formula: CostFormula) -> list[float]:
    """Return for each group the logarithm of operations by parameter of one more channel, the mean of all 0."""
    structure, whole = formula.structure, formula.whole()
    logs = []
    for at in range(len(structure.groups)):
        more = formula.of([width + (at == place) for place, width in enumerate(structure.widths)])
        operations = more["operations"] - whole["operations"]
        logs.append(math.log(max(operations, 1.0) / max(more["parameters"] - whole["parameters"], 1.0)))
    mean = sum(logs) / len(logs) if logs else 0.0
    return [one - mean for one in logs]


def _scaled(formula: CostFormula, ratios: Sequence[float], factor: float, tilt: float) -> Widths | None:
    """Return the groups whose operations are closest to a share of the whole's; None where none are close."""
    structure = formula.structure
    if not structure.groups:
        return None
    budget = formula.whole()["operations"] * factor
    if math.isclose(factor, 1.0):
        return structure.widths

    def widths(scale: float) -> Widths:
        found = []
        for group, ratio in zip(structure.groups, ratios, strict=True):
            least = max(min(2, group.count), math.ceil(group.count * _NARROWEST))
            width = max(least, round(group.count * math.exp(scale + tilt * ratio)))
            found.append(width if can_widen(group) else min(width, group.count))
        return tuple(found)

    low, high = -8.0, 4.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if formula.of(widths(middle))["operations"] <= budget:
            low = middle
        else:
            high = middle

    def distance(found: Widths) -> float:
        return abs(math.log(max(formula.of(found)["operations"], 1.0) / budget))

    found = min(widths(low), widths(high), key=distance)
    return found if distance(found) <= _FAR else None
