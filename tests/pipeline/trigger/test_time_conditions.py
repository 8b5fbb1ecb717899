"""Time conditions of a stream engine against the slow reference, whole and with crashes at random places."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.slow_time import Entry, firings
from tests.pipeline.time_engine import BLOCKS, play
from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.events.ticks import Tick
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger import stream_time
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import ContentsTest, TriggerCondition


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
    "key_optional": condition("a", "c", "b", "a", key="n", skip_till_next=True, optional=(1, 2)),
    "optional_absent": condition("a", "b", "b", absent="c", absent_s=9, optional=(1,)),
    "optional_skip_absent": condition("a", "c", "b", absent="a", absent_s=9, skip_till_next=True, optional=(1,)),
    "plain": condition("a", "b"),
    "window": condition(window_s=10),
    "window_grace": condition("b", window_s=20, grace_s=7, window_of=("a", "p"), idle_s=9),
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


def few_events() -> EventStream:
    return EventStream(max_events=3)  # a replay needs few events


async def played(folder: Path, entries: Sequence[Entry], crashes: Sequence[int] = (), **options: Any) -> object:
    """Return [position, event] of each trigger of each task."""
    found = await play(folder, CONDITIONS, entries, crashes, sequences=few_events, **options)
    return {name: [trigger[:2] for trigger in triggers] for name, triggers in found.items()}


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
    assert asyncio.run(played(folder, entries, seed=seed, recorded=recorded)) == expected(entries)


@settings(max_examples=25, deadline=None)
@given(entries=histories(), data=st.data(), seed=st.integers(0, 1 << 30))
def test_crashes_neither_lose_nor_double_a_time_trigger(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], data: st.DataObject, seed: int
) -> None:
    crashes = sorted(data.draw(st.lists(st.integers(1, len(entries)), min_size=1, max_size=3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_time, "_SNAPSHOT_EVERY", data.draw(st.sampled_from([0, 1, 5, 64])))
        folder = tmp_path_factory.mktemp("crashed")
        found = asyncio.run(played(folder, entries, crashes, seed=seed, recorded=data.draw(st.booleans())))
    assert found == expected(entries)


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
            assert asyncio.run(played(folder, entries, [crash_at])) == expected(entries)


@pytest.mark.asyncio
async def test_a_snapshot_that_waits_is_not_stored_for_a_task_that_was_removed_and_added_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_time, "_SNAPSHOT_EVERY", 5)
    gate = asyncio.Event()

    async def run(*_: object) -> TaskOutput:
        await gate.wait()
        return TaskOutput()

    async with FeatureStore(tmp_path / "features.db", clock=ManualClock()) as store:
        engine = StreamEngine(store, run, events=few_events())
        engine.add_task("slow", condition("start"), BLOCKS)
        engine.add_task("quiet", condition(idle_s=3600, idle="stream"), BLOCKS)

        async def take(event_id: str, count: int = 1) -> None:
            for _ in range(count):
                await engine.on_event(Event(event_id, "", 1_700_000_000_000 + engine.next_position, {}), can_wait=True)

        await take("start")
        await take("a", 20)  # a snapshot waits for the run
        engine.remove_task("quiet")
        await take("a", 20)
        engine.add_task("quiet", condition(idle_s=3600, idle="stream"), BLOCKS)
        gate.set()
        await engine.settle()
        await store.flush()
        resume_from, stored = store.resume_from, store.task_states.active(stream_time.SNAPSHOT_TASK)
        assert resume_from >= 38
        assert stored is None or plain.decode(stored.data)["position"] >= 40
        await engine.close()
