"""Uploads that the SQLite store commits on the event loop, and its checkpoints."""

import asyncio
import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from tests.pipeline.ingest.sqlite.test_sqlite_store import backup, restore
from tests.pipeline.ingest.upload_samples import MakeStore, RefuseTopic, SetClock, received, until
from tests.pipeline.ingest.upload_store_contract import UploadStoreContract
from walle.pipeline.ingest.sqlite import log as sqlite_log
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store.receipt import Accepted
from walle.pipeline.ingest.store.upload_store import IngestError, TopicSize, UploadStore
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello, Origin, origins_to_text


def quick(store: SqliteUploadStore) -> SqliteUploadStore:
    """Return a store that takes its disk for a quick one."""
    for _ in range(40):
        store._pace.add(0.0)
    return store


class TestQuickSqliteUploadStore(UploadStoreContract):
    """The contract, where what may be committed on the event loop is committed there."""

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        def make() -> UploadStore:
            return quick(SqliteUploadStore(tmp_path / "uploads.db"))

        return make

    @pytest.fixture
    def refuse_topic(self, tmp_path: Path) -> RefuseTopic:
        def refuse(topic: str) -> None:
            with contextlib.closing(sqlite3.connect(tmp_path / "uploads.db")) as database:
                database.execute(
                    f"CREATE TRIGGER refusal BEFORE INSERT ON uploads WHEN NEW.topic = '{topic}'"
                    " BEGIN SELECT RAISE(ABORT, 'refused by a rule'); END"
                )

        return refuse


async def accept(store: SqliteUploadStore, batch: list[Received]) -> Accepted:
    """Store a batch after the event loop has had a turn, as between two reads of a tunnel server."""
    await asyncio.sleep(0)
    return await store.accept(batch)


class CommitThreads:
    """The threads that ran a store's latest transactions."""

    def __init__(self, store: SqliteUploadStore) -> None:
        self._here = threading.get_ident()
        self._on_loop: list[bool] = []
        assert store._connection.database is not None
        store._connection.database.set_trace_callback(self._note)

    def _note(self, statement: str) -> None:
        if statement.startswith("COMMIT"):
            self._on_loop.append(threading.get_ident() == self._here)

    def take(self) -> list[bool]:
        """Return, for each transaction since the latest call, whether the event loop ran it."""
        on_loop, self._on_loop = self._on_loop, []
        return on_loop


@pytest.mark.asyncio
async def test_the_event_loop_commits_a_few_uploads_of_known_devices_and_the_thread_all_others(tmp_path: Path) -> None:
    async with quick(SqliteUploadStore(tmp_path / "u.db", clock=SetClock(0.0))) as store:
        threads = CommitThreads(store)
        await accept(store, [received(1)])  # reads whether the device has a stream
        assert threads.take() == [False]
        await accept(store, [received(2)])
        await accept(store, [received(seq) for seq in (3, 4, 5, 6)])
        assert threads.take() == [True, True]
        await accept(store, [received(seq) for seq in range(7, 12)])  # more than a few
        await accept(store, [received(12), received(1, device="other")])  # reads
        assert threads.take() == [False, False]
        await accept(store, [received(13), received(2, device="other")])
        assert threads.take() == [True]
        await accept(store, [received(14, payload=bytes(100_000))])  # too large
        assert threads.take() == [False]
        assert await store.acked("d", "e") == 14
        assert await store.acked("other", "e") == 2
        assert await store.topics() == {"t": TopicSize(16, 100_015)}


@pytest.mark.asyncio
async def test_other_tasks_have_a_turn_between_two_commits_of_the_event_loop(tmp_path: Path) -> None:
    async with quick(SqliteUploadStore(tmp_path / "u.db", clock=SetClock(0.0))) as store:
        await accept(store, [received(1)])
        turn = asyncio.create_task(asyncio.sleep(0))
        seq = 1
        while not turn.done() and seq < 100:
            seq += 1
            await store.accept([received(seq)])
        assert seq < 10
        assert await store.acked("d", "e") == seq


@pytest.mark.asyncio
async def test_the_event_loop_reads_no_uploads_to_compare_moved_ones(tmp_path: Path) -> None:
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        await accept(store, [received(1)])
        await store.resume(Hello("d", "e2", "", origins=origins_to_text([Origin("e", 0, 0, 5)])))
        threads = CommitThreads(store)
        for seq in (1, 2):
            await accept(store, [received(seq, epoch="e2")])
        assert threads.take() == [False, False]


