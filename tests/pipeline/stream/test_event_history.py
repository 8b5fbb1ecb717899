"""Longer history: bounds of count, bytes and age for each task, replayed and unwritable events, kill -9."""

import array
import asyncio
import contextlib
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from walle.base.clock import ManualClock
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.stream.event_history import MAX_ANSWER_BYTES, EventHistory, EventHistoryError
from walle.pipeline.stream.events import decode_events
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
    found = decode_events(await history.query(task, upto, **options))  # type: ignore[arg-type]
    return [one.contents["n"] for one in found]


@pytest.mark.asyncio
async def test_each_task_sees_only_its_events(history: EventHistory) -> None:
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
async def test_a_query_that_its_tasks_removal_overtakes_opens_no_new_file(tmp_path: pathlib.Path) -> None:
    history = EventHistory(tmp_path / "history.db", ManualClock())
    history.set_policy("t", HistoryPolicy())
    history.add(1, event(1))
    query = asyncio.create_task(numbers(history, "t"))
    while history._writing is None or not history._writing.done():  # noqa: ASYNC110 -- before the query goes on
        await asyncio.sleep(0)
    history.set_policy("t", None)
    await history.remove_unused()
    assert await query == []
    assert not history.path.exists()
    await history.aclose()


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


def test_a_policy_is_parsed_from_its_table() -> None:
    policy = HistoryPolicy(days=30, rows=5, size_bytes=1000)
    assert HistoryPolicy.parse(policy.to_json()) == policy


