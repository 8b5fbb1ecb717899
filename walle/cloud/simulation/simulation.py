"""Simulation of a version before its release (§6): its bundle, run in the cloud's own compute container.

The version is laid out as on a device and plays the events that its author pushed with it, once for each of a few kinds
of device. A phase that escalates runs here too, as in fallback inference.
"""

import asyncio
import collections
import dataclasses
import functools
import hashlib
import itertools
import math
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from walle.base import plain
from walle.deploy.fleet.device_group import DeviceGroup, GroupResult
from walle.deploy.releases.simulated_fault import FaultCount, SimulatedFault
from walle.deploy.releases.simulation_result import SimulationResult
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.host import VmHost
from walle.errors import DeployError, VMError, WalleError
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_files import EventFiles
from walle.pipeline.events.event_log import EventLog, LoggedEvent
from walle.pipeline.trigger.stream_engine import TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Attribute, Failure, Manifest
from walle.task.format.bundle import Bundle, unpack
from walle.task.format.failure import failure_of
from walle.task.run.event_play import EventPlay, PlayedRun, Until, events_of_users
from walle.task.run.image_decoder import ImageDecoder, resolve_apart
from walle.task.run.log import LogLine, OnLog, TaskLog
from walle.task.run.runner import TaskRunner

# The kinds of device that every version is simulated on; a task sees them as `ctx.device`.
DEVICE_KINDS: tuple[Mapping[str, Attribute], ...] = (
    {"id": "simulated-low", "app_version": "1.0", "os": "android", "performance": "low"},
    {"id": "simulated-high", "app_version": "1.0", "os": "ios", "performance": "high"},
)
DEFAULT_USERS = 20  # users of the events, each on a device alone
_RESET_S = 5.0  # time for the reset of interpreters at the end, which shows whether one was discarded
_TRAINING_STEPS = 3  # steps on the device of each user
_MAX_FAILURES = 10  # bounds the time of a version that overruns its deadline at every event

