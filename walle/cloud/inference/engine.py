"""The interface to what runs batches: in this process, or in others."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A version that a process has loaded: in how many VMs, and the bytes of its files for all of them."""

    sha256: str
    name: str
    vms: int
    size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessState:
    """One process with replicas: whether it can be reached, the batches that it runs, and what it has loaded."""

    is_up: bool
    running: int
    loaded: tuple[LoadedVersion, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class EngineState:
    """The processes of an engine by number, and how many were `lost` so far.

    `discarded` are the interpreters that could not be reset after a version, by its name: see `VMPool.discarded`.
    """

    processes: tuple[ProcessState, ...]
    lost: int = 0
    discarded: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def up(self) -> int:
        return sum(process.is_up for process in self.processes)

    @property
    def loaded_vms(self) -> int:
        return sum(one.vms for process in self.processes for one in process.loaded)

    @property
    def loaded_bytes(self) -> int:
        return sum(one.size_bytes for process in self.processes for one in process.loaded)


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

    def is_loaded(self, version: ReleasedVersion) -> bool:
        """Return whether each process that can be reached has the version loaded."""

    async def load(self, version: ReleasedVersion, *, may_unload: bool) -> None:
        """Load a version before it is asked for, in one VM of each process that does not have it.

        With `may_unload`, others that were not used lately, or that have several VMs, make room for it.

        Raises:
            NoRoomError: it does not fit beside what is used.
            InferenceError, VMError: it cannot be loaded.
        """

    def keep(self, versions: Sequence[ReleasedVersion]) -> None:
        """Take note of the versions that devices may get: others are unloaded when they are not used any more."""

    def state(self) -> EngineState: ...

    async def close(self) -> None: ...
