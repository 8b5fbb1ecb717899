"""Loss and measure of a training: those of walle.nn for classes, or functions of a user's file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walle import nn, np
from walle.adapt.goals.config import Training
from walle.adapt.masked.evaluation import accuracy
from walle.adapt.source import read_name
from walle.errors import ConfigError

_CLASSES = "cross_entropy"


@dataclass(frozen=True, slots=True)
class Objective:
    """`loss(outputs, labels)` is trained; `measure(outputs, labels)` is the accuracy, a share from 0 to 1.

    Outputs are those of the model: an array, or a tuple of them. `is_distilled`: outputs of the given model are learned
    too, as those of classes.
    """

    loss: Callable[[Any, Any], Any]
    measure: Callable[[Any, Any], float]
    is_distilled: bool

    @classmethod
    def of(cls, training: Training, folder: Path) -> Objective:
        """Return the loss and the measure that a file of goals names, its functions in files below `folder`.

        Raises:
            ConfigError: a function does not exist.
        """
        loss, measure = training.loss, training.metric
        of_user = ":" in loss
        found = _function(loss, folder, "loss") if of_user else getattr(nn.functional, loss, None)
        if found is None:
            raise ConfigError(f"walle.nn.functional has no loss {loss!r}; one of your own is FILE.py:FUNCTION")
        if measure == "accuracy":
            return cls(found, _of_classes, loss == _CLASSES)
        return cls(found, _share(_function(measure, folder, "metric"), measure), loss == _CLASSES)


def _function(source: str, folder: Path, what: str) -> Callable[..., Any]:
    if ":" not in source:
        raise ConfigError(f"[training], {what} {source!r} is not known; one of your own is FILE.py:FUNCTION")
    found = read_name(source, folder, f"[training], {what} {source!r}")
    if not callable(found):
        raise ConfigError(f"[training], {what} {source!r} is {type(found).__name__}; it must be a function")
    return found  # type: ignore[no-any-return]


def _of_classes(outputs: Any, labels: Any) -> float:
    return accuracy(outputs[0] if isinstance(outputs, tuple) else outputs, labels)


def _share(function: Callable[..., Any], name: str) -> Callable[[Any, Any], float]:
    def measure(outputs: Any, labels: Any) -> float:
        share = float(np.asarray(function(outputs, labels)))
        if not 0 <= share <= 1:
            raise ConfigError(f"[training], metric {name!r} gives {share:g}; it must be a share, from 0 to 1")
        return share

    return measure
