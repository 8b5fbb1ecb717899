"""Norm bound: updates longer than the bound are excluded or shortened to it; the rest is FedAvg.

Sun et al., Can You Really Backdoor Federated Learning? (2019), section 4. With a fixed bound one vector is in memory;
without one the bound is a multiple of the round's median norm, and the round's updates are held.
"""

from __future__ import annotations

import statistics
from typing import Any

from walle import np
from walle.federated.aggregation.fedavg import FedAvg, check_above_zero
from walle.federated.update import Update


class NormBound(FedAvg):
    """FedAvg of the updates within a bound of the Euclidean norm.

    Args:
        bound: the fixed bound; None for `times` the median norm of the round.
        clip: shorten longer updates instead of excluding them.
        weight_by_samples: weight updates by the samples that devices claim, which no bound of the norm limits.

    Raises:
        ConfigError: a setting is not above 0.
    """

    def __init__(
        self, bound: float | None = None, *, times: float = 1.5, clip: bool = False, weight_by_samples: bool = False
    ) -> None:
        super().__init__(weight_by_samples=weight_by_samples)
        check_above_zero("times", times)
        if bound is not None:
            check_above_zero("bound", bound)
        self._bound, self._times, self._clip = bound, times, clip

    def clear(self) -> None:
        super().clear()
        self._held: dict[str, Update] = {}

    def collect(self, client: str, update: Update) -> None:
        if self._bound is None:
            self._held[client] = update
        else:
            self._take(client, update, self._bound)

    def combine(self) -> Any:
        if self._held:
            bound = self._times * statistics.median(one.norm() for one in self._held.values())
            for client, update in self._held.items():
                self._take(client, update, bound)
        return super().combine() if self._weight else np.zeros(self.model.layout.size, "float64")

    def _take(self, client: str, update: Update, bound: float) -> None:
        norm = update.norm()
        if norm <= bound:
            super().collect(client, update)
            return
        reason = f"norm {norm:.6g} is above the bound {bound:.6g}"
        if not self._clip:
            self.exclude(client, reason)
            return
        self.report.limited[client] = f"{reason}; shortened to it"
        weight = self.weight_of(update)
        self._sum += update.difference.vector * (weight * bound / norm)
        self._weight += weight