@pytest.mark.asyncio
async def test_a_store_on_a_slow_disk_or_after_a_slow_commit_uses_its_thread(tmp_path: Path) -> None:
    clock = SetClock(0.0)
    async with SqliteUploadStore(tmp_path / "u.db", clock=clock) as store:
        threads = CommitThreads(store)
        seq = 0
        while True not in (on_loop := threads.take()) and seq < 100:
            seq += 1
            await accept(store, [received(seq)])
        assert on_loop == [True]
        assert seq > 15  # nothing was known of the disk before
        await asyncio.sleep(0)

        def stall(_statement: str) -> None:
            clock.monotonic_s += 0.01  # each statement takes time: a commit takes more than 20 ms

        assert store._connection.database is not None
        store._connection.database.set_trace_callback(stall)
        await accept(store, [received(seq + 1)])
        threads = CommitThreads(store)
        await accept(store, [received(seq + 2)])
        assert threads.take() == [False]
        clock.monotonic_s += 60.0
        await accept(store, [received(seq + 3)])
        assert threads.take() == [True]
        assert await store.acked("d", "e") == seq + 3


@pytest.mark.asyncio
async def test_the_event_loop_waits_for_one_commit_of_a_disk_that_takes_long_to_fail(tmp_path: Path) -> None:
    clock = SetClock(0.0)
    async with quick(SqliteUploadStore(tmp_path / "u.db", clock=clock)) as store:
        await accept(store, [received(1)])
        assert store._connection.database is not None

        def stall(_statement: str) -> None:
            clock.monotonic_s += 10.0

        store._connection.database.execute(
            "CREATE TEMP TRIGGER fault BEFORE INSERT ON uploads WHEN NEW.topic = 'bad'"
            " BEGIN SELECT RAISE(ABORT, 'fault'); END"
        )
        store._connection.database.set_trace_callback(stall)
        with pytest.raises(IngestError):
            await accept(store, [received(2, topic="bad")])
        threads = CommitThreads(store)
        for seq in (2, 3):  # the thread reads the stream for the first, and knows it for the second
            await accept(store, [received(seq)])
        assert threads.take() == [False, False]


@pytest.mark.asyncio
async def test_while_another_process_writes_the_event_loop_continues_and_the_thread_waits(tmp_path: Path) -> None:
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        await accept(store, [received(1)])
        threads = CommitThreads(store)
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            began_s = asyncio.get_running_loop().time()
            accepting = asyncio.create_task(accept(store, [received(2)]))
            await asyncio.sleep(0.05)
            assert asyncio.get_running_loop().time() - began_s < 4.0  # the thread waits for the lock for 5 s
            assert not accepting.done()
            other.execute("ROLLBACK")
            assert (await accepting).fresh == [received(2)]
        assert threads.take() == [False]


@pytest.mark.asyncio
async def test_while_a_call_is_in_the_thread_the_event_loop_does_not_use_its_connection(tmp_path: Path) -> None:
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        await accept(store, [received(1)])
        threads, gate = CommitThreads(store), threading.Event()
        store._thread.post(gate.wait)
        accepting = asyncio.create_task(accept(store, [received(2)]))
        await asyncio.sleep(0.02)
        was_done = accepting.done()
        gate.set()
        assert not was_done
        assert (await accepting).fresh == [received(2)]
        assert threads.take() == [False]


@pytest.mark.asyncio
async def test_an_upload_that_the_database_refuses_on_the_event_loop_changes_nothing(tmp_path: Path) -> None:
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        await accept(store, [received(1)])
        with pytest.raises(IngestError) as caught:
            await accept(store, [received(2, topic="\ud800")])
        assert caught.value.of_contents
        assert (await accept(store, [received(2)])).highest == {("d", "e"): 2}
        assert [row for _, row in await store.query()] == [received(1), received(2)]


@pytest.mark.asyncio
async def test_a_file_that_is_replaced_is_opened_before_the_event_loop_commits_to_it(tmp_path: Path) -> None:
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        await accept(store, [received(1)])
        copy = backup(store.path)
        for seq in (2, 3):
            await accept(store, [received(seq)])
        restore(copy, store.path)
        assert (await accept(store, [received(4)])).highest == {("d", "e"): 1}
        assert (await accept(store, [received(2)])).highest == {("d", "e"): 2}
        assert store.generation == 1
    async with SqliteUploadStore(store.path) as opened:
        assert [row.seq for _, row in await opened.query()] == [1, 2]


