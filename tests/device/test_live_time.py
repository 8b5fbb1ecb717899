"""Timers of a live source: the device's clock, suspension, a clock that was set, restarts and kills."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.night.cases import at_night
from tests.sim.offline_device import offline_config
from walle.base import plain
from walle.base.clock import ManualClock
from walle.device.event_intake import EventIntake
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.events.live_source import LivePolicy
from walle.pipeline.events.ticks import Tick
from walle.pipeline.features.database import StoreDatabase
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger import stream_time
from walle.pipeline.trigger.stream_engine import PositionError, StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import FullPolicy, QueuePolicy, TriggerCondition

CASE = Path(__file__).parents[2].parent / "shared/cases/pipeline/killed_in_mid_page.jsonl"
START_S = 1_700_000_000
QUIET = TriggerCondition.of([PAGE_EXIT], idle_s=1800)
NO_PURCHASE = TriggerCondition.of(["cart"], absent="purchase", absent_s=1800, key="item", without_visit=True)


class SuspendedClock(ManualClock):
    """A clock of which `suspend` moves the time, as seen after a suspension: neither sleepers nor monotonic time."""

    def __init__(self) -> None:
        super().__init__(START_S)
        self._suspended_s = 0.0

    def suspend(self, seconds: float) -> None:
        """Move the time; a negative number sets the clock back."""
        self._suspended_s += seconds

    def time(self) -> float:
        return super().time() + self._suspended_s


class Device:
    """An intake with its parts, and the triggers of its tasks in the order of their runs."""

    def __init__(self, intake: EventIntake, store: FeatureStore, stream: StreamEngine, clock: SuspendedClock) -> None:
        self.intake, self.store, self.stream, self.clock = intake, store, stream, clock

    async def take(self, event_id: str, page_id: str = "", at_s: float | None = None, **contents: object) -> None:
        ts_ms = round(1000 * (self.clock.time() if at_s is None else at_s))
        await self.intake.take_live(Event(event_id, page_id, ts_ms, contents), can_wait=True)

    async def outputs(self, task: str) -> list[list[Any]]:
        await self.stream.settle()
        return [list(plain.decode(feature.payload)) for feature in await self.store.query(task, limit=1000)]

    async def copy(self, folder: Path) -> Path:
        """Copy the folder as a killed process leaves it."""

        def copy(_: StoreDatabase) -> Path:
            shutil.copytree(self.store.path.parent, folder)
            return folder

        return await self.store.call(copy)


async def run(task: str, trigger: Trigger) -> TaskOutput:
    event = trigger.event
    if event.event_id == "@window":
        return TaskOutput([event.contents["start_ms"] // 1000 - START_S, [one.page_id for one in trigger.page_events]])
    return TaskOutput([event.event_id, event.page_id, event.ts_ms // 1000 - START_S, len(trigger.page_events)])


@contextlib.asynccontextmanager
async def opened(
    folder: Path,
    condition: TriggerCondition = QUIET,
    clock: SuspendedClock | None = None,
    *,
    tasks: Sequence[str] = ("task",),
    journal_bytes: int = 64 << 20,
) -> AsyncIterator[Device]:
    clock = clock or SuspendedClock()
    async with FeatureStore(folder / "features.db", clock=clock) as store:
        stream = StreamEngine(store, run)
        for task in tasks:
            stream.add_task(task, condition, QueuePolicy(queue=16, queue_full=FullPolicy.BLOCK))
        history = EventHistory(folder / "history.db", ManualClock())
        config = offline_config(folder, live=LivePolicy())
        intake = EventIntake(config, clock, store, stream, history, journal_bytes=journal_bytes)
        timers = asyncio.create_task(intake.run_timers())
        try:
            await intake.start()
            yield Device(intake, store, stream, clock)
        finally:
            timers.cancel()
            await asyncio.wait([timers])
            await intake.aclose()
            await stream.close()
            await history.aclose()


def clock_at(seconds: float) -> SuspendedClock:
    clock = SuspendedClock()
    clock.suspend(seconds)
    return clock


async def pass_time(device: Device, seconds: float) -> None:
    """Let time pass, and the device do all that is due."""
    await device.clock.advance(seconds)
    async with device.intake._turn:  # a tick writes in a thread of the journal
        pass


@pytest.mark.asyncio
async def test_a_page_that_is_never_left_triggers_once_it_was_quiet(tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        await device.take(PAGE_ENTER, "item")
        await device.clock.advance(100)
        await device.take("click", "item")
        await pass_time(device, 1799)
        assert await device.outputs("task") == []
        await pass_time(device, 1)
        assert await device.outputs("task") == [["@idle", "item", 1900, 2]]
        await pass_time(device, 10_000)
        assert len(await device.outputs("task")) == 1  # once for each quiet time
        await device.take("click", "item")
        await pass_time(device, 1800)
        await device.take(PAGE_EXIT, "item")
        await pass_time(device, 10_000)
        assert [kind for kind, *_ in await device.outputs("task")] == ["@idle", "@idle", PAGE_EXIT]


@pytest.mark.asyncio
async def test_a_device_that_is_killed_in_mid_page_gives_the_feature_after_a_restart(tmp_path: Path) -> None:
    if not CASE.exists():
        pytest.skip(f"{CASE} is not here")
    lines = [json.loads(line) for line in CASE.read_text().splitlines()]
    (tmp_path / "one").mkdir()
    async with opened(tmp_path / "one") as device:
        for line in lines:
            await device.intake.take_live(Event.from_dict(line), can_wait=True)
        folder = await device.copy(tmp_path / "two")
    async with opened(folder, clock=clock_at(7200)) as device:
        await pass_time(device, 0)
        found = await device.outputs("task")
        assert found == [["@idle", lines[-1]["page_id"], lines[-1]["ts_ms"] // 1000 - START_S + 1800, len(lines)]]
        folder = await device.copy(tmp_path / "three")
    async with opened(folder, clock=clock_at(10_000)) as device:
        await pass_time(device, 10_000)
        assert await device.outputs("task") == found


@pytest.mark.asyncio
async def test_a_running_timer_continues_after_a_restart_with_what_was_left(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    async with opened(tmp_path / "one", NO_PURCHASE) as device:
        await device.take("cart", item=1)
        await device.clock.advance(100)
        await device.take("cart", item=2)
        for _ in range(200):  # enough for a snapshot, which the replay begins with
            await device.take("other")
        await device.store.flush()
        folder = await device.copy(tmp_path / "two")
        assert device.store.resume_from < 3
    async with opened(folder, NO_PURCHASE, clock_at(600)) as device:
        await device.take("purchase", item=1)
        await pass_time(device, 1299)
        assert await device.outputs("task") == []
        await pass_time(device, 1)
        assert await device.outputs("task") == [["@absent", "", 1900, 0]]


@pytest.mark.asyncio
async def test_a_timer_runs_after_a_restart_without_an_event_since_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay ends at the position of the snapshot, and the killed app passes no event any more."""
    monkeypatch.setattr(stream_time, "_SNAPSHOT_EVERY", 0)
    (tmp_path / "one").mkdir()
    async with opened(tmp_path / "one") as device:
        for event_id in (PAGE_ENTER, "click", "click"):
            await device.take(event_id, "item")
        await device.store.flush()
        stored = device.store.task_states.active(stream_time.SNAPSHOT_TASK)
        assert stored is not None
        assert plain.decode(stored.data)["position"] == 2
        folder = await device.copy(tmp_path / "two")
    async with opened(folder, clock=clock_at(600)) as device:
        await pass_time(device, 1199)
        assert await device.outputs("task") == []
        await pass_time(device, 1)
        assert await device.outputs("task") == [["@idle", "item", 1800, 3]]


