"""Longer history: bounds of count, bytes and age for each task, replayed and unwritable events, kill -9."""

import asyncio
import contextlib
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from walle.clock import ManualClock
from walle.pipeline.event_history import EventHistory
from walle.pipeline.events import Event
from walle.protocol import HistoryPolicy, ProtocolError

DAY_S = 86_400


def event(number: int, event_id: str = "click", page_id: str = "p") -> Event:
    return Event(event_id, page_id, number, {"n": number})


@pytest_asyncio.fixture
async def history(tmp_path: pathlib.Path) -> AsyncIterator[EventHistory]:
    history = EventHistory(tmp_path / "history.db", ManualClock())
    yield history
    await history.aclose()


async def numbers(history: EventHistory, task: str, upto: int = 1 << 60, **options: object) -> list[int]:
    return [one["contents"]["n"] for one in await history.query(task, upto, **options)]  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_each_task_sees_its_own_part(history: EventHistory) -> None:
    history.set_policy("few", HistoryPolicy(rows=3))
    history.set_policy("many", HistoryPolicy(rows=1000))
    history.set_policy("small", HistoryPolicy(size_bytes=5 * len(event(449, "scroll").encode())))
    for position in range(150, 450):
        history.add(position, event(position, "click" if position % 2 else "scroll"))
    assert await numbers(history, "few") == [447, 448, 449]
    assert await numbers(history, "few", upto=200) == [198, 199, 200]
    assert await numbers(history, "small") == [445, 446, 447, 448, 449]
    assert await numbers(history, "many", upto=155) == list(range(150, 156))
    assert await numbers(history, "many", event_id="click", since_ms=440) == [441, 443, 445, 447, 449]
    assert await numbers(history, "many", page_id="q") == []
    assert await numbers(history, "many", limit=2) == [448, 449]
    assert await numbers(history, "none") == []


@pytest.mark.asyncio
async def test_the_file_is_bounded_by_the_greatest_policy(history: EventHistory) -> None:
    history.set_policy("a", HistoryPolicy(rows=300, days=1))
    history.set_policy("b", HistoryPolicy(rows=10, days=2))
    for position in range(2000):
        history.add(position, event(position))
        if position % 100 == 0:
            await history.flush()
    await history.flush()
    assert await history._in_thread(lambda db: db.execute("SELECT count(*) FROM events").fetchone()[0]) == 300
    clock = history._clock
    assert isinstance(clock, ManualClock)
    await clock.advance(1.5 * DAY_S)
    assert await numbers(history, "a") == []
    assert await numbers(history, "b") == list(range(1990, 2000))
    await clock.advance(DAY_S)
    history.add(2000, event(2000))
    await history.flush()
    assert await history._in_thread(lambda db: db.execute("SELECT count(*) FROM events").fetchone()[0]) == 1


@pytest.mark.asyncio
async def test_a_replayed_event_is_kept_once_and_a_damaged_file_begins_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "history.db"
    for first in (0, 5):
        history = EventHistory(path, ManualClock())
        history.set_policy("t", HistoryPolicy())
        for position in range(first, first + 10):
            history.add(position, event(position))
        assert await numbers(history, "t") == list(range(first + 10))
        await history.aclose()
    path.write_bytes(b"not a database" * 1000)
    history = EventHistory(path, ManualClock())
    history.set_policy("t", HistoryPolicy())
    history.add(20, event(20))
    assert await numbers(history, "t") == [20]
    history.set_policy("t", None)
    await history.remove_unused()
    assert not path.exists()
    history.add(21, event(21))
    await history.aclose()
    assert not path.exists()


