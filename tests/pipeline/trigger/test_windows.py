"""Windows that close by the time of the stream: against a slow reference, with crashes, at their bounds (ADR 19)."""

import asyncio
import functools
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.slow_time import Entry, windows
from tests.pipeline.time_engine import play
from tests.sim.real_inputs import DATA
from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.events.event import Event
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.events.ticks import Tick
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger import stream_time
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.trigger.timers import DueTimer, Timers
from walle.pipeline.trigger.trie import EventStream
from walle.pipeline.trigger.windows import MAX_PANES, MAX_WINDOW_BYTES, MAX_WINDOW_EVENTS
from walle.protocol import FullPolicy, QueuePolicy, TriggerCondition

START_MS = 1_700_000_000_000 // 60_000 * 60_000
TUMBLING = {
    "ten": TriggerCondition.of([], window_s=10),
    "late": TriggerCondition.of([], window_s=10, grace_s=15, window_of=("a",)),
}
SLIDING = {
    "sliding": TriggerCondition.of([], window_s=30, window_every_s=10, grace_s=4),
    "long": TriggerCondition.of(["b"], window_s=60, window_every_s=6, window_of=("a", "page")),
}


@st.composite
def histories(draw: st.DrawFn, *, may_set_back: bool) -> list[Entry]:
    """Events whose times go on and back, and ticks; rarely a clock that was ahead, or is set back."""
    jumps = [-3_620_000, -5_000_000, 7_200_000, 90_000_000, -90_000_000] if may_set_back else [90_000]
    steps = st.sampled_from([0, 500, 1_000, 3_000, 7_000, 11_000, -1_000, -4_000, -12_000, -25_000, *jumps])
    entries: list[Entry] = []
    ts_ms = START_MS
    for _ in range(draw(st.integers(1, 50))):
        ts_ms += draw(steps)
        if draw(st.integers(0, 7)) == 0:
            entries.append(Tick(ts_ms))
        else:
            entries.append(Event(draw(st.sampled_from(["a", "b"])), draw(st.sampled_from(["", "page"])), ts_ms, {}))
    return entries


def expected(condition: TriggerCondition, entries: Sequence[Entry]) -> list[list[Any]]:
    return [
        [one.entry, one.start_ms, one.end_ms, [[event.event_id, event.ts_ms] for event in one.events]]
        for one in windows(condition, entries)
    ]


async def played(folder: Path, entries: Sequence[Entry], crashes: Sequence[int], **options: Any) -> dict[str, Any]:
    """Return [position, start, end, events] of each window of each task."""
    conditions = {**TUMBLING, **SLIDING}
    few_events = functools.partial(EventStream, max_events=2)
    found = await play(folder, conditions, entries, crashes, sequences=few_events, **options)
    return {
        name: [
            [position, event["contents"]["start_ms"], event["contents"]["end_ms"], events]
            for position, event, (_, events) in triggers
            if event["event_id"] == "@window"
        ]
        for name, triggers in found.items()
    }


