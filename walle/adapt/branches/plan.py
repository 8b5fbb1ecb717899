"""The plan of a model of several branches: where they begin and end, and how wide each is (§6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from walle import nn
from walle.adapt.branches.features import features_of
from walle.adapt.branches.widths import Widths, least_parameters, plan_widths
from walle.adapt.costs.formula import CostFormula, Costs
from walle.adapt.structure.network import Structure, find_structure
from walle.engine_ext.nn.onnx_model import FileModel
from walle.engine_ext.nn.partition import Graph
from walle.errors import ConfigError

_MOST_POINTS = 12  # places that are weighed as beginnings and ends


@dataclass(frozen=True)
class BranchPlan:
    """Parts of a model: `base` and `end` stay, each branch has its own `middle` of other widths.

    `end` is None where branches give the outputs. `costs` are those of the whole model with each branch, `whole` those
    of the model that was given, `total` the parameters of all parts together.
    """

    base: FileModel
    middle: FileModel
    end: FileModel | None
    structure: Structure  # channels of the middle
    widths: tuple[Widths, ...]
    costs: tuple[Costs, ...]
    whole: Costs
    total: float

    @property
    def added(self) -> float:
        """Parameters that branches add, as a share of the model's."""
        return self.total / self.whole["parameters"] - 1.0

    @property
    def range(self) -> float:
        """Operations of the costliest branch by those of the cheapest."""
        return self.costs[-1]["operations"] / self.costs[0]["operations"]


def plan_branches(model: nn.Module, inputs: Sequence[Any], factors: Sequence[float], added: float) -> BranchPlan:
    """Return the plan whose branches differ most in operations, for inputs like these.

    `factors` are the operations of each middle, as shares of the model's own there; `added` is the limit of parameters
    that branches may add, as a share of the model's.

    Raises:
        ConfigError: no part of the model can be made narrower and wider within the limit.
    """
    least = math.inf
    found: list[BranchPlan] = []
    samples = [one[:2] for one in inputs]
    operations = CostFormula(find_structure(model, samples), None).whole()["operations"]
    for base, middle, end in _candidates(model, inputs):
        features = features_of(base, inputs)
        structure = find_structure(middle, [features])
        others = float(_parameters(base) + _parameters(end))
        whole = {"operations": operations, "parameters": others + _parameters(middle)}
        limit = whole["parameters"] * (1.0 + added) - others
        widths = plan_widths(structure, factors, limit)
        if widths is None:
            least = min(least, (least_parameters(structure, factors) + others) / whole["parameters"] - 1.0)
            continue
        found.append(_plan(base, middle, end, structure, widths, whole))
    if not found:
        raise ConfigError(
            f"no part of {type(model).__name__} can be {factors[0]:.2g} to {factors[-1]:.2g} times as costly"
            if math.isinf(least)
            else f"{len(factors)} branches add at least {least:.0%} of the parameters; the limit is {added:.0%}"
        )
    return max(found, key=lambda one: (one.range, -one.added))


def _candidates(model: nn.Module, inputs: Sequence[Any]) -> list[tuple[FileModel, FileModel, FileModel | None]]:
    """Return base, middle and end for each pair of places."""
    graph = Graph(model, [one[:2] for one in inputs])
    made: list[tuple[FileModel, FileModel, FileModel | None]] = []
    for point in _some(graph.points()):
        base = graph.base(point)
        features = features_of(base, inputs)
        if features is None or not _parameters(base):
            continue
        rest = graph.rest(point, features)
        inner = Graph(rest, [features])
        made.append((base, rest, None))
        for place in _some(inner.points()):
            middle = inner.base(place)
            reached = features_of(middle, [features])
            if reached is not None:
                made.append((base, middle, inner.rest(place, reached)))
    return made


def _some(points: list[Any]) -> list[Any]:
    if len(points) <= _MOST_POINTS:
        return points
    return [points[round(at * (len(points) - 1) / (_MOST_POINTS - 1))] for at in range(_MOST_POINTS)]


def _plan(base: FileModel, middle: FileModel, end: FileModel | None, structure: Structure, widths: list[Widths],
          whole: Costs) -> BranchPlan:  # fmt: skip
    formula = CostFormula(structure, None)
    own, each = formula.whole(), [formula.of(one) for one in widths]
    costs = [{name: whole[name] + one[name] - own[name] for name in whole} for one in each]
    total = whole["parameters"] - own["parameters"] + sum(one["parameters"] for one in each)
    return BranchPlan(base, middle, end, structure, tuple(widths), tuple(costs), whole, total)


def _parameters(part: FileModel | None) -> int:
    return 0 if part is None else sum(one.data.size for one in part.parameters())
