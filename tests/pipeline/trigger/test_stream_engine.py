import asyncio
import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.events.event import MAX_EVENT_BYTES, PAGE_ENTER, PAGE_EXIT, Event, EventError
from walle.pipeline.features.database import StoreFullError
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.store_schema import ReplayState
from walle.pipeline.stream.events import decode_events
from walle.pipeline.trigger.stream_engine import PositionError, StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.trigger.trie import EventStream, TriggerError
from walle.protocol import ContentsTest, Destination, FullPolicy, QueuePolicy, TriggerCondition

VISIT = [
    Event(PAGE_ENTER, "item", 100, {}),
    Event("exposure", "item", 150, {"id": 1}),
    Event("click", "item", 200, {"id": 1}),
    Event(PAGE_EXIT, "item", 300, {}),
]


ON_CLICK = TriggerCondition(("click",), without_visit=True)


async def summarise(task: str, trigger: Trigger) -> TaskOutput:
    kinds = [event.event_id for event in trigger.page_events]
    return TaskOutput({"task": task, "kinds": kinds, "position": trigger.position})


@pytest_asyncio.fixture
async def store(tmp_path: pathlib.Path) -> AsyncIterator[FeatureStore]:
    async with FeatureStore(tmp_path / "features.db", clock=ManualClock()) as opened:
        yield opened


async def outputs(store: FeatureStore, topic: str) -> list[object]:
    return [plain.decode(feature.payload) for feature in await store.query(topic, limit=10_000)]


async def play(engine: StreamEngine, events: Sequence[Event]) -> None:
    for event in events:
        await engine.on_event(event, can_wait=True)
    await engine.settle()


@pytest.mark.asyncio
async def test_a_page_exit_triggers_the_task_with_the_whole_visit(store: FeatureStore) -> None:
    engine = StreamEngine(store, summarise)
    engine.add_task("ipv", TriggerCondition.of([PAGE_EXIT]))
    engine.add_task("clicks", TriggerCondition.of(["exposure", "click"]))
    await play(engine, [Event("start", "", 1, {}), *VISIT, Event("click", "item", 400, {})])
    kinds = [PAGE_ENTER, "exposure", "click", PAGE_EXIT]
    assert await outputs(store, "ipv") == [{"task": "ipv", "kinds": kinds, "position": 4}]
    assert await outputs(store, "clicks") == [{"task": "clicks", "kinds": kinds[:3], "position": 3}]
    assert (engine.counts.events, engine.counts.triggers, engine.counts.failures) == (6, 2, 0)
    assert (store.position, store.resume_from) == (5, 0)


@pytest.mark.asyncio
async def test_a_local_feature_is_stored_and_never_uploaded(store: FeatureStore) -> None:
    async def keep(task: str, trigger: Trigger) -> TaskOutput:
        return TaskOutput(len(trigger.page_events), [Put.of("sent", 1), Put.of("kept", 2, upload=False)])

    engine = StreamEngine(store, keep)
    engine.add_task("ipv", TriggerCondition.of([PAGE_EXIT]))
    await play(engine, VISIT)
    assert [await outputs(store, topic) for topic in ("ipv", "sent", "kept")] == [[4], [1], [2]]
    uploads = await Outbox(store).batch(0, 10)
    assert sorted(upload.topic for upload in uploads) == ["ipv", "sent"]


@pytest.mark.asyncio
async def test_an_output_goes_as_far_as_its_destination_and_the_app_has_it_in_any_case(store: FeatureStore) -> None:
    async def run(task: str, trigger: Trigger) -> TaskOutput:
        output = b"x" * (2 << 20) if task == "app" else task  # more than a feature may have
        return TaskOutput(output, [Put.of("aside", task)], destination=Destination(task))

    engine = StreamEngine(store, run)
    streams = {name: engine.results.open(name) for name in map(str, Destination)}
    for name in streams:
        engine.add_task(name, TriggerCondition.of([PAGE_EXIT]))
    await play(engine, VISIT)
    assert {name: len(await outputs(store, name)) for name in streams} == {"cloud": 1, "device": 1, "app": 0}
    uploads = await Outbox(store).batch(0, 10)
    assert sorted(upload.topic for upload in uploads) == ["aside", "aside", "aside", "cloud"]
    results = {name: await anext(stream) for name, stream in streams.items()}
    assert {name: (len(result.output), result.failure) for name, result in results.items()} == {
        "cloud": (5, None),
        "device": (6, None),
        "app": (2 << 20, None),
    }
    assert store.position == len(VISIT) - 1  # a run that stored nothing counts too


