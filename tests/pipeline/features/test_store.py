import asyncio
import contextlib
import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.features.database import (
    MAX_ANSWER_BYTES,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from walle.pipeline.features.kept_features import Bounds
from walle.pipeline.features.put import PayloadError, Put
from walle.pipeline.features.store import FeatureStore, StoreClosedError
from walle.pipeline.features.store_schema import ReplayState


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "features.db"


def rows_in(path: pathlib.Path, table: str = "features") -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def uploads_in(store: FeatureStore) -> int:
    _, uploads = await store.call(lambda database: database.counts())
    return uploads


@pytest.mark.asyncio
async def test_the_positions_of_tasks_and_cut_visits_are_kept(path: pathlib.Path) -> None:
    replay = ReplayState({"task": 5}, ("page b", "page \0a"), 6, {"task": 100}, {"task": 2})
    async with FeatureStore(path) as store:
        assert (store.position, store.resume_from, store.replay) == (-1, 0, ReplayState())
        store.advance(9, 2, replay)
        await store.flush()
    async with FeatureStore(path) as store:
        assert (store.position, store.resume_from, store.replay) == (9, 2, replay)


def test_a_replay_state_of_an_older_walle_is_read_and_one_with_steps_has_no_part_that_it_refuses() -> None:
    assert ReplayState.from_text('[{"a":5},["p"],6]') == ReplayState({"a": 5}, ("p",), 6)
    assert ReplayState.from_text('[{"a":5},["p"],6,{"a":7}]') == ReplayState({"a": 5}, ("p",), 6, {"a": 7})
    state = ReplayState({"a": 5}, (), 6, {}, {"a": 1})
    assert len(json.loads(state.to_text())) == 4
    assert ReplayState.from_text(state.to_text()) == state


@pytest.mark.asyncio
async def test_features_are_found_again_after_closing(path: pathlib.Path) -> None:
    async with FeatureStore(path, clock=ManualClock(5.0)) as store:
        await store.put("ipv", {"dwell_ms": 3})
        await store.put("local", [1, 2], upload=False)
        (feature,) = await store.query("ipv")
        assert (feature.topic, feature.ts_ms, feature.position) == ("ipv", 5000, -1)
        assert plain.decode(feature.payload) == {"dwell_ms": 3}
        epoch = store.state.epoch
    async with FeatureStore(path) as store:
        assert plain.decode((await store.query("local"))[0].payload) == [1, 2]
        assert store.state.epoch == epoch
        assert store.state.last_seq == 1
    assert rows_in(path, "outbox") == 1


@pytest.mark.asyncio
async def test_a_query_is_bounded_by_time_and_count_and_gives_the_latest_in_order(path: pathlib.Path) -> None:
    clock = ManualClock(0.0)
    async with FeatureStore(path, clock=clock) as store:
        for value in range(5):
            await store.put("t", value)
            await clock.advance(0.001)
        assert [plain.decode(feature.payload) for feature in await store.query("t", limit=2)] == [3, 4]
        assert [plain.decode(feature.payload) for feature in await store.query("t", since_ms=3)] == [3, 4]
        assert await store.query("nothing") == []
        assert [plain.decode(feature.payload) for feature in await store.query("t", limit=2, skip=2)] == [1, 2]
        assert await store.query("t", skip=5) == []


@pytest.mark.asyncio
async def test_a_query_is_bounded_in_bytes_and_continues_with_older_features(path: pathlib.Path) -> None:
    async with FeatureStore(path) as store:
        for value in range(14):
            await store.put("t", [value, bytes(900_000)], upload=False)
        found: list[int] = []
        while features := await store.query("t", limit=10_000, skip=len(found)):
            assert sum(len(feature.payload) for feature in features) <= MAX_ANSWER_BYTES
            found[:0] = [plain.decode(feature.payload)[0] for feature in features]
            assert len(found) in (4, 8, 12, 14)
        assert found == list(range(14))
        for value in range(300):
            await store.put("small", value, upload=False)
        assert len(await store.query("small", limit=10_000)) == 300


@pytest.mark.asyncio
async def test_a_query_is_bounded_in_values_which_take_more_memory_than_their_bytes(path: pathlib.Path) -> None:
    value: list[list[list[int]]] = [[[] for _ in range(99)] for _ in range(1000)]  # 100,001 values in as many bytes
    async with FeatureStore(path) as store:
        for _ in range(5):
            await store.put("t", value, upload=False)
        assert [len(await store.query("t", skip=skip)) for skip in (0, 2, 4, 5)] == [2, 2, 1, 0]
        await store.put("t", [[]] * (1 << 19), upload=False)
        assert len(await store.query("t")) == 1  # larger than the bound: alone


@pytest.mark.asyncio
async def test_outputs_gather_until_the_threshold_and_go_in_one_transaction(path: pathlib.Path) -> None:
    async with FeatureStore(path, threshold=10, clock=ManualClock()) as store:
        for value in range(9):
            await store.put("t", value)
        assert store.counts.transactions == 0
        await store.put("t", 9)
        await store.wait_for_seq(9)
        assert (store.counts.transactions, store.counts.rows) == (1, 10)
        for value in range(7):
            await store.put("t", value)
        assert len(await store.query("t")) == 17  # a read flushes
        assert (store.counts.transactions, store.counts.rows) == (2, 17)
        await store.query("t")
        assert store.counts.transactions == 2  # nothing gathered, nothing written
        await store.put("t", 0)
    assert (store.counts.transactions, store.counts.rows) == (3, 18)  # shutdown flushes
    assert rows_in(path) == 18


@pytest.mark.asyncio
async def test_the_timer_writes_what_waits(path: pathlib.Path) -> None:
    clock = ManualClock()
    async with FeatureStore(path, interval_s=0.5, clock=clock) as store:
        await store.put("t", 1)
        await clock.advance(0.4)
        assert store.counts.transactions == 0
        await clock.advance(0.2)
        await asyncio.wait_for(store.wait_for_seq(0), 5)
        assert store.state.last_seq == 1
        await store.put("t", 2)  # the timer starts again
        await clock.advance(0.6)
        await asyncio.wait_for(store.wait_for_seq(1), 5)


@pytest.mark.asyncio
async def test_position_and_outputs_of_an_event_go_together(path: pathlib.Path) -> None:
    async with FeatureStore(path) as store:
        assert (store.position, store.resume_from) == (-1, 0)
        await store.put_all([Put.of("a", 1), Put.of("b", 2)], position=7, resume_from=3)
        await store.put_all([], position=8, resume_from=5)
    async with FeatureStore(path) as store:
        assert (store.position, store.resume_from) == (8, 5)
        assert (await store.query("a"))[0].position == 7


@pytest.mark.asyncio
async def test_a_position_alone_is_written_only_now_and_then(path: pathlib.Path) -> None:
    async with FeatureStore(path) as store:
        for position in range(999):
            await store.put_all([], position=position)
        assert [store._writer] == [None]
        await store.put_all([], position=999)
        writer = store._writer
        assert writer is not None
        await writer
        for position in range(1000, 1500):
            await store.put_all([], position=position)
        assert store.counts.transactions == 1
    assert store.counts.transactions == 2
    async with FeatureStore(path) as store:
        assert (store.position, store.resume_from) == (1499, 1500)


@pytest.mark.asyncio
async def test_the_oldest_features_go_beyond_the_bounds(path: pathlib.Path) -> None:
    async with FeatureStore(path, keep=Bounds(rows_per_topic=5, rows=12)) as store:
        for value in range(8):
            await store.put("a", value)
        assert [plain.decode(feature.payload) for feature in await store.query("a")] == [3, 4, 5, 6, 7]
        for topic in ("b", "c", "d"):
            await store.put_all([Put.of(topic, value) for value in range(4)])
        await store.flush()
        assert len(await store.query("a")) == 0
        assert [len(await store.query(topic)) for topic in ("b", "c", "d")] == [4, 4, 4]
        assert store.state.last_seq == 20  # uploads are another matter: none is dropped
    assert rows_in(path) == 12
    assert rows_in(path, "outbox") == 20
    async with FeatureStore(path, keep=Bounds(rows_per_topic=5, rows=12)) as store:  # the bounds hold over a restart
        await store.put("d", 5)
        await store.put("d", 6)
    assert rows_in(path) == 12


@pytest.mark.asyncio
async def test_features_are_bounded_in_bytes_too(path: pathlib.Path) -> None:
    async with FeatureStore(path, keep=Bounds(size_bytes=10_000)) as store:
        for value in range(30):
            await store.put("ab"[value % 2], [value, b"x" * 900])
            if value % 7 == 0:
                await store.flush()
        found = [plain.decode(one.payload)[0] for topic in "ab" for one in await store.query(topic)]
        assert sorted(found) == list(range(20, 30))
    async with FeatureStore(path, keep=Bounds(size_bytes=3_000)) as store:
        await store.put("a", 1)
        await store.flush()
        assert [len(await store.query(topic)) for topic in "ab"] == [2, 2]


@pytest.mark.asyncio
async def test_a_full_disk_is_reported_and_loses_nothing(path: pathlib.Path) -> None:
    async with FeatureStore(path, threshold=1000, max_buffer_bytes=200_000) as store:
        await store.put("t", 0)
        await store.flush()
        pages = await store.call(lambda database: database._connection.execute("PRAGMA page_count").fetchone()[0])
        await store.call(lambda database: database._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())
        for _ in range(2):
            await store.put("t", b"x" * 100_000)
        with pytest.raises(StoreFullError, match="make room"):
            await store.flush()
        with pytest.raises(StoreFullError):
            await store.put("t", 1)
        assert store.counts.failed_transactions >= 2
        problem = store.last_error
        assert isinstance(problem, StoreFullError)
        assert store.state.last_seq == 1
        await store.call(lambda database: database._connection.execute("PRAGMA max_page_count = 100000").fetchone())
        await store.put("t", 1)
        assert len(await store.query("t")) == 4
        assert store.last_error is None
        assert store.state.last_seq == 4


@pytest.mark.asyncio
async def test_a_full_buffer_waits_for_its_transaction(path: pathlib.Path) -> None:
    async with FeatureStore(path, threshold=10**6, max_buffer_bytes=1000, clock=ManualClock()) as store:
        for _ in range(20):
            await store.put("t", b"x" * 300)
            assert store._buffer_bytes < 1000 + 400
        assert store.counts.waits > 0
    assert rows_in(path) == 20


@pytest.mark.asyncio
async def test_a_full_outbox_holds_the_put_until_it_is_sent(path: pathlib.Path) -> None:
    async with FeatureStore(path, max_outbox_bytes=1000) as store:
        await store.put("t", b"x" * 800)
        waiting = asyncio.create_task(store.put("t", b"y" * 800))
        await store.wait_for_seq(0)
        await store.put("t", b"local" * 100, upload=False)  # what is not sent is not held
        assert not waiting.done()
        cancelled = asyncio.create_task(store.put("t", b"z" * 800))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        store.forget(1)
        await asyncio.wait_for(waiting, 5)
        await store.flush()
        assert store.state.last_seq == 2
        assert len(await store.query("t")) == 3
        assert store.counts.waits == 2
        closing = asyncio.create_task(store.put("t", b"y" * 800))
        await asyncio.sleep(0)
    with pytest.raises(StoreClosedError):
        await closing
    assert rows_in(path, "outbox") == 1


@pytest.mark.asyncio
async def test_a_cancelled_flush_leaves_no_doubt(path: pathlib.Path) -> None:
    async with FeatureStore(path, threshold=10**6) as store:
        for value in range(100):
            await store.put("t", value)
            flushing = asyncio.create_task(store.flush())
            await asyncio.sleep(0)
            flushing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flushing
        found = [plain.decode(feature.payload) for feature in await store.query("t", limit=1000)]
        assert found == list(range(100))
    assert rows_in(path, "outbox") == 100


@pytest.mark.asyncio
async def test_outputs_that_cannot_be_stored_are_all_refused(path: pathlib.Path) -> None:
    async with FeatureStore(path) as store:
        bad_topics = [(topic, 1) for topic in ("", "x" * 300, "a\0b", "\ud800")]
        for topic, payload in (*bad_topics, ("t", object()), ("t", b"x" * (2 << 20))):
            with pytest.raises(PayloadError):
                await store.put(topic, payload)
        assert await store.query("t") == []
    with pytest.raises(StoreClosedError):
        await store.put("t", 1)
    await store.close()
    with pytest.raises(StoreError, match="started before"):
        await store.start()


@pytest.mark.asyncio
async def test_a_file_is_open_once(path: pathlib.Path) -> None:
    async with FeatureStore(path) as store:
        with pytest.raises(StoreLockedError, match="open elsewhere"):
            await FeatureStore(path).start()
        code = (
            f"import asyncio; from walle.pipeline import FeatureStore; asyncio.run(FeatureStore({str(path)!r}).start())"
        )
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
        _, said = await other.communicate()
        assert b"StoreLockedError" in said
        await store.put("t", 1)
    async with FeatureStore(path) as store:
        assert len(await store.query("t")) == 1


@pytest.mark.asyncio
async def test_the_index_of_the_write_ahead_log_is_in_memory(path: pathlib.Path) -> None:
    for opening in range(2):  # a new file, and one that has a write-ahead log
        async with FeatureStore(path) as store:
            await store.put("t", 1)
            await store.flush()
            assert path.with_name("features.db-wal").exists()
            assert not path.with_name("features.db-shm").exists()
            with (
                contextlib.closing(sqlite3.connect(path, timeout=0)) as db,
                pytest.raises(sqlite3.OperationalError, match="locked"),
            ):
                db.execute("SELECT * FROM features")
        assert rows_in(path) == opening + 1


@pytest.mark.asyncio
async def test_a_foreign_file_a_newer_one_and_a_missing_folder_have_different_errors(
    path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreCorruptError, match="not a feature store"):
        await FeatureStore(path).start()
    async with FeatureStore(tmp_path / "new.db"):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "new.db")) as db:
        db.execute("PRAGMA user_version = 9")
    (tmp_path / "new.db.lock").unlink()  # a newer walle leaves a mark of its own there
    with pytest.raises(StoreError, match="format 9"):
        await FeatureStore(tmp_path / "new.db").start()
    with pytest.raises(StoreError, match="check that its folder exists"):
        await FeatureStore(tmp_path / "none" / "x.db").start()


