"""FedBuff: asynchronous updates in a buffer, older ones with less weight; one vector in memory.

Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (AISTATS 2022), algorithm 1. The size K of the
buffer is the target of a round (`walle.federated.round.RoundSettings`), whose `max_staleness` lets devices answer
after the round in which they were drawn.
"""

from __future__ import annotations

import math

from walle.federated.aggregation.fedavg import FedAvg
from walle.federated.update import Update


class FedBuff(FedAvg):
    """The sum of differences over their count K, each times 1 / sqrt(1 + s), times `server_lr`.

    The staleness s is the number of models that were made since the device began.

    Raises:
        ConfigError: `server_lr` is not above 0.
    """

    def __init__(self, *, server_lr: float = 1.0) -> None:
        super().__init__(server_lr=server_lr, weight_by_samples=False)

    def collect(self, client: str, update: Update) -> None:  # noqa: ARG002 -- a sum needs no names
        staleness = self.round_number - update.round_number
        self._sum += update.difference.vector * (1.0 / math.sqrt(1.0 + staleness))
        self._weight += 1.0