type OnSimulatedLog = Callable[[str, int | None, Sequence[LogLine]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """A run of a simulation: the id of its device, its user, its trigger, and its output or its failure.

    `position` is that of the event in the log, before which a timer was due; None after the user's last event.
    `output.phase_ms` is the time of each phase in its VM: the start of the VM and loading are not in it.
    """

    device: str
    user: str  # the stream of its events, "" in a log without streams
    trigger: Trigger
    position: int | None
    output: TaskOutput | None
    failure: Failure | None


class Simulator:
    """A runner of bundles, at most `runs` at once, of which one scenario has one.

    Each simulation has its own VMs, in its own VM host, which `new_host` makes and which ends with it: what one
    version does to its interpreters, or to their process, reaches no other. Without `vm_host` the VMs are in this
    process: not for versions of others, before whose release this is the first to run them.

    `on_log` gets the lines of each load and run, with the id of the simulated device and the position of the event,
    None for a load and after the last event. Without it they go into the log of this process. `on_run` gets each run
    when it has ended.
    """

    def __init__(
        self,
        runs: int,
        *,
        new_host: Callable[[], VmHost] = VmHost,
        vm_host: bool = True,
        on_log: OnSimulatedLog | None = None,
        on_run: Callable[[SimulatedRun], None] | None = None,
    ) -> None:
        self._turns = asyncio.Semaphore(runs)
        self._turns_of_scenarios: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._new_host = new_host if vm_host else None
        self._on_log = on_log
        self._on_run = on_run

    async def run(
        self,
        bundle: Bundle,
        events: bytes | None,
        kinds: Sequence[Mapping[str, Attribute]] = DEVICE_KINDS,
        *,
        files: EventFiles | None = None,
        groups: Sequence[DeviceGroup] = (),
        users: int = DEFAULT_USERS,
        until: Until | None = None,
        limit_s: float = math.inf,
        group_limit_s: float = math.inf,
    ) -> SimulationResult:
        """Play `events` (JSON lines; None for none) through the bundle on each kind of device, and of each group.

        Each user of the events, which is a stream of theirs, has a separate device of each kind; the first `users` of
        them are played. Where there are several, the devices' ids end with their numbers.

        Time passes after each device's last event: as long as the condition's timers run, or `until` then.

        A group for which `group_limit_s` from the start on would not be enough, by the slowest so far, is not played.

        `files` are those that events may name (`walle.pipeline.events.event_files`); an event whose file is missing or
        wrong is refused. Those below `exclusive/` stand for exclusive files.

        A version fails if it does not load, if a run fails, or if no reset could undo what it did in its interpreter;
        after ten failures no further event is played. Without events it passes by loading. Events that a device refuses
        are not played, and listed in the result.

        Raises:
            TimeoutError: it takes more than `limit_s`, without the wait for its turn.
        """
        scenario = bundle.manifest.name.partition("/")[0]
        turn = self._turns_of_scenarios.setdefault(scenario, asyncio.Lock())
        async with turn, self._turns, asyncio.timeout(None if math.isinf(limit_s) else limit_s):
            named = files or EventFiles.of({})
            simulation = _Simulation(bundle, named, self._new_host, self._on_log, self._on_run, users, until)
            try:
                result = await simulation.run(events, kinds, groups, group_limit_s)
            finally:
                reset_failure = await simulation.close()
        if result.ok and reset_failure:
            error = f"it changed its interpreter, which had to be discarded: {reset_failure}"
            result = dataclasses.replace(result, ok=False, failures=1, first_error=error)
        return result


class _Simulation:
    """One bundle's simulation, with its VMs. `close` must be called."""

    def __init__(
        self,
        bundle: Bundle,
        files: EventFiles,
        new_host: Callable[[], VmHost] | None,
        on_log: OnSimulatedLog | None,
        on_run: Callable[[SimulatedRun], None] | None,
        users: int,
        until: Until | None = None,
    ) -> None:
        self._bundle = bundle
        self._until = until
        self._max_users = users
        self._files = files
        self._on_log = on_log
        self._on_run = on_run
        self._host = None if new_host is None else new_host()
        self._images = ImageDecoder(self._host) if self._host is not None else None
        task_log = TaskLog("simulation")
        self._device = TaskRunner(1, task_log=task_log, host=self._host)
        self._cloud = TaskRunner(1, task_log=task_log, host=self._host)

    async def run(
        self,
        events: bytes | None,
        kinds: Sequence[Mapping[str, Attribute]],
        groups: Sequence[DeviceGroup],
        group_limit_s: float,
    ) -> SimulationResult:
        bundle = self._bundle
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="walle-simulation-") as folder:
            folder_of_task = Path(folder) / "task"
            on_cloud = Path(folder) / "cloud"
            await asyncio.to_thread(unpack, bundle.manifest, bundle.blobs, folder_of_task, large=bundle.large)
            blobs, large = {**bundle.blobs, **bundle.cloud_blobs}, {**bundle.large, **bundle.cloud_large}
            await asyncio.to_thread(unpack, bundle.manifest, blobs, on_cloud, large=large, on_cloud=True)
            try:
                await self._device.load(folder_of_task, bundle.manifest, on_log=self._on_log_of("", None))
            except VMError as error:
                failure = failure_of(error)
                faults = (SimulatedFault.of(failure, bundle.manifest),)
                return SimulationResult(ok=False, runs=0, failures=1, first_error=_describe(failure), faults=faults)
            if events is None:
                return SimulationResult(ok=True, runs=0, failures=0)
            log = Path(folder) / "events.jsonl"
            log.write_bytes(events)
            by_user = await asyncio.to_thread(events_of_users, EventLog(log))
            users = dict(itertools.islice(by_user.items(), self._max_users))
            play = _Play()
            places, results, slowest_s = (folder_of_task, on_cloud), [], 0.0
            for number, (kind, group) in enumerate(
                [*((kind, None) for kind in kinds), *((g.device, g) for g in groups)]
            ):
                is_late = time.monotonic() - began_s + 2 * slowest_s > group_limit_s
                if group is not None and (is_late or play.is_cut):
                    results.append(GroupResult(group.app_version, group.os, group.devices, played=False))
                    continue
                play.refused.clear()  # each kind of device refuses the same
                before, begin_s, own = (
                    (play.runs, len(play.failures)),
                    time.monotonic(),
                    Path(folder) / f"device-{number}",
                )
                play.without_visit = play.window_evicted = 0
                play.timers = collections.Counter()
                for user_number, (user, own_events) in enumerate(users.items()):
                    name = str(kind["id"]) if len(by_user) <= 1 else f"{kind['id']}-{user_number + 1}"
                    folder_of_user = own.with_name(f"{own.name}-{user_number}")
                    await self._play(places, user, own_events, folder_of_user, {**kind, "id": name}, play)
                    if play.is_cut:
                        break
                slowest_s = max(slowest_s, time.monotonic() - begin_s)
                if group is not None:
                    runs, failures = play.runs - before[0], len(play.failures) - before[1]
                    results.append(GroupResult(group.app_version, group.os, group.devices, runs, failures))
                    if failures and not play.failed_on:
                        play.failed_on = group.name
            event_count = sum(map(len, users.values()))
            if play.runs == 0:
                why, refused = _why_none(bundle, log, play), tuple(sorted(play.refused))
                return SimulationResult(False, 0, 1, why, event_count, refused, timers=dict(play.timers))
            first_error = _describe(play.failures[0]) if play.failures else ""
            if play.failed_on and len(play.failures) == sum(one.failures for one in results):
                first_error += f" (for {play.failed_on}, and not on other devices)"
            return SimulationResult(
                ok=not play.failures,
                runs=play.runs,
                failures=len(play.failures),
                first_error=first_error,
                events=event_count,
                refused=tuple(sorted(play.refused)),
                is_cut=play.is_cut,
                users=len(users),
                other_users=len(by_user) - len(users),
                groups=tuple(results),
                timers=dict(play.timers),
                window_evicted=play.window_evicted,
                faults=play.faults.all(),
                state_bytes=play.state_bytes,
                entries_evicted=play.entries_evicted,
            )

    async def _play(
        self,
        places: tuple[Path, Path],
        user: str,
        events: Sequence[LoggedEvent],
        folder: Path,
        kind: Mapping[str, Attribute],
        play: "_Play",
    ) -> None:
        """Play the events of one user on a device with these attributes, and count what happens in `play`.

        `places` are where the version's files are on the device, and on the cloud; `folder` becomes the
        device's.
        """
        manifest, named = self._bundle.manifest, self._files
        files, on_cloud = places

        async def run_on_cloud(phase: str, payload: Any, on_log: OnLog | None) -> Any:
            if phase == "execute" and manifest.cloud.max_batch > 1:  # tried in a batch of one, so that its code runs
                outputs = await self._cloud.phase_batch(on_cloud, manifest, [payload], [kind], on_log=on_log)
                if outputs is not None:
                    if isinstance(outputs[0], Exception):
                        raise outputs[0]
                    return outputs[0]
            return await self._cloud.phase(on_cloud, manifest, phase, payload, kind, on_log=on_log)

        async def escalate(phase: str, payload: Any, _timeout_ms: float | None, _spent_ms: float) -> tuple[str, Any]:
            crossed = plain.decode(plain.encode(payload))  # the tunnel carries only plain data, as bytes
            on_log = self._on_log_of(f"{kind['id']} (cloud)", None)
            try:
                output = await run_on_cloud(phase, crossed, on_log)
            except WalleError as error:
                return "failed", str(error) or type(error).__name__
            return "", plain.decode(plain.encode(output))

        callbacks: Callbacks = {"escalate": escalate}
        if manifest.exclusive:
            callbacks = {**callbacks, "exclusive.read": functools.partial(_exclusive_file, manifest, named)}

        lines: dict[int, int] = {}  # lines of the events that were played, by position

        def position_of(position: int) -> int | None:
            """Return the position if it is that of an event: the time that passes at the end has the next one."""
            return position if position in lines else None

        def on_log_of(position: int) -> OnLog | None:
            return self._on_log_of(str(kind["id"]), position_of(position))

        def on_end(run: PlayedRun) -> None:
            position = position_of(run.trigger.position)
            failure = None if run.error is None else failure_of(run.error)
            if failure is not None:
                play.failures.append(failure)
                event = {**run.trigger.event.to_dict(), "position": position, "user": user}
                event["line"] = lines.get(run.trigger.position, 0)
                play.faults.add(SimulatedFault.of(failure, manifest, kind, event))
            if self._on_run is not None:
                self._on_run(
                    SimulatedRun(
                        device=str(kind["id"]),
                        user=user,
                        trigger=run.trigger,
                        position=position,
                        output=run.output,
                        failure=failure,
                    )
                )

        async with EventPlay(
            self._device,
            files,
            manifest,
            kind,
            folder,
            callbacks=callbacks,
            on_end=on_end,
            on_log=on_log_of,
            share_arrays=self._host is not None,
            timed=self._on_run is not None,
        ) as device:
            for position, line, _, event in events:
                lines[position] = line
                if len(play.failures) >= _MAX_FAILURES:
                    play.is_cut = True
                    break
                try:
                    await device.play(await self._resolved(event), position)
                except EventError as error:  # a device refuses and skips it too
                    play.refused.append((position, str(error)))
            else:
                await device.end(self._until)
                await device.train(_TRAINING_STEPS)
            play.timers.update(device.running_timers)
            play.window_evicted += device.window_evicted
            play.runs += device.counts.triggers
            play.state_bytes = max(play.state_bytes, device.state_bytes)
            play.entries_evicted += device.counts.entries_evicted.total()
            play.without_visit += device.counts.without_visit

    async def _resolved(self, event: Event) -> Event:
        """Return the event with the files that it names, of which images are decoded apart from this process."""
        return await resolve_apart(self._files, event, self._images)

    def _on_log_of(self, device: str, position: int | None) -> OnLog | None:
        return None if self._on_log is None else functools.partial(self._on_log, device, position)

    async def close(self) -> str:
        """End the VMs and their host; return why an interpreter was discarded, "" where none was."""
        reasons = []
        try:
            if self._images is not None:
                self._images.close()
            for runner in (self._device, self._cloud):
                await runner.close(wait_s=_RESET_S)
                reasons += [one.reason for one in runner.discarded().values()]
        finally:  # a simulation that ends may be cancelled too
            if self._host is not None:
                await asyncio.to_thread(self._host.close)
        return reasons[0] if reasons else ""


@dataclasses.dataclass
class _Play:
    """Counts of a simulation."""

    runs: int = 0
    failures: list[Failure] = dataclasses.field(default_factory=list)
    faults: FaultCount = dataclasses.field(default_factory=FaultCount)
    refused: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    without_visit: int = 0  # matched events, on one kind of device
    timers: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # left running at the end
    window_evicted: int = 0  # evicted events of windows, on one kind of device
    is_cut: bool = False
    state_bytes: int = 0  # largest state of a device
    entries_evicted: int = 0  # entries evicted from states, on all devices
    failed_on: str = ""  # the first group with a failure


def _exclusive_file(manifest: Manifest, files: EventFiles, name: str, known: str) -> tuple[str, bytes | None]:
    """Return an exclusive file of a simulated device, for `ctx.exclusive`."""
    listed = next((file for file in manifest.exclusive if file.name == name), None)
    data = None if listed is None else files.read(f"exclusive/{name}")
    if listed is None:
        raise DeployError(f"task.toml does not list {name[:100]!r} under [[exclusive]]")
    if data is None:
        if listed.required:
            what = f"exclusive file {name!r} is required: for the simulation, add one as exclusive/{name} in the folder"
            raise DeployError(f"{what} of the simulation's events")
        return "", None
    if len(data) > listed.max_bytes:
        raise DeployError(f"exclusive/{name} has {len(data)} bytes, more than its max_bytes, {listed.max_bytes}")
    sha256 = hashlib.sha256(data).hexdigest()
    return sha256, None if sha256 == known else data


def _kinds(timers: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in timers.items())


def _describe(failure: Failure) -> str:
    """Return the text of a failure, with its place where the text does not name it."""
    return failure.error if failure.place in failure.error else f"{failure.error} ({failure.place})"


def _why_none(bundle: Bundle, path: Path, play: _Play) -> str:
    """Return why no event of a log triggered the task."""
    log = EventLog(path)
    events = sum(1 for _ in log)
    what = f"none of {events} simulated events started the task; the events that start it are {bundle.manifest.trigger}"
    if play.without_visit:
        option = "`without_visit = true` under [trigger] triggers then too"
        what += f"; {play.without_visit} matched while their page had no open visit ({option})"
    if play.timers:
        what += f"; {sum(play.timers.values())} timers were still running at the end ({_kinds(play.timers)})"
    if log.reports:
        first = log.reports[0]
        what += f"; {sum(log.skipped.values())} lines were skipped, the first is line {first.line}: {first.reason}"
    return what
