"""Runner of installed task versions in VMs: on a device at a trigger, on the cloud in simulation and fallback."""

import asyncio
import contextlib
import functools
import itertools
import logging
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from walle.engine_ext.vm import boot
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.discards import Discarded
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.imports import ForbiddenImport
from walle.engine_ext.vm.loop_calls import HostLost, LimitExceeded, NotPlainError, TaskError
from walle.engine_ext.vm.pool import MAX_STRIKES, VMPool
from walle.engine_ext.vm.vm import VM
from walle.errors import ConfigError, VMError
from walle.pipeline.features.put import PayloadError
from walle.pipeline.stream.events import encode_events
from walle.pipeline.trigger.sequences import RecentEvents
from walle.pipeline.trigger.stream_engine import TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Attribute, Manifest
from walle.task.run.log import LogLine, OnLog, TaskLog, last_lines, parse_lines
from walle.task.run.run_result import TrainedStep, is_cpu_time, output_error, output_of, trained_step_of
from walle.task.run.run_version import RunVersion, deadline_s

_LOG = logging.getLogger(__name__)

_LOAD = "walle.pipeline.stream.context:load"
_RUN = "walle.pipeline.stream.context:run"
_RUN_TIMED = "walle.pipeline.stream.context:run_timed"
_TRAIN = "walle.pipeline.stream.context:train"
_PHASE = "walle.pipeline.stream.context:phase"
_PHASE_BATCH = "walle.pipeline.stream.context:phase_batch"
_LOAD_MIGRATING = "walle.pipeline.stream.context:load_migrating"
_MIGRATE = "walle.pipeline.stream.context:migrate"
_TAKE_FAILURE = "walle.pipeline.stream.run_log:take_failure"
# Of a call whose VM host ends: a task that ends hosts is quarantined before the last one.
_ATTEMPTS = MAX_STRIKES + 1
_STOP_S = 10.0  # time for an abandoned thread to stop, or its host to be replaced, before its task may run again
_LOOK_S = 0.02  # interval between two looks at that thread
_SPARE_S = 0.2  # time in which it has to stop before another host is started: most calls that stop late stop soon
_MAX_WARM = 8  # tasks whose libraries are loaded in that host before it takes over
_LOAD_S = 2.0  # the minimum time that a version has for loading
PHASE_TOPIC = "phase"  # topic of tunnel requests that hand a phase to the cloud
_PUT_PART = re.compile(r"^result\.((?:puts|local)\[\d+\])\[([01])\]")  # a put crosses as (topic, payload)
_ON_CLOUD = ("cloud", "auto")  # values in task.toml of a phase that may run there

boot.register_modules(
    "walle.pipeline",
    "walle.pipeline.events",
    "walle.pipeline.events.event",
    "walle.pipeline.features",
    "walle.pipeline.features.topics",
    "walle.pipeline.stream",
    "walle.pipeline.stream.context",
    "walle.pipeline.stream.events",
    "walle.pipeline.stream.run_log",
    "walle.pipeline.stream.task_files",
)


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


def _place_in_task(message: str) -> str:
    """Return a refusal with its place as the task's author knows it: `output.prices[3]`, `puts[2].payload.a`."""
    message = _PUT_PART.sub(lambda found: f"result.{found[1]}.{('topic', 'payload')[int(found[2])]}", message)
    return message.removeprefix("result.")


def _task_error(version: "RunVersion", described: Mapping[str, Any]) -> TaskError:
    """Return the error that a task gave in place of a payload's result."""
    return TaskError(version.name, *(str(described[key]) for key in ("type", "message", "traceback", "place")))


def check_place(manifest: Manifest, phase: str) -> None:
    """Raise PhasePlaceError unless task.toml allows the phase on the cloud."""
    if manifest.phases.get(phase) not in _ON_CLOUD:
        raise PhasePlaceError(manifest, phase)


def runs_on_cloud(manifest: Manifest) -> bool:
    """Return whether a phase of the version may run on the cloud."""
    return any(place in _ON_CLOUD for place in manifest.phases.values())


