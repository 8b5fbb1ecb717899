"""Points of four classes, and a small network that learns them, for devices that tune."""

from __future__ import annotations

from typing import Any

from walle import nn, np
from walle.adapt.dataset import Dataset
from walle.adapt.tuning.distillation import TuningOptions

CLASSES = 4
QUICK = TuningOptions(batch=16, learning_rate=0.01, patience=5, max_epochs=40)


class Dense(nn.Module):
    """A small network; its width differs between devices."""

    def __init__(self, width: int = 8, outputs: int = CLASSES) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, width)
        self.score = nn.Linear(width, outputs)

    def forward(self, x: Any) -> Any:
        return self.score(nn.functional.relu(self.hidden(x)))


def dense(seed: int = 0, width: int = 8, outputs: int = CLASSES) -> Dense:
    nn.manual_seed(seed)
    return Dense(width, outputs)


def samples(count: int, seed: int = 0) -> Dataset:
    """Points around a centre for each class, with noise in which few samples mislead."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count)
    centres = np.random.default_rng(99).normal(size=(CLASSES, 6))
    points = (centres[labels] + random.normal(size=(count, 6))).astype("float32")
    return Dataset((points,), labels)