@pytest.mark.asyncio
async def test_a_trigger_crosses_as_plain_data(store: FeatureStore) -> None:
    seen: list[Trigger] = []

    async def keep(task: str, trigger: Trigger) -> TaskOutput:
        seen.append(trigger)
        return TaskOutput(None, [Put.of("aside", 1), Put.of("aside", 2)])

    engine = StreamEngine(store, keep)
    engine.add_task("t", TriggerCondition.of([PAGE_EXIT]))
    await play(engine, VISIT)
    (trigger,) = seen
    value = plain.decode(plain.encode(trigger.to_plain()))
    assert list(decode_events(value["page_events"])) == VISIT
    assert Event.from_dict(value["event"]) == VISIT[-1]
    assert value["position"] == 3
    assert list(trigger.recent) == VISIT
    assert await outputs(store, "t") == []
    assert await outputs(store, "aside") == [1, 2]


@pytest.mark.asyncio
async def test_one_tasks_failure_stays_that_tasks(store: FeatureStore) -> None:
    outcomes: list[tuple[str, bool, str]] = []

    async def runner(task: str, trigger: Trigger) -> TaskOutput:
        if task == "raises":
            raise ZeroDivisionError("by zero")
        if task == "cancels":
            raise asyncio.CancelledError
        return TaskOutput(object() if task == "unstorable" else 1, [Put.of("", 1)] if task == "topicless" else [])

    engine = StreamEngine(store, runner, on_outcome=lambda task, ok, error: outcomes.append((task, ok, str(error))))
    for task in ("good", "raises", "cancels", "unstorable", "topicless"):
        engine.add_task(task, ON_CLICK)
    await play(engine, [VISIT[2]])
    for task in ("good", "raises", "unstorable", "topicless"):
        engine.remove_task(task)
    await play(engine, [VISIT[2]])
    assert await outputs(store, "good") == [1]
    assert {(task, ok) for task, ok, _ in outcomes} == {
        ("good", True),
        ("raises", False),
        ("cancels", False),
        ("unstorable", False),
        ("topicless", False),
    }
    assert ("raises", False, "by zero") in outcomes
    assert (engine.counts.triggers, engine.counts.failures) == (6, 5)
    assert store.position == 1


@pytest.mark.asyncio
async def test_tasks_of_one_event_run_at_once_and_each_tasks_triggers_in_turn(store: FeatureStore) -> None:
    running: set[str] = set()
    together = asyncio.Event()
    order: list[int] = []

    async def meet(task: str, trigger: Trigger) -> TaskOutput:
        running.add(task)
        if running == {"a", "b"}:
            together.set()
        await asyncio.wait_for(together.wait(), 5)
        order.append(trigger.position)
        return TaskOutput()

    engine = StreamEngine(store, meet)
    engine.add_task("a", ON_CLICK)
    engine.add_task("b", ON_CLICK)
    await asyncio.gather(*(engine.on_event(VISIT[2]) for _ in range(3)))
    await engine.settle()
    assert order == [0, 0, 1, 1, 2, 2]


@pytest.mark.asyncio
async def test_tasks_change_while_events_run(store: FeatureStore) -> None:
    engine = StreamEngine(store, summarise)
    engine.add_task("t", TriggerCondition.of(["exposure", "click"]))
    await play(engine, VISIT[:2])
    engine.add_task("t", ON_CLICK)  # a new version with another condition
    with pytest.raises(TriggerError, match="has no name"):
        engine.add_task("", TriggerCondition(("click",)))
    assert engine.tasks == {"t": ON_CLICK}
    await play(engine, VISIT[2:])
    assert len(await outputs(store, "t")) == 1
    engine.remove_task("t")
    engine.remove_task("t")
    await play(engine, VISIT)
    assert len(await outputs(store, "t")) == 1


