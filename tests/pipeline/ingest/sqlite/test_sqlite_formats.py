"""Files of older formats of the SQLite store."""

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from tests.pipeline.ingest.upload_samples import as_read, came_compressed, chain_of, moved, received, stored
from walle.pipeline.features.losses import LossCause
from walle.pipeline.ingest.sqlite import schema as sqlite_schema
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store.receipt import LossTotal
from walle.pipeline.ingest.store.upload_store import IngestError, TopicSize
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello, Origin, origins_to_text

_FORMAT_2 = """
CREATE TABLE streams (
    stream INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, highest INTEGER NOT NULL,
    chain INTEGER NOT NULL, moved INTEGER NOT NULL DEFAULT 0, UNIQUE (device_id, epoch)
);
CREATE TABLE origins (
    stream INTEGER NOT NULL, origin INTEGER NOT NULL, seq_offset INTEGER NOT NULL, upto INTEGER NOT NULL
);
CREATE TABLE uploads (
    position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq INTEGER NOT NULL, topic TEXT NOT NULL,
    payload BLOB NOT NULL, sent_ms INTEGER NOT NULL, received_ms INTEGER NOT NULL, UNIQUE (stream, seq)
);
CREATE TABLE losses (
    loss INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, first_seq INTEGER NOT NULL,
    last_seq INTEGER, cause TEXT NOT NULL, recorded_ms INTEGER NOT NULL
);
PRAGMA user_version = 2;
"""
# Of the tables that format 3 added, those that a store with consumers, retention and owners writes.
_FORMAT_4 = """
ALTER TABLE streams ADD COLUMN part INTEGER NOT NULL DEFAULT 0;
CREATE TABLE owners (device_id TEXT PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX uploads_by_topic ON uploads (topic);
CREATE TABLE topics (topic TEXT PRIMARY KEY, uploads INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE merged_losses (
    device_id TEXT NOT NULL, cause TEXT NOT NULL, reports INTEGER NOT NULL, uploads INTEGER NOT NULL,
    PRIMARY KEY (device_id, cause)
) WITHOUT ROWID;
CREATE TABLE refused (
    refusal INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, seq INTEGER NOT NULL,
    reason TEXT NOT NULL, contents BLOB, refused_ms INTEGER NOT NULL
);
PRAGMA user_version = 4;
"""


def _make(path: Path, rows: list[Received], scripts: str, *, first_position: int = 1) -> None:
    """Make a file of an older format with the uploads of one stream."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(scripts)
        columns = "stream, device_id, epoch, highest, chain, moved"
        insert = f"INSERT INTO streams ({columns}) VALUES (1, 'd', 'e', ?, ?, 0)"
        database.execute(insert, (rows[-1].seq, chain_of(rows)))
        database.executemany(
            "INSERT INTO uploads VALUES (?, 1, ?, ?, ?, ?, ?)",
            [(position, *row[2:7]) for position, row in enumerate(rows, first_position)],
        )
        if "TABLE topics" in scripts:
            database.execute("INSERT INTO topics SELECT topic, count(*), sum(length(payload)) FROM uploads GROUP BY 1")
        database.commit()


@pytest.mark.asyncio
async def test_a_file_of_format_2_is_read_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    rows = [received(seq) for seq in (1, 2, 3)]
    _make(path, rows, _FORMAT_2)
    async with SqliteUploadStore(path) as store:
        assert await store.resume(Hello("d", "e", "")) == (3, chain_of(rows))
        assert (await store.accept([received(4)])).fresh == [received(4)]
        assert await store.topics() == {"t": TopicSize(4, 4)}
        async with store.consume("g") as consumer:
            assert (await anext(consumer)).uploads == [*rows, received(4)]


@pytest.mark.asyncio
async def test_a_file_of_format_4_keeps_its_uploads_and_positions_and_is_as_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    rows = [received(seq, topic="ab"[seq % 2], payload=bytes(seq)) for seq in range(1, 41)]
    _make(path, rows, _FORMAT_2 + _FORMAT_4, first_position=101)
    async with SqliteUploadStore(path) as store:
        assert await store.query(limit=100) == list(enumerate(rows, 101))
        assert (
            await store.query(device_id="d", topic="a", after=120, limit=3)
            == [(position, row) for position, row in enumerate(rows, 101) if row.topic == "a" and position > 120][:3]
        )
        assert await store.topics() == {"a": TopicSize(20, 420), "b": TopicSize(20, 400)}
        assert await store.resume(Hello("d", "e", "")) == (40, chain_of(rows))
        # Uploads that a new epoch repeats are found at their places in the older one.
        await store.resume(Hello("d", "e2", "", origins=origins_to_text([Origin("e", 0, 38, 2)])))
        assert (await store.accept(moved(rows[38:], "e2"))).fresh == []
        trimmed = await store.trim("a", before_ms=None, now_ms=10**6, over_bytes=50, keep_unconsumed=True, limit=100)
        assert trimmed.uploads == 7
        assert await store.topics() == {"a": TopicSize(13, 420 - trimmed.size_bytes), "b": TopicSize(20, 400)}
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
        assert not {"uploads_of_format_4", "uploads_by_topic"} & tables


def _to_format_5(path: Path) -> None:
    """Make a file of this format, without uploads that came compressed, one of format 5."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(
            "ALTER TABLE uploads DROP COLUMN version; ALTER TABLE uploads DROP COLUMN packed;"
            "ALTER TABLE uploads RENAME COLUMN stored_payload TO payload;"
            "PRAGMA user_version = 5"
        )


