"""The interface to what runs batches: in this process, or in others."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from walle.cloud.inference.request import PhaseRequest
from walle.protocol import Manifest


@dataclasses.dataclass(slots=True, eq=False)
class ReleasedVersion:
    """A version that was released here. `sha256` names its manifest.

    `max_batch` is the manifest's until an engine finds that the task has no `execute_batch`; then 1.
    """

    sha256: str
    manifest: Manifest
    max_batch: int

    @classmethod
    def of(cls, sha256: str, manifest: Manifest) -> "ReleasedVersion":
        return cls(sha256, manifest, manifest.cloud.max_batch)

    @property
    def name(self) -> str:
        return f"{self.manifest.name} {self.manifest.version}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """`replicas` that can run batches, of `wanted` ones; what they have loaded; and how many were lost so far."""

    replicas: int
    wanted: int
    loaded_vms: int
    loaded_bytes: int
    lost: int


class Engine(Protocol):
    """Runs batches, `capacity` at once. `on_change` is called when the capacity has changed."""

    on_change: Callable[[], None]

    @property
    def capacity(self) -> int: ...

    async def run(self, version: ReleasedVersion, requests: Sequence[PhaseRequest]) -> list[bytes | Exception]:
        """Run requests of one phase; return the encoded result, or the error, of each.

        Raises:
            ReplicaLostError: it is not known which of them ran; they may be run again.
        """

    def state(self) -> EngineState: ...

    async def close(self) -> None: ...