PLAYER = """
import asyncio, pathlib, sys
from walle.base.clock import SystemClock
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.protocol import HistoryPolicy, TriggerCondition

async def run(task, trigger):
    return TaskOutput(1)

async def main(folder):
    async with FeatureStore(folder / "features.db") as store:
        history = EventHistory(folder / "history.db", SystemClock())
        history.set_policy("t", HistoryPolicy(rows=1_000_000))
        engine = StreamEngine(store, run)
        engine.add_task("t", TriggerCondition.of(["click"]))
        first = position = store.resume_from
        print(store.position, flush=True)
        while True:
            event = Event("click" if position % 50 == 0 else "scroll", "", position, {"n": position})
            await history.keep_up()
            await engine.on_event(event, position, can_wait=True)
            history.add(position, event)
            position += 1
            if position == first + 1500:
                print(position, flush=True)

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


@pytest.mark.night
def test_a_killed_process_loses_no_event_of_the_history(tmp_path: pathlib.Path) -> None:
    rng = random.Random(6)
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", PLAYER, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(2):  # one line at the start, one after 1,500 events
                process.stdout.readline()
            try:
                process.wait(rng.uniform(0, 0.1))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
    with contextlib.closing(sqlite3.connect(tmp_path / "history.db")) as db:
        positions = [row[0] for row in db.execute("SELECT position FROM events ORDER BY position")]
    assert positions == list(range(len(positions)))
    assert len(positions) > 3000


@pytest.mark.asyncio
async def test_an_answer_is_bounded_by_bytes_and_has_the_latest_events(history: EventHistory) -> None:
    history.set_policy("t", HistoryPolicy(size_bytes=256 << 20))
    for position in range(60):
        history.add(position, Event("click", "p", position, {"n": position, "text": "x" * 200_000}))
        await history.flush()
    found = await numbers(history, "t")
    assert found == list(range(60 - len(found), 60))
    assert MAX_ANSWER_BYTES // 200_100 <= len(found) <= MAX_ANSWER_BYTES // 200_000
    assert await numbers(history, "t", upto=30, limit=3) == [28, 29, 30]


@pytest.mark.asyncio
async def test_an_answer_is_bounded_by_values_which_take_more_memory_than_their_bytes(history: EventHistory) -> None:
    history.set_policy("t", HistoryPolicy())
    for position in range(8):
        history.add(position, Event("click", "p", position, {"n": position, "lists": [[]] * 200_000}))
    assert await numbers(history, "t") == [6, 7]


@pytest.mark.asyncio
async def test_damaged_rows_are_left_out(history: EventHistory) -> None:
    history.set_policy("t", HistoryPolicy())
    for position in range(5):
        history.add(position, Event("click", "p", position, {"n": position}))
    await history.flush()
    for position, damaged in enumerate(("9", "'text'", "x'91c0'")):
        update = f"UPDATE events SET data = {damaged} WHERE position = {position}"
        await history._in_thread(lambda db, update=update: db.execute(update).close())  # type: ignore[misc]
    assert await numbers(history, "t") == [3, 4]


@pytest.mark.asyncio
async def test_arrays_in_contents_come_back(history: EventHistory) -> None:
    history.set_policy("t", HistoryPolicy())
    history.add(0, Event("click", "p", 1, {"n": array.array("f", [1, 2])}))
    (found,) = decode_events(await history.query("t", 1))
    assert list(found.contents["n"]) == [1, 2]


@pytest.mark.asyncio
async def test_bounds_are_found_by_a_few_lookups_wherever_they_are(history: EventHistory) -> None:
    history.set_policy("few", HistoryPolicy(rows=5))
    history.set_policy("many", HistoryPolicy(rows=1_000_000))
    places = [3 * number + 100 * (number > 2000) for number in range(4000)]  # positions may have gaps
    for place in places:
        history.add(place, event(place))
    for upto in (0, 1, 5_999, 6_050, 6_104, places[-1], 1 << 60):
        seen = [place for place in places if place <= upto]
        assert await numbers(history, "few", upto=upto) == seen[-5:]
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def read(db: sqlite3.Connection) -> None:
        db.set_progress_handler(count, 1)
        history._first_position(db, HistoryPolicy(rows=5), 1 << 60)
        db.set_progress_handler(None, 0)

    await history._in_thread(read)
    assert 0 < steps < 1000  # instructions of SQLite; a scan takes tens of thousands


@pytest.mark.asyncio
async def test_a_batch_deletes_by_age_without_a_scan(history: EventHistory) -> None:
    history.set_policy("t", HistoryPolicy())
    history.add(0, event(0))
    await history.flush()
    plan = "EXPLAIN QUERY PLAN DELETE FROM events WHERE arrived_ms < 5"
    assert "events_by_arrival" in str(await history._in_thread(lambda db: db.execute(plan).fetchall()))


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{"event_id": []}, {"page_id": 1}, {"since_ms": "1"}, {"limit": None}])
async def test_wrong_arguments_are_refused_by_name(history: EventHistory, options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(EventError, match=f"{name}: of a query must be"):
        await history.query("t", 1, **options)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_arguments_beyond_all_bounds_are_answered(history: EventHistory) -> None:
    history.set_policy("t", HistoryPolicy())
    history.add(0, event(7))
    assert await numbers(history, "t", limit=1 << 80) == [7]
    assert await numbers(history, "t", limit=-1) == []
    assert await numbers(history, "t", since_ms=-(1 << 80)) == [7]
    assert await numbers(history, "t", since_ms=1 << 80) == []


@pytest.mark.asyncio
async def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    history = EventHistory(tmp_path / "missing" / "history.db", ManualClock())
    history.set_policy("t", HistoryPolicy())
    with pytest.raises(EventHistoryError, match=r"history\.db cannot be read .* check its disk"):
        await history.query("t", 1)
    await history.aclose()


@pytest.mark.asyncio
async def test_a_damaged_file_that_cannot_be_removed_stops_no_event(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    path = tmp_path / "history.db"
    path.write_bytes(b"no database" * 1000)
    history = EventHistory(path, ManualClock())
    history.set_policy("t", HistoryPolicy())
    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "unlink", fail)
        for position in range(600):
            await history.keep_up()
            history.add(position, event(position))
        await history.flush()
        with pytest.raises(EventHistoryError, match=r"Read-only .* check its disk"):
            await history.query("t", 600)
        history.set_policy("t", None)
        await history.remove_unused()
    assert "cannot be written" in caplog.text
    assert "cannot be removed" in caplog.text
    assert path.exists()
    await history.remove_unused()
    assert not path.exists()
    await history.aclose()


@pytest.mark.asyncio
async def test_a_source_that_is_faster_than_the_disk_is_held(
    history: EventHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    def write_slowly(_db: sqlite3.Connection, rows: list[object], _policies: object) -> None:
        nonlocal written
        time.sleep(0.02)
        written += len(rows)

    monkeypatch.setattr(history, "_write_rows", write_slowly)
    history.set_policy("t", HistoryPolicy())
    for position in range(3000):
        await history.keep_up()
        history.add(position, event(position))
        assert position - written <= 600  # the time-level sequence holds 1,000
    assert written > 2000


@pytest.mark.asyncio
async def test_a_history_that_no_task_wants_any_more_is_not_written(tmp_path: pathlib.Path) -> None:
    history = EventHistory(tmp_path / "history.db", ManualClock())
    history.set_policy("t", HistoryPolicy())
    history.add(0, event(0))
    history.set_policy("t", None)
    await history.remove_unused()
    await history.aclose()
    assert not history.path.exists()


@pytest.mark.asyncio
async def test_events_that_cannot_be_written_are_bounded_and_their_loss_is_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = EventHistory(tmp_path / "missing" / "history.db", ManualClock())
    history.set_policy("t", HistoryPolicy())
    for position in range(20):
        await history.keep_up()
        history.add(position, Event("click", "p", 1, {"text": "x" * 200_000}))
        await history.flush()
    assert history._buffer_bytes <= 1 << 20
    assert history.dropped == 15
    counts = [record.args for record in caplog.records if "are dropped" in record.message]
    assert [args[1] for args in counts if isinstance(args, tuple)] == [1, 2, 4, 8]
    await history.aclose()


@pytest.mark.asyncio
async def test_events_that_are_not_written_at_the_end_are_counted_and_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = EventHistory(tmp_path / "missing" / "history.db", ManualClock())
    history.set_policy("t", HistoryPolicy())
    for position in range(3):
        history.add(position, event(position))
    await history.aclose()
    assert history.dropped == 3
    assert "3 events could not be written and are dropped" in caplog.text
