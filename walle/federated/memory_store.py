"""Journal, models and bodies in memory: for simulations and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walle.federated.weights import Weights


class MemoryStore:
    """A `walle.federated.coordinator.RoundStore` that ends with the process."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._updates: dict[str, bytes] = {}
        self._models: dict[int, tuple[bytes, dict[str, Any]]] = {}

    def append(self, record: Mapping[str, Any]) -> None:
        self.records.append(dict(record))

    def put_update(self, digest: str, body: bytes) -> None:
        self._updates[digest] = body

    def update(self, digest: str) -> bytes:
        return self._updates[digest]

    def drop_updates(self) -> None:
        self._updates.clear()

    def put_model(self, version: int, model: Weights, state: Mapping[str, Any]) -> None:
        self._models[version] = model.to_bytes(), dict(state)

    def model(self, version: int) -> tuple[Weights, Mapping[str, Any]]:
        body, state = self._models[version]
        return Weights.of_bytes(body), state