@pytest.mark.asyncio
async def test_a_suspended_device_has_had_the_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        await device.take(PAGE_ENTER, "item")
        await device.clock.advance(10)
        device.clock.suspend(7200)
        await pass_time(device, 59)  # awake time: the sleep before did not count the suspension
        assert await device.outputs("task") == [["@idle", "item", 1800, 1]]


@pytest.mark.asyncio
async def test_a_clock_that_is_set_back_does_not_shorten_timers(tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        await device.take(PAGE_ENTER, "item")
        await device.clock.advance(1000)
        device.clock.suspend(-600)
        await device.take("other")  # 600 s before the time that has passed
        await pass_time(device, 799)
        assert await device.outputs("task") == []
        await pass_time(device, 1)
        assert await device.outputs("task") == [["@idle", "item", 1800, 1]]


@pytest.mark.asyncio
async def test_quiet_time_is_counted_from_the_arrival_of_an_event_with_an_older_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        await device.take(PAGE_ENTER, "item")
        await device.clock.advance(1000)
        await device.take("click", "item", at_s=START_S)
        await pass_time(device, 1799)
        assert await device.outputs("task") == []
        await pass_time(device, 1)
        assert await device.outputs("task") == [["@idle", "item", 2800, 2]]


@pytest.mark.asyncio
async def test_events_in_quick_motion_do_not_wait_for_the_clock(tmp_path: Path) -> None:
    async with opened(tmp_path, TriggerCondition.of(["buy"], every_s=3600)) as device:
        for hour in (0, 1, 2, 4):
            await device.take("other", at_s=START_S - 100 * 86_400 + 3600 * hour)
        assert len(await device.outputs("task")) == 3  # one names the span of two hours
        await pass_time(device, 3600)
        assert len(await device.outputs("task")) == 4


@pytest.mark.asyncio
async def test_a_clock_moves_no_stream_that_has_positions(tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        enter = Event(PAGE_ENTER, "item", START_S * 1000, {})
        await device.intake.take(enter, 0, can_wait=True)
        await pass_time(device, 10_000)
        assert (await device.outputs("task"), device.stream.next_position) == ([], 1)
        taken = await device.intake.take(Tick(START_S * 1000 + 1_800_000), 1, can_wait=True)
        assert (taken.position, taken.tasks) == (1, ("task",))
        assert await device.outputs("task") == [["@idle", "item", 1800, 1]]
        with pytest.raises(PositionError):
            await device.intake.take(Tick(START_S * 1000 + 1_800_001), 1, can_wait=True)
        assert not (device.store.path.parent / "events").exists()


@pytest.mark.asyncio
async def test_ticks_are_in_the_journal_beside_the_events_of_an_older_walle(tmp_path: Path) -> None:
    events = [Event(PAGE_ENTER, "item", START_S * 1000, {}), Event("click", "item", START_S * 1000 + 5, {"n": 1})]
    async with EventJournal(tmp_path / "events") as journal:
        journal.append_all(events)
        journal.append(Tick(START_S * 1000 + 9))
        assert [one async for one in journal.replay(0)] == list(enumerate([*events, Tick(START_S * 1000 + 9)]))
    async with opened(tmp_path, clock=clock_at(1801)) as device:
        await pass_time(device, 0)
        assert await device.outputs("task") == [["@idle", "item", 1800, 2]]


MINUTES = TriggerCondition.of([], window_s=60, window_every_s=20, grace_s=30)


@pytest.mark.asyncio
async def test_a_window_closes_by_the_clock_of_the_device_and_survives_a_restart(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    minute = TriggerCondition.of([], window_s=100, grace_s=30)  # the device starts at a multiple of 100 s
    async with opened(tmp_path / "one", minute) as device:
        for second in range(0, 100, 10):
            await device.clock.advance(10)
            await device.take("click", f"page{second}", at_s=START_S + second)
        await pass_time(device, 29)
        assert await device.outputs("task") == []
        await device.take("click", "late", at_s=START_S + 15)
        await device.store.flush()
        folder = await device.copy(tmp_path / "two")
    async with opened(folder, minute, clock_at(129)) as device:
        assert await device.outputs("task") == []
        await pass_time(device, 1)
        order = ["page0", "page10", "late", *(f"page{second}" for second in range(20, 100, 10))]
        assert await device.outputs("task") == [[0, order]]
        await device.take("click", "too late", at_s=START_S + 15)
        assert device.stream.time.late() == {"task": 1}
        await pass_time(device, 10_000)
        assert len(await device.outputs("task")) == 1


@pytest.mark.asyncio
async def test_full_windows_of_many_tasks_leave_room_in_the_journal_and_survive_a_restart(tmp_path: Path) -> None:
    hour = TriggerCondition.of([], window_s=3600)
    tasks = [f"task{number}" for number in range(300)]
    (tmp_path / "one").mkdir()
    async with opened(tmp_path / "one", hour, tasks=tasks, journal_bytes=4 << 20) as device:
        for number in range(250):  # 12 MB in all, of which the windows of each task keep the latest 1 MiB
            await device.take("click", f"page{number}", text="x" * 50_000)
        await device.store.flush()
        folder = await device.copy(tmp_path / "two")
        for name in ("task0", "task299"):
            assert device.stream.time.evicted_events()[name] == 250 - 20
    async with opened(folder, hour, clock_at(5), tasks=tasks, journal_bytes=4 << 20) as device:
        await pass_time(device, 3600)
        for name in ("task0", "task299"):
            ((_, pages),) = await device.outputs(name)
            assert pages == [f"page{number}" for number in range(230, 250)]


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.device.test_live_time import MINUTES, PAGE_ENTER, QUIET, opened
async def main():
    async with opened(Path(sys.argv[1]), MINUTES if sys.argv[2] == "windows" else QUIET) as device:
        for page in range(100):
            await device.take(PAGE_ENTER, f"page{page}")
            await device.clock.advance(20)
            await device.outputs("task")
            print(page, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def kill_after(folder: Path, last: int, condition: str = "quiet") -> None:
    """Run a device in a process, and kill it once it has taken the event of page `last`."""
    command = [sys.executable, "-c", CHILD, str(folder), condition]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == last:
                break
        os.kill(child.pid, signal.SIGKILL)


@pytest.mark.asyncio
@pytest.mark.parametrize("last", [*at_night(50, 91), 99])
async def test_a_killed_process_neither_loses_nor_doubles_a_quiet_page(tmp_path: Path, last: int) -> None:
    kill_after(tmp_path, last)
    async with opened(tmp_path, clock=clock_at(20 * last)) as device:
        await pass_time(device, 10_000)
        found = await device.outputs("task")
        pages = [page for _, page, *_ in found]
        assert pages == [f"page{number}" for number in range(len(pages))]
        assert last < len(pages) <= 100
        assert [at for _, _, at, _ in found] == [20 * number + 1800 for number in range(len(pages))]


@pytest.mark.asyncio
@pytest.mark.parametrize("last", [*at_night(5), 70, *at_night(99)])
async def test_a_killed_process_neither_loses_nor_doubles_an_event_of_a_window(tmp_path: Path, last: int) -> None:
    kill_after(tmp_path, last, "windows")
    async with opened(tmp_path, MINUTES, clock=clock_at(20 * last)) as device:
        await pass_time(device, 10_000)
        found = await device.outputs("task")
        pages = 1 + max(int(page.removeprefix("page")) for _, each in found for page in each)
        assert last < pages <= 100
        first_s = -(START_S % 20)
        expected = [
            [start_s, [f"page{number}" for number in range(pages) if 0 <= 20 * number - start_s < 60]]
            for start_s in range(first_s - 40, 20 * pages, 20)
        ]
        assert found == [one for one in expected if one[1]]
