"""The abstraction of an adaptation algorithm (§4.2): load settings, measure a model, adjust the way to a goal."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from walle import nn
from walle.adapt.costs.formula import CostFormula, Costs
from walle.adapt.costs.hardware import Hardware
from walle.adapt.dataset import Dataset
from walle.adapt.goals.config import Training
from walle.adapt.goals.goal import Goal
from walle.adapt.masked.evaluation import outputs_of
from walle.adapt.masked.objective import Objective
from walle.adapt.structure.cut import Widths
from walle.adapt.structure.network import Structure, find_structure
from walle.errors import ConfigError

__all__ = ["AdaptationExecutor", "Settings"]

_TRACED_SAMPLES = 2


@dataclass(frozen=True)
class Settings:
    """Arguments of an algorithm: the model, data, hardware, and its own options.

    `teacher` is the model that was given, where `model` is a wider one made of it for looser goals.
    """

    model: nn.Module
    train: Dataset
    test: Dataset
    hardware: Hardware | None = None
    training: Training = field(default_factory=Training)
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    folder: Path = Path()  # base of the files that the training names
    teacher: nn.Module | None = None

    @property
    def given(self) -> nn.Module:
        """Return the model that was given."""
        return self.model if self.teacher is None else self.teacher

    @functools.cached_property
    def objective(self) -> Objective:
        """Loss and measure of the training; read once."""
        return Objective.of(self.training, self.folder)


class AdaptationExecutor(abc.ABC):
    """One algorithm. The loop calls `init` once, then `adjust`, `iterate` and `measure` until a goal is met.

    A subclass defines `iterate`, `channels`, `state` and `restore`; the loop keeps states as checkpoints, so that a
    path of goals can go on from any goal.
    """

    options: ClassVar[Mapping[str, float]] = {}  # names of options with their defaults
    tuning: ClassVar[float] = 1.0  # part of the usual training that a model needs after its channels are chosen

    def init(self, settings: Settings) -> None:
        """Load the settings, and find what can be removed from the model.

        Raises:
            ConfigError: nothing can be removed, or an option is not known or not a number above 0.
        """
        self.settings = settings
        self.structure = traced_structure(settings, settings.model)
        if not self.structure.groups:
            reasons = [f"axis {axis} of {name}: {why}" for (name, axis), why in sorted(self.structure.kept.items())]
            raise ConfigError(f"nothing can be removed from {type(settings.model).__name__}: {'; '.join(reasons[:3])}")
        unknown = sorted(set(settings.options) - set(self.options))
        if unknown:
            raise ConfigError(
                f"{type(self).__name__} has no option {unknown[0]!r}; it takes {', '.join(self.options) or 'none'}"
            )
        for name, value in settings.options.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise ConfigError(f"{type(self).__name__}'s option {name} is {value!r}; give a number above 0")
        self.option = {**self.options, **settings.options}
        self.formula = CostFormula(self.structure, settings.hardware)

    def measure(self, model: nn.Module) -> Costs:
        """Return the costs of a model by §4.1, and its accuracy on the test data."""
        costs = CostFormula(traced_structure(self.settings, model), self.settings.hardware).whole()
        outputs = outputs_of(model, self.settings.test.inputs)
        return costs | {"accuracy": self.settings.objective.measure(outputs, self.settings.test.labels)}

    @abc.abstractmethod
    def adjust(self, costs: Costs, goal: Goal, weights: Mapping[str, float]) -> None:
        """Turn the algorithm towards a goal: `weights` say how much each constraint counts, together 1 (§4.3)."""

    @abc.abstractmethod
    def iterate(self) -> int:
        """Take one iteration, and return its steps of training."""

    def preparation(self) -> int:
        """Return the iterations that come before those towards the goal, such as training that goals share."""
        return 0

    @abc.abstractmethod
    def channels(self) -> Widths:
        """Return the channels of each group that stay now."""

    @abc.abstractmethod
    def fitted(self, goal: Goal, steps: int) -> tuple[nn.Module, int]:
        """Return a model of its own that meets the goal's budgets, its weights trained by up to `steps` more, and how
        many these were.
        """

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Return arrays from which `restore` goes on."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""

    def costs(self) -> Costs:
        """Return the costs of the channels that stay now, by §4.1."""
        return self.formula.of([len(one) for one in self.channels()])


def traced_structure(settings: Settings, model: nn.Module) -> Structure:
    """Return what can be removed from a model for inputs like the data's."""
    return find_structure(model, [one[:_TRACED_SAMPLES] for one in settings.train.inputs])


def labels_of(dataset: Dataset) -> Any:
    """Return the labels as the losses of walle.nn take them."""
    return dataset.labels.astype("int64") if str(dataset.labels.dtype).startswith(("int", "uint")) else dataset.labels
