"""A burst of live events: tasks with full queues fall behind, lose nothing, and read their events from the journal."""

import array
import asyncio
import contextlib
import dataclasses
import pathlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.sim.burst_player import burst
from tests.sim.offline_device import offline_config
from walle.base.clock import SystemClock
from walle.device.event_intake import EventIntake
from walle.pipeline.events.event import PAGE_EXIT, Event
from walle.pipeline.events.event_journal import EventJournalError
from walle.pipeline.events.transient_events import transient
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import TaskQueue, Trigger
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import FullPolicy, QueuePolicy, TriggerCondition

ROOT = pathlib.Path(__file__).parents[3]
ON_CLICK = TriggerCondition(("click",), without_visit=True)
BEHIND = QueuePolicy(queue=1)


@dataclasses.dataclass
class Rig:
    """An intake with its engine. Tasks named "slow" wait for `open`; `seen` are the triggers of each task's runs."""

    intake: EventIntake
    stream: StreamEngine
    store: FeatureStore
    open: asyncio.Event
    seen: dict[str, list[Trigger]]
    ran: asyncio.Condition

    async def take(self, *events: Event) -> None:
        if len(events) == 1:
            await self.intake.take_live(events[0], can_wait=False)
        else:
            await self.intake.take_all_live(events)

    async def runs(self, task: str, count: int) -> None:
        """Return once the task has run `count` times."""
        async with asyncio.timeout(60), self.ran:
            await self.ran.wait_for(lambda: len(self.seen.get(task, ())) >= count)

    def numbers(self, task: str) -> list[int]:
        return [trigger.event.contents["n"] for trigger in self.seen.get(task, ())]


@contextlib.asynccontextmanager
async def rig(
    folder: pathlib.Path,
    events: EventStream | None = None,
    *,
    outbox_bytes: int = 32 << 20,
    tasks: tuple[str, ...] = (),
    condition: TriggerCondition = ON_CLICK,
    **options: Any,
) -> AsyncIterator[Rig]:
    """Open the intake; `tasks` with this condition are there before the journal is replayed."""
    is_open, seen, ran, clock = asyncio.Event(), dict[str, list[Trigger]](), asyncio.Condition(), SystemClock()

    async def run(task: str, trigger: Trigger) -> TaskOutput:
        if task.startswith("slow"):
            await is_open.wait()
        async with ran:
            seen.setdefault(task, []).append(trigger)
            ran.notify_all()
        return TaskOutput({"uploads": b"x" * 800, "local": None}.get(task, trigger.position))

    async with FeatureStore(folder / "features.db", clock=clock, max_outbox_bytes=outbox_bytes) as store:
        stream = StreamEngine(store, run, events=events)
        for task in tasks:
            stream.add_task(task, condition)
        history = EventHistory(folder / "history.db", clock)
        intake = EventIntake(offline_config(folder), clock, store, stream, history, **options)
        await intake.start()
        try:
            yield Rig(intake, stream, store, is_open, seen, ran)
        finally:
            await intake.aclose()
            await stream.close()
            await history.aclose()


def click(number: int, **contents: object) -> Event:
    return Event("click", "", 1_000 + number, {"n": number, **contents})


def as_plain(trigger: Trigger) -> tuple[object, ...]:
    return trigger.event, trigger.position, trigger.page_events, list(trigger.recent), trigger.visit


@pytest.mark.asyncio
@pytest.mark.parametrize("bounds", [{}, {"max_events": 7, "max_span": 6}, {"max_open": 1, "max_bytes": 300}])
async def test_a_late_task_sees_the_same_events_as_one_in_time(tmp_path: pathlib.Path, bounds: dict[str, int]) -> None:
    found = []
    for queue in (1, 1000):
        folder = tmp_path / str(queue)
        folder.mkdir()
        async with rig(folder, EventStream(**bounds)) as device:
            device.stream.add_task("slow visit", TriggerCondition.of([PAGE_EXIT]), QueuePolicy(queue=queue))
            device.stream.add_task("slow pair", TriggerCondition.of(["click", "click"]), QueuePolicy(queue=queue))
            for part in (burst(1000)[:400], burst(1000)[400:]):
                await device.take(*part)
            behind = sum(len(one.deferred) for one in device.stream._queues.by_task.values())
            assert (behind > 500) == (queue == 1)
            device.open.set()
            await device.stream.settle()
            assert device.stream.counts.dropped == {}
            found.append({task: [as_plain(trigger) for trigger in seen] for task, seen in device.seen.items()})
            assert not device.stream._queues.by_task
    assert found[0] == found[1]
    assert {task: len(triggers) for task, triggers in found[0].items()} == {"slow visit": 100, "slow pair": 700}


@pytest.mark.asyncio
async def test_a_task_that_hangs_in_a_burst_delays_no_other_task_and_loses_nothing(tmp_path: pathlib.Path) -> None:
    async with rig(tmp_path) as device:
        device.stream.add_task("slow", ON_CLICK)
        device.stream.add_task("fast", ON_CLICK)
        await device.take(*[click(number) for number in range(1000)])
        await device.runs("fast", 1000)
        assert device.seen.get("slow") is None
        assert device.stream.queued["slow"] == 1000
        device.open.set()
        await device.stream.settle()
        assert device.numbers("slow") == device.numbers("fast") == list(range(1000))


