"""The stream engine (§5.1, Fig. 7): event → sequences → trigger trie → task execution → collective storage.

After a crash the event source starts again from `store.resume_from`. Up to `store.position` the engine feeds its
sequences and the trie and runs no task, because those outputs are stored (ARCHITECTURE.md, "Exactly once").
"""

import asyncio
import collections
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from walle.errors import PipelineError
from walle.pipeline.events import Event
from walle.pipeline.sequences import PageSequence, TimeSequence
from walle.pipeline.store import FeatureStore, Put
from walle.pipeline.trie import TriggerTrie
from walle.protocol import TriggerCondition

_YIELD_EVERY = 64  # events after which a source that never pauses lets the loop's other tasks run


class PositionError(PipelineError):
    """A stream position out of order. Carries `position` and `last`, the position before it."""

    def __init__(self, position: int, last: int, what: str) -> None:
        super().__init__(f"stream position {position} after {last}: {what}")
        self.position = position
        self.last = last


@dataclasses.dataclass(frozen=True, slots=True)
class Trigger:
    """The cause of a run: the event that completed the task's condition, and the events before it.

    `page_events` are the events of the event's page visit from its enter to this event; after an exit, the whole visit;
    empty if the page was never entered. `recent` is the time-level sequence, this event included.
    """

    event: Event
    position: int
    page_events: tuple[Event, ...]
    recent: tuple[Event, ...]

    def to_plain(self) -> dict[str, Any]:
        """Return the trigger as plain data: event, position and page_events, without `recent`."""
        return {
            "event": self.event.to_dict(),
            "position": self.position,
            "page_events": [event.to_dict() for event in self.page_events],
        }


@dataclasses.dataclass(frozen=True, slots=True)
class TaskOutput:
    """The result of one run: `output` is stored under the task's name, None if there is nothing to store.

    `puts` are the (topic, payload) pairs that the task put, `local` those that are not uploaded. All is plain data.
    """

    output: Any = None
    puts: Sequence[tuple[str, Any]] = ()
    local: Sequence[tuple[str, Any]] = ()


type Runner = Callable[[str, Trigger], Awaitable[TaskOutput]]
type OnOutcome = Callable[[str, bool, Exception | None], None]


@dataclasses.dataclass(slots=True)
class StreamCounts:
    """`replayed` events are among `events`; `triggers` are task runs, `failures` those that raised."""

    events: int = 0
    replayed: int = 0
    triggers: int = 0
    failures: int = 0


def _ignore_outcome(task: str, ok: bool, error: Exception | None) -> None:
    """Do nothing."""


