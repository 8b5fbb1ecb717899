"""Runner of installed task versions in VMs: on a device at a trigger, on the cloud in simulation and fallback."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.engine_ext.vm import boot
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.pool import VMPool
from walle.errors import VMError
from walle.pipeline.stream_engine import TaskOutput, Trigger
from walle.protocol import Attribute, Manifest

_LOAD = "walle.pipeline.context:load"
_RUN = "walle.pipeline.context:run"
_PHASE = "walle.pipeline.context:phase"
_DEFAULT_DEADLINE_MS = 500
_LOAD_S = 2.0  # the minimum time that a version has for loading
PHASE_TOPIC = "phase"  # of tunnel requests that hand a phase to the cloud
_ON_CLOUD = ("cloud", "auto")  # values in task.toml of a phase that may run there

boot.register_modules("walle.pipeline", "walle.pipeline.context", "walle.pipeline.events", "walle.pipeline.stream")


class TaskOutputError(VMError):
    """A run returned another value than the runtime does: the task has changed the runtime of its VM."""


class PhasePlaceError(VMError):
    """A phase was sent to the cloud that task.toml does not allow there."""

    def __init__(self, manifest: Manifest, phase: str) -> None:
        super().__init__(
            f"task.toml of {manifest.name} {manifest.version} does not allow {phase[:100]!r} on the cloud;"
            ' put it under [phases] as "auto" or "cloud"'
        )
        self.task = manifest.name
        self.version = manifest.version
        self.phase = phase


def deadline_s(manifest: Manifest) -> float:
    """Return the time limit of one run of the task, in seconds."""
    return manifest.limits.get("deadline_ms", _DEFAULT_DEADLINE_MS) / 1000


@dataclasses.dataclass(frozen=True)
class _Version:
    """A version as the pool takes it: its folder, its name in errors, and its limits."""

    folder: Path
    name: str
    limits: Mapping[str, int]

    @classmethod
    def of(cls, files: Path, manifest: Manifest) -> "_Version":
        return cls(files, f"{manifest.name} {manifest.version}", manifest.limits)


class TaskRunner:
    """Runs task versions in a pool of VMs. Runs of one version share its VM and follow one another."""

    def __init__(self, vms: int) -> None:
        self._pool = VMPool(vms)

    async def load(self, files: Path, manifest: Manifest) -> None:
        """Load a version's modules as a run would, without running a phase.

        Raises:
            VMError: it does not load; the message contains the traceback.
        """
        limit_s = max(_LOAD_S, deadline_s(manifest))
        await self._pool.call(_Version.of(files, manifest), _LOAD, deadline=limit_s)

    async def run(
        self,
        files: Path,
        manifest: Manifest,
        trigger: Trigger,
        device: Mapping[str, Attribute],
        callbacks: Callbacks,
    ) -> TaskOutput:
        """Run the phases of a version on a trigger and return its output.

        Raises:
            VMError: the task raised, exceeded a limit, or imported what is not allowed.
        """
        plain = trigger.to_plain()
        events = plain.pop("page_events")
        version = _Version.of(files, manifest)
        places = dict(manifest.phases)
        result = await self._pool.call(
            version, _RUN, plain, events, dict(device), places, deadline=deadline_s(manifest), callbacks=callbacks
        )
        try:
            return TaskOutput(result["output"], [(topic, payload) for topic, payload in result["puts"]])
        except (KeyError, TypeError, ValueError) as error:
            what = f"{manifest.name} {manifest.version} returned a {type(result).__name__} from its runtime ({error!r})"
            raise TaskOutputError(what) from error

    async def phase(
        self, files: Path, manifest: Manifest, phase: str, payload: Any, device: Mapping[str, Attribute]
    ) -> Any:
        """Run one phase that a device sent, as fallback inference does, and return its result.

        Raises:
            PhasePlaceError: the phase may run on devices only.
            VMError: as `run`.
        """
        if manifest.phases.get(phase) not in _ON_CLOUD:
            raise PhasePlaceError(manifest, phase)
        version = _Version.of(files, manifest)
        return await self._pool.call(version, _PHASE, phase, payload, dict(device), deadline=deadline_s(manifest))

    async def close(self) -> None:
        """Stop every VM."""
        self._pool.close()