@pytest.mark.asyncio
async def test_a_task_catches_up_and_falls_behind_again(tmp_path: pathlib.Path) -> None:
    async with rig(tmp_path) as device:
        device.stream.add_task("slow", ON_CLICK, BEHIND)
        for start in (0, 50, 100):
            await device.take(*[click(number) for number in range(start, start + 50)])
            device.open.set()
            await device.runs("slow", start + 20)
            device.open.clear()  # the task is behind, or not, when the next ones come
        device.open.set()
        await device.stream.settle()
        assert device.numbers("slow") == list(range(150))


@pytest.mark.asyncio
async def test_events_with_arrays_wait_for_the_task_that_they_trigger_alone(tmp_path: pathlib.Path) -> None:
    async with rig(tmp_path) as device:
        device.stream.add_task("slow", ON_CLICK, BEHIND)
        device.stream.add_task("frames", TriggerCondition(("frame",), without_visit=True), BEHIND)
        await device.take(*[click(number) for number in range(20)])
        frame = Event("frame", "", 2_000, {"n": 20, "image": array.array("b", b"12")})
        await device.take(frame)  # a frame cannot trigger the task that is behind
        await device.runs("frames", 1)
        assert transient(click(21, image=array.array("b", b"1"))) is not None
        waits = asyncio.create_task(device.take(click(21, image=array.array("b", b"1"))))
        device.open.set()
        await waits
        await device.stream.settle()
        assert device.numbers("slow") == [*range(20), 21]
        assert device.seen["slow"][-1].event.contents["image"] == array.array("b", b"1")
        assert device.stream.counts.dropped == {}


@pytest.mark.asyncio
async def test_the_source_waits_at_the_bound_of_deferred_triggers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskQueue, "MAX_DEFERRED", 5)
    async with rig(tmp_path) as device:
        device.stream.add_task("slow", ON_CLICK, BEHIND)
        device.stream.add_task("other", TriggerCondition(("other",), without_visit=True), BEHIND)
        call = asyncio.create_task(device.take(*[click(number) for number in range(60)]))
        while device.stream.next_position < 7:  # noqa: ASYNC110 - the engine has no event for a position
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not call.done()
        assert device.stream.queued == {"slow": 7}  # one runs, one waits, five are deferred
        device.open.set()
        await call
        await device.stream.settle()
        assert (device.numbers("slow"), device.stream.counts.dropped) == (list(range(60)), {})


@pytest.mark.asyncio
async def test_offline_a_task_falls_behind_to_half_of_the_journal_and_then_drops_and_counts(
    tmp_path: pathlib.Path,
) -> None:
    losses: list[tuple[str, str, int]] = []
    async with rig(tmp_path, outbox_bytes=2_000, journal_bytes=1 << 20) as device:
        device.stream._on_loss = lambda *loss: losses.append((loss[0], str(loss[1]), loss[2]))
        device.stream.add_task("uploads", ON_CLICK, BEHIND)
        device.stream.add_task("local", ON_CLICK, BEHIND)
        for number in range(20):
            await device.take(click(number, text="x" * 40_000))
            await device.runs("local", number + 1)
        dropped = device.stream.counts.dropped["uploads"]
        assert 3 <= dropped <= 10  # 13 of 20 events with 40 KB each fill half of the journal
        assert losses == [("uploads", "triggers", 1)] * dropped
        settled = asyncio.create_task(device.stream.settle())
        for seq in range(1, 21 - dropped):
            await device.store.wait_for_seq(seq - 1)
            device.store.forget(seq)
        await settled
        assert device.numbers("uploads") == list(range(20 - dropped))
        assert device.numbers("local") == list(range(20))