@pytest.mark.asyncio
async def test_an_enormous_event_is_skipped(store: FeatureStore) -> None:
    engine = StreamEngine(store, summarise)
    with pytest.raises(EventError, match="more than"):
        await engine.on_event(Event("click", "p", 1, {"text": "x" * MAX_EVENT_BYTES}))
    await engine.on_event(VISIT[0])
    assert (engine.counts.events, store.position) == (1, 0)


@pytest.mark.asyncio
async def test_positions_must_grow(store: FeatureStore) -> None:
    engine = StreamEngine(store, summarise)
    await engine.on_event(VISIT[0], 5)
    for position in (5, 4):
        with pytest.raises(PositionError, match="must grow"):
            await engine.on_event(VISIT[1], position)
    await engine.on_event(VISIT[1], 9)
    assert (store.position, store.resume_from) == (9, 5)


async def set_pages(store: FeatureStore, count: int) -> None:
    """Let the disk be full at `count` pages."""
    await store.call(lambda database: database._connection.execute(f"PRAGMA max_page_count = {count}").fetchone())


@pytest.mark.asyncio
async def test_outputs_refused_by_a_full_disk_are_put_once_there_is_room(tmp_path: pathlib.Path) -> None:
    async def big(task: str, trigger: Trigger) -> TaskOutput:
        return TaskOutput(b"x" * 50_000)

    async with FeatureStore(tmp_path / "features.db", max_buffer_bytes=40_000, clock=ManualClock()) as store:
        engine = StreamEngine(store, big)
        engine.add_task("t", ON_CLICK)
        await store.flush()
        await set_pages(store, 8)
        for position in range(3):
            await engine.on_event(VISIT[2], position)
        for _ in range(2):
            with pytest.raises(StoreFullError):
                await engine.settle()
        assert (store.position, store.replay.lagging) == (2, {"t": 0})
        await set_pages(store, 10_000)
        await engine.settle()
        assert [feature.position for feature in await store.query("t")] == [0, 1, 2]
        assert store.replay.lagging == {}


@pytest.mark.asyncio
async def test_a_cancelled_call_has_not_taken_its_event(store: FeatureStore) -> None:
    release = asyncio.Event()

    async def wait(task: str, trigger: Trigger) -> TaskOutput:
        await release.wait()
        return TaskOutput(trigger.position)

    engine = StreamEngine(store, wait)
    engine.add_task("t", ON_CLICK, QueuePolicy(queue=1, queue_full=FullPolicy.BLOCK))
    await engine.on_event(VISIT[2], 0)
    await engine.on_event(VISIT[2], 1)
    handling = asyncio.create_task(engine.on_event(VISIT[2], 2))
    await asyncio.sleep(0.01)
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    assert (engine.counts.events, store.position, engine.queued) == (2, 1, {"t": 2})
    release.set()
    await engine.on_event(VISIT[2], 2)
    await engine.settle()
    assert await outputs(store, "t") == [0, 1, 2]


@pytest.mark.asyncio
async def test_outputs_bear_the_time_at_which_their_event_came(tmp_path: pathlib.Path) -> None:
    clock = ManualClock(100.0)
    arrived: list[float] = []

    async def slow(task: str, trigger: Trigger) -> TaskOutput:
        arrived.append(trigger.arrived_s)
        await clock.advance(2.0)
        return TaskOutput(1)

    async with FeatureStore(tmp_path / "features.db", clock=clock) as store:
        engine = StreamEngine(store, slow)
        engine.add_task("t", ON_CLICK)
        start_s = clock.monotonic()
        await engine.on_event(VISIT[2])
        await play(engine, [VISIT[2]])  # the first run is under way
        assert [feature.ts_ms for feature in await store.query("t")] == [100_000, 100_000]
        assert arrived == [start_s, start_s]


@pytest.mark.asyncio
async def test_a_source_that_never_pauses_lets_others_run(store: FeatureStore) -> None:
    engine = StreamEngine(store, summarise)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(other())
    for _ in range(1000):
        await engine.on_event(VISIT[0])
    counting.cancel()
    assert turns >= 10


@pytest.mark.asyncio
async def test_a_source_without_positions_continues_after_a_restart(tmp_path: pathlib.Path) -> None:
    for expected in (1, 2):
        async with FeatureStore(tmp_path / "features.db") as store:
            engine = StreamEngine(store, summarise)
            engine.add_task("ipv", TriggerCondition.of([PAGE_EXIT]))
            await play(engine, VISIT)
            assert len(await outputs(store, "ipv")) == expected
            assert engine.counts.replayed == 0