class StreamEngine:
    """The tasks of one device on its event stream.

    Args:
        store: open; outputs go there, with the position they came from.
        runner: runs a task on a trigger. What it raises fails that run; other tasks go on.
        on_outcome: called with (task, ok, error) after each run, outputs that cannot be stored included.
        recent, pages: the two sequences, with their bounds.
    """

    def __init__(
        self,
        store: FeatureStore,
        runner: Runner,
        *,
        on_outcome: OnOutcome = _ignore_outcome,
        recent: TimeSequence | None = None,
        pages: PageSequence | None = None,
    ) -> None:
        self.recent = TimeSequence() if recent is None else recent
        self.pages = PageSequence() if pages is None else pages
        self.counts = StreamCounts()
        self._store = store
        self._runner = runner
        self._on_outcome = on_outcome
        self._trie = TriggerTrie()
        self._conditions: dict[str, TriggerCondition] = {}
        # Partly matched conditions need the events that matched so far, even if the time sequence has dropped them.
        self._matching: collections.deque[int] = collections.deque(maxlen=TriggerCondition.MAX_LENGTH - 1)
        self._last = store.resume_from - 1
        self._turn = asyncio.Lock()
        self._unstored: tuple[list[Put], int, int, float] | None = None
        self._interrupted_at: int | None = None

    # --- tasks --------------------------------------------------------------------------------------------------------

    def add_task(self, task: str, condition: TriggerCondition) -> None:
        """Trigger `task` by `condition` from the next event on, in place of its condition so far.

        Raises:
            TriggerError: the task has no name.
        """
        old = self._conditions.get(task)
        if condition == old:
            return
        self._trie.add(condition, task)
        self._conditions[task] = condition
        if old is not None:
            self._trie.remove(old, task)

    def remove_task(self, task: str) -> None:
        """Stop triggering the task. A run under way ends and is stored; an unknown task is not an error."""
        condition = self._conditions.pop(task, None)
        if condition is not None:
            self._trie.remove(condition, task)

    @property
    def tasks(self) -> dict[str, TriggerCondition]:
        """Each task with its trigger condition."""
        return dict(self._conditions)

    # --- events -------------------------------------------------------------------------------------------------------

    async def on_event(self, event: Event, position: int | None = None) -> None:
        """Return once every task that the event triggers has run and the outputs are put into the store.

        Events are processed one after the other, in the order of the calls; the tasks of one event run concurrently.
        `position` is the event's place in a source that can be replayed, None if the source cannot be: then the outputs
        of a cancelled call are lost, and the stream goes on.

        Raises:
            EventError: the event is enormous or its contents are not plain data; it is skipped.
            PositionError: the position does not grow, or a cancelled call left the one before unfinished; continue from
                `store.resume_from` with a new engine.
            StoreError: the outputs could not be put. They are kept, and the next call puts them first.
        """
        came_s = self._store.clock.time()
        size_bytes = event.size_bytes()
        if self.counts.events % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
        async with self._turn:
            await self._put_unstored()
            if self._interrupted_at is not None:
                raise PositionError(self._interrupted_at, self._last, "its tasks were cancelled before they ended")
            replayable = position is not None
            if position is None:
                position = max(self._last, self._store.position) + 1
            if position <= self._last:
                raise PositionError(position, self._last, "positions must grow; replay into a new engine")
            self._last = position
            self.counts.events += 1
            self.recent.append(position, event, size_bytes)
            visit = self.pages.feed(position, event, size_bytes)
            self._matching.append(position)
            tasks = self._trie.feed(event.event_id, event.page_id)
            if position <= self._store.position:
                self.counts.replayed += 1
                return
            puts: list[Put] = []
            if tasks:
                trigger = Trigger(event, position, tuple(visit.events) if visit else (), tuple(self.recent))
                self._interrupted_at = position if replayable else None
                puts = await self._run_all(tasks, trigger)
                self._interrupted_at = None
            self._unstored = puts, position, self._needed_from(position), came_s
            await self._put_unstored()

    async def settle(self) -> None:
        """Put the outputs that a StoreError kept from the store.

        Raises:
            StoreError: they could not be put this time either.
        """
        async with self._turn:
            await self._put_unstored()

    async def _put_unstored(self) -> None:
        if self._unstored is not None:
            puts, position, resume_from, came_s = self._unstored
            await self._store.put_all(puts, position=position, resume_from=resume_from, since_s=came_s)
            self._unstored = None

    async def _run_all(self, tasks: list[str], trigger: Trigger) -> list[Put]:
        if len(tasks) == 1:
            return await self._run(tasks[0], trigger)
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(self._run(task, trigger)) for task in tasks]
        return [put for run in runs for put in run.result()]

    async def _run(self, task: str, trigger: Trigger) -> list[Put]:
        self.counts.triggers += 1
        try:
            output = await self._runner(task, trigger)
            puts = [self._store.encode(topic, payload) for topic, payload in output.puts]
            puts += [self._store.encode(topic, payload, upload=False) for topic, payload in output.local]
            if output.output is not None:
                puts.append(self._store.encode(task, output.output))
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            return self._failed(task, PipelineError(f"task {task!r} cancelled itself: {error!r}"))
        except Exception as error:  # noqa: BLE001 (any failure of a run stays that task's)
            return self._failed(task, error)
        self._on_outcome(task, True, None)
        return puts

    def _failed(self, task: str, error: Exception) -> list[Put]:
        self.counts.failures += 1
        self._on_outcome(task, False, error)
        return []

    def _needed_from(self, position: int) -> int:
        oldest = (self.recent.oldest_position, self.pages.oldest_position, self._matching[0])
        return min(position, *(needed for needed in oldest if needed is not None))