def _encode_recent(trigger: Trigger) -> bytes | list[dict[str, Any]]:
    """Return the time-level sequence for `ctx.recent`, a callback of the run."""
    recent = trigger.recent
    return recent.encode() if isinstance(recent, RecentEvents) else encode_events(recent)


async def _complete(error: TaskError | LimitExceeded | ForbiddenImport, vm: VM, run_id: int, log: OnLog) -> None:
    """Take the log of a failed run out of its VM and pass it on; set what the error lacks: log, place and CPU time.

    A VM that ends meanwhile loses its log.
    """
    try:
        taken = await vm.call(_TAKE_FAILURE, run_id, deadline=_LOAD_S)
    except VMError:
        return
    match taken:
        case {"log": found, "place": str(place), "cpu_s": cpu_s}:
            error.cpu_s = cpu_s if is_cpu_time(cpu_s) else None
        case _:  # the task has changed the runtime of its VM
            found, place = taken, ""
    lines = parse_lines(found)
    error.log = last_lines(lines)
    error.place = error.place or place
    log(lines)


class TaskRunner:
    """Runs task versions in a pool of VMs. Runs of one version share its VM and follow one another.

    A VM that is new to a version loads it before its first run, in a call with its own limit: the deadline of a
    run does not cover the loading of modules, libraries and models. The VMs are in `host`, or in this process (see
    `VM`).

    A task whose call did not stop, or crashed the host, runs again only after its thread has stopped or the host was
    replaced, and all other tasks that had a VM have one in the new host.
    """

    def __init__(self, vms: int, *, task_log: TaskLog | None = None, host: VmHost | None = None) -> None:
        self._pool = VMPool(vms, host=host)
        self._host = host
        self._task_log = task_log or TaskLog("cloud")
        self._loaded: weakref.WeakKeyDictionary[VM, RunVersion] = weakref.WeakKeyDictionary()  # version in each VM
        self._replacing: dict[str, asyncio.Task[None]] = {}  # by the task whose call did not stop
        self._loading: weakref.WeakKeyDictionary[VM, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._run_ids = itertools.count(1)  # a VM finds the log of a failed run by its id

    async def load(self, files: Path, manifest: Manifest, *, on_log: OnLog | None = None) -> None:
        """Load what a version's runs need, without running a phase: its modules, libraries and models.

        `on_log` gets what the version logs, here and below; without it, the runner's `task_log` does.

        Raises:
            VMError: it does not load; the message contains the traceback.
        """
        log = self._log(manifest, on_log)
        version = RunVersion.of(files, manifest)
        function = _LOAD if manifest.state is None or not manifest.state.migrates else _LOAD_MIGRATING

        async def load(vm: VM) -> list[LogLine]:
            async with self._loading.setdefault(vm, asyncio.Lock()):
                return await self._load(vm, version, log, function)

        log(await self._in_vm(version, load))

    def drop(self, files: Path, manifest: Manifest) -> None:
        """Close the VM of a version that is not to run here any more, unless a call uses it now."""
        self._pool.discard(RunVersion.of(files, manifest))
        self.drop_training(files, manifest)

    def drop_training(self, files: Path, manifest: Manifest) -> None:
        """Close the VM in which a version trains, which takes memory, unless a call uses it now."""
        if manifest.training is None:
            return
        version = RunVersion.in_training(files, manifest, manifest.training)
        try:
            self._pool.discard(version)
        except ConfigError:  # the files are gone, and no call uses them
            for vm in [vm for vm, one in self._loaded.items() if one == version]:
                vm.close()

    async def run(
        self,
        files: Path,
        manifest: Manifest,
        trigger: Trigger,
        device: Mapping[str, Attribute],
        callbacks: Callbacks,
        *,
        state: Mapping[str, Any] | None = None,
        on_log: OnLog | None = None,
        timed: bool = False,
    ) -> TaskOutput:
        """Run the phases of a version on a trigger and return its output, its topics by their full names.

        `state` is the task's, None for a task without [state]; the output has the new one, and the time of each phase
        if `timed`. `on_log` is called before
        this returns or raises; not for a run that is cancelled.

        Raises:
            TaskOutputError: the task has changed its runtime, and put features of other tasks, or nothing readable.
            PayloadError: the task put a value that cannot be stored.
            VMError: the task raised, exceeded a limit, or imported what is not allowed.
        """
        callbacks = {**callbacks, "events.recent": functools.partial(_encode_recent, trigger)}
        plain = trigger.to_plain()
        events = plain.pop("page_events")
        version = RunVersion.of(files, manifest)
        places = dict(manifest.phases)
        log = self._log(manifest, on_log)
        before = None if state is None else dict(state)
        args = manifest.name, plain, events, dict(device), places, before
        function = _RUN_TIMED if timed else _RUN
        result = await self._call(version, log, function, *args, deadline=deadline_s(manifest), callbacks=callbacks)
        return self._taken(log, result, lambda: output_of(result, manifest, timed=timed))

    async def train(
        self,
        files: Path,
        manifest: Manifest,
        device: Mapping[str, Attribute],
        callbacks: Callbacks,
        *,
        on_log: OnLog | None = None,
    ) -> TrainedStep:
        """Run one step of a version with [training] in a VM beside that of its other phases, within its own limits.

        Raises:
            TaskOutputError, PayloadError, VMError: as `run`.
        """
        policy = manifest.training
        assert policy is not None
        version, log = RunVersion.in_training(files, manifest, policy), self._log(manifest, on_log)
        args, deadline = (manifest.name, dict(device)), policy.step_ms / 1000
        try:
            result = await self._call(version, log, _TRAIN, *args, deadline=deadline, callbacks=callbacks)
        except LimitExceeded as error:
            if error.limit == "output_kb":
                error.args = (f"{error.args[0]}; max_bytes = {policy.max_bytes} of [training] bounds a checkpoint",)
            raise
        return self._taken(log, result, lambda: trained_step_of(result, manifest))

    def _taken[T](self, log: OnLog, result: Any, take: Callable[[], T]) -> T:
        """Return what `take` makes of a run's result; its log is passed on also where a payload is refused."""
        try:
            taken = take()
        except PayloadError:
            log(parse_lines(result["log"]))
            raise
        log(parse_lines(result["log"]))
        return taken

    async def migrate(self, files: Path, manifest: Manifest, old_version: int, state: Mapping[str, Any]) -> Any:
        """Return what the version's `migrate` makes of an older version's state.

        Raises:
            VMError: as `run`.
        """
        version, log = RunVersion.of(files, manifest), self._log(manifest, None)
        args = old_version, dict(state)
        result = await self._call(version, log, _MIGRATE, *args, deadline=version.load_s, callbacks=None)
        try:
            lines, migrated = parse_lines(result["log"]), result["state"]
        except (LookupError, TypeError) as error:
            raise output_error(version.name, result, error) from error
        log(lines)
        return migrated

    async def phase(
        self,
        files: Path,
        manifest: Manifest,
        phase: str,
        payload: Any,
        device: Mapping[str, Attribute],
        *,
        callbacks: Callbacks | None = None,
        on_log: OnLog | None = None,
        replica: int = 0,
    ) -> Any:
        """Run one phase that a device sent, as fallback inference does, and return its result.

        Each `replica` of a version has a separate VM.

        Raises:
            PhasePlaceError: the phase may run on devices only.
            VMError: as `run`.
        """
        check_place(manifest, phase)
        version = RunVersion.in_cloud(files, manifest, replica)
        log = self._log(manifest, on_log)
        args = manifest.name, phase, payload, dict(device)
        result = await self._call(version, log, _PHASE, *args, deadline=deadline_s(manifest), callbacks=callbacks)
        try:
            lines, output = parse_lines(result["log"]), result["output"]
        except (LookupError, TypeError) as error:
            raise output_error(version.name, result, error) from error
        log(lines)
        return output

    async def phase_batch(
        self,
        files: Path,
        manifest: Manifest,
        payloads: Sequence[Any],
        devices: Sequence[Mapping[str, Attribute]],
        *,
        callbacks: Callbacks | None = None,
        on_log: OnLog | None = None,
        replica: int = 0,
    ) -> list[Any] | None:
        """Run `execute_batch` on payloads of `devices`; return a result, or the TaskError that stands for it, of each.

        None if the task has no `execute_batch`. The limits are those of one run, but for the size of the results.

        Raises:
            PhasePlaceError: `execute` may run on devices only.
            VMError: as `run`; all of the batch failed.
        """
        check_place(manifest, "execute")
        version = RunVersion.in_cloud(files, manifest, replica)
        log = self._log(manifest, on_log)
        args = manifest.name, list(payloads), [dict(device) for device in devices]
        result = await self._call(version, log, _PHASE_BATCH, *args, deadline=deadline_s(manifest), callbacks=callbacks)
        try:
            lines, outputs = parse_lines(result["log"]), result["outputs"]
            if outputs is not None:
                outputs = [output if error is None else _task_error(version, error) for error, output in outputs]
                if len(outputs) != len(payloads):
                    raise ValueError(f"{len(outputs)} results of {len(payloads)} payloads")  # noqa: TRY301
        except (LookupError, TypeError, ValueError) as error:
            raise output_error(version.name, result, error) from error
        log(lines)
        return outputs  # type: ignore[no-any-return]

    async def load_replica(self, files: Path, manifest: Manifest, replica: int = 0) -> None:
        """Load what a replica that `phase` and `phase_batch` use needs, unless it has it.

        Raises:
            VMError: as `load`.
        """
        version, log = RunVersion.in_cloud(files, manifest, replica), self._log(manifest, None)

        async def load(vm: VM) -> None:
            await self._load_once(vm, version, log)

        await self._in_vm(version, load)

    def has_loaded(self, files: Path, manifest: Manifest, replica: int = 0) -> bool:
        """Return whether a replica that `phase` and `phase_batch` use has a VM that has loaded the version."""
        version = RunVersion.in_cloud(files, manifest, replica)
        return any(vm.alive and one == version for vm, one in self._loaded.items())

    def unload(self, files: Path, manifest: Manifest, replica: int = 0) -> None:
        """Close the VM of a replica that `phase` and `phase_batch` use, unless a call uses it now."""
        self._pool.discard(RunVersion.in_cloud(files, manifest, replica))

    def _log(self, manifest: Manifest, on_log: OnLog | None) -> OnLog:
        return on_log or functools.partial(self._task_log.write, manifest.name, manifest.version)

    async def _call(
        self, version: RunVersion, log: OnLog, function: str, *args: Any, deadline: float, callbacks: Callbacks | None
    ) -> Any:
        """Call a function in the version's VM, which has loaded the version first; see `_call_held`."""

        async def call(vm: VM) -> Any:
            if vm not in self._loaded:
                await self._load_once(vm, version, log)
            return await self._call_held(vm, log, function, *args, deadline=deadline, callbacks=callbacks)

        return await self._in_vm(version, call)

    async def _in_vm[T](self, version: RunVersion, work: Callable[[VM], Awaitable[T]]) -> T:
        """Return the result of `work` in the version's VM. What was lost with the VM host is done again.

        The device takes a run's outputs and state only from its result, and callbacks read, or have the cloud compute,
        which may be repeated.
        """
        for attempt in range(_ATTEMPTS):
            if (replacing := self._replacing.get(version.owner)) is not None:
                await asyncio.wait([replacing])
            async with self._pool.hold(version) as vm:
                try:
                    return await work(vm)
                except HostLost:
                    if attempt + 1 == _ATTEMPTS:
                        raise
                finally:
                    if vm.abandoned or vm.crashed:
                        self._replace(version, vm)
        raise AssertionError

    def _replace(self, version: RunVersion, vm: VM) -> None:
        """Hold the version's task back until its thread has stopped or other tasks have VMs in another host."""
        if self._host is not None and version.owner not in self._replacing:
            moving = self._move_others(self._host, version.owner, vm)
            task = self._replacing[version.owner] = asyncio.create_task(moving)
            task.add_done_callback(lambda _: self._replacing.pop(version.owner))

    async def _move_others(self, host: VmHost, owner: str, stuck: VM) -> None:
        """Wait until a thread has stopped or its host ends, and load other tasks, last used first, in a new host.

        That host starts and is made warm meanwhile. Tasks with strikes, or that run alone, are left out:
        they get a VM at their next call.
        """
        spare_at_s = time.monotonic() + _SPARE_S
        warming: asyncio.Task[None] | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                try:
                    while not (lost := self._pool.lost_vms()) and not stuck.ended:
                        if time.monotonic() >= spare_at_s:
                            host.prepare_next()
                            warming = warming or asyncio.create_task(self._warm(host, owner))
                        await asyncio.sleep(_LOOK_S)
                finally:
                    if warming is not None:
                        warming.cancel()
                    if not self._pool.lost_vms():  # the thread has stopped
                        host.drop_next()
                for version in self._movable(lost or self._pool.lost_vms(), owner):
                    log = self._log(version.manifest, None)
                    try:
                        async with self._pool.hold(version) as replacement:
                            if replacement not in self._loaded:
                                await self._load_once(replacement, version, log)
                    except VMError as error:  # the next run meets and reports the error
                        _LOG.info("%s is not loaded in the new VM host: %s", version.name, error)

    def _movable(self, vms: Iterable[VM], owner: str) -> list[RunVersion]:
        """Return the versions of these VMs that are given VMs in a new host, in this order."""
        found = [version for vm in vms if (version := self._loaded.get(vm)) is not None]
        return [one for one in found if one.owner != owner and not self._pool.is_suspect(one.owner)]

    async def _warm(self, host: VmHost, owner: str) -> None:
        """Load the tasks, last used first, in the host that is to take over, and close their VMs there.

        What stays are interpreters with the libraries of these tasks, of which the time without VMs mostly consists.
        """
        vms = []  # closed together: a VM takes the interpreter of one that was closed before
        try:
            for version in self._movable(self._pool.vms(), owner)[:_MAX_WARM]:
                # The host has ended, the version was removed, or its next run meets the error and reports it.
                with contextlib.suppress(VMError, ConfigError, OSError):
                    vms.append(vm := VM(version, host=host.in_next()))
                    await vm.call(_LOAD, version.models, deadline=version.load_s)
        finally:
            for vm in vms:
                vm.close()

    async def _load_once(self, vm: VM, version: RunVersion, log: OnLog) -> None:
        """Load the version in its VM, unless another call does so meanwhile."""
        async with self._loading.setdefault(vm, asyncio.Lock()):
            if vm not in self._loaded and (lines := await self._load(vm, version, log, _LOAD)):
                log(lines)

    async def _load(self, vm: VM, version: RunVersion, log: OnLog, function: str) -> list[LogLine]:
        """Load the version in its VM and return what it logged."""
        args = version.models, version.elsewhere
        result = await self._call_held(vm, log, function, *args, deadline=version.load_s, callbacks=None)
        try:
            lines = parse_lines(result["log"])
        except (LookupError, TypeError) as error:
            raise output_error(version.name, result, error) from error
        self._loaded[vm] = version
        return lines

    async def _call_held(
        self, vm: VM, log: OnLog, function: str, *args: Any, deadline: float, callbacks: Callbacks | None
    ) -> Any:
        """Call a function in a VM, with a run id as its last argument; if it fails, pass its log on first.

        The VM is held meanwhile: an abandoned one loses its log, and is not replaced by one that has no log.
        """
        run_id = next(self._run_ids)
        try:
            return await vm.call(function, *args, run_id, deadline=deadline, callbacks=callbacks)
        except (TaskError, LimitExceeded, ForbiddenImport) as error:
            if vm.alive:
                await _complete(error, vm, run_id, log)
            if isinstance(error, NotPlainError):
                error.message = _place_in_task(error.message)
            raise

    def discarded(self) -> dict[str, Discarded]:
        """Return the interpreters that tasks changed beyond repair, by version: see `VMPool.discarded`."""
        return self._pool.discarded()

    async def close(self, *, wait_s: float = 0.0) -> None:
        """Stop every VM, and wait for the reset of their interpreters, `wait_s` at most."""
        vms = self._pool.vms()
        replacing = list(self._replacing.values())
        for task in replacing:
            task.cancel()
        await asyncio.gather(*replacing, return_exceptions=True)
        self._pool.close()
        if wait_s > 0:
            await asyncio.gather(*(vm.wait_closed(wait_s) for vm in vms))
