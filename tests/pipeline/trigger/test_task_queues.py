"""Each task's own queue and position in the stream: isolation, policies of full queues and outbox, replay, visits."""

import asyncio
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from walle.base import plain
from walle.pipeline.events.event import MAX_CONTENTS_DEPTH, PAGE_ENTER, PAGE_EXIT, Event, EventError
from walle.pipeline.features.store import FeatureStore, OutboxFullError, StoreClosedError
from walle.pipeline.features.task_states import TaskState
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import FullPolicy, QueuePolicy, TriggerCondition

ON_CLICK = TriggerCondition(("click",), without_visit=True)
CLICK = Event("click", "p", 1, {})
DROP_OLDEST = QueuePolicy(queue_full=FullPolicy.DROP_OLDEST)


@pytest_asyncio.fixture
async def store(tmp_path: pathlib.Path) -> AsyncIterator[FeatureStore]:
    async with FeatureStore(tmp_path / "features.db") as opened:
        yield opened


async def positions(store: FeatureStore, topic: str) -> list[int]:
    return [feature.position for feature in await store.query(topic, limit=10_000)]


async def ended(engine: StreamEngine, task: str) -> None:
    """Return once a task has no trigger left; `settle` waits for all of them."""
    while task in engine.queued:  # noqa: ASYNC110 - the engine has no event for one task
        await asyncio.sleep(0)


