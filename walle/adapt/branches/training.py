"""Branches of a plan, cut or widened from the model's own layers and trained one by one with distillation (§6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from walle import nn, np, optim
from walle.adapt.branches.plan import BranchPlan
from walle.adapt.branches.widths import Widths
from walle.adapt.dataset import Dataset
from walle.adapt.executor import labels_of
from walle.adapt.goals.config import Training
from walle.adapt.masked.trainer import distilled_loss
from walle.adapt.structure.cut import cut
from walle.adapt.structure.network import Group, Structure, find_structure
from walle.adapt.structure.widen import widen
from walle.errors import ConfigError

_NOISE = 0.1  # deviation of the noise on copies, as a share of their array's


class Joined(nn.Module):
    """A branch with the end that follows it."""

    def __init__(self, middle: nn.Module, end: nn.Module | None) -> None:
        super().__init__()
        self.middle, self.end = middle, end
        if end is not None:
            for parameter in end.parameters():
                parameter.requires_grad = False

    def forward(self, x: Any) -> Any:
        found = self.middle(x)
        return found if self.end is None else self.end(found)


def resized(plan: BranchPlan, widths: Widths, features: Any, seed: int) -> nn.Module:
    """Return the middle with other widths: channels that matter least are cut, others copied with some noise."""
    structure = plan.structure
    kept = [
        _strongest(plan.middle, group, min(width, group.count))
        for group, width in zip(structure.groups, widths, strict=True)
    ]
    smaller = cut(plan.middle, structure, kept)
    again: Structure = find_structure(smaller, [features])
    wanted = dict(zip((_signature(group) for group in structure.groups), widths, strict=True))
    return widen(smaller, again, [wanted[_signature(group)] for group in again.groups], noise=_NOISE, seed=seed)


def _signature(group: Group) -> frozenset[Any]:
    """Return the axes of a group with the places of a channel, which are the same at all widths."""
    return frozenset((axis, len(places[0])) for axis, places in group.places.items())


def _strongest(model: nn.Module, group: Group, count: int) -> list[int]:
    """Return the channels that are read with the largest weights, ascending."""
    parameters = dict(model.named_parameters())
    strengths = [0.0] * group.count
    for name, axis in group.consumers:
        squares = np.square(np.moveaxis(parameters[name].data, axis, 0).reshape(parameters[name].shape[axis], -1))
        sums = np.sum(squares, axis=1).tolist()
        for channel, places in enumerate(group.places[name, axis]):
            strengths[channel] += sum(sums[place] for place in places)
    return sorted(sorted(range(group.count), key=lambda one: -strengths[one])[:count])


def distil(
    student: nn.Module,
    data: Dataset,
    teacher: Any,
    training: Training,
    seed: int,
    on_step: Callable[[], None] = lambda: None,
) -> None:
    """Train a branch on labels and on the outputs of the given model; the learning rate goes down to a tenth.

    `teacher` has these outputs for all samples. `on_step` is called after each step.

    Raises:
        ConfigError: walle.nn.functional lacks the loss.
    """
    loss = getattr(nn.functional, training.loss, None)
    if loss is None:
        raise ConfigError(f"walle.nn.functional has no loss {training.loss!r}")

    def plain(output: Any, labels: Any, _teacher: Any) -> Any:
        return loss(output, labels)

    def distilled(output: Any, labels: Any, teacher: Any) -> Any:
        return distilled_loss(loss(output, labels), output, teacher)

    step = nn.TrainStep(
        student, distilled if training.loss == "cross_entropy" else plain, optim.Adam(lr=training.learning_rate)
    )
    labels = labels_of(data)
    for at, places in enumerate(_batches(len(data), training, seed)):
        step.optimizer.lr = training.learning_rate * (1.0 - 0.9 * at / training.steps)
        step(*(one[places] for one in data.inputs), labels[places], teacher[places])
        on_step()


def _batches(count: int, training: Training, seed: int) -> Sequence[Any]:
    """Return the samples of each step: each sample once in a pass over the data."""
    random = np.random.default_rng(seed)
    size = min(training.batch, count)
    found: list[Any] = []
    while len(found) < training.steps:
        order = random.permutation(count)
        found += [order[first : first + size] for first in range(0, count - size + 1, size)]
    return found[: training.steps]