@pytest.mark.asyncio
async def test_uploads_of_a_file_of_format_6_have_unknown_versions_and_those_after_it_have_theirs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "uploads.db"
    rows = [received(1), came_compressed(2)]
    async with SqliteUploadStore(path) as store:
        await store.accept([row._replace(version="v9") for row in rows])
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(
            "ALTER TABLE uploads DROP COLUMN version; ALTER TABLE merged_losses DROP COLUMN open_reports;"
            "INSERT INTO merged_losses VALUES ('d', 'damaged', 2, 9); PRAGMA user_version = 6"
        )
    async with SqliteUploadStore(path) as store:
        later = [received(3)._replace(version="v1"), received(4)]
        await store.accept(later)
        assert await stored(store) == as_read([*rows, *later])
        assert (await store.loss_totals())[LossCause.DAMAGED] == LossTotal(2, 9)
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (sqlite_schema.FORMAT,)


@pytest.mark.asyncio
async def test_a_file_of_format_5_gets_its_column_at_once_and_keeps_its_uploads(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    rows = [received(seq, payload=bytes(20_000)) for seq in (1, 2)]
    async with SqliteUploadStore(path) as store:
        await store.accept(rows)
    _to_format_5(path)
    async with SqliteUploadStore(path) as store, SqliteUploadStore(path) as other:
        assert (await store.accept([came_compressed(3)])).highest == {("d", "e"): 3}
        assert await stored(store) == await stored(other) == as_read([*rows, came_compressed(3)])
        size_bytes = (await store.topics())["t"].size_bytes
        assert 40_000 < size_bytes < 40_000 + 15_000  # size as stored
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (sqlite_schema.FORMAT,)


@pytest.mark.asyncio
async def test_a_process_of_an_older_walle_that_has_the_file_open_reads_nothing_compressed(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with SqliteUploadStore(path) as store:
        await store.accept([received(1)])
    _to_format_5(path)
    query = "SELECT position, topic, payload, sent_ms FROM uploads"  # format 5's query
    with contextlib.closing(sqlite3.connect(path)) as older:
        assert older.execute(query).fetchall() == [(1, "t", b"x", 10)]
        async with SqliteUploadStore(path) as store:
            await store.accept([came_compressed(2)])
            with pytest.raises(sqlite3.OperationalError, match="no such column"):  # older walles then report the change
                older.execute(query)


@pytest.mark.asyncio
async def test_a_file_that_an_older_walle_was_moving_to_format_5_keeps_all_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "uploads.db"
    rows = [received(seq, payload=bytes(100)) for seq in range(1, 41)]
    _make(path, rows, _FORMAT_2 + _FORMAT_4)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database, monkeypatch.context() as older:
        older.setattr(sqlite_schema, "_MOVED", 15)
        sqlite_schema.make_schema(database)
        assert not sqlite_schema._move_older(database)
    _to_format_5(path)
    async with SqliteUploadStore(path) as store:
        assert await stored(store) == rows
        assert (await store.accept([came_compressed(41)])).highest == {("d", "e"): 41}
        assert await store.count() == 41


@pytest.mark.asyncio
async def test_a_process_that_is_stopped_while_it_moves_uploads_leaves_the_rest_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "uploads.db"
    rows = [received(seq, payload=bytes(100)) for seq in range(1, 41)]
    _make(path, rows, _FORMAT_2 + _FORMAT_4)
    monkeypatch.setattr(sqlite_schema, "_MOVED", 15)
    monkeypatch.setattr(sqlite_schema, "_MOVED_BYTES", 1000)
    move, moves = sqlite_schema._move_older, 0

    def stopped(database: sqlite3.Connection) -> bool:
        nonlocal moves
        moves += 1
        is_done = move(database)
        if moves == 3:
            raise sqlite3.OperationalError("stopped")
        return is_done

    monkeypatch.setattr(sqlite_schema, "_move_older", stopped)
    with pytest.raises(IngestError, match="stopped"):
        await SqliteUploadStore(path).start()
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM uploads").fetchone() == (20,)
        assert database.execute("SELECT count(*) FROM uploads_of_format_4").fetchone() == (20,)
    async with SqliteUploadStore(path) as store:
        assert moves == 6  # 10 by their bytes in each, of which the third is made again, and the end
        assert await stored(store) == rows
        assert await store.count() == 40
        assert [row.seq for _, row in await store.query(topic="t")] == list(range(1, 41))
        assert (await store.accept([received(41)])).highest == {("d", "e"): 41}


@pytest.mark.asyncio
async def test_a_process_that_opens_the_file_while_another_moves_uploads_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "uploads.db"
    rows = [received(seq, payload=bytes(100)) for seq in range(1, 41)]
    _make(path, rows, _FORMAT_2 + _FORMAT_4)
    monkeypatch.setattr(sqlite_schema, "_MOVED", 1)
    monkeypatch.setattr(sqlite_schema, "_BUSY_S", 0.02)
    move = sqlite_schema._move_older

    def slowly(database: sqlite3.Connection) -> bool:
        time.sleep(0.04)  # holds the lock longer than another process waits for it at once
        return move(database)

    monkeypatch.setattr(sqlite_schema, "_move_older", slowly)
    store, other = SqliteUploadStore(path), SqliteUploadStore(path)
    await asyncio.gather(store.start(), other.start())
    assert await stored(store) == await stored(other) == rows
    await asyncio.gather(store.close(), other.close())
    _make(tmp_path / "held.db", rows, _FORMAT_2 + _FORMAT_4)
    with contextlib.closing(sqlite3.connect(tmp_path / "held.db", isolation_level=None)) as holder:
        sqlite_schema.make_schema(holder)
        holder.execute("BEGIN IMMEDIATE")  # held, and nothing is moved
        with pytest.raises(IngestError, match="locked") as raised:
            await SqliteUploadStore(tmp_path / "held.db").start()
        assert raised.value.may_pass


@pytest.mark.asyncio
async def test_a_process_whose_file_a_newer_walle_has_migrated_says_so_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with SqliteUploadStore(path) as store:
        await store.accept([received(1)])
        await store.count()
        with contextlib.closing(sqlite3.connect(path)) as newer:
            newer.executescript(
                "ALTER TABLE uploads RENAME TO parcels; ALTER TABLE losses RENAME TO lost; PRAGMA user_version = 8"
            )
        what = r"uploads\.db: was converted to format 8 by another version of walle .* format 7; .* that version"
        for work in (
            lambda: store.accept([received(2)]),
            lambda: store.accept([received(seq) for seq in range(2, 20)]),
            lambda: store.resume(Hello("d", "e", "")),
            store.losses,
            lambda: store.query(),
            lambda: store.forget_group("g"),
        ):
            with pytest.raises(IngestError, match=what) as caught:
                await work()
            assert not caught.value.may_pass
            assert not caught.value.of_contents  # such an error would set each upload aside
        with contextlib.closing(sqlite3.connect(path)) as newer:
            assert newer.execute("SELECT count(*) FROM parcels").fetchone() == (1,)


@pytest.mark.asyncio
async def test_a_migration_that_keeps_the_tables_is_noticed_too(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with SqliteUploadStore(path) as store:
        await store.accept([received(1)])
        with contextlib.closing(sqlite3.connect(path)) as newer:
            newer.execute("PRAGMA user_version = 8")
        with pytest.raises(IngestError, match="format 8"):
            await store.accept([received(2)])
        with contextlib.closing(sqlite3.connect(path)) as newer:
            assert newer.execute("SELECT count(*) FROM uploads").fetchone() == (1,)
