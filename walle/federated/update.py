"""Update of a device: the change that its training made, the number of samples, and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from walle import np
from walle.federated.weights import Weights


@dataclass(frozen=True, eq=False)
class Update:
    """Result of a device's training as it is sent. `round_number` is that of the model from which it trained."""

    round_number: int
    samples: int
    difference: Weights  # the trained weights less the global model
    metrics: Mapping[str, float] = field(default_factory=dict)

    def norm(self) -> float:
        """Return the Euclidean norm of the difference."""
        return math.sqrt(float(np.dot(self.difference.vector, self.difference.vector)))


@dataclass(frozen=True)
class Trained:
    """Result of a device's training: its weights, the number of samples, and metrics such as the loss."""

    weights: Weights
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def update(self, model: Weights, round_number: int) -> Update:
        """Return the update that leads from the global model to these weights.

        Raises:
            WeightsError: the model has other arrays.
        """
        return Update(round_number, self.samples, self.weights.difference(model), self.metrics)
