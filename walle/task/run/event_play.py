"""Events played through a version on its own device: nothing of it reaches another task, a tunnel or a cloud.

For the cloud's simulation before a release, and for a device's trial of a version before its activation. The device is
a feature store, a history of events and a stream engine in a new folder, which the caller removes.
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from walle.base.clock import SystemClock
from walle.engine_ext.vm.callbacks import Callbacks
from walle.errors import WalleError
from walle.pipeline.events.event import MAX_TS_MS, Event
from walle.pipeline.events.event_log import EventLog, LoggedEvent
from walle.pipeline.events.ticks import Tick
from walle.pipeline.events.transient_events import transient
from walle.pipeline.features.checkpoints import Checkpoints
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_queries import query_payloads
from walle.pipeline.features.task_states import TaskState
from walle.pipeline.features.topics import PutTopics
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger.stream_counts import StreamCounts
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Attribute, Manifest, TrainingPolicy
from walle.task.run.log import OnLog
from walle.task.run.run_result import TrainedStep
from walle.task.run.runner import TaskRunner

TRAINING = "train"  # event id of the trigger of a played run that is a step of training


def events_of_users(log: EventLog) -> dict[str, list[LoggedEvent]]:
    """Return the events of each user of a log, by the name of its stream, in the order they begin.

    Users are people with their own devices: they share neither page visits nor a task's state.
    """
    found: dict[str, list[LoggedEvent]] = {}
    for record in log.records():
        found.setdefault(record.stream, []).append(record)
    return found


class Until(NamedTuple):
    """The end of a play's time: a moment in ms since the epoch, or with `is_relative` ms after the last event."""

    ms: int
    is_relative: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayedRun:
    """A run that ended: its trigger, and its output or the error that failed it."""

    trigger: Trigger
    output: TaskOutput | None
    error: Exception | None


