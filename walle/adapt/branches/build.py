"""A model of several branches, made of a trained one (§6): planned, trained branch by branch, and written as a file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from walle import nn
from walle.adapt.branches.file import Branch, Parts, write_branches
from walle.adapt.branches.plan import plan_branches
from walle.adapt.branches.training import Joined, distil, resized
from walle.adapt.branches.widths import factors_of
from walle.adapt.dataset import Dataset
from walle.adapt.goals.config import Training
from walle.adapt.masked.evaluation import accuracy, outputs_of
from walle.engine_ext.nn.partition import Graph
from walle.errors import ConfigError

_COUNTS = range(2, 10)
_TRACED_SAMPLES = 2
_GENTLY = 0.3  # share of the learning rate for wider branches, which begin as exact as the model


@dataclass(frozen=True)
class BranchSettings:
    """Number of branches, the limit of parameters that they add (a share of the model's), and their training."""

    count: int = 3
    added: float = 0.6
    training: Training = field(default_factory=Training)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Branched:
    """A file of branches, the cheapest first; `own` is the number of that which is the given model, -1 without one.

    `added` are the parameters beyond the model's, as a share of these; `accuracy` is the model's.
    """

    file: str
    branches: tuple[Branch, ...]
    own: int
    operations: float
    parameters: float
    accuracy: float
    added: float


def make_branches(
    model: nn.Module,
    train: Dataset,
    test: Dataset,
    out: Path,
    settings: BranchSettings,
    on_progress: Callable[[int, int], None] = lambda _done, _steps: None,
) -> Branched:
    """Write a model with branches on one base, from a third of the cost of the branched part to three times.

    The base and the end keep the model's weights; each branch learns from labels and from the model's outputs. The
    branch that costs as much as the model is the model itself. `on_progress` gets steps that are done, of how many.

    Raises:
        ConfigError: a number of branches that is not made, no part of the model that can be branched in the limit, or
            an output folder that cannot be made.
    """
    if settings.count not in _COUNTS:
        raise ConfigError(f"{settings.count} branches; {_COUNTS[0]} to {_COUNTS[-1]} are made")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: {error}") from error
    factors = factors_of(settings.count)
    samples = [one[:_TRACED_SAMPLES] for one in train.inputs]
    plan = plan_branches(model, samples, factors, settings.added)
    own = next((at for at, factor in enumerate(factors) if math.isclose(factor, 1.0)), -1)
    before = outputs_of(plan.base, train.inputs), outputs_of(plan.base, test.inputs)
    learnt = Dataset((before[0],), train.labels)
    teacher = outputs_of(model, train.inputs)
    total = settings.training.steps * (settings.count - (own >= 0))
    steps = itertools.count(1)
    middles: list[nn.Module] = []
    branches: list[Branch] = []
    for at, (widths, costs) in enumerate(zip(plan.widths, plan.costs, strict=True)):
        student = Joined(plan.middle, plan.end)
        if at != own:
            student = Joined(resized(plan, widths, before[0][:_TRACED_SAMPLES], settings.seed + at), plan.end)
            rate = settings.training.learning_rate * (_GENTLY if factors[at] > 1.0 else 1.0)
            training = replace(settings.training, learning_rate=rate)
            distil(student, learnt, teacher, training, settings.seed + at, lambda: on_progress(next(steps), total))
        reached = accuracy(outputs_of(student, before[1:]), test.labels)
        middles.append(student.middle)
        branches.append(Branch(costs["operations"], costs["parameters"], reached))
    graph = Graph(model, samples)
    names = graph.input_names, graph.output_names
    write_branches(out, Parts(plan.base, middles, plan.end, names), samples, branches)
    given = accuracy(outputs_of(model, test.inputs), test.labels)
    return Branched(
        str(out), tuple(branches), own, plan.whole["operations"], plan.whole["parameters"], given, plan.added
    )