PLAYER = """
import asyncio, random, sys
from walle.pipeline.events.event import Event
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import Destination, QueuePolicy, TriggerCondition

def source(count):
    seed = random.Random(3)
    for position in range(count):
        kind = seed.choice(["page_enter", "exposure", "exposure", "click", "click", "page_exit"])
        yield position * 3, Event(kind, seed.choice("abc"), position, {"n": position})

async def run(task, trigger):
    await asyncio.sleep(0.002 if task == "slow" and trigger.position % 41 == 0 else 0)
    visit = [event.contents["n"] for event in trigger.page_events]
    destination = {"pair": Destination.DEVICE, "gone": Destination.APP}.get(task, Destination.CLOUD)
    puts = [Put.of("aside", [task, trigger.position])]
    return TaskOutput([trigger.position, trigger.visit, visit], puts, destination=destination)

async def main(path, count):
    async with FeatureStore(path, threshold=20, interval_s=0.004) as store:
        engine = StreamEngine(store, run, events=EventStream(max_events=20, max_span=500))
        engine.add_task("exit", TriggerCondition.of(["page_exit"]))
        engine.add_task("pair", TriggerCondition.of(["exposure", "click", "b"]))
        engine.add_task("gone", TriggerCondition(("a", "click"), without_visit=True))
        engine.add_task("slow", TriggerCondition(("click",), without_visit=True), QueuePolicy(queue=40))
        print("open", flush=True)
        for position, event in source(count):
            if position >= store.resume_from:
                await engine.on_event(event, position, can_wait=True)
        await engine.settle()
        assert engine.counts.replayed < 1200, engine.counts

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def features_in(path: pathlib.Path) -> list[tuple[str, int, bytes]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT topic, position, payload FROM features ORDER BY id").fetchall()
        sent = db.execute("SELECT topic FROM outbox").fetchall()
    for task in ("exit", "pair", "slow"):  # outputs of each task stand in the order of their events
        positions = [position for topic, position, _ in found if topic == task]
        assert positions == sorted(set(positions))
    assert "gone" not in {topic for topic, _, _ in found}
    assert {topic for (topic,) in sent} == {"aside", "exit", "slow"}
    return sorted(found)


@pytest.mark.night
def test_an_engine_killed_in_mid_stream_continues_from_its_position(tmp_path: pathlib.Path) -> None:
    count = "15000"
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    subprocess.run([sys.executable, "-c", PLAYER, str(whole), count], check=True, stdout=subprocess.DEVNULL)
    expected = features_in(whole)
    assert len(expected) > 10_000
    assert sum(b"\xa3cut" in payload for _, _, payload in expected) > 10
    seed, kills, behind, ended = random.Random(5), 0, 0, False
    while not ended:
        with subprocess.Popen(
            [sys.executable, "-c", PLAYER, str(killed), count], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                assert process.wait(seed.uniform(0.02, 0.15) if kills < 20 else None) == 0
                ended = True
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        with contextlib.closing(sqlite3.connect(killed)) as db:
            behind += len(ReplayState.from_text(db.execute("SELECT replay FROM state").fetchone()[0]).lagging)
    assert kills >= 5
    assert behind >= 3
    assert features_in(killed) == expected


@pytest.mark.asyncio
async def test_recent_events_are_bounded(store: FeatureStore) -> None:
    engine = StreamEngine(store, summarise, events=EventStream(max_events=3))
    for position in range(200):
        await engine.on_event(Event("click", "p", position, {}), position)
    assert engine.events.counters()["recent_events"] == 3
    assert store.resume_from == 200 - 3  # no condition has matched an event before them


@pytest.mark.asyncio
async def test_the_options_of_a_condition_reach_its_trigger(store: FeatureStore) -> None:
    engine = StreamEngine(store, summarise)
    test = ContentsTest("n", ">=", 2)
    condition = TriggerCondition.of(
        ["exposure", "click"], within_ms=100, skip_till_next=True, cooldown_ms=1000, where=test
    )
    engine.add_task("t", condition)
    engine.add_task("t", dataclasses.replace(condition, without_visit=True))  # another pair, in place of the first
    for event_id, ts_ms, n in (
        ("exposure", 0, 0),
        ("page_scroll", 10, 0),
        ("click", 20, 1),  # contents that fail the test
        ("click", 50, 2),
        ("exposure", 60, 0),
        ("click", 70, 2),  # an event in the cool-down
        ("exposure", 2000, 0),
        ("click", 2101, 2),  # too late
        ("exposure", 2200, 0),
        ("click", 2300, 2),
    ):
        await engine.on_event(Event(event_id, "p", ts_ms, {"n": n}))
    await engine.settle()
    assert engine.counts.triggers == 2


@pytest.mark.asyncio
async def test_a_cooldown_and_a_match_under_way_survive_a_restart(tmp_path: pathlib.Path) -> None:
    cooled = TriggerCondition.of(["click"], cooldown_ms=1000)
    skipping = TriggerCondition.of(["exposure", "buy"], skip_till_next=True)

    def events(first: int, *kinds_and_times: tuple[str, int]) -> list[tuple[int, Event]]:
        return [(first + number, Event(kind, "", ts_ms, {})) for number, (kind, ts_ms) in enumerate(kinds_and_times)]

    played = [*events(0, ("exposure", 0), ("click", 10)), *events(2, *[("scroll", 20)] * 200, ("click", 500))]
    later = events(300, ("click", 900), ("click", 1009), ("buy", 1010), ("click", 1011), ("click", 1500))
    for part in (played, later):
        async with FeatureStore(tmp_path / "features.db") as store:
            engine = StreamEngine(store, summarise, events=EventStream(max_events=5))
            engine.add_task("cooled", cooled)
            engine.add_task("skipping", skipping)
            for position, event in [*(one for one in played if part is later and one[0] >= store.resume_from), *part]:
                await engine.on_event(event, position, can_wait=True)
            await engine.settle()
            found = [
                (feature.topic, feature.position) for topic in engine.tasks for feature in await store.query(topic)
            ]
            assert engine.counts.replayed == (203 if part is later else 0)  # replayed from the match's first event on
            await engine.close()
    assert found == [("cooled", 1), ("cooled", 303), ("skipping", 302)]


@pytest.mark.asyncio
async def test_a_match_that_waits_holds_the_replay_back_by_a_bounded_number_of_positions(store: FeatureStore) -> None:
    engine = StreamEngine(store, summarise, events=EventStream(max_events=5, max_span=50))
    engine.add_task("t", TriggerCondition.of(["exposure", "buy"], skip_till_next=True))
    await play(engine, [Event("exposure", "", 0, {}), *[Event("click", "", 1, {})] * 200])
    assert store.position - store.resume_from == 50


@pytest.mark.asyncio
async def test_a_task_that_waits_in_its_cooldown_when_it_is_killed_runs_again(tmp_path: pathlib.Path) -> None:
    condition = TriggerCondition.of(["click"], cooldown_ms=100)
    times = [0, 50, 100, 150, 200, 210]
    release = asyncio.Event()

    async def wait(task: str, trigger: Trigger) -> TaskOutput:
        await release.wait()
        return TaskOutput(trigger.position)

    for is_last in (False, True):
        async with FeatureStore(tmp_path / "features.db") as store:
            engine = StreamEngine(store, wait)
            engine.add_task("t", condition)
            for position in range(store.resume_from, len(times)):
                await engine.on_event(Event("click", "", times[position], {}), position)
            if is_last:
                release.set()
                await engine.settle()
                found = [feature.position for feature in await store.query("t")]
            await engine.close()
    assert found == [0, 2, 4]


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", [True, False])
async def test_an_outcome_that_cannot_be_counted_does_not_end_the_tasks_runs(
    store: FeatureStore, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    async def run(task: str, trigger: Trigger) -> TaskOutput:
        if fails:
            raise ValueError("the task's")
        return await summarise(task, trigger)

    def count(task: str, ok: bool, error: Exception | None) -> None:
        raise KeyError("the caller's")

    engine = StreamEngine(store, run, on_outcome=count)
    engine.add_task("t", ON_CLICK)
    async with asyncio.timeout(5):
        await play(engine, [Event("click", "", 1, {})] * 3)
    assert engine.counts.triggers == 3
    assert caplog.text.count("the outcome of a run of task t could not be counted") == 3