class EventPlay:
    """A version with its files, on a device with these attributes, between `__aenter__` and `__aexit__`.

    `callbacks` are those of each run beside queries and history, `on_log(position)` returns the receiver of a run's log
    lines, and `on_end` gets each run. `timed` asks for the time of each phase. `share_arrays` as in `StreamEngine`.
    """

    def __init__(
        self,
        runner: TaskRunner,
        files: Path,
        manifest: Manifest,
        device: Mapping[str, Attribute],
        folder: Path,
        *,
        callbacks: Callbacks,
        on_end: Callable[[PlayedRun], None],
        on_log: Callable[[int], OnLog | None] = lambda _: None,
        share_arrays: bool = False,
        timed: bool = False,
    ) -> None:
        self._runner = runner
        self._files = files
        self._manifest = manifest
        self._device = device
        self._folder = folder
        self._callbacks = callbacks
        self._on_end = on_end
        self._on_log = on_log
        self._share_arrays = share_arrays
        self._timed = timed
        self._topics = PutTopics()
        self._trigger: Trigger | None = None  # runs of a task follow one another
        self._output: TaskOutput | None = None
        self.state_bytes = 0  # largest size so far of the task's state
        self._undo = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        manifest = self._manifest
        await asyncio.to_thread(self._folder.mkdir)
        async with contextlib.AsyncExitStack() as undo:
            history = EventHistory(self._folder / "history.db", SystemClock())
            self._history = await undo.enter_async_context(contextlib.aclosing(history))
            self._store = await undo.enter_async_context(FeatureStore(self._folder / "features.db"))
            self._checkpoints = Checkpoints(self._store)
            if manifest.training is not None:
                self._checkpoints.activate(manifest.name, manifest.training)
            self._history.set_policy(manifest.name, manifest.history)
            self._engine = StreamEngine(
                self._store, self._run, on_outcome=self._on_outcome, share_arrays=self._share_arrays
            )
            undo.push_async_callback(self._engine.close)
            self._engine.add_task(manifest.name, manifest.trigger)
            if manifest.state is not None:
                self._store.activate_state(TaskState.empty(manifest.name, manifest.state.version))
            self._undo = undo.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._undo.aclose()

    @property
    def counts(self) -> StreamCounts:
        return self._engine.counts

    async def play(self, event: Event, position: int) -> None:
        """Take one event and return when the runs that it triggers have ended.

        Raises:
            EventError: a device refuses the event.
        """
        await self._history.keep_up()
        await self._engine.on_event(event, position, can_wait=True)
        if transient(event) is None:
            self._history.add(position, event)
        await self._engine.settle()
        self._measure_state()

    @property
    def running_timers(self) -> dict[str, int]:
        """The number of running timers of the condition, by the id of the event that they would make."""
        return self._engine.time.timers.kinds()

    @property
    def window_evicted(self) -> int:
        """The number of events that were removed from windows at a bound."""
        return self._engine.time.timers.evicted_events.total()

    async def end(self, until: Until | None = None) -> None:
        """Let time pass after the last event, and return when the runs have ended.

        Without `until` it passes until each timer has been due once: else the timers that the last events start would
        trigger nothing. A moment that is over already changes nothing.
        """
        now_ms, longest_ms = self._engine.time.timers.now_ms, self._manifest.trigger.longest_ms
        if now_ms is None or not longest_ms:
            return
        until = until or Until(longest_ms, is_relative=True)
        end_ms = min(until.ms + (now_ms if until.is_relative else 0), MAX_TS_MS)
        if end_ms > now_ms:
            await self._engine.on_event(Tick(end_ms), can_wait=True)
            await self._engine.settle()
            self._measure_state()

    async def train(self, steps: int) -> None:
        """Take the first steps of the version's training, if it has one, `steps` at most, until one wants no other.

        The device has the attributes that the training asks for. The last run is repeated after that, with what was
        learned; nothing of it is stored.
        """
        policy, last = self._manifest.training, self._trigger
        if policy is None:
            return
        position = self._engine.next_position
        trigger = Trigger(Event(TRAINING, "", self._engine.now_ms or 0, {}), position, (), (), "none")
        for _ in range(steps):
            try:
                step = await self._train_once(policy, position)
            except WalleError as error:
                self._on_end(PlayedRun(trigger=trigger, output=None, error=error))
                return
            times = {TRAINING: step.run_ms}
            output = TaskOutput(None, step.puts, None, times, step.cpu_s, run_ms=step.run_ms, metrics=step.metrics)
            self._on_end(PlayedRun(trigger=trigger, output=output, error=None))
            if not step.wants_more:
                break
        if last is not None and self._checkpoints.read(self._manifest.name)[0]:
            try:
                await self._run(self._manifest.name, last)
            except WalleError as error:
                self._on_end(PlayedRun(trigger=last, output=None, error=error))

    async def _train_once(self, policy: TrainingPolicy, position: int) -> TrainedStep:
        manifest, callbacks = self._manifest, self._callbacks_at(position - 1)
        device = {**self._device, **policy.when}
        on_log = self._on_log(position)
        step = await self._runner.train(self._files, manifest, device, callbacks, on_log=on_log)
        self._topics.add(manifest.name, [put.topic for put in step.puts])
        await self._checkpoints.put(manifest.name, policy, step.puts, step.checkpoint)
        return step

    def _measure_state(self) -> None:
        active = self._store.task_states.active(self._manifest.name)
        if active is not None:
            self.state_bytes = max(self.state_bytes, len(active.data))

    async def _run(self, task: str, trigger: Trigger) -> TaskOutput:
        self._trigger, self._output = trigger, None
        manifest = self._manifest
        callbacks = self._callbacks_at(trigger.position)
        policy, active = manifest.state, self._store.task_states.active(task)
        self._measure_state()
        output = await self._runner.run(
            self._files,
            manifest,
            trigger,
            self._device,
            callbacks,
            state=None if active is None or policy is None else active.value_at(policy, trigger.ts_ms),
            on_log=self._on_log(trigger.position),
            timed=self._timed,
        )
        self._topics.add(task, output.topics)
        self._output = output
        return output

    def _callbacks_at(self, position: int) -> Callbacks:
        """Return what a run on the event at this position asks the device for."""
        manifest = self._manifest
        query = functools.partial(query_payloads, self._store, manifest, 0)
        callbacks: Callbacks = {**self._callbacks, "store.query": query}
        if manifest.history is not None:
            older = functools.partial(self._history.query, manifest.name, position)
            callbacks = {**callbacks, "events.history": older}
        if manifest.training is not None:
            read = functools.partial(self._checkpoints.read, manifest.name)
            callbacks = {**callbacks, "checkpoint.read": read}
        return callbacks

    def _on_outcome(self, task: str, ok: bool, error: Exception | None) -> None:
        assert self._trigger is not None
        failed = None if ok else error or RuntimeError(f"a run of {task} ended without an error")
        self._on_end(PlayedRun(trigger=self._trigger, output=self._output if ok else None, error=failed))
