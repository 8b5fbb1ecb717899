"""Intake of events: live events beside those with positions, batches, a full journal, and the end of the device."""

import array
import asyncio
import contextlib
import dataclasses
import shutil
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.offline_device import offline_config
from tests.sim.traced_memory import traced_memory
from walle.base.clock import ManualClock, SystemClock
from walle.base.durable_file import write_all
from walle.device.event_intake import EventIntake
from walle.pipeline.events.event import Event
from walle.pipeline.events.event_journal import EventJournal, EventJournalError, EventJournalFullError
from walle.pipeline.events.live_source import LatePolicy, LivePolicy
from walle.pipeline.features.store import FeatureStore, StoreClosedError
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger.stream_engine import PositionError, StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import FullPolicy, QueuePolicy, TriggerCondition


@dataclasses.dataclass
class Intake:
    """An intake with the parts around it; `seen` are the positions and numbers of events that a task ran on."""

    intake: EventIntake
    store: FeatureStore
    stream: StreamEngine
    seen: list[tuple[int, int]]

    async def settled(self) -> list[tuple[int, int]]:
        await self.stream.settle()
        return self.seen


def click(number: int, **contents: object) -> Event:
    return Event("click", "", 1_000 + number, {"n": number, **contents})


def clicks(*numbers: int) -> list[Event]:
    return [click(number) for number in numbers]


@contextlib.asynccontextmanager
async def opened(folder: Path, *, runs: asyncio.Event | None = None, **options: Any) -> AsyncIterator[Intake]:
    """Open an intake in `folder`, whose task runs on each click once `runs` is set.

    With `uploads`, a second task uploads an output for each click: the outbox, which no cloud empties, takes two.
    """
    config = offline_config(folder, live=options.pop("live", LivePolicy()))
    seen: list[tuple[int, int]] = []

    async def run(task: str, trigger: Trigger) -> TaskOutput:
        if task == "uploads":
            return TaskOutput(b"x" * 800)
        if runs is not None:
            await runs.wait()
        seen.append((trigger.position, trigger.event.contents["n"]))
        return TaskOutput()

    clock = SystemClock()
    async with FeatureStore(folder / "features.db", clock=clock, max_outbox_bytes=2_000) as store:
        stream = StreamEngine(store, run, events=options.pop("events", None))
        condition = TriggerCondition.of(["click"])
        stream.add_task("task", condition, QueuePolicy(queue=options.pop("queue", 1000), queue_full=FullPolicy.BLOCK))
        if options.pop("uploads", False):
            stream.add_task("uploads", condition, QueuePolicy(queue=2, queue_full=FullPolicy.BLOCK))
        history = EventHistory(folder / "history.db", ManualClock())
        intake = EventIntake(config, clock, store, stream, history, **options)
        try:
            await intake.start()
            yield Intake(intake, store, stream, seen)
        finally:
            await intake.aclose()
            await stream.close()
            await history.aclose()


@pytest.mark.asyncio
@pytest.mark.parametrize("position", [0, 2, 3, 50])
async def test_a_position_after_a_live_event_is_refused_and_live_events_continue(tmp_path: Path, position: int) -> None:
    async with opened(tmp_path) as device:
        for event in clicks(0, 1, 2):
            await device.intake.take_live(event, can_wait=False)
        with pytest.raises(PositionError, match=rf"position {position} after 2: the device has live ev.*pass this"):
            await device.intake.take(click(9), position, can_wait=False)
        for event in clicks(3, 4):
            await device.intake.take_live(event, can_wait=False)
        assert await device.settled() == [(number, number) for number in range(5)]


