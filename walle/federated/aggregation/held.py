"""Base of the algorithms that compare the updates of one round: their memory is O(clients of the round x model)."""

from __future__ import annotations

from typing import Any

from walle import np
from walle.federated.aggregation.aggregator import Aggregator
from walle.federated.update import Update


class HeldUpdates(Aggregator):
    """Keeps each update until `finish`."""

    def clear(self) -> None:
        self._held: dict[str, Any] = {}

    def collect(self, client: str, update: Update) -> None:
        self._held[client] = update.difference.vector

    def clients(self) -> list[str]:
        """Return the clients by name, so that the result does not depend on the order of arrival."""
        return sorted(self._held)

    def rows(self) -> Any:
        """Return the updates, float32 (clients, values), in the order of `clients`."""
        return np.stack([self._held[client] for client in self.clients()])