class Gate:
    """A runner whose tasks named "slow" wait for `open`; it keeps the triggers in the order of the runs."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.seen: list[tuple[str, Trigger]] = []
        self.started: list[tuple[str, int]] = []

    async def __call__(self, task: str, trigger: Trigger) -> TaskOutput:
        self.started.append((task, trigger.position))
        if task.startswith("slow"):
            await self.open.wait()
        self.seen.append((task, trigger))
        return TaskOutput(trigger.position)


@pytest.mark.asyncio
async def test_a_task_that_hangs_delays_no_other_task(store: FeatureStore) -> None:
    gate = Gate()
    engine = StreamEngine(store, gate)
    engine.add_task("slow", ON_CLICK, DROP_OLDEST)
    engine.add_task("fast", ON_CLICK)
    started_s = time.monotonic()
    for position in range(100):
        await engine.on_event(CLICK, position)
        await ended(engine, "fast")
        assert len(gate.seen) == position + 1  # the output came while the other task hangs at its first event
    assert time.monotonic() - started_s < 5
    assert await positions(store, "fast") == list(range(100))
    assert gate.started.count(("slow", 0)) == 1
    assert engine.queued == {"slow": 17}
    assert engine.counts.dropped == {"slow": 83}
    gate.open.set()
    await engine.settle()
    assert await positions(store, "slow") == [0, *range(84, 100)]  # the newest


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("policy", "expected"), [(FullPolicy.DROP_OLDEST, [0, 4, 5]), (FullPolicy.DROP_NEWEST, [0, 1, 2])]
)
async def test_a_full_queue_drops_by_its_policy_and_counts_and_logs(
    store: FeatureStore, caplog: pytest.LogCaptureFixture, policy: FullPolicy, expected: list[int]
) -> None:
    gate = Gate()
    engine = StreamEngine(store, gate)
    engine.add_task("slow", ON_CLICK, QueuePolicy(queue=2, queue_full=policy))
    for position in range(6):
        await engine.on_event(CLICK, position)
    gate.open.set()
    await engine.settle()
    assert await positions(store, "slow") == expected
    assert engine.counts.dropped == {"slow": 3}
    assert "task slow: 1 triggers were dropped: there was no room" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("can_wait", [True, False])
async def test_a_blocking_task_or_a_source_that_can_wait_loses_no_trigger(store: FeatureStore, can_wait: bool) -> None:
    async def slow(task: str, trigger: Trigger) -> TaskOutput:
        await asyncio.sleep(0.001)
        return TaskOutput(1)

    engine = StreamEngine(store, slow)
    policy = QueuePolicy(queue=3, queue_full=FullPolicy.DROP_OLDEST if can_wait else FullPolicy.BLOCK)
    engine.add_task("t", ON_CLICK, policy)
    for position in range(100):
        await engine.on_event(CLICK, position, can_wait=can_wait)
        assert engine.queued["t"] <= 4
    await engine.settle()
    assert await positions(store, "t") == list(range(100))
    assert engine.counts.dropped == {}


@pytest.mark.asyncio
async def test_queued_triggers_are_bounded_by_bytes_and_the_largest_queue_drops_first(store: FeatureStore) -> None:
    gate = Gate()
    engine = StreamEngine(store, gate, max_queued_bytes=200_000)
    policy = QueuePolicy(queue=1000, queue_full=FullPolicy.DROP_OLDEST)
    engine.add_task("slow large", TriggerCondition(("large",), without_visit=True), policy)
    engine.add_task("slow small", TriggerCondition(("small",), without_visit=True), policy)
    await engine.on_event(Event("small", "p", 1, {}))
    await engine.on_event(Event("small", "p", 1, {}))
    for _ in range(50):
        await engine.on_event(Event("large", "p", 1, {"text": "x" * 5_000}))
        assert engine._queues.size_bytes <= 200_000
    assert engine.queued["slow small"] == 2
    assert engine.counts.dropped["slow large"] == 50 - engine.queued["slow large"] > 20
    gate.open.set()
    await engine.settle()
    assert engine._queues.size_bytes == 0


@pytest.mark.asyncio
async def test_after_a_crash_only_the_task_that_was_behind_runs_again(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, gate = tmp_path / "features.db", Gate()
    visits = [Event(kind, f"page {n}", 1, {}) for n in range(10) for kind in (PAGE_ENTER, "click", PAGE_EXIT)]

    def engine_of(store: FeatureStore, gate: Gate) -> StreamEngine:
        engine = StreamEngine(store, gate)
        for task in ("fast", "slow"):
            engine.add_task(task, TriggerCondition.of([PAGE_EXIT]))
        return engine

    async with FeatureStore(path) as store:
        engine = engine_of(store, gate)
        for position, event in enumerate(visits):
            await engine.on_event(event, position)
        await ended(engine, "fast")
        assert store.replay.lagging == {"slow": 1}
        await engine.close()  # a crash: the run under way and the queue are gone
    for _ in range(2):  # two crashes, the second in the middle of the replay
        gate = Gate()
        gate.open.set()
        async with FeatureStore(path) as store:
            assert (store.position, store.resume_from) == (29, 0)
            engine = engine_of(store, gate)
            ran = await positions(store, "slow")
            for position in range(store.resume_from, 9):
                await engine.on_event(visits[position], position, can_wait=True)
            await engine.settle()
            assert store.replay.lagging == {"slow": 8}
            assert [trigger.position for _, trigger in gate.seen] == ([2, 5, 8] if not ran else [])
    async with FeatureStore(path) as store:
        engine = engine_of(store, gate := Gate())
        gate.open.set()
        for position in range(store.resume_from, 33):
            await engine.on_event(visits[position % 30], position, can_wait=True)
        await engine.settle()
        assert await positions(store, "slow") == await positions(store, "fast") == list(range(2, 33, 3))
        assert all(len(trigger.page_events) == 3 for _, trigger in gate.seen)
        assert store.replay.lagging == {}
        assert "lost" not in caplog.text


@pytest.mark.asyncio
async def test_a_replay_waits_for_a_task_rather_than_drop_its_triggers(tmp_path: pathlib.Path) -> None:
    async def slow(task: str, trigger: Trigger) -> TaskOutput:
        await asyncio.sleep(0.001)
        return TaskOutput(1)

    gate = Gate()
    for run in (gate, slow):
        async with FeatureStore(tmp_path / "features.db") as store:
            engine = StreamEngine(store, run)
            engine.add_task("slow", ON_CLICK, QueuePolicy(queue=100 if run is gate else 2))
            for position in range(60):
                await engine.on_event(CLICK, position)
            if run is slow:
                await engine.settle()
            assert (engine.counts.dropped, store.position) == ({}, 59)
            await engine.close()
            assert await positions(store, "slow") == ([] if run is gate else list(range(60)))


@pytest.mark.asyncio
async def test_sequences_that_are_empty_need_no_replay(store: FeatureStore) -> None:
    engine = StreamEngine(store, Gate(), events=EventStream(max_bytes=1))
    for position in range(100):
        await engine.on_event(CLICK, position)
    assert store.resume_from == 100
    engine.add_task("t", TriggerCondition.of(["click", "click", "exposure"]))
    for position in range(100, 110):
        await engine.on_event(CLICK, position)
    assert store.resume_from == 108  # what the condition has matched so far


@pytest.mark.asyncio
@pytest.mark.parametrize("position", [None, 1])  # a live source, and one that goes on without a replay
async def test_triggers_that_a_crash_lost_for_want_of_a_replay_are_reported(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, position: int | None
) -> None:
    async with FeatureStore(tmp_path / "features.db") as store:
        engine = StreamEngine(store, Gate())
        engine.add_task("slow", ON_CLICK)
        await engine.on_event(CLICK)
        await engine.close()
    async with FeatureStore(tmp_path / "features.db") as store:
        engine = StreamEngine(store, Gate())
        await engine.on_event(CLICK, position)
        assert "are lost, because their events were not replayed (from 0 on): slow" in caplog.text
        assert (store.position, store.replay.lagging) == (1, {})


@pytest.mark.asyncio
async def test_a_removed_task_loses_what_waits_and_ends_what_runs(store: FeatureStore) -> None:
    gate = Gate()
    engine = StreamEngine(store, gate)
    engine.add_task("slow", ON_CLICK)
    for position in range(3):
        await engine.on_event(CLICK, position)
    await asyncio.sleep(0)
    engine.remove_task("slow")
    gate.open.set()
    await engine.settle()
    assert await positions(store, "slow") == [0]
    assert (engine.counts.dropped, store.replay.lagging) == ({}, {})


@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["run", "put"])
@pytest.mark.parametrize("after", [None, 2, 1])
async def test_a_run_whose_state_was_replaced_meanwhile_stores_its_outputs_alone(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch, when: str, after: int | None
) -> None:
    """`after` is the version of the state that replaces the run's: none if its task was removed, 1 if it came again."""

    def replace() -> None:
        store.remove_states("t")
        if after is not None:
            store.activate_state(TaskState.empty("t", after))

    async def run(task: str, trigger: Trigger) -> TaskOutput:
        if when == "run":
            replace()
        return TaskOutput(1, state={"n": 1})

    async def refuse(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        replace()
        raise OutboxFullError(store.path, "is full")

    store.activate_state(TaskState.empty("t", 1))
    outcomes: list[bool] = []
    engine = StreamEngine(store, run, on_outcome=lambda _task, ok, _error: outcomes.append(ok))
    engine.add_task("t", ON_CLICK)
    if when == "put":
        monkeypatch.setattr(store, "put_outputs", refuse)
    await engine.on_event(CLICK)
    await ended_or_stuck(engine)
    await store.put("other", 1)
    await engine.settle()
    await store.flush()
    assert (outcomes, await positions(store, "t")) == ([True], [0])
    state = store.task_states.active("t")
    assert state == (None if after is None else TaskState.empty("t", after))


async def ended_or_stuck(engine: StreamEngine) -> None:
    """Return once the task "t" has no trigger left, or waits for room in the outbox."""
    while "t" in engine.queued and not engine._queues.by_task["t"].waits_for_cloud:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_nothing_is_kept_of_removed_tasks(tmp_path: pathlib.Path) -> None:
    cooling = TriggerCondition(("click",), without_visit=True, cooldown_ms=1000)
    async with FeatureStore(tmp_path / "features.db") as store:
        engine = StreamEngine(store, Gate())
        for task in ("a", "b", "c", "d"):
            engine.add_task(task, cooling)
        await engine.on_event(CLICK, 0)
        engine.remove_task("a")
        await engine.settle()
        engine.add_task("b", ON_CLICK)  # a version without a cool-down
        assert set(engine._cooldowns) == {"c", "d"}
        await engine.on_event(CLICK, 1)
        await engine.settle()
        assert dict(engine._run_turns) == {}
    async with FeatureStore(tmp_path / "features.db") as store:
        engine = StreamEngine(store, Gate())
        engine.add_task("d", cooling)  # "c" was removed while the process ended
        engine.add_task("b", ON_CLICK)
        for position in range(store.resume_from, 4):
            await engine.on_event(CLICK, position)
        await engine.settle()
        assert store.replay.cooldowns == {"d": 1}


@pytest.mark.asyncio
async def test_a_closed_store_ends_the_runs_with_its_error(tmp_path: pathlib.Path) -> None:
    gate = Gate()
    async with FeatureStore(tmp_path / "features.db") as store:
        engine = StreamEngine(store, gate)
        engine.add_task("slow", ON_CLICK)
        await engine.on_event(CLICK)
    gate.open.set()
    with pytest.raises(StoreClosedError):
        await engine.settle()
    with pytest.raises(StoreClosedError):
        await engine.on_event(CLICK)


# --- outbox -----------------------------------------------------------------------------------------------------------


async def upload_or_not(task: str, trigger: Trigger) -> TaskOutput:
    await asyncio.sleep(0)
    return TaskOutput([trigger.position, b"x" * 800]) if task == "uploads" else TaskOutput()


@pytest.mark.asyncio
@pytest.mark.parametrize("can_wait", [True, False])
@pytest.mark.parametrize(
    ("policy", "kept"),
    [(FullPolicy.DROP_OLDEST, range(26, 30)), (FullPolicy.DROP_NEWEST, range(3, 7)), (FullPolicy.BLOCK, range(3, 7))],
)
async def test_a_task_that_uploads_nothing_continues_offline(
    tmp_path: pathlib.Path, policy: FullPolicy, kept: range, can_wait: bool
) -> None:
    ran: list[tuple[str, int]] = []

    async def run(task: str, trigger: Trigger) -> TaskOutput:
        ran.append((task, trigger.position))
        return await upload_or_not(task, trigger)

    async with FeatureStore(tmp_path / "features.db", max_outbox_bytes=2_000) as store:
        engine = StreamEngine(store, run)
        engine.add_task("local", ON_CLICK)
        engine.add_task("uploads", ON_CLICK, QueuePolicy(queue=4, queue_full=policy))
        for position in range(30):
            async with asyncio.timeout(10):
                await engine.on_event(CLICK, position, can_wait=can_wait)
            await ended(engine, "local")
        assert [position for task, position in ran if task == "local"] == list(range(30))
        assert [position for task, position in ran if task == "uploads"] == [0, 1, 2]  # the third waits for room
        assert store.replay.lagging == {"uploads": 1}
        assert engine.counts.dropped == {"uploads": 23}
        settling = asyncio.create_task(engine.settle())
        for seq in range(1, 7):
            await store.wait_for_seq(seq - 1)
            store.forget(seq)
        await settling
        assert await positions(store, "uploads") == [0, 1, 2, *kept]
        assert store.state.last_seq == 7


@pytest.mark.asyncio
async def test_offline_a_task_may_keep_its_newest_outputs_on_the_device(tmp_path: pathlib.Path) -> None:
    async with FeatureStore(tmp_path / "features.db", max_outbox_bytes=2_000) as store:
        engine = StreamEngine(store, upload_or_not)
        engine.add_task("uploads", ON_CLICK, QueuePolicy(outbox_full=FullPolicy.DROP_NEWEST))
        for position in range(10):
            await engine.on_event(CLICK, position, can_wait=True)
        await engine.settle()
        assert await positions(store, "uploads") == list(range(10))
        assert engine.counts.uploads_dropped == {"uploads": 8}
        assert (await store.call(lambda database: database.counts())) == (10, 2)
        store.forget(2)
        await store.flush()
        await engine.on_event(CLICK, 10)
        await engine.settle()
        await store.flush()
        assert store.state.last_seq == 3  # numbers without gaps


# --- visits -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_event_without_a_visit_triggers_only_tasks_that_ask_for_it(store: FeatureStore) -> None:
    gate = Gate()
    engine = StreamEngine(store, gate)
    engine.add_task("visits", TriggerCondition.of([PAGE_EXIT]))
    engine.add_task("all", TriggerCondition((PAGE_EXIT,), without_visit=True))
    engine.add_task("start", TriggerCondition.of(["app_start"]))
    await engine.on_event(Event("app_start", "", 1, {}))  # an event without a page lacks no visit
    await engine.on_event(Event(PAGE_EXIT, "never entered", 2, {}))
    for kind in (PAGE_ENTER, PAGE_EXIT):
        await engine.on_event(Event(kind, "a", 3, {}))
    await engine.settle()
    seen = sorted((task, trigger.position, trigger.visit, len(trigger.page_events)) for task, trigger in gate.seen)
    assert seen == [("all", 1, "none", 0), ("all", 3, "whole", 2), ("start", 0, "none", 0), ("visits", 3, "whole", 2)]
    assert engine.counts.without_visit == 1


@pytest.mark.asyncio
async def test_a_cut_visit_is_marked_and_counted_after_a_crash_too(tmp_path: pathlib.Path) -> None:
    events = [Event(PAGE_ENTER, "long", 0, {}), *(Event("scroll", "long", n, {}) for n in range(100))]
    events += [Event(PAGE_EXIT, "long", 50, {}), Event(PAGE_EXIT, "long", 51, {})]
    gate = Gate()
    for part in (events[:90], events):
        async with FeatureStore(tmp_path / "features.db") as store:
            engine = StreamEngine(store, gate, events=EventStream(max_span=10, max_events=5))
            engine.add_task("exit", TriggerCondition.of([PAGE_EXIT]))
            assert store.resume_from == (85 if part is events else 0)  # first position after the visit was cut
            for position in range(store.resume_from, len(part)):
                await engine.on_event(part[position], position)
            await engine.settle()
            assert engine.events.counters()["evicted"] == (part is not events)
    ((_, trigger),) = gate.seen
    assert plain.decode(plain.encode(trigger.to_plain()))["visit"] == "cut"
    assert trigger.page_events == (events[101],)
    assert (engine.counts.cut_visits, engine.counts.without_visit) == (1, 1)


@pytest.mark.asyncio
async def test_an_event_nested_too_deep_for_a_task_is_refused(store: FeatureStore) -> None:
    def nested(levels: int) -> dict[str, object]:
        value: dict[str, object] = {"n": 1}
        for _ in range(levels - 1):
            value = {"x": value}
        return value

    engine = StreamEngine(store, Gate())
    await engine.on_event(Event("click", "p", 1, nested(MAX_CONTENTS_DEPTH)))
    with pytest.raises(EventError, match="nested deeper than"):
        await engine.on_event(Event("click", "p", 1, nested(MAX_CONTENTS_DEPTH + 1)))
    assert engine.counts.events == 1