@pytest.mark.asyncio
async def test_an_event_that_the_journal_lost_is_a_counted_drop(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as device:
        device.stream.add_task("slow", ON_CLICK, BEHIND)
        with device.stream.results.open("slow") as results:
            await device.take(*[click(number, text=f"text {number:3}") for number in range(20)])
            (segment,) = (tmp_path / "events").iterdir()
            data = segment.read_bytes()
            segment.write_bytes(data.replace(b"text   7", b"text   _").replace(b"text  19", b"text  __"))
            device.open.set()
            await device.stream.settle()
            assert device.numbers("slow") == [number for number in range(20) if number not in (7, 19)]
            assert device.stream.counts.dropped == {"slow": 2}
            assert [result.dropped async for result in first(results, 20)].count(True) == 2
    assert "are damaged and are left out" in caplog.text


async def first(results: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(results)


@pytest.mark.asyncio
async def test_a_journal_that_cannot_be_read_for_a_while_loses_nothing(tmp_path: pathlib.Path) -> None:
    async with rig(tmp_path) as device:
        device.stream.add_task("slow", ON_CLICK, BEHIND)
        await device.take(*[click(number) for number in range(20)])
        (segment,) = (tmp_path / "events").iterdir()
        segment.rename(tmp_path / "away")
        device.open.set()
        with pytest.raises(EventJournalError, match="cannot be read"):
            await device.stream.settle()
        (tmp_path / "away").rename(segment)
        await device.stream.settle()
        assert device.numbers("slow") == list(range(20))


@pytest.mark.asyncio
async def test_a_removed_task_and_one_that_drops_by_its_next_version_leave_nothing_behind(
    tmp_path: pathlib.Path,
) -> None:
    async with rig(tmp_path) as device:
        for task in ("slow removed", "slow oldest", "slow newest"):
            device.stream.add_task(task, ON_CLICK, BEHIND)
        await device.take(*[click(number) for number in range(20)])
        device.stream.remove_task("slow removed")
        device.stream.add_task("slow oldest", ON_CLICK, QueuePolicy(queue=3, queue_full=FullPolicy.DROP_OLDEST))
        device.stream.add_task("slow newest", ON_CLICK, QueuePolicy(queue=3, queue_full=FullPolicy.DROP_NEWEST))
        await device.take(click(20), click(21))
        device.open.set()
        await device.stream.settle()
        assert device.numbers("slow removed") == [0]
        assert device.numbers("slow oldest") == [0, 19, 20, 21]
        assert device.numbers("slow newest") == [0, 1, 2, 3]
        assert device.stream.counts.dropped == {"slow oldest": 18, "slow newest": 18}
        assert not device.stream._queues.by_task


@pytest.mark.asyncio
async def test_a_task_whose_runs_ended_by_a_fault_of_the_engine_holds_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as device:
        device.stream.add_task("slow", ON_CLICK, BEHIND)
        device.stream.add_task("fast", ON_CLICK, BEHIND)
        put = device.store.put_outputs

        async def fail(*args: Any, **options: Any) -> Any:
            if options["position"] == 0 and "slow" in device.seen:
                raise RuntimeError("a fault")
            return await put(*args, **options)

        monkeypatch.setattr(device.store, "put_outputs", fail)
        await device.take(click(0))
        await device.runs("fast", 1)
        device.open.set()
        await device.runs("slow", 1)
        await device.take(*[click(number) for number in range(1, 50)])
        await device.runs("fast", 50)
        assert device.stream.counts.dropped["slow"] >= 48 - 1


@pytest.mark.asyncio
async def test_frames_whose_runs_a_kill_took_are_counted_at_the_next_start(tmp_path: pathlib.Path) -> None:
    frames = TriggerCondition(("frame",), without_visit=True)
    for life in range(2):
        async with rig(tmp_path, tasks=("slow", "fast"), condition=frames) as device:
            if life == 0:
                for number in range(5):
                    await device.take(Event("frame", "", number, {"n": number, "image": array.array("b", b"1")}))
                await device.runs("fast", 5)
                while set(device.stream.queued) != {"slow"}:  # noqa: ASYNC110 - the engine has no event for one task
                    await asyncio.sleep(0)
            else:
                device.open.set()
                await device.take(click(9))
                await device.stream.settle()
                assert device.stream.counts.dropped == {"slow": 5}
                assert device.seen == {}


@pytest.mark.asyncio
async def test_losses_of_the_journal_are_named(tmp_path: pathlib.Path) -> None:
    async with rig(tmp_path, tasks=("slow",)) as device:
        await device.take(*[click(number, text=f"text {number:3}") for number in range(20)])
        assert device.intake.losses() == []
    (segment,) = (tmp_path / "events").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"text   7", b"text   _") + b"half")
    async with rig(tmp_path, tasks=("slow",)) as device:
        device.open.set()
        await device.stream.settle()
        assert device.numbers("slow") == [number for number in range(20) if number != 7]
        assert device.intake.losses() == [
            "1 events of the journal were damaged and are left out",
            "the last 4 bytes of the journal were half an event, of a power cut",
        ]


# --- a device that is killed ------------------------------------------------------------------------------------------


def play(folder: pathlib.Path, queue: int, stop_after: int | None = None) -> bool:
    """Play a burst; kill the process after `stop_after` runs of a task. Return whether it came to its end."""
    command = [sys.executable, "-m", "tests.sim.burst_player", str(folder), str(queue), "1000"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    runs, ended = 0, False
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            runs += line == b"run\n"
            ended = line == b"done\n"
            if runs == stop_after:
                process.kill()
                break
        process.stdout.read()
    if stop_after is None:
        assert process.returncode == 0
    return ended


def features(folder: pathlib.Path) -> list[tuple[str, int, bytes]]:
    with contextlib.closing(sqlite3.connect(folder / "features.db")) as db:
        return sorted(db.execute("SELECT topic, position, payload FROM features").fetchall())


@pytest.mark.night
def test_an_engine_killed_in_a_burst_stores_the_same_features(tmp_path: pathlib.Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert play(whole, 1000)  # nothing falls behind
    for stop_after in (3, 25, 1, 40):
        assert not play(killed, 2, stop_after)
    assert play(killed, 2)
    assert features(killed) == features(whole)
    assert len(features(whole)) == 100 + 700 + 10
