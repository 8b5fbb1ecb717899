"""Simulation of a version before its release (§6): its bundle, run in the cloud's own compute container.

The version is laid out as on a device and plays the events that its author pushed with it, once for each of a few kinds
of device. A phase that escalates runs here too, as in fallback inference.
"""

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from walle import plain
from walle.clock import SystemClock
from walle.deploy.cloud.bundle import Bundle, unpack
from walle.deploy.cloud.release_service import SimulationResult
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.host import shared_host
from walle.errors import VMError
from walle.pipeline.event_history import EventHistory
from walle.pipeline.event_log import EventLog
from walle.pipeline.events import EventError
from walle.pipeline.store import FeatureStore
from walle.pipeline.stream_engine import StreamCounts, StreamEngine, TaskOutput
from walle.pipeline.task_queries import query_payloads
from walle.pipeline.task_queue import Trigger
from walle.pipeline.task_states import TaskState
from walle.protocol import Attribute
from walle.task_log import LogLine, OnLog, TaskLog, failure_place
from walle.task_runner import TaskRunner

# The kinds of device that every version is simulated on; a task sees them as `ctx.device`.
DEVICE_KINDS: tuple[Mapping[str, Attribute], ...] = (
    {"id": "simulated-low", "os": "android", "performance": "low"},
    {"id": "simulated-high", "os": "ios", "performance": "high"},
)
_MAX_FAILURES = 10  # bounds the time of a version that overruns its deadline at every event

type OnSimulatedLog = Callable[[str, int | None, Sequence[LogLine]], None]


class Simulator:
    """A runner of bundles in VMs of its own; at most `vms` at once. They are in this process's VM host, or, without
    `vm_host`, in this process itself: not for versions of others, before whose release this is the first to run them.

    `on_log` gets the lines of each load and run, with the id of the simulated device and the position of the event,
    None for a load. Without it they go into the log of this process. `on_output` gets what each run returned.
    """

    def __init__(
        self,
        vms: int,
        *,
        vm_host: bool = True,
        on_log: OnSimulatedLog | None = None,
        on_output: Callable[[TaskOutput], None] | None = None,
    ) -> None:
        self._task_log = TaskLog("simulation")
        host = shared_host() if vm_host else None
        self._device = TaskRunner(vms, task_log=self._task_log, host=host)
        self._cloud = TaskRunner(vms, task_log=self._task_log, host=host)
        self._on_log = on_log
        self._on_output = on_output

    async def run(
        self, bundle: Bundle, events: bytes | None, kinds: Sequence[Mapping[str, Attribute]] = DEVICE_KINDS
    ) -> SimulationResult:
        """Play `events` (JSON lines; None for none) through the bundle on each kind of device.

        A version fails if it does not load or if a run fails; after ten failures no further event is played. Without
        events it passes by loading.
        """
        with tempfile.TemporaryDirectory(prefix="walle-simulation-") as folder:
            files = Path(folder) / "task"
            await asyncio.to_thread(unpack, bundle.manifest, bundle.blobs, files)
            try:
                await self._device.load(files, bundle.manifest, on_log=self._on_log_of("", None))
            except VMError as error:
                return SimulationResult(ok=False, runs=0, failures=1, first_error=_describe(error))
            if events is None:
                return SimulationResult(ok=True, runs=0, failures=0)
            log = Path(folder) / "events.jsonl"
            log.write_bytes(events)
            runs = 0
            errors: list[str] = []
            counts = StreamCounts()
            for number, kind in enumerate(kinds):
                database = Path(folder) / f"features-{number}.db"
                counts = await self._play(bundle, files, EventLog(log), database, kind, errors)
                runs += counts.triggers
            if runs == 0:
                return SimulationResult(False, 0, 1, _why_none(bundle, log, counts.without_visit))
            return SimulationResult(not errors, runs, len(errors), errors[0] if errors else "")

    async def _play(
        self,
        bundle: Bundle,
        files: Path,
        log: EventLog,
        database: Path,
        kind: Mapping[str, Attribute],
        errors: list[str],
    ) -> StreamCounts:
        """Return the counts of a kind of device that gets the events; append the errors of failed runs to `errors`."""
        manifest = bundle.manifest

        async def escalate(phase: str, payload: Any) -> Any:
            crossed = plain.decode(plain.encode(payload))  # as through the tunnel, which carries only plain data
            on_log = self._on_log_of(f"{kind['id']} (cloud)", None)
            output = await self._cloud.phase(files, manifest, phase, crossed, kind, on_log=on_log)
            return plain.decode(plain.encode(output))

        async def run(_task: str, trigger: Trigger) -> TaskOutput:
            callbacks: Callbacks = {"escalate": escalate, "store.query": functools.partial(query_payloads, store, 0)}
            if manifest.history is not None:
                older = functools.partial(history.query, manifest.name, trigger.position)
                callbacks = {**callbacks, "events.history": older}
            on_log = self._on_log_of(str(kind["id"]), trigger.position)
            active = store.task_states.active(manifest.name)
            state = None if active is None else active.value
            output = await self._device.run(files, manifest, trigger, kind, callbacks, state=state, on_log=on_log)
            if self._on_output is not None:
                self._on_output(output)
            return output

        def on_outcome(_task: str, ok: bool, error: Exception | None) -> None:
            if not ok and error is not None:
                errors.append(_describe(error))

        async with (
            contextlib.aclosing(EventHistory(database.with_suffix(".history"), SystemClock())) as history,
            FeatureStore(database) as store,
        ):
            history.set_policy(manifest.name, manifest.history)
            engine = StreamEngine(store, run, on_outcome=on_outcome)
            engine.add_task(manifest.name, manifest.trigger)
            if manifest.state is not None:
                store.activate_state(TaskState.empty(manifest.name, manifest.state.version))
            for position, event in log:
                if len(errors) >= _MAX_FAILURES:
                    break
                await history.keep_up()
                with contextlib.suppress(EventError):  # a device refuses and skips it too
                    await engine.on_event(event, position, can_wait=True)
                    history.add(position, event)
                await engine.settle()  # so that a version is stopped soon after its last allowed failure
            return engine.counts

    def _on_log_of(self, device: str, position: int | None) -> OnLog | None:
        return None if self._on_log is None else functools.partial(self._on_log, device, position)

    async def close(self) -> None:
        await self._device.close()
        await self._cloud.close()


def _describe(error: Exception) -> str:
    """Return the text of a failure, with its place where the text does not name it."""
    place = failure_place(error)
    return str(error) if not place or place in str(error) else f"{error} ({place})"


def _why_none(bundle: Bundle, path: Path, without_visit: int) -> str:
    """Return why no event of a log triggered the task."""
    log = EventLog(path)
    events = sum(1 for _ in log)
    what = f"none of {events} simulated events met the trigger condition {bundle.manifest.trigger}"
    if without_visit:
        option = "`without_visit = true` under [trigger] triggers then too"
        what += f"; {without_visit} met it while their page had no open visit ({option})"
    if log.reports:
        first = log.reports[0]
        what += f"; {sum(log.skipped.values())} lines were skipped, the first is line {first.line}: {first.reason}"
    return what
