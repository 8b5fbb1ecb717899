"""Time conditions of a stream engine against the slow reference, whole and with crashes at random places."""

import asyncio
import itertools
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.slow_time import Entry, firings
from walle import plain
from walle.clock import ManualClock
from walle.pipeline import stream_time
from walle.pipeline.database import StoreDatabase
from walle.pipeline.event_journal import EventJournal
from walle.pipeline.events import PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.store import FeatureStore
from walle.pipeline.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.task_queue import Trigger
from walle.pipeline.ticks import Tick
from walle.pipeline.trie import EventStream
from walle.protocol import ContentsTest, FullPolicy, QueuePolicy, TriggerCondition

BLOCKS = QueuePolicy(queue=1, queue_full=FullPolicy.BLOCK)


def condition(*trigger_ids: str, **options: object) -> TriggerCondition:
    return TriggerCondition.of(trigger_ids, **options)


CONDITIONS = {
    "page": condition(PAGE_EXIT, idle_s=30),
    "page_short": condition(idle_s=7, without_visit=True),
    "stream": condition(idle_s=20, idle="stream"),
    "every": condition(every_s=60),
    "every_beside": condition("b", every_s=45, idle_s=11),
    "absent": condition("a", absent="b", absent_s=15),
    "absent_key": condition("a", absent="b", absent_s=25, key="n", without_visit=True),
    "absent_two": condition("a", "a", absent="c", absent_s=10, within_ms=9_000, skip_till_next=True),
    "absent_any": condition("a", absent="*", absent_s=5, where=ContentsTest("n", ">", 0)),
    "key": condition("a", "b", key="n", without_visit=True),
    "key_skip": condition("a", "*", "b", key="n", skip_till_next=True, within_ms=20_000),
    "key_absent": condition("a", "c", key="n", skip_till_next=True, absent="b", absent_s=8),
    "plain": condition("a", "b"),
}


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Events of few ids and pages, and ticks, with times that go on, back a little, and rarely far."""
    steps = st.sampled_from([0, 0, 1, 1_000, 3_000, 5_000, 8_000, 30_000, 61_000, -1, -2_000, -4_000_000, 7_200_000])
    ids = st.sampled_from(["a", "a", "b", "b", "c", PAGE_ENTER, PAGE_EXIT])
    entries: list[Entry] = []
    ts_ms = 1_700_000_000_000
    for _ in range(draw(st.integers(1, 40))):
        ts_ms += draw(steps)
        if draw(st.integers(0, 5)) == 0:
            entries.append(Tick(ts_ms))
        else:
            contents: dict[str, object] = draw(
                st.sampled_from([{}, {"n": 1}, {"n": 0}, {"n": 1}, {"n": "1"}, {"n": True}])
            )
            entries.append(Event(draw(ids), draw(st.sampled_from(["", "p", "q"])), ts_ms, contents))
    return entries


class Engine:
    """A stream engine in `folder` with the tasks of CONDITIONS, whose outputs are the triggers' events.

    `recorded`: the entries are in a journal, from which a task with a full queue reads them again.
    """

    def __init__(self, folder: Path, rng: random.Random, *, recorded: bool) -> None:
        self._folder = folder
        self._rng = rng
        self._recorded = recorded

    async def play(self, entries: Sequence[Entry], crash_at: int | None = None) -> Path | None:
        """Play the entries from where an earlier process was; return a copy of the folder at a crash in between."""
        rng, names = self._rng, list(CONDITIONS)
        async with (
            FeatureStore(self._folder / "features.db", clock=ManualClock()) as store,
            EventJournal(self._folder / "events", clock=ManualClock()) as journal,
        ):
            engine = StreamEngine(store, self._run, events=EventStream(max_events=3))  # a replay needs few events
            rng.shuffle(names)
            if self._recorded:
                engine.use_journal(journal)
            for name in names:
                engine.add_task(name, CONDITIONS[name], BLOCKS)
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
        return TaskOutput([trigger.position, trigger.event.to_dict()])

    def _copy(self, _: StoreDatabase) -> Path:
        other = self._folder.with_name(f"{self._folder.name}x")
        shutil.copytree(self._folder, other)
        return other


async def stored(folder: Path) -> dict[str, list[object]]:
    async with FeatureStore(folder / "features.db", clock=ManualClock()) as store:
        return {
            name: [plain.decode(one.payload) for one in await store.query(name, limit=10_000)] for name in CONDITIONS
        }


def expected(entries: Sequence[Entry]) -> dict[str, list[object]]:
    return {
        name: [
            [one.entry, Event(one.event_id, one.page_id, one.ts_ms, one.contents).to_dict()]
            for one in firings(condition, entries)
        ]
        for name, condition in CONDITIONS.items()
    }


@settings(max_examples=25, deadline=None)
@given(entries=histories(), seed=st.integers(0, 1 << 30), recorded=st.booleans())
def test_time_conditions_trigger_as_the_slow_reference(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], seed: int, recorded: bool
) -> None:
    folder = tmp_path_factory.mktemp("whole")
    asyncio.run(_play(folder, entries, [], seed, recorded=recorded))
    assert asyncio.run(stored(folder)) == expected(entries)


@settings(max_examples=25, deadline=None)
@given(entries=histories(), data=st.data(), seed=st.integers(0, 1 << 30))
def test_crashes_neither_lose_nor_double_a_time_trigger(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], data: st.DataObject, seed: int
) -> None:
    crashes = sorted(data.draw(st.lists(st.integers(1, len(entries)), min_size=1, max_size=3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_time, "_SNAPSHOT_EVERY", data.draw(st.sampled_from([0, 1, 5, 64])))
        folder = tmp_path_factory.mktemp("crashed")
        folder = asyncio.run(_play(folder, entries, crashes, seed, recorded=data.draw(st.booleans())))
    assert asyncio.run(stored(folder)) == expected(entries)


def test_a_match_that_ends_after_a_snapshot_begins_before_it(tmp_path: Path) -> None:
    kinds = [Tick] * 5 + [Event, Tick, Tick, Event, Event, Event] + [Tick] * 6
    ts_ms = 1_700_000_000_000
    entries: list[Entry] = [Tick(ts_ms) if kind is Tick else Event("a", "", ts_ms, {}) for kind in kinds]
    entries.append(Tick(ts_ms + 30_000))
    for every, crash_at in itertools.product((0, 2), range(7, 13)):
        folder = tmp_path / f"{every} {crash_at}"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream_time, "_SNAPSHOT_EVERY", every)
            folder = asyncio.run(_play(folder, entries, [crash_at], 0, recorded=False))
        assert asyncio.run(stored(folder)) == expected(entries)


async def _play(folder: Path, entries: Sequence[Entry], crashes: Sequence[int], seed: int, *, recorded: bool) -> Path:
    """Play the entries with a crash before each of these positions; return the folder of the last process."""
    for crash_at in crashes:
        folder = await Engine(folder, random.Random(seed), recorded=recorded).play(entries, crash_at) or folder
    await Engine(folder, random.Random(seed), recorded=recorded).play(entries)
    return folder