# --- checkpoints ------------------------------------------------------------------------------------------------------


def large(seq: int) -> Received:
    return received(seq, payload=os.urandom(30_000))


def salts(path: Path) -> bytes:
    """Return the salts of a database's log, which change when it begins again."""
    with Path(f"{path}-wal").open("rb") as log:
        return log.read(24)[16:]


@pytest.mark.asyncio
async def test_the_log_is_checkpointed_in_the_thread_and_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "_CHECKPOINT_PAGES", 300)
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        await accept(store, [large(1)])
        threads, first = CommitThreads(store), salts(store.path)
        seq = 1
        while salts(store.path) == first:
            assert seq < 1_000  # SQLite does it by itself at 32,000 pages
            seq += 1
            assert (await accept(store, [large(seq)])).highest == {("d", "e"): seq}
            await asyncio.sleep(0)
        assert seq > 20  # the log is left alone below 300 pages
        assert any(threads.take())
        assert await store.count() == seq


class WrittenMeanwhile:
    """A store's connection whose passive checkpoints leave a part of the log, as beside another process that writes."""

    def __init__(self, database: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        self._database = database
        self._reader = reader

    def execute(self, statement: str) -> sqlite3.Cursor:
        if "PASSIVE" not in statement:
            return self._database.execute(statement)
        self._reader.execute("BEGIN")
        self._reader.execute("SELECT count(*) FROM owners").fetchall()
        self._database.execute("INSERT INTO owners VALUES ('written meanwhile', '')")
        cursor = self._database.execute(statement)
        self._reader.execute("ROLLBACK")
        return cursor


@pytest.mark.asyncio
async def test_the_log_begins_again_although_other_processes_write_without_a_pause(tmp_path: Path) -> None:
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        await accept(store, [large(1)])
        first, database, log = salts(store.path), store._connection.database, store._connection.log
        assert database is not None
        assert log is not None
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
            log.database = WrittenMeanwhile(database, reader)  # type: ignore[assignment]
            log.checkpoint()
            log.database = database
        await accept(store, [large(2)])
        assert salts(store.path) != first
        assert database.execute("PRAGMA busy_timeout").fetchone() == (0,)


@pytest.mark.asyncio
async def test_a_reader_that_keeps_the_log_from_beginning_again_does_not_cause_a_checkpoint_at_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "_CHECKPOINT_PAGES", 300)
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        begun = 0
        assert store._connection.log is not None
        checkpoint = store._connection.log.checkpoint

        def counted() -> None:
            nonlocal begun
            begun += 1
            checkpoint()

        monkeypatch.setattr(store._connection.log, "checkpoint", counted)
        await accept(store, [large(1)])
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM uploads").fetchall()
            for seq in range(2, 301):  # about 3,800 pages, all of which stay in the log
                await accept(store, [large(seq)])
                await asyncio.sleep(0)
            await until(lambda: store._thread.is_idle)
            assert 1 <= begun <= 5
            reader.execute("ROLLBACK")
        first, seq = salts(store.path), 300
        while salts(store.path) == first:
            assert seq < 1_000  # SQLite does it by itself at 32,000 pages
            seq += 1
            await accept(store, [large(seq)])
            await asyncio.sleep(0)
        assert await store.count() == seq


@pytest.mark.asyncio
async def test_a_checkpoint_that_fails_is_reported_and_commits_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_log, "_CHECKPOINT_PAGES", 300)
    async with quick(SqliteUploadStore(tmp_path / "u.db")) as store:
        await accept(store, [large(1)])
        assert store._connection.database is not None

        def refuse(action: int, name: str | None, *_: object) -> int:
            is_checkpoint = action == sqlite3.SQLITE_PRAGMA and name == "wal_checkpoint"
            return sqlite3.SQLITE_DENY if is_checkpoint else sqlite3.SQLITE_OK

        store._connection.database.set_authorizer(refuse)
        for seq in range(2, 61):
            assert (await accept(store, [large(seq)])).fresh
            await asyncio.sleep(0)
        await until(lambda: store._thread.is_idle)
        assert "the log grows: not authorized" in caplog.text
        assert await store.count() == 60
