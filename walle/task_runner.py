"""Runs installed task versions in VMs: what a device does at a trigger, and the cloud in its simulation."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from walle.engine_ext.vm import boot
from walle.engine_ext.vm.vm import VMPool
from walle.errors import VMError
from walle.pipeline.stream_engine import TaskOutput, Trigger
from walle.protocol import Attribute, Manifest

_LOAD = "walle.pipeline.context:load"
_RUN = "walle.pipeline.context:run"
_PHASE = "walle.pipeline.context:phase"
_DEFAULT_DEADLINE_MS = 500
_LOAD_S = 2.0  # the least time that a version has for loading
PHASE_TOPIC = "phase"  # of tunnel requests that hand a phase to the cloud
_ON_CLOUD = ("cloud", "auto")  # what task.toml says of a phase that may run there

type Host = Mapping[str, Callable[..., Any]]

boot.carry("walle.pipeline", "walle.pipeline.context", "walle.pipeline.events", "walle.pipeline.stream")


class TaskOutputError(VMError):
    """A run gave something else than the runtime does: the task has reached into the runtime of its VM."""


class PhasePlaceError(VMError):
    """A phase was handed to the cloud that task.toml does not let run there."""

    def __init__(self, manifest: Manifest, phase: str) -> None:
        super().__init__(
            f"task.toml of {manifest.name} {manifest.version} does not let {phase[:100]!r} run on the cloud;"
            ' put it under [phases] as "auto" or "cloud"'
        )
        self.task = manifest.name
        self.version = manifest.version
        self.phase = phase


def deadline_s(manifest: Manifest) -> float:
    """Return how long one run of the task may take."""
    return manifest.limits.get("deadline_ms", _DEFAULT_DEADLINE_MS) / 1000


@dataclasses.dataclass(frozen=True)
class _Version:
    """A version as the pool takes it: where it lies, what its errors call it, and what it may take."""

    folder: Path
    name: str
    limits: Mapping[str, int]

    @classmethod
    def of(cls, files: Path, manifest: Manifest) -> "_Version":
        return cls(files, f"{manifest.name} {manifest.version}", manifest.limits)


class TaskRunner:
    """A pool of VMs and the way tasks are called in them. Runs of one version share its VM and follow one another."""

    def __init__(self, vms: int) -> None:
        self._pool = VMPool(vms)

    async def load(self, files: Path, manifest: Manifest) -> None:
        """Load a version's modules as a run would, running none of its phases.

        Raises:
            VMError: it does not load; the message has the traceback.
        """
        limit_s = max(_LOAD_S, deadline_s(manifest))
        await self._pool.call(_Version.of(files, manifest), _LOAD, deadline=limit_s)

    async def run(
        self, files: Path, manifest: Manifest, trigger: Trigger, device: Mapping[str, Attribute], host: Host
    ) -> TaskOutput:
        """Run the phases of a version on a trigger and return what it gave.

        Raises:
            VMError: the task raised, ran past its deadline, or reached for what it may not have.
        """
        plain = trigger.to_plain()
        events = plain.pop("page_events")
        version = _Version.of(files, manifest)
        places = dict(manifest.phases)
        result = await self._pool.call(
            version, _RUN, plain, events, dict(device), places, deadline=deadline_s(manifest), host=host
        )
        try:
            return TaskOutput(result["output"], [(topic, payload) for topic, payload in result["puts"]])
        except (KeyError, TypeError, ValueError) as error:
            what = f"{manifest.name} {manifest.version} gave a {type(result).__name__} from its runtime ({error!r})"
            raise TaskOutputError(what) from error

    async def phase(
        self, files: Path, manifest: Manifest, phase: str, payload: Any, device: Mapping[str, Attribute]
    ) -> Any:
        """Run one phase that a device handed over, as fallback inference does, and return its result.

        Raises:
            PhasePlaceError: the phase is to run on devices only.
            VMError: as `run`.
        """
        if manifest.phases.get(phase) not in _ON_CLOUD:
            raise PhasePlaceError(manifest, phase)
        version = _Version.of(files, manifest)
        return await self._pool.call(version, _PHASE, phase, payload, dict(device), deadline=deadline_s(manifest))

    async def close(self) -> None:
        """Stop every VM."""
        self._pool.close()
