"""FedAvg: the mean of the updates, weighted by their numbers of samples; one vector in memory.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (AISTATS 2017), algorithm 1.
FedProx (`walle.federated.proximal`) has the same server's side.
"""

from __future__ import annotations

from typing import Any

from walle import np
from walle.errors import ConfigError
from walle.federated.aggregation.aggregator import Aggregator
from walle.federated.update import Update


class FedAvg(Aggregator):
    """The weighted mean, times `server_lr`.

    `weight_by_samples` False counts each client once: a device chooses its number of samples itself.

    Raises:
        ConfigError: `server_lr` is not above 0.
    """

    def __init__(self, *, server_lr: float = 1.0, weight_by_samples: bool = True) -> None:
        check_above_zero("server_lr", server_lr)
        self.server_lr = server_lr
        self._weight_by_samples = weight_by_samples

    def clear(self) -> None:
        self._sum = np.zeros(self.model.layout.size, "float64")
        self._weight = 0.0

    def collect(self, client: str, update: Update) -> None:  # noqa: ARG002 -- a mean needs no names
        weight = self.weight_of(update)
        self._sum += update.difference.vector * weight
        self._weight += weight

    def weight_of(self, update: Update) -> float:
        return float(update.samples) if self._weight_by_samples else 1.0

    def combine(self) -> Any:
        return self.mean() * self.server_lr

    def mean(self) -> Any:
        """Return the weighted mean of the differences, float64 (values)."""
        return self._sum / self._weight


def check_above_zero(name: str, value: float) -> None:
    """Refuse a setting that is not a number above 0.

    Raises:
        ConfigError: it is not.
    """
    if not value > 0.0:
        raise ConfigError(f"{name} is {value}; it is above 0")