PUTTER = """
import asyncio, sys
from walle.pipeline.features.kept_features import Bounds
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore

async def main():
    async with FeatureStore(sys.argv[1], threshold=7, interval_s=0.003, keep=Bounds(rows_per_topic=40)) as store:
        print("open", flush=True)
        position = store.position
        while True:
            position += 1
            puts = [Put.of("t", position)] * (position % 4)
            await store.put_all(puts, position=position, resume_from=max(0, position - 3))
            store.forget(store.state.last_seq - 300)
            await asyncio.sleep(0.0002)

asyncio.run(main())
"""


@pytest.mark.night
def test_a_killed_process_leaves_whole_transactions_only(path: pathlib.Path) -> None:
    seed = random.Random(7)
    reached = []
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PUTTER), str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seed.uniform(0.0, 0.25))
            os.kill(process.pid, signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        with contextlib.closing(sqlite3.connect(path)) as db:
            last_seq, position, resume_from = db.execute("SELECT last_seq, position, resume_from FROM state").fetchone()
            features = [row[0] for row in db.execute("SELECT position FROM features ORDER BY id")]
            outbox = db.execute("SELECT seq, payload FROM outbox ORDER BY seq").fetchall()
        reached.append(position)
        expected = [done for done in range(position + 1) for _ in range(done % 4)]  # each event's outputs, once
        assert features == expected[-40:]
        assert last_seq == len(expected)
        assert [seq for seq, _ in outbox] == list(range(last_seq - len(outbox) + 1, last_seq + 1))
        assert [plain.decode(payload) for _, payload in outbox] == expected[len(expected) - len(outbox) :]
        assert resume_from == max(0, position - 3)
    assert reached == sorted(reached)
    assert reached[-1] > 50  # the kills fell into real work


def test_puts_take_their_encoding_as_it_is() -> None:
    assert Put.of("t", 1, upload=False) == Put("t", plain.encode(1), False)


@pytest.mark.asyncio
async def test_acknowledged_rows_leave_with_the_next_outputs_or_after_ten_minutes(path: pathlib.Path) -> None:
    clock = ManualClock()
    async with FeatureStore(path, clock=clock) as store:
        for value in range(3):
            await store.put("t", value)
        await store.flush()
        assert store.unsent == 3
        store.forget(1)
        await clock.advance(599.0)
        assert (await uploads_in(store), store.unsent, store.counts.transactions) == (3, 2, 1)
        await store.put("t", 3)
        await clock.advance(0.02)
        await store.flush()
        assert (await uploads_in(store), store.unsent, store.counts.transactions) == (3, 3, 2)
        store.forget(2)
        await clock.advance(599.0)
        assert await uploads_in(store) == 3
        await clock.advance(1.0)
        await store.flush()
        assert (await uploads_in(store), store.unsent, store.counts.transactions) == (2, 2, 3)


@pytest.mark.asyncio
async def test_a_put_that_waits_for_the_outbox_does_not_wait_for_that(path: pathlib.Path) -> None:
    clock = ManualClock()
    async with FeatureStore(path, clock=clock, max_outbox_bytes=10_000) as store:
        await store.put("t", bytes(4_000))
        await store.flush()
        store.forget(1)
        waiting = asyncio.create_task(store.put("t", bytes(8_000)))
        await clock.advance(0.02)
        async with asyncio.timeout(5):
            await waiting
        store.forget(2)
        await store.flush()
        await store.put("t", bytes(4_000))
        await store.flush()
        waiting = asyncio.create_task(store.put("t", bytes(8_000)))
        await clock.advance(0.0)
        store.forget(3)  # the put waits meanwhile
        await clock.advance(0.02)
        async with asyncio.timeout(5):
            await waiting