@pytest.mark.asyncio
async def test_a_file_that_cannot_be_written_is_tried_again_every_ten_seconds(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    history = EventHistory(tmp_path / "missing" / "history.db", clock)
    history.set_policy("t", HistoryPolicy())
    for position in range(400):
        history.add(position, event(position))
        if history._writing is not None:
            await asyncio.wait([history._writing])
    assert len(caplog.records) == 1
    history.path.parent.mkdir()
    await clock.advance(10.1)
    history.add(400, event(400))
    await history.aclose()
    with contextlib.closing(sqlite3.connect(history.path)) as db:
        assert db.execute("SELECT count(*) FROM events").fetchone()[0] == 401
    assert history.dropped == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", ["page", "row"])
async def test_damage_beyond_the_header_fails_no_query(tmp_path: pathlib.Path, damage: str) -> None:
    path = tmp_path / "history.db"
    for first in (0, 2000):
        history = EventHistory(path, ManualClock())
        history.set_policy("t", HistoryPolicy())
        with pytest.raises(sqlite3.Error):  # a wrong argument, which is not damage
            await history.query("t", 1 << 60, [])  # type: ignore[arg-type]
        for position in range(first, first + 2000):
            history.add(position, event(position))
        found = await numbers(history, "t", limit=10_000)
        await history.aclose()
        if damage == "row":
            with contextlib.closing(sqlite3.connect(path)) as db, db:
                db.execute("UPDATE events SET data = X'c1' WHERE position IN (5, 1990)")
            continue
        data = bytearray(path.read_bytes())
        for place in range(3 * 4096, len(data), 4096):
            data[place : place + 64] = b"\xff" * 64
        path.write_bytes(data)
    if damage == "row":
        assert found == [number for number in range(4000) if number not in (5, 1990)]
    else:  # the batch that found the damage begins the new file
        assert found == list(range(found[0], 4000))
        assert found[0] <= 2512


@pytest.mark.asyncio
async def test_events_of_a_stream_that_went_back_are_left(tmp_path: pathlib.Path) -> None:
    for position in (-1, 4):
        history = EventHistory(tmp_path / "history.db", ManualClock(), position=position)
        history.set_policy("t", HistoryPolicy())
        for number in range(position + 1, 10):
            history.add(number, event(number + 10 * (position + 1)))
        found = await numbers(history, "t")
        await history.aclose()
    assert found == [*range(5), *range(55, 60)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (3, "history: must be an object"),
        ({"hours": 1}, "history: has an unknown key 'hours'; known are days, rows, bytes"),
        ({"days": 0}, "history.days: must be a whole number from 1 to 366"),
        ({"bytes": 1.5}, "history.bytes"),
    ],
)
def test_a_wrong_policy_is_refused(table: object, message: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        HistoryPolicy.parse(table)
    assert str(refused.value).startswith(message)


def test_a_policy_is_what_its_table_says() -> None:
    policy = HistoryPolicy(days=30, rows=5, size_bytes=1000)
    assert HistoryPolicy.parse(policy.to_json()) == policy


PLAYER = """
import asyncio, pathlib, sys
from walle.clock import SystemClock
from walle.pipeline.event_history import EventHistory
from walle.pipeline.events import Event
from walle.pipeline.store import FeatureStore
from walle.pipeline.stream_engine import StreamEngine, TaskOutput
from walle.protocol import HistoryPolicy, TriggerCondition

async def run(task, trigger):
    return TaskOutput(1)

async def main(folder):
    async with FeatureStore(folder / "features.db") as store:
        history = EventHistory(folder / "history.db", SystemClock())
        history.set_policy("t", HistoryPolicy(rows=1_000_000))
        engine = StreamEngine(store, run)
        engine.add_task("t", TriggerCondition.of(["click"]))
        position = store.resume_from
        print(store.position, flush=True)
        while True:
            event = Event("click" if position % 50 == 0 else "scroll", "", position, {"n": position})
            await history.wait_for_room()
            await engine.on_event(event, position, can_wait=True)
            history.add(position, event)
            position += 1

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


def test_a_killed_process_loses_no_event_of_the_history(tmp_path: pathlib.Path) -> None:
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", PLAYER, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                process.wait(0.4)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
    with contextlib.closing(sqlite3.connect(tmp_path / "history.db")) as db:
        positions = [row[0] for row in db.execute("SELECT position FROM events ORDER BY position")]
    assert positions == list(range(len(positions)))
    assert len(positions) > 5000