@pytest.mark.asyncio
async def test_a_batch_of_which_no_event_is_taken_ends_no_source_with_positions(tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        await device.intake.take_all_live(clicks(0, 1))
    async with opened(tmp_path, live=LivePolicy(drop_equal=True)) as device:
        await device.intake.take_all_live(clicks(0, 1))  # the app repeats its call
        await device.intake.take(click(2), 2, can_wait=False)
        assert (await device.settled())[-1] == (2, 2)


@pytest.mark.asyncio
async def test_live_events_come_after_those_of_a_source_with_positions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as device:
        await device.intake.take_live(click(0), can_wait=False)
    runs = asyncio.Event()
    async with opened(tmp_path, runs=runs) as device:  # the journal is open from the start
        for position in (1, 2, 7):
            await device.intake.take(click(position), position, can_wait=False)
        for event in clicks(8, 9):
            await device.intake.take_live(event, can_wait=False)
        assert device.stream.queued == {"task": 5}
    async with opened(tmp_path) as device:
        # Of the source with positions, the app sends the events again that a task lacks; it did not.
        assert await device.settled() == [(8, 8), (9, 9)]
        await device.intake.take_live(click(10), can_wait=False)
        assert (await device.settled())[-1] == (10, 10)
    assert "7 positions from 1 on have no event" in caplog.text
    assert "damaged" not in caplog.text


@pytest.mark.asyncio
async def test_a_batch_that_cannot_be_recorded_is_refused_whole_and_taken_once_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = clicks(*range(3000))
    async with opened(tmp_path, live=LivePolicy(drop_equal=True)) as device:
        await device.intake.take_live(click(9999), can_wait=False)

        def fail(handle: int, data: bytes) -> None:
            write_all(handle, data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("walle.pipeline.events.event_journal.write_all", fail)
            with pytest.raises(EventJournalError, match="make room on its disk") as refused:
                await device.intake.take_all_live(batch)
        assert not refused.value.recorded
        assert device.intake.live_counts.duplicates == 0
        await device.intake.take_all_live(batch)
        seen = await device.settled()
        assert [number for _, number in seen] == [9999, *range(3000)]
        assert device.intake.live_counts.duplicates == 0
    async with opened(tmp_path) as device:
        assert device.store.position == 3000
        assert await device.settled() == []


@pytest.mark.asyncio
async def test_a_batch_has_the_policy_of_single_events(tmp_path: Path) -> None:
    async with opened(tmp_path, live=LivePolicy(late_ms=5, late=LatePolicy.DROP, drop_equal=True)) as device:
        await device.intake.take_all_live(clicks(0, 10, 10, 2))
        await device.intake.take_all_live(clicks(10))
        await device.intake.take_all_live([])
        assert [number for _, number in await device.settled()] == [0, 10]
        assert (device.intake.live_counts.duplicates, device.intake.live_counts.late) == (2, 1)


@pytest.mark.asyncio
async def test_a_batch_that_is_recorded_and_not_synced_says_so_and_the_next_call_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as device:
        object.__setattr__(device.intake._config, "journal_sync_s", 0.0)

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr("walle.pipeline.events.event_journal._sync_all", fail)
            with pytest.raises(EventJournalError, match="cannot be synced") as failed:
                await device.intake.take_all_live(clicks(0, 1))
        assert failed.value.recorded
        await device.intake.take_live(click(2), can_wait=False)
        assert await device.settled() == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.asyncio
async def test_a_journal_that_is_full_of_events_that_are_done_makes_room(tmp_path: Path) -> None:
    async with opened(tmp_path, journal_bytes=4 << 20) as device:
        for number in range(400):  # 20 MB in all; the stream's position is stored every 1,000 events
            await device.intake.take_live(click(number, text="x" * 50_000), can_wait=False)
        assert len(await device.settled()) == 400


@pytest.mark.asyncio
async def test_a_journal_that_is_full_of_needed_events_refuses_more_until_they_are_done(
    tmp_path: Path,
) -> None:
    runs = asyncio.Event()
    async with opened(tmp_path, runs=runs, journal_bytes=2 << 20) as device:
        for number in range(41):
            await device.intake.take_live(click(number, text="x" * 50_000), can_wait=False)
        with pytest.raises(EventJournalFullError, match="bytes from position 0 on are still needed"):
            await device.intake.take_live(click(41, text="x" * 50_000), can_wait=False)
        runs.set()
        assert len(await device.settled()) == 41
        await device.intake.take_live(click(41, text="x" * 50_000), can_wait=False)
        assert len(await device.settled()) == 42


@pytest.mark.asyncio
@pytest.mark.parametrize("first", ["page_enter", "start"])
async def test_a_page_that_stays_open_or_a_match_that_never_ends_does_not_fill_the_journal(
    tmp_path: Path, first: str
) -> None:
    async with opened(tmp_path) as device:
        device.stream.add_task("match", TriggerCondition.of(["start", "never"], skip_till_next=True))
        await device.intake.take_live(Event(first, "page" * (first == "page_enter"), 0, {}), can_wait=False)
        for number in range(400):  # 80 MB; the journal holds 64 MiB
            await device.intake.take_live(Event("large", "", number, {"text": "x" * 200_000}), can_wait=False)
        await device.store.flush()
        assert device.stream.events.counters()["evicted"] == (first == "page_enter")
        assert device.store.resume_from >= 400 - (17 << 20) // 200_000


@pytest.mark.asyncio
async def test_events_that_a_restored_store_needs_and_the_journal_has_no_more_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as device:
        pass
    shutil.copy(tmp_path / "features.db", tmp_path / "copy")
    async with opened(tmp_path, journal_bytes=4 << 20) as device:
        for number in range(100):
            await device.intake.take_live(click(number, text="x" * 50_000), can_wait=False)
        await device.settled()
    for name in ("features.db-wal", "features.db-shm", "features.db.lock"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.move(tmp_path / "copy", tmp_path / "features.db")
    async with opened(tmp_path) as device:
        seen = await device.settled()
        lost = 100 - len(seen)
        assert [number for _, number in seen] == list(range(lost, 100))
        assert lost > 0
    assert f"{lost} positions from 0 on have no event" in caplog.text


@pytest.mark.asyncio
async def test_a_closed_device_refuses_events_and_opens_no_journal(tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        pass
    for work in (
        device.intake.take_live(click(0), can_wait=False),
        device.intake.take_all_live(clicks(0, 1)),
        device.intake.take(click(0), 0, can_wait=False),
    ):
        with pytest.raises(StoreClosedError, match="the device is closed"):
            await work
    assert not (tmp_path / "events").exists()


@pytest.mark.asyncio
async def test_a_journal_that_is_opened_while_the_device_closes_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, may_open = asyncio.Event(), asyncio.Event()
    started: list[EventJournal] = []
    start = EventJournal.start

    async def start_later(journal: EventJournal, next_position: int) -> EventJournal:
        opens.set()
        await may_open.wait()
        started.append(journal)
        return await start(journal, next_position)

    monkeypatch.setattr(EventJournal, "start", start_later)
    async with opened(tmp_path) as device:
        takes = asyncio.create_task(device.intake.take_live(click(0), can_wait=False))
        await opens.wait()
        asyncio.get_running_loop().call_later(0.05, may_open.set)
    with pytest.raises(StoreClosedError, match="the device is closed"):
        await takes
    (journal,) = started
    with pytest.raises(EventJournalError, match="is not open"):
        journal.append(click(1))


@pytest.mark.asyncio
async def test_a_call_cancelled_while_it_opens_the_journal_loses_no_later_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = threading.Event()
    begin = EventJournal._begin_segment

    def begin_late(journal: EventJournal, first: int) -> None:
        is_first = not begins.is_set()
        begins.set()
        if is_first:
            time.sleep(0.2)
        begin(journal, first)

    monkeypatch.setattr(EventJournal, "_begin_segment", begin_late)
    async with opened(tmp_path) as device:
        takes = asyncio.create_task(device.intake.take_live(click(0), can_wait=False))
        await asyncio.to_thread(begins.wait)
        takes.cancel()
        with pytest.raises(asyncio.CancelledError):
            await takes
        await device.intake.take_live(click(1), can_wait=False)
        await asyncio.sleep(0.3)  # a second opening would begin the file again meanwhile
        await device.intake.take_live(click(2), can_wait=False)
    async with EventJournal(tmp_path / "events") as journal:
        assert [event async for _, event in journal.replay(0)] == clicks(1, 2)


@pytest.mark.asyncio
async def test_a_call_that_waits_for_a_task_ends_with_the_device_and_its_event_is_taken_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, runs=asyncio.Event(), queue=1) as device:
        for event in clicks(0, 1, 2):  # the task falls behind at the last one
            await device.intake.take_live(event, can_wait=False)
        # A source that is not recorded waits; so does an event with an array.
        waits = asyncio.create_task(device.intake.take_live(click(3, image=array.array("b", b"1")), can_wait=False))
        settles = asyncio.create_task(device.stream.settle())
        await asyncio.sleep(0.01)
        assert not waits.done()
    async with asyncio.timeout(5):
        await waits
        with pytest.raises(StoreClosedError):
            await settles
    async with opened(tmp_path) as device:
        assert await device.settled() == [(0, 0), (1, 1), (2, 2)]  # the array ended with the process


@pytest.mark.asyncio
async def test_a_recorded_event_that_the_stream_refuses_does_not_hold_up_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as device:
        feed = device.stream.on_event

        async def refuse(event: Event, position: int, *, can_wait: bool) -> None:
            if event.contents["n"] == 1:
                raise ValueError("refused")
            await feed(event, position, can_wait=can_wait)

        monkeypatch.setattr(device.stream, "on_event", refuse)
        with pytest.raises(ValueError, match="refused"):
            await device.intake.take_all_live(clicks(0, 1, 2))
        await device.intake.take_live(click(3), can_wait=False)
        assert await device.settled() == [(0, 0), (2, 2), (3, 3)]


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_batch_costs_no_copy_of_the_latest_events(tmp_path: Path) -> None:
    async with opened(tmp_path, live=LivePolicy(duplicates=LivePolicy.MAX_DUPLICATES, drop_equal=True)) as device:
        for number in range(0, LivePolicy.MAX_DUPLICATES, 2048):
            await device.intake.take_all_live(clicks(*range(number, number + 2048)))
        await device.stream.settle()
        last = LivePolicy.MAX_DUPLICATES
        with traced_memory():
            await device.intake.take_all_live(clicks(last, last + 1))
            _, peak_bytes = tracemalloc.get_traced_memory()
        assert peak_bytes < 1 << 20  # the digests of 65,536 events take several MiB
        assert (await device.settled())[-2:] == [(last, last), (last + 1, last + 1)]


# --- offline ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_device_starts_offline_with_a_full_outbox_and_a_task_that_blocks(tmp_path: Path) -> None:
    """The stream waits for a slow run of a task that blocks, and never for the cloud: other tasks go on."""
    async with opened(tmp_path, runs=asyncio.Event(), queue=1, uploads=True) as device:
        blocked = asyncio.create_task(device.intake.take_all_live(clicks(*range(10))))  # recorded, and not all taken
        await asyncio.wait([blocked], timeout=0.1)
        blocked.cancel()
        await asyncio.wait([blocked])
    for last in (10, 11):
        async with asyncio.timeout(10), opened(tmp_path, uploads=True) as device:
            await device.intake.take_live(click(last), can_wait=False)
            while "task" in device.stream.queued:  # noqa: ASYNC110 - the engine has no event for one task
                await asyncio.sleep(0)
            assert device.seen[-1] == (last, last)
            assert device.seen == [(number, number) for number in range(device.seen[0][0], last + 1)]
            assert device.stream.queued == {"uploads": last - 1}  # the first two outputs filled the outbox
            assert device.stream.counts.dropped == {}


@pytest.mark.asyncio
async def test_a_duplicate_by_its_id_is_found_after_a_restart_although_its_event_is_done(tmp_path: Path) -> None:
    live = LivePolicy(id_field="id", duplicates=8)
    async with opened(tmp_path, live=live, events=EventStream(max_events=1)) as device:
        for number in range(40):
            await device.intake.take_live(click(number, id=f"m{number}", text="x" * 60_000), can_wait=False)
            await device.settled()
            await device.store.flush()
        assert device.store.resume_from == 39  # one is replayed
        assert len(list((tmp_path / "events").iterdir())) <= 2  # the others are removed
    async with opened(tmp_path, live=live, events=EventStream(max_events=1)) as device:
        await device.intake.take_all_live([click(number, id=f"m{number}") for number in range(33, 42)])
        assert await device.settled() == [(40, 40), (41, 41)]
        assert device.intake.live_counts.duplicates == 7


@pytest.mark.asyncio
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_damaged_event_is_a_loss_only_where_it_is_needed(tmp_path: Path, *, is_done: bool) -> None:
    live = LivePolicy(id_field="id", duplicates=8)
    runs = None if is_done else asyncio.Event()
    async with opened(tmp_path, live=live, events=EventStream(max_events=1), runs=runs) as device:
        for number in range(6):
            await device.intake.take_live(click(number, id=f"m{number}"), can_wait=False)
        if is_done:
            await device.settled()
            await device.store.flush()
            assert device.store.resume_from == 5
    (file,) = (tmp_path / "events").iterdir()
    file.write_bytes(file.read_bytes().replace(b"m3", b"m7"))
    for _ in range(2):
        async with opened(tmp_path, live=live, events=EventStream(max_events=1), runs=asyncio.Event()) as device:
            expected = [] if is_done else ["1 events of the journal were damaged and are left out"]
            assert device.intake.losses() == expected


@pytest.mark.asyncio
async def test_events_that_are_kept_for_duplicates_do_not_fill_the_journal(tmp_path: Path) -> None:
    live = LivePolicy(id_field="id", duplicates=1024)
    async with opened(tmp_path, live=live, journal_bytes=6 << 20, events=EventStream(max_events=1)) as device:
        for number in range(120):
            await device.intake.take_live(click(number, id=number, text="x" * 60_000), can_wait=False)
            await device.settled()
            if number % 10 == 9:
                await device.store.flush()
        sizes = [path.stat().st_size for path in (tmp_path / "events").glob("*.log")]
        assert sum(sizes) < 4 << 20