@settings(max_examples=30, deadline=None)
@given(entries=histories(may_set_back=False), data=st.data(), recorded=st.booleans())
def test_windows_have_the_events_of_the_slow_reference_with_crashes_and_without(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], data: st.DataObject, recorded: bool
) -> None:
    crashes = sorted(data.draw(st.lists(st.integers(1, len(entries)), max_size=3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_time, "_SNAPSHOT_EVERY", data.draw(st.sampled_from([0, 1, 5, 64])))
        found = asyncio.run(played(tmp_path_factory.mktemp("windows"), entries, crashes, recorded=recorded))
    assert found == {name: expected(one, entries) for name, one in (TUMBLING | SLIDING).items()}


@settings(max_examples=30, deadline=None)
@given(entries=histories(may_set_back=True), data=st.data())
def test_windows_of_a_clock_that_is_set_survive_crashes(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], data: st.DataObject
) -> None:
    crashes = sorted(data.draw(st.lists(st.integers(1, len(entries)), max_size=3)))
    whole = asyncio.run(played(tmp_path_factory.mktemp("whole"), entries, []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_time, "_SNAPSHOT_EVERY", data.draw(st.sampled_from([0, 1, 5])))
        assert asyncio.run(played(tmp_path_factory.mktemp("crashed"), entries, crashes)) == whole
    for name, one in TUMBLING.items():
        assert whole[name] == expected(one, entries)


def timers_of(**options: Any) -> Timers:
    timers = Timers()
    timers.add_task("task", TriggerCondition.of([], **options))
    return timers


def feed(timers: Timers, at_s: float, size_bytes: int = 0, **contents: object) -> list[DueTimer]:
    event = Event("a", "", START_MS + round(1000 * at_s), contents)
    due = timers.advance(event.ts_ms)
    timers.feed(event, has_visit=False, is_open=True, size_bytes=size_bytes or event.size_bytes())
    return due


def spans(due: list[DueTimer]) -> list[tuple[int, list[int]]]:
    """Return the begin of each window and the times of its events, in seconds."""
    found = []
    for one in due:
        assert one.window is not None
        times = [(event.ts_ms - START_MS) // 1000 for event in one.window.events]
        found.append(((one.window.start_ms - START_MS) // 1000, times))
    return found


def test_a_window_takes_what_comes_within_the_grace_and_counts_what_comes_later() -> None:
    timers = timers_of(window_s=60, grace_s=30)
    for at_s in (5, 59, 60, 61, 20, 89):
        assert feed(timers, at_s) == []
    feed(timers, 59.999)
    (due,) = feed(timers, 90)
    assert due.to_event() == Event(
        "@window", "", START_MS + 90_000, {"start_ms": START_MS, "end_ms": START_MS + 60_000, "evicted": 0}
    )
    assert spans([due]) == [(0, [5, 20, 59, 59])]
    assert timers.late == {}
    assert feed(timers, 59.999) == []
    assert timers.late == {"task": 1}
    assert spans(timers.advance(START_MS + 150_000)) == [(60, [60, 61, 89, 90])]
    assert (len(timers), timers.next_due_ms, timers.kept_events) == (0, None, 0)


def test_an_event_is_late_for_some_of_its_sliding_windows() -> None:
    timers = timers_of(window_s=60, window_every_s=20)
    feed(timers, 50)
    assert spans(feed(timers, 85)) == [(0, [50]), (20, [50])]
    feed(timers, 55)  # two of its windows have closed
    feed(timers, 10)  # all three have
    assert timers.late == {"task": 5}
    assert spans(timers.advance(START_MS + 1_000_000)) == [(40, [50, 55, 85]), (60, [85]), (80, [85])]


def test_a_window_of_a_clock_that_was_ahead_closes_with_the_next_one() -> None:
    timers, year_s = timers_of(window_s=60), 366 * 86_400
    feed(timers, 5)
    assert spans(feed(timers, year_s + 3)) == [(0, [5])]
    assert feed(timers, 70) == []
    assert spans(feed(timers, 130)) == [(60, [70]), (year_s, [year_s + 3])]
    assert spans(feed(timers, 190)) == [(120, [130])]
    assert len(timers) == 1


def test_a_sliding_window_of_a_clock_that_was_ahead_closes_once_with_all_its_events() -> None:
    """Of a pane, the windows that begin more than an hour ahead close, and the earlier ones later."""
    timers = timers_of(window_s=30, window_every_s=10, grace_s=100)
    for at_s in (0, 10, 20, 30, 40, 50, -3690):
        assert feed(timers, at_s) == []
    ahead = [(30, [30, 40, 50]), (40, [40, 50]), (50, [50])]
    assert spans(feed(timers, -3580)) == [(-3710, [-3690]), *ahead]
    found = spans(timers.advance(START_MS + 400_000))
    assert found[-5:] == [(-20, [0]), (-10, [0, 10]), (0, [0, 10, 20]), (10, [10, 20, 30]), (20, [20, 30, 40])]
    assert len(found) == 10
    assert timers.late == {}


def test_one_event_that_is_hours_late_closes_no_window_before_its_time() -> None:
    timers = timers_of(window_s=86_400)
    day_s = 86_400 - START_MS // 1000 % 86_400  # the rest of the day
    feed(timers, day_s - 50_000)
    feed(timers, day_s - 57_000)
    for at_s in (day_s - 40_000, day_s - 10):
        assert feed(timers, at_s) == []
    assert [times for _, times in spans(feed(timers, day_s))] == [
        [day_s - 57_000, day_s - 50_000, day_s - 40_000, day_s - 10]
    ]


@pytest.mark.parametrize(
    ("size_bytes", "count", "kept"),
    [(10, MAX_WINDOW_EVENTS + 7, MAX_WINDOW_EVENTS), (MAX_WINDOW_BYTES // 100, 130, 100)],
)
def test_the_oldest_events_beyond_a_bound_are_evicted_and_counted(size_bytes: int, count: int, kept: int) -> None:
    timers = timers_of(window_s=60)
    for number in range(count):
        feed(timers, 0.001 * number, size_bytes)
    assert (timers.evicted_events, timers.kept_events) == ({"task": count - kept}, kept)
    (due,) = timers.advance(START_MS + 60_000)
    assert due.window is not None
    assert (due.contents["evicted"], len(due.window.events)) == (count - kept, kept)
    assert due.window.events[0].ts_ms == START_MS + count - kept


def test_windows_of_a_clock_that_was_ahead_close_early_where_there_are_too_many() -> None:
    timers, step_s = timers_of(window_s=10), -4_000
    for number in range(MAX_PANES + 1):
        assert feed(timers, step_s * number) == []
    assert len(timers) == MAX_PANES + 1
    due = feed(timers, step_s * MAX_PANES + 1)
    assert spans(due) == [(step_s * number, [step_s * number]) for number in reversed(range(MAX_PANES))]
    assert {one.ts_ms for one in due} == {START_MS + 1000 * step_s * MAX_PANES}  # time before the end of each window
    assert {one.contents["evicted"] for one in due} == {0}
    assert (len(timers), timers.evicted_events, timers.kept_events) == (1, {}, 2)


def test_a_long_grace_loses_no_window_of_a_clock_that_was_ahead() -> None:
    """The condition has as many windows open as it may, before the clock is set back and after that."""
    timers, panes = timers_of(window_s=1, grace_s=999), TriggerCondition.MAX_PANES
    found = [one for second in range(panes) for one in spans(feed(timers, second))]
    found += [one for second in range(panes) for one in spans(feed(timers, second - 10_000))]
    assert (found, timers.evicted_events) == ([(second, [second]) for second in range(panes)], {})
    assert len(timers) == panes


@settings(max_examples=200, deadline=None)
@given(entries=histories(may_set_back=True), name=st.sampled_from(sorted(TUMBLING | SLIDING)), data=st.data())
def test_each_event_is_in_each_of_its_windows_once_or_counted_where_clocks_are_set(
    entries: list[Entry], name: str, data: st.DataObject
) -> None:
    condition = (TUMBLING | SLIDING)[name]
    timers, taken, closed = Timers(), list[tuple[int, int]](), dict[int, int]()
    numbered = [
        Event(one.event_id, one.page_id, one.ts_ms, {"n": n}) if isinstance(one, Event) else one
        for n, one in enumerate(entries)
    ]
    last_ms = max(one.ts_ms for one in entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("walle.pipeline.trigger.windows.MAX_PANES", data.draw(st.sampled_from([3, 12, MAX_PANES])))
        patch.setattr(
            "walle.pipeline.trigger.windows.MAX_WINDOW_EVENTS", data.draw(st.sampled_from([5, MAX_WINDOW_EVENTS]))
        )
        timers.add_task("task", condition)
        evicted = 0
        for number, entry in enumerate([*numbered, Tick(last_ms), Tick(last_ms + 10_000_000)]):
            for due in timers.advance(entry.ts_ms):
                window = due.window
                assert window is not None
                assert [one.ts_ms for one in window.events] == sorted(one.ts_ms for one in window.events)
                assert all(window.start_ms <= one.ts_ms < window.end_ms for one in window.events)
                evicted += window.evicted
                taken += [(window.start_ms, event.contents["n"]) for event in window.events]
                # A window that has closed before has events alone that came since then.
                assert all(event.contents["n"] >= closed.get(window.start_ms, 0) for event in window.events)
                closed[window.start_ms] = number
            if isinstance(entry, Event):
                timers.feed(entry, has_visit=False, is_open=True, size_bytes=50)
    assert (len(timers), timers.kept_events) == (0, 0)
    assert len(set(taken)) == len(taken)
    of_task = [one for one in numbered if isinstance(one, Event) and {one.event_id, one.page_id, "*"} & ids(condition)]
    windows_of_event = condition.window_s // (condition.window_every_s or condition.window_s)
    assert len(taken) + timers.late["task"] + evicted == windows_of_event * len(of_task)


def ids(condition: TriggerCondition) -> set[str]:
    return set(condition.window_of or ("*",))


@settings(max_examples=30, deadline=None)
@given(entries=histories(may_set_back=True), data=st.data())
def test_windows_at_their_bounds_survive_crashes(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], data: st.DataObject
) -> None:
    crashes = sorted(data.draw(st.lists(st.integers(1, len(entries)), max_size=3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("walle.pipeline.trigger.windows.MAX_PANES", data.draw(st.sampled_from([2, 5])))
        patch.setattr("walle.pipeline.trigger.windows.MAX_WINDOW_EVENTS", data.draw(st.sampled_from([1, 3, 8])))
        whole = asyncio.run(played(tmp_path_factory.mktemp("whole"), entries, []))
        patch.setattr(stream_time, "_SNAPSHOT_EVERY", data.draw(st.sampled_from([0, 1, 5])))
        assert asyncio.run(played(tmp_path_factory.mktemp("crashed"), entries, crashes)) == whole


def test_events_of_a_pane_that_was_emptied_are_evicted_after_those_before_them() -> None:
    timers, text = timers_of(window_s=10, grace_s=50), "x" * (MAX_WINDOW_BYTES // 6 - 100)
    for number in range(6):
        feed(timers, number, text=text)
    for at_s in (*range(11, 17), 7, 8):  # the first pane is emptied, and has an event that is late again
        feed(timers, at_s, text=text)
    restored = Timers.restored(timers.to_plain(), {"task": TriggerCondition.of([], window_s=10, grace_s=50)}, {"task"})
    for one in (timers, restored):
        feed(one, 18, text=text)
        found = [(start_s, times) for start_s, times in spans(one.advance(START_MS + 80_000))]
        assert found == [(0, [7, 8]), (10, [14, 15, 16, 18])], one is restored


def test_a_snapshot_has_the_windows_and_that_of_a_walle_before_them_none() -> None:
    conditions = {"task": TriggerCondition.of([], window_s=60, window_every_s=20)}
    timers = timers_of(window_s=60, window_every_s=20)
    for at_s in (50, 55, 85):
        feed(timers, at_s, n=at_s)
    stored = timers.to_plain()
    restored = Timers.restored(stored, conditions, {"task"})
    assert (restored.to_plain(), len(restored), restored.kinds()) == (stored, len(timers), {"@window": 2})
    assert restored.advance(START_MS + 300_000) == timers.advance(START_MS + 300_000) != []
    del stored["panes"]
    assert len(Timers.restored(stored, conditions, {"task"})) == 0
    timers.remove_task("task")
    assert (len(timers), timers.next_due_ms) == (0, None)


def test_a_snapshot_has_an_event_once_for_all_tasks() -> None:
    conditions = {f"task{number}": TriggerCondition.of([], window_s=60 + number) for number in range(5)}
    timers = Timers()
    for task, condition in conditions.items():
        timers.add_task(task, condition)
    for number in range(100):
        feed(timers, 0.1 * number, text="x" * 1_000)
    stored = plain.encode(timers.to_plain())
    assert len(stored) < 110_000
    restored = Timers.restored(plain.decode(stored), conditions, conditions.keys())
    assert restored.advance(START_MS + 300_000) == timers.advance(START_MS + 300_000) != []


def test_windows_of_an_older_walle_continue() -> None:
    """It wrote the events of each pane into the pane."""
    condition = TriggerCondition.of([], window_s=60, window_every_s=20)
    events = [Event("a", "", START_MS + at_ms, {}) for at_ms in (50_000, 55_000)]
    pane = START_MS + 40_000, START_MS, 3, [event.encode() for event in events]
    stored = timers_of(window_s=60, window_every_s=20).to_plain() | {
        "now_ms": START_MS + 55_000,
        "windows": {"task": {"set_back": False, "panes": [pane]}},
    }
    del stored["panes"], stored["events"]
    timers = Timers.restored(plain.decode(plain.encode(stored)), {"task": condition}, {"task"})
    due = timers.advance(START_MS + 200_000)
    assert spans(due) == [(0, [50, 55]), (20, [50, 55]), (40, [50, 55])]
    assert [one.contents["evicted"] for one in due] == [3, 3, 3]


@pytest.mark.asyncio
@pytest.mark.parametrize("recorded", [True, False])
async def test_a_task_with_windows_holds_the_stream_and_loses_none(tmp_path: Path, recorded: bool) -> None:
    """A window's events are not in the journal as they stand, so that its task cannot fall behind."""
    gate, found = asyncio.Event(), []

    async def run(_: str, trigger: Trigger) -> TaskOutput:
        await gate.wait()
        found.append((trigger.visit, len(trigger.page_events)))
        return TaskOutput()

    async with (
        FeatureStore(tmp_path / "features.db", clock=ManualClock()) as store,
        EventJournal(tmp_path / "events", clock=ManualClock()) as journal,
    ):
        engine = StreamEngine(store, run)
        if recorded:
            engine.use_journal(journal)
        engine.add_task("task", TUMBLING["ten"], QueuePolicy(queue=2, queue_full=FullPolicy.BLOCK))
        events = [Event("a", "", START_MS + 4_000 * number, {}) for number in range(26)]

        async def feed_all() -> None:
            for event in events:
                position = journal.append(event) if recorded else None
                await engine.on_event(event, position)

        feeding = asyncio.create_task(feed_all())
        for _ in range(200):
            await asyncio.sleep(0)
        assert (feeding.done(), engine.queued) == (False, {"task": 3})
        gate.set()
        await feeding
        await engine.settle()
        assert (sum(count for _, count in found), {visit for visit, _ in found}) == (25, {"whole"})
        assert engine.counts.dropped["task"] == 0
        await engine.close()


@pytest.mark.asyncio
async def test_each_event_of_a_real_log_is_in_one_window_or_counted_as_late(tmp_path: Path) -> None:
    """The log of an app, in the order of its file: many devices, so that times go back."""
    path = DATA / "events/shop_app_events_a.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file]
    entries = [Event(one["event_type"], "", one["timestamp"], {}) for one in lines]
    conditions = {f"{grace_s}": TriggerCondition.of([], window_s=300, grace_s=grace_s) for grace_s in (0, 3600)}
    entries_and_end: list[Entry] = [*entries, Tick(max(one.ts_ms for one in entries) + 7_200_000)]
    found = await play(tmp_path, conditions, entries_and_end, [len(entries) // 2])
    for name, condition in conditions.items():
        taken = [one for _, _, (_, events) in found[name] for one in events]
        assert taken == [
            [event.event_id, event.ts_ms] for one in windows(condition, entries_and_end) for event in one.events
        ]
        timers = Timers()
        timers.add_task("task", condition)
        for entry in entries:
            timers.advance(entry.ts_ms)
            timers.feed(entry, has_visit=False, is_open=True, size_bytes=entry.size_bytes())
        assert len(taken) + timers.late["task"] == len(entries)
