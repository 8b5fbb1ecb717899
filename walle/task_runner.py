"""Runs of installed task versions in VMs: on a device, in the cloud's simulation, and for fallback inference."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from walle.engine_ext.vm import boot
from walle.engine_ext.vm.imports import ForbiddenImport
from walle.engine_ext.vm.loop_calls import LimitExceeded, TaskError
from walle.engine_ext.vm.vm import VMPool
from walle.errors import VMError
from walle.pipeline.stream_engine import TaskOutput, Trigger
from walle.protocol import Attribute, Manifest
from walle.task_log import OnLog, TaskLog, parse_lines

_LOAD = "walle.pipeline.context:load"
_RUN = "walle.pipeline.context:run"
_PHASE = "walle.pipeline.context:phase"
_TAKE_LOG = "walle.pipeline.context:take_log"
_DEFAULT_DEADLINE_MS = 500
_LOAD_S = 2.0  # the least time that a version has for loading
PHASE_TOPIC = "phase"  # of tunnel requests that hand a phase to the cloud
_ON_CLOUD = ("cloud", "auto")  # what task.toml says of a phase that may run there

type Host = Mapping[str, Callable[..., Any]]

boot.carry("walle.pipeline", "walle.pipeline.context", "walle.pipeline.events", "walle.pipeline.stream")


class TaskOutputError(VMError):
    """A result that the runtime does not give: the task has reached into the runtime of its VM."""


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


def _output_error(manifest: Manifest, result: object, error: Exception) -> TaskOutputError:
    what = f"{manifest.name} {manifest.version} gave a {type(result).__name__} from its runtime ({error!r})"
    return TaskOutputError(what)


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

    def __init__(self, vms: int, *, task_log: TaskLog | None = None) -> None:
        self._pool = VMPool(vms)
        self._task_log = task_log or TaskLog("cloud")

    async def load(self, files: Path, manifest: Manifest, *, on_log: OnLog | None = None) -> None:
        """Load a version's modules as a run would, running none of its phases.

        `on_log` gets what the version logs, here and below; without it, the runner's `task_log` does.

        Raises:
            VMError: it does not load; the message has the traceback.
        """
        limit_s = max(_LOAD_S, deadline_s(manifest))
        log = self._log(manifest, on_log)
        version = _Version.of(files, manifest)
        await self._call(version, log, _LOAD, deadline=limit_s, host=None)
        await self._hand_over_log(version, log)

    async def run(
        self,
        files: Path,
        manifest: Manifest,
        trigger: Trigger,
        device: Mapping[str, Attribute],
        host: Host,
        *,
        on_log: OnLog | None = None,
    ) -> TaskOutput:
        """Run the phases of a version on a trigger and return its output.

        `on_log` is called before this returns or raises; not for a run that is cancelled.

        Raises:
            VMError: the task raised, ran past its deadline, or reached for what it may not have.
        """
        plain = trigger.to_plain()
        events = plain.pop("page_events")
        version = _Version.of(files, manifest)
        places = dict(manifest.phases)
        log = self._log(manifest, on_log)
        result = await self._call(
            version, log, _RUN, plain, events, dict(device), places, deadline=deadline_s(manifest), host=host
        )
        try:
            lines = parse_lines(result["log"])
            output = TaskOutput(result["output"], [(topic, payload) for topic, payload in result["puts"]])
        except (KeyError, TypeError, ValueError) as error:
            raise _output_error(manifest, result, error) from error
        log(lines)
        return output

    async def phase(
        self,
        files: Path,
        manifest: Manifest,
        phase: str,
        payload: Any,
        device: Mapping[str, Attribute],
        *,
        on_log: OnLog | None = None,
    ) -> Any:
        """Run one phase that a device handed over, as fallback inference does, and return its result.

        Raises:
            PhasePlaceError: the phase is to run on devices only.
            VMError: as `run`.
        """
        if manifest.phases.get(phase) not in _ON_CLOUD:
            raise PhasePlaceError(manifest, phase)
        version = _Version.of(files, manifest)
        log = self._log(manifest, on_log)
        result = await self._call(
            version, log, _PHASE, phase, payload, dict(device), deadline=deadline_s(manifest), host=None
        )
        try:
            lines, output = parse_lines(result["log"]), result["output"]
        except (KeyError, TypeError) as error:
            raise _output_error(manifest, result, error) from error
        log(lines)
        return output

    def _log(self, manifest: Manifest, on_log: OnLog | None) -> OnLog:
        return on_log or functools.partial(self._task_log.write, manifest.name, manifest.version)

    async def _call(
        self, version: _Version, log: OnLog, function: str, *args: Any, deadline: float, host: Host | None
    ) -> Any:
        """Call a function in the version's VM; where the task fails, hand its log over first."""
        try:
            return await self._pool.call(version, function, *args, deadline=deadline, host=host)
        except (TaskError, LimitExceeded, ForbiddenImport):
            await self._hand_over_log(version, log)
            raise

    async def _hand_over_log(self, version: _Version, log: OnLog) -> None:
        """Take the log of the latest call out of the VM. A VM that was abandoned has taken its log with it."""
        try:
            lines = parse_lines(await self._pool.call(version, _TAKE_LOG, deadline=_LOAD_S))
        except VMError:
            return
        log(lines)

    async def close(self) -> None:
        """Stop every VM."""
        self._pool.close()
