"""Base of algorithms that search widths: each group of channels is cut to its most important ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from walle import nn, np
from walle.adapt.algorithms.narrowing import Narrowing
from walle.adapt.costs.formula import Costs
from walle.adapt.executor import Settings, labels_of
from walle.adapt.goals.goal import Goal
from walle.adapt.masked.trainer import MaskedTrainer
from walle.adapt.structure.cut import Widths
from walle.errors import ConfigError

_BATCHES = 16  # batches that the importance of channels is measured on
_SAMPLES = 256  # training samples that measure the quality of a network
_ALWAYS_OPEN = 30.0  # a gate's number whose chance is 1 in float32, so that training does not change it


class Quality:
    """Mean probability that a masked network gives the right class: an accuracy that small changes move.

    The network normalizes by the statistics of the batch, so that one set of weights is compared at all widths.
    """

    def __init__(self, trainer: MaskedTrainer) -> None:
        self._trainer = trainer
        data = trainer.settings.train
        order = np.random.default_rng(trainer.settings.seed).permutation(len(data))
        self._inputs = data.part(order[:_SAMPLES])[:-1]
        self._labels = labels_of(data)[order[:_SAMPLES]].reshape(-1, 1)

    def of(self, kept: Widths) -> float:
        """Return the quality with these channels, which the network has from now on."""
        self._trainer.network.mask = self._trainer.mask_of(kept)
        chances = nn.functional.softmax(self._trainer.by_batch(*self._inputs), -1)
        return float(np.mean(np.take_along_axis(chances, self._labels, 1)))


class Ranking(Narrowing):
    """A network at some widths; goals of a path take ever smaller ones."""

    def init(self, settings: Settings) -> None:
        if settings.training.loss != "cross_entropy":
            raise ConfigError(
                f"{type(self).__name__} compares networks by the probability of the right class: it takes the loss "
                f"cross_entropy, not {settings.training.loss}"
            )
        super().init(settings)
        self.widths = list(self.structure.widths)
        self._scores: list[list[float]] = []  # importance of the given model's channels

    def adjust(self, costs: Costs, goal: Goal, weights: Mapping[str, float]) -> None:
        _ = costs  # those of the widths
        self._goal, self._weights = goal, weights

    def channels(self) -> Widths:
        return self._prefixes(self.widths)

    def fitted(self, goal: Goal, steps: int) -> tuple[nn.Module, int]:
        self.widths = self._widened(goal)
        self._shrink(self.channels())
        self._most, kept = list(self.widths), self.channels()
        trainer = self.trainer
        trainer.network.mask = trainer.mask_of(kept)
        taken = trainer.settle(steps)
        return self._measured(trainer.model(kept), kept), taken

    def state(self) -> dict[str, Any]:
        return {**super().state(), "widths": np.asarray(self.widths, "int64")}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.widths = self._most = state["widths"].tolist()

    def _take(self, trainer: MaskedTrainer, kept: Widths) -> None:
        super()._take(_opened(trainer), kept)
        self.quality = Quality(trainer)
        self.widths = self._most = list(self.structure.widths)
        self._order: list[list[int]] = []

    def _whole_trainer(self) -> MaskedTrainer:
        """Return a trainer of the given model."""
        return _opened(MaskedTrainer(self.settings, self.settings.model, self._whole, self.trainer.teacher))

    def ranked(self) -> list[list[int]]:
        """Return the channels of each group of the network at hand, the most important first."""
        if not self._scores:
            self._scores = self._whole_trainer().importance(_BATCHES)
        if not self._order:
            for scores, kept in zip(self._scores, self._kept, strict=True):
                self._order.append(sorted(range(len(kept)), key=lambda at: -scores[kept[at]]))
        return self._order

    def _prefixes(self, widths: Sequence[int]) -> Widths:
        if list(widths) == list(self.structure.widths):
            return [list(range(width)) for width in widths]
        return [sorted(order[:width]) for order, width in zip(self.ranked(), widths, strict=True)]

    def _widened(self, goal: Goal) -> list[int]:
        """Return the widths with all channels that the goal has room for, the most important ones first."""
        widths, open_groups = list(self.widths), set(range(len(self.widths)))
        while open_groups := {at for at in open_groups if widths[at] < self._most[at]}:
            at = max(open_groups, key=lambda at: (self._next_score(at, widths[at]), -at))
            widths[at] += 1
            if not goal.is_met_by(self.formula.of(widths)):
                widths[at] -= 1
                open_groups.discard(at)
        return widths

    def _next_score(self, group: int, width: int) -> float:
        return self._scores[group][self._kept[group][self.ranked()[group][width]]]


def _opened(trainer: MaskedTrainer) -> MaskedTrainer:
    """Open all gates of a trainer, which only its mask closes from now on."""
    network = trainer.network
    network.gates.data = np.full(network.gates.shape, network.number(_ALWAYS_OPEN), "float32")
    return trainer
