"""The stream engine (§5.1, Fig. 7): event → sequences → trigger trie → queues of tasks → runs → collective storage.

Each task has its own bounded queue of triggers and its own position in the stream (ADR 18). A task whose queue is full
falls behind and reads its events again from the event journal, where there is one (ADR 18). After a crash the event
source starts again from `store.resume_from`. Up to `store.position` the engine feeds its sequences and the trie, and
runs only tasks that lag, at the events after their own position; the other outputs are stored (ARCHITECTURE.md,
"Exactly once").
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

from walle.engine_ext._core import PageVisit
from walle.errors import PipelineError
from walle.pipeline.events.event import Event
from walle.pipeline.events.event_journal import EventJournal, EventJournalError
from walle.pipeline.events.ticks import Tick
from walle.pipeline.events.transient_events import SIMPLE_TYPES, RecordedEvent, TransientEvent, transient
from walle.pipeline.features.database import StoreError
from walle.pipeline.features.store import FeatureStore, OutboxFullError, StoreClosedError
from walle.pipeline.features.store_schema import ReplayState
from walle.pipeline.trigger.deferred_triggers import TriggerReader
from walle.pipeline.trigger.run_outputs import OnOutcome, Runner, RunResult, TaskRuns
from walle.pipeline.trigger.stream_counts import LossKind, StreamCounts
from walle.pipeline.trigger.stream_time import (
    SNAPSHOT_TASK,
    StreamTime,
    can_fall_behind,
    matching_parts,
    timer_trigger,
    window_trigger,
)
from walle.pipeline.trigger.task_output import TaskOutput as TaskOutput  # noqa: PLC0414 (re-exported)
from walle.pipeline.trigger.task_queue import DeferredTrigger, QueuedTrigger, TaskQueue, Trigger
from walle.pipeline.trigger.task_queues import TaskQueues
from walle.pipeline.trigger.task_results import TaskResults
from walle.pipeline.trigger.trie import EventStream, TriggerError
from walle.protocol import FullPolicy, QueuePolicy, TriggerCondition

_LOG = logging.getLogger(__name__)

_YIELD_EVERY = 64  # events after which a source that never pauses lets the loop's other tasks run
_RETRY_S = 1.0  # pause between attempts to put outputs while the store's file cannot be written
_MAX_QUEUED_BYTES = 64 << 20  # about 20 frames of 1280 x 720
_NONE_FIRED: tuple[list[str], dict[str, int]] = ([], {})


class PositionError(PipelineError):
    """A stream position that does not grow. Carries `position` and `last`, the position before it."""

    def __init__(self, position: int, last: int, what: str) -> None:
        super().__init__(f"stream position {position} after {last}: {what}")
        self.position = position
        self.last = last


class TakenEvent(NamedTuple):
    """The position of an event in the stream, and the tasks that it has triggered, each of which gives one result.

    Timers that were due before the event are among them, at the front; a task may be there several times.
    """

    position: int
    tasks: tuple[str, ...]


type OnPut = Callable[[str, Trigger], None]
type OnLoss = Callable[[str, LossKind, int], None]


def _ignore(*_: object) -> None:
    """Do nothing."""


class StreamEngine:
    """The tasks of one device on its event stream, until `close`.

    Args:
        store: open until the engine is closed; outputs go there, with the position they came from.
        runner: runs a task on a trigger; one run of each task at a time. What it raises fails that run only.
        on_outcome: called with (task, ok, error) after each run, outputs that cannot be stored included.
        on_put: called with (task, trigger) once the outputs of a run are in the store's buffer. It must not raise.
        on_loss: called with (task, kind, count) for what a full queue, outbox or state dropped. It must not raise.
        events: the two sequences with their bounds, and the trie.
        max_queued_bytes: bound on all queued triggers, arrays of their events included, which count for each task that
            they wait for. Beyond it the task that keeps most drops one by its policy.
        share_arrays: copy the arrays of events that trigger a task once, into memory that a VM host reads: for a runner
            whose VMs are in a host. False: they are not copied here, and must not change until the task has its result.
    """

    def __init__(
        self,
        store: FeatureStore,
        runner: Runner,
        *,
        on_outcome: OnOutcome = _ignore,
        on_put: OnPut | None = None,
        on_loss: OnLoss = _ignore,
        events: EventStream | None = None,
        max_queued_bytes: int = _MAX_QUEUED_BYTES,
        share_arrays: bool = False,
    ) -> None:
        self.events = EventStream() if events is None else events
        self.counts = StreamCounts()
        self._store = store
        self._runs = TaskRuns(store, runner, on_outcome, self.counts)
        self._on_put = on_put
        self._on_loss = on_loss
        self.results = TaskResults()
        self._share_arrays = share_arrays
        self._conditions: dict[str, TriggerCondition] = {}
        self._policies: dict[str, QueuePolicy] = {}
        self._queues = TaskQueues(max_queued_bytes, self._end_dropped)
        self._cooldowns: Mapping[str, int] = {}  # tasks with a cool-down: the time of the event that triggered last
        self._needed_from: int | None = None  # position that sequences and matches under way need for the next event
        self._last = store.resume_from - 1
        self._replay_until = store.position
        self._replay_lagging = dict(store.replay.lagging)
        self._replay = ReplayState()
        self._caught_up = False  # `_replay` is in the store and names no task
        replay = store.replay
        self._restore_at = store.position + 1 if replay.cut_position is None else replay.cut_position
        self._restored_cooldowns: Mapping[str, int] | None = replay.cooldowns
        stored = store.task_states.active(SNAPSHOT_TASK)
        self.time = StreamTime(None if stored is None else stored.data, store.resume_from, store.replay.steps)
        # Timers depend on cut visits from their snapshot on, which is at or before `_restore_at`. From there on, a
        # replay has the visits of the first run, and cuts the same.
        self.events.restore_cut(*(self.time.cut_visits or (tuple(replay.cut_visits), self._restore_at)))
        # As `time.is_used`. An object of 30 attributes or more is slower at each of them: an event took a tenth longer.
        self._uses_time = False
        self._turn = asyncio.Lock()
        self._waiting_calls = 0  # calls of `on_event` that hold `_turn` or wait for it
        # Of each task: held from a run's start until its outputs are put. A lock exists as long as it is in use.
        self._run_turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._progress = asyncio.Event()  # replaced after it is set: a queue has become shorter, or its store stuck
        self._is_closed = False
        self._retry = asyncio.Event()  # replaced after it is set: put the outputs again that could not be put

    # --- tasks --------------------------------------------------------------------------------------------------------

    def add_task(self, task: str, condition: TriggerCondition, policy: QueuePolicy | None = None) -> None:
        """Trigger `task` by `condition` from the next event on, in place of its condition and policy so far.

        Raises:
            TriggerError: the task has no name.
        """
        if not task:
            raise TriggerError(condition, task, "the task has no name")
        old = self._conditions.get(task)
        matched, before = matching_parts(condition), [] if old is None else matching_parts(old)
        for part in matched:
            if part not in before:
                self.events.add(part, task)
        for part in before:
            if part not in matched:
                self.events.remove(part, task)
        self._uses_time = self.time.set_task(task, condition, self._last + 1)
        self._conditions[task] = condition
        if not condition.cooldown_ms:
            self._end_cooldown(task)
        self._policies[task] = policy or QueuePolicy()
        self._queues.set_policy(task, self._policies[task])

    def remove_task(self, task: str) -> None:
        """Stop triggering the task. A run under way ends and is stored; an unknown task is not an error."""
        condition = self._conditions.pop(task, None)
        if condition is None:
            return
        del self._policies[task]
        for part in matching_parts(condition):
            self.events.remove(part, task)
        self._uses_time = self.time.set_task(task, None, self._last + 1)
        self._end_cooldown(task)
        queue = self._queues.by_task.get(task)
        if queue is not None:
            for removed in queue.clear_waiting():
                self.results.drop(task, removed)
            self._pulse()

    def _end_cooldown(self, task: str) -> None:
        if task in self._cooldowns:
            self._cooldowns = {name: ts_ms for name, ts_ms in self._cooldowns.items() if name != task}

    def _run_turn(self, task: str) -> asyncio.Lock:
        lock = self._run_turns.get(task)
        if lock is None:
            lock = self._run_turns[task] = asyncio.Lock()
        return lock

    @contextlib.asynccontextmanager
    async def between_runs(self, task: str) -> AsyncIterator[None]:
        """Hold the task's next run back: the outputs and the state of the one under way are put, no other starts."""
        async with self._run_turn(task):
            yield

    @property
    def tasks(self) -> dict[str, TriggerCondition]:
        """Each task with its trigger condition."""
        return dict(self._conditions)

    @property
    def queued(self) -> dict[str, int]:
        """The number of triggers of each task that are not done."""
        return {task: len(queue.triggers) + len(queue.deferred) for task, queue in self._queues.by_task.items()}

    def use_journal(self, journal: EventJournal) -> None:
        """Let tasks fall behind on events that are in this journal before they are taken."""
        self._queues.journal = journal
        self.time.max_journal_bytes = journal.max_bytes

    @property
    def next_position(self) -> int:
        """The position of the next event that has none: after all events, also of an earlier process."""
        return max(self._last, self._replay_until) + 1

    @property
    def next_due_ms(self) -> int | None:
        """The time of the stream at which the next timer is due, None if no timer runs."""
        return self.time.next_due_ms(self._last + 1) if self.time.is_used else None

    @property
    def now_ms(self) -> int | None:
        """The time of the stream, None before the first entry and without time conditions."""
        return self.time.now_ms(self._last + 1) if self.time.is_used else None

    # --- events -------------------------------------------------------------------------------------------------------

    async def on_event(self, event: Event | Tick, position: int | None = None, *, can_wait: bool = False) -> TakenEvent:
        """Take one event: put a trigger into the queue of each task that it triggers; runs continue in the background.

        Timers that are due at its time trigger before it (`walle.pipeline.trigger.timers`). A tick has the time alone.

        Contents with arrays (`walle.pipeline.events.transient_events`) reach the tasks; the sequences keep None in
        their places.

        `position` is the event's place in a source that can be replayed, None if the source cannot be: then triggers
        that are queued at a crash are lost.

        Where a task's queue is full and its policy is to block, the task falls behind and reads its events again, if
        the event is in the journal (`use_journal`). Otherwise this call waits for runs of the tasks that the event may
        trigger: for an event that is not recorded or has arrays, and for a task that is behind by
        `TaskQueue.MAX_DEFERRED` triggers or by half of the journal. `can_wait` is for a source that loses nothing by
        waiting, such as a file: this call waits also where a policy would drop a trigger. Replayed events wait too.
        Events are taken in the order of the calls. A call that is cancelled while it waits has not taken the event.

        Raises:
            EventError: the event is enormous, its contents are not plain data, or they are nested too deep for a task;
                it is skipped.
            PositionError: the position does not grow; replay into a new engine.
            StoreClosedError: the engine or its store is closed.
        """
        can_wait = can_wait or (position is not None and position <= self._replay_until)
        # Most events have flat contents, for which the call of `transient` would be a tenth of the cost.
        if type(event) is Event and not SIMPLE_TYPES.issuperset(map(type, event.contents.values())):
            event = transient(event) or event
        if not self._queues.by_task and not self._waiting_calls and self.counts.events % _YIELD_EVERY:
            return self._take(event, position, self._now(), can_wait=can_wait)  # nothing to wait for: no lock is needed
        arrival = self._now()
        self._waiting_calls += 1
        try:
            async with self._turn:
                await asyncio.sleep(0)
                while not self._is_closed and self._queues.must_wait(
                    event, position, self._conditions, can_wait=can_wait
                ):
                    await self._progress.wait()
                return self._take(event, position, arrival, can_wait=can_wait)
        finally:
            self._waiting_calls -= 1

    def _now(self) -> tuple[float, float]:
        """Return the wall-clock time and the monotonic time."""
        clock = self._store.clock
        return clock.time(), clock.monotonic()

    def _take(
        self, event: Event | Tick, position: int | None, arrival: tuple[float, float], *, can_wait: bool
    ) -> TakenEvent:
        """Feed the event and queue its triggers."""
        self._check_open()
        if position is None:
            position = self.next_position
        if position <= self._last:
            raise PositionError(position, self._last, "positions must grow; replay into a new engine")
        if self._replay_lagging:
            self._check_replay(position)
        if self._restored_cooldowns is not None and position >= self._restore_at:
            self._restore_cooldowns(self._restored_cooldowns)
        events = self.events
        needed_from = position if self._needed_from is None else self._needed_from
        cut_visits, cooldowns = events.cut_before(position), self._cooldowns
        fired, steps = _NONE_FIRED
        uses_time = self._uses_time
        if uses_time:
            before = needed_from, cut_visits, cooldowns
            fired, steps = self._fire_timers(event, position, arrival, before, can_wait=can_wait)
        if isinstance(event, Tick):
            return self._end_tick(position, fired)
        arrays = event if isinstance(event, TransientEvent) else None
        recorded = event if arrays is None else arrays.recorded
        visit, tasks = events.feed(position, recorded)
        if uses_time:
            tasks = self.time.feed(recorded, has_visit=visit is not None, tasks=tasks, events=events)
        self.counts.events += 1
        self._last = position
        self._needed_from = events.needed_from
        if tasks:
            tasks = self._cooled_down(tasks, event.ts_ms)
        if tasks and type(event) is RecordedEvent:
            self._count_lost_arrays(tasks, event, position, visit)
            tasks = []
        if position <= self._replay_until:
            self.counts.replayed += 1
            tasks = [task for task in tasks if not self._is_done(task, position, steps.get(task, 0))]
        if tasks:
            tasks = [task for task in tasks if self._may_trigger(task, event, visit)]
        if tasks:
            if arrays is not None and self._share_arrays:
                event = arrays.shared()
            trigger = Trigger.of(event, position, visit, events, arrival)
            kept_bytes = events.last_size_bytes + events.recent_bytes + (visit.size_bytes if visit else 0)
            kept_bytes += 0 if arrays is None else arrays.array_bytes
            queued = QueuedTrigger(trigger, arrival[0], needed_from, cut_visits, cooldowns, kept_bytes)
            can_defer = self._queues.can_defer(event, position)
            for task in [task for task in tasks if task in steps]:
                later = dataclasses.replace(queued, trigger=dataclasses.replace(trigger, step=steps[task]))
                self._add((task,), later, can_wait=can_wait, can_defer=can_defer)
            others = [task for task in tasks if task not in steps] if steps else tasks
            self._add(others, queued, can_wait=can_wait, can_defer=can_defer)
        if tasks or fired or position > self._replay_until:
            self._advance()
        return TakenEvent(position, (*fired, *tasks) if fired else tuple(tasks))

    def _fire_timers(
        self,
        entry: Event | Tick,
        position: int,
        arrival: tuple[float, float],
        before: tuple[int, tuple[str, ...], Mapping[str, int]],
        *,
        can_wait: bool,
    ) -> tuple[list[str], dict[str, int]]:
        """Queue triggers of the timers that are due before an entry; return their tasks, and the number of each task's.

        The number includes triggers that an earlier process has done.
        """
        fired: list[str] = []
        steps: dict[str, int] = {}
        can_defer = self._queues.can_defer(entry, position)
        for due in self.time.advance(position, entry.ts_ms):
            task = due.task
            if not self._cooled_down([task], due.ts_ms):
                continue
            steps[task] = steps.get(task, 0) + 1
            step = steps[task] - 1
            if self._is_done(task, position, step):
                continue
            if due.window is not None:
                trigger, size_bytes = window_trigger(due, position, step, self.events, arrival)
            else:
                trigger, size_bytes = timer_trigger(due.to_event(), position, step, self.events, arrival)
                self.counts.cut_visits += trigger.visit == "cut"
            queued = QueuedTrigger(trigger, arrival[0], *before, size_bytes)
            self._add((task,), queued, can_wait=can_wait, can_defer=can_defer)
            fired.append(task)
        if steps:
            self._last = position  # the event counts, even if the sequences refuse it
        return fired, steps

    def _end_tick(self, position: int, fired: list[str]) -> TakenEvent:
        self.counts.ticks += 1
        self._last = position
        if position <= self._replay_until:
            self.counts.replayed += 1
        if fired or position > self._replay_until:
            self._advance()
        return TakenEvent(position, tuple(fired))

    def _is_done(self, task: str, position: int, step: int) -> bool:
        """Return whether an earlier process has put the outputs of this trigger."""
        if position > self._replay_until:
            return False
        done = self._replay_lagging.get(task)
        if done is None or position <= done:
            return True
        return position == done + 1 and step < self.time.replay_steps.get(task, 0)

    async def settle(self) -> None:
        """Return once all queues are empty and all outputs are put. Outputs that could not be put are tried again.

        Raises:
            StoreError: outputs cannot be put; they are kept, and a later attempt puts them.
            StoreClosedError: the engine was closed before.
        """
        self._retry.set()
        self._retry = asyncio.Event()
        stuck = {task: queue.error for task, queue in self._queues.by_task.items() if queue.waits_to_retry}
        while self._queues.by_task:
            for task, queue in self._queues.by_task.items():
                if queue.error is not None and queue.error is not stuck.get(task):
                    raise queue.error
            self._check_open()
            await self._progress.wait()

    async def close(self) -> None:
        """Cancel the runs. Their triggers, and those that wait, stay undone in the store: a replay makes them again.

        Calls that wait for room in a queue, or for its end, raise StoreClosedError.
        """
        self._is_closed = True
        self.results.close()
        self._pulse()
        workers = [queue.worker for queue in self._queues.by_task.values() if queue.worker is not None]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    # --- queues -------------------------------------------------------------------------------------------------------

    def _check_replay(self, position: int) -> None:
        """Report triggers that are lost because the source does not replay their events; end a replay that is over."""
        late = not (self.counts.events or self.counts.ticks) and position > self._store.resume_from
        over = position > self._replay_until
        if late or (over and self._last != self._replay_until):
            tasks = ", ".join(sorted(self._replay_lagging))
            what = "triggers that were queued when the process ended are lost, because their events were not replayed"
            _LOG.warning("%s (from %d on): %s", what, self._store.resume_from, tasks)
        if over:
            self._replay_lagging = {}

    def _restore_cooldowns(self, cooldowns: Mapping[str, int]) -> None:
        """Continue the cool-downs of an earlier process, of tasks that still have one."""
        having = {task for task, condition in self._conditions.items() if condition.cooldown_ms}
        self._cooldowns = {task: ts_ms for task, ts_ms in cooldowns.items() if task in having}
        self._restored_cooldowns = None

    def _cooled_down(self, tasks: list[str], ts_ms: int) -> list[str]:
        """Return the tasks that are not in their cool-down, and begin that of each.

        The engine applies cool-downs itself, since they survive a restart. A clock that is set back ends one (ADR 18).
        """
        conditions, found = self._conditions, []
        for task in tasks:
            cooldown_ms = conditions[task].cooldown_ms
            if cooldown_ms:
                latest_ms = self._cooldowns.get(task)
                if latest_ms is not None and abs(ts_ms - latest_ms) < cooldown_ms:
                    continue
                self._cooldowns = {**self._cooldowns, task: ts_ms}
            found.append(task)
        return found

    def _may_trigger(self, task: str, event: Event, visit: PageVisit | None) -> bool:
        """Return whether the task takes the event with this visit, and count where the visit is not whole."""
        if visit is not None:
            self.counts.cut_visits += visit.is_cut
            return True
        if not event.page_id or self._conditions[task].without_visit:
            return True
        self.counts.without_visit += 1
        return False

    def _count_lost_arrays(self, tasks: list[str], event: Event, position: int, visit: PageVisit | None) -> None:
        """Count the tasks that had not run on an event whose arrays ended with the process that took it."""
        for task in tasks:
            was_done = position <= self._replay_until and position <= self._replay_lagging.get(task, position)
            if not was_done and self._may_trigger(task, event, visit):
                self.count_loss(task, LossKind.TRIGGERS, 1)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(self._store.path, "is not open: the stream engine is closed")

    def _add(self, tasks: Sequence[str], queued: QueuedTrigger, *, can_wait: bool, can_defer: bool) -> None:
        for task in tasks:
            self.results.expect(task, queued.position, queued.step)
            may_defer = can_defer and can_fall_behind(self._conditions[task])
            queue = self._queues.add(task, self._policies[task], queued, can_wait=can_wait, can_defer=may_defer)
            if queue.worker is None:
                queue.worker = asyncio.create_task(self._work(queue), name=f"runs of {task}")
        self._queues.drop_excess(can_wait=can_wait)

    def _end_dropped(self, task: str, dropped: QueuedTrigger | DeferredTrigger) -> None:
        self.results.drop(task, dropped)
        self.count_loss(task, LossKind.TRIGGERS, 1)

    def count_loss(self, task: str, kind: LossKind, count: int) -> None:
        """Count what a full queue, outbox or state dropped."""
        self.counts.add_loss(task, kind, count)
        self._on_loss(task, kind, count)

    def _advance(self) -> None:
        """Pass the positions of stream and tasks to the store."""
        lagging: Mapping[str, int] = self._replay_lagging
        cut_visits = self.events.cut_before(self._last + 1)
        unchanged = self._replay.cut_visits is cut_visits and self._replay.cooldowns is self._cooldowns
        if self._caught_up and not self._queues.by_task and unchanged:
            resume_from = self._last + 1 if self._needed_from is None else self._needed_from
            if self._uses_time:
                resume_from, snapshot = self.time.settle(self._last, resume_from, cut_visits)
                self._store.advance(self._last, resume_from, state=snapshot)
            else:
                self._store.advance(self._last, resume_from)
            return
        position = max(self._last, self._replay_until)
        needed_from, cooldowns, cut_now = self._needed_from, self._cooldowns, cut_visits
        cut_position = self._last + 1 if position > self._last else None
        steps, oldest_position = self.time.replay_steps, None
        if firsts := self._queues.firsts():
            lagging = {**lagging, **{task: first.position - 1 for task, first in firsts.items()}}
            oldest = min(firsts.values(), key=lambda first: first.position)
            needed_from, cut_visits, cut_position = oldest.needed_from, oldest.cut_visits, oldest.position
            cooldowns, oldest_position = oldest.cooldowns, oldest.position
            steps = {**steps, **{task: first.step for task, first in firsts.items()}}
        if lagging or self._replay.lagging or not unchanged:
            steps = {task: step for task, step in steps.items() if step and task in lagging}
            self._replay = ReplayState(dict(lagging), cut_visits, cut_position, cooldowns, steps)
        self._caught_up = not lagging and cut_position is None
        resume_from, snapshot = position + 1 if needed_from is None else needed_from, None
        if self._uses_time:
            resume_from, snapshot = self.time.settle(self._last, resume_from, cut_now, oldest_position)
        self._store.advance(position, resume_from, self._replay, state=snapshot)

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def _work(self, queue: TaskQueue) -> None:
        """Run the triggers of a queue until it is empty."""
        reader: TriggerReader | None = None
        try:
            while queue.first is not None:
                if not queue.triggers and (journal := self._queues.journal) is not None:
                    reader = reader or TriggerReader(journal, self.events.like)
                    await self._read_deferred(queue, reader)
                    continue
                async with self._run_turn(queue.task):
                    queued = queue.triggers[0]
                    await self._put(queue, queued, await self._runs.run(queue.task, queued.trigger))
            if self._queues.remove_empty(queue):  # the queue's last triggers were dropped
                self._advance()
            self._pulse()
        except Exception as error:  # noqa: BLE001 (`settle` raises it)
            if not isinstance(error, StoreClosedError):
                _LOG.exception("the runs of task %s ended by a fault of the engine", queue.task)
            queue.error, queue.has_ended = error, True
            self._pulse()
        finally:
            if reader is not None:
                await reader.aclose()

    async def _read_deferred(self, queue: TaskQueue, reader: TriggerReader) -> None:
        """Make the next triggers of a task that is behind, as many as its queue takes."""
        while queue.deferred and len(queue.triggers) <= queue.policy.queue:
            deferred = queue.deferred[0]
            try:
                queued = await reader.read(deferred)
            except EventJournalError as error:
                if queue.error is None:
                    _LOG.warning("task %s cannot read its next events and tries again: %s", queue.task, error)
                await reader.aclose()
                if queue.triggers:  # the triggers that are queued already can run
                    return
                await self._retry_later(queue, error)
                continue
            queue.error = None
            if not queue.deferred or queue.deferred[0] is not deferred:
                continue  # dropped meanwhile
            if queued is None:
                self._end_dropped(queue.task, queue.drop_deferred())
            else:
                queue.replace_deferred(queued)
                if self._queues.has_excess:
                    break

    async def _retry_later(self, queue: TaskQueue, error: Exception) -> None:
        """Return when what failed with this error is to be tried again."""
        queue.error, queue.waits_to_retry = error, True
        self._pulse()
        await self._wait_for_retry()
        queue.waits_to_retry = False

    async def _put(self, queue: TaskQueue, queued: QueuedTrigger, result: RunResult) -> None:
        """Put the outputs and the state of a run and remove its trigger, in one step. Waits for room by the policy."""
        store, position, drops = self._store, queued.position, queue.policy.outbox_full is FullPolicy.DROP_NEWEST
        puts, state = result.puts, result.state
        while True:
            if drops and not store.outbox_has_room(puts):
                self.count_loss(queue.task, LossKind.UPLOADS, sum(put.upload for put in puts))
                puts = [put._replace(upload=False) for put in puts]
            done = functools.partial(self._remove_first, queue, result)
            if state is not None and store.task_states.active(queue.task) is not result.state_before:
                state = None  # another version's state replaced it meanwhile, or the task was removed
            try:
                await store.put_outputs(puts, position=position, since_s=queued.came_s, state=state, on_put=done)
                if self._on_put is not None:
                    self._on_put(queue.task, queued.trigger)
            except OutboxFullError:
                if drops:
                    continue
                queue.waits_for_cloud = True
                self._pulse()
                await store.wait_for_progress()
                queue.waits_for_cloud = False
            except StoreClosedError:
                raise
            except StoreError as error:
                if queue.error is None:
                    _LOG.warning("outputs of task %s wait in memory: %s", queue.task, error)
                await self._retry_later(queue, error)
            else:
                if result.evicted and state is not None:
                    self.count_loss(queue.task, LossKind.ENTRIES, result.evicted)
                return

    def _remove_first(self, queue: TaskQueue, result: RunResult) -> None:
        """Take note that the first trigger's outputs are in the store's buffer."""
        queue.error = None
        first = queue.remove_first()
        self.results.end(queue.task, first.trigger, result.output, result.error, cpu_s=result.cpu_s)
        if queue.task in self._replay_lagging:
            self._replay_lagging[queue.task] = first.position
            self.time.replay_steps.pop(queue.task, None)
        self._queues.remove_empty(queue)
        self._advance()
        self._pulse()

    async def _wait_for_retry(self) -> None:
        waits = [asyncio.ensure_future(self._store.clock.sleep(_RETRY_S)), asyncio.ensure_future(self._retry.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _pulse(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()
