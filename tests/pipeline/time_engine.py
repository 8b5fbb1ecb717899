"""A stream engine of tasks with time conditions, in a folder that outlives crashes; each trigger gives a feature."""

import asyncio
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.pipeline.slow_time import Entry
from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.features.database import StoreDatabase
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import FullPolicy, QueuePolicy, TriggerCondition

BLOCKS = QueuePolicy(queue=1, queue_full=FullPolicy.BLOCK)


class TimeEngine:
    """The tasks of `conditions` in `folder`; each run puts out its position, its event, its visit's state and events.

    `recorded`: the entries are in a journal, from which a task with a full queue reads them again. `sequences` returns
    new ones.
    """

    def __init__(
        self,
        folder: Path,
        conditions: Mapping[str, TriggerCondition],
        rng: random.Random,
        *,
        recorded: bool,
        sequences: Callable[[], EventStream],
    ) -> None:
        self._folder = folder
        self._conditions = conditions
        self._rng = rng
        self._recorded = recorded
        self._sequences = sequences

    async def play(self, entries: Sequence[Entry], crash_at: int | None = None) -> Path | None:
        """Play the entries from where an earlier process was; return a copy of the folder at a crash in between."""
        rng, names = self._rng, list(self._conditions)
        async with (
            FeatureStore(self._folder / "features.db", clock=ManualClock()) as store,
            EventJournal(self._folder / "events", clock=ManualClock()) as journal,
        ):
            engine = StreamEngine(store, self._run, events=self._sequences())
            rng.shuffle(names)
            if self._recorded:
                engine.use_journal(journal)
            for name in names:
                engine.add_task(name, self._conditions[name], BLOCKS)
            copied = None
            for position in range(store.resume_from, len(entries)):
                if position == crash_at:
                    copied = await store.call(self._copy)
                    break
                if self._recorded and position >= journal.next_position:
                    journal.append(entries[position])
                await engine.on_event(entries[position], position, can_wait=not self._recorded)
                for _ in range(rng.choice([0, 0, 1, 5])):
                    await asyncio.sleep(0)
                if rng.random() < 0.2:
                    await store.flush()
            else:
                await engine.settle()
            await engine.close()
            return copied

    async def _run(self, task: str, trigger: Trigger) -> TaskOutput:
        for _ in range(self._rng.choice([0, 0, 2, 20])):
            await asyncio.sleep(0)
        visit = [trigger.visit, [[event.event_id, event.ts_ms] for event in trigger.page_events]]
        return TaskOutput([trigger.position, trigger.event.to_dict(), visit])

    def _copy(self, _: StoreDatabase) -> Path:
        other = self._folder.with_name(f"{self._folder.name}x")
        shutil.copytree(self._folder, other)
        return other


async def play(
    folder: Path,
    conditions: Mapping[str, TriggerCondition],
    entries: Sequence[Entry],
    crashes: Sequence[int] = (),
    *,
    seed: int = 0,
    recorded: bool = False,
    sequences: Callable[[], EventStream] = EventStream,
) -> dict[str, list[list[Any]]]:
    """Play the entries with a crash before each of these positions; return the features of each task at the end."""

    def engine() -> TimeEngine:
        return TimeEngine(folder, conditions, random.Random(seed), recorded=recorded, sequences=sequences)

    for crash_at in crashes:
        folder = await engine().play(entries, crash_at) or folder
    await engine().play(entries)
    async with FeatureStore(folder / "features.db", clock=ManualClock()) as store:
        return {
            name: [plain.decode(one.payload) for one in await store.query(name, limit=10_000)] for name in conditions
        }
