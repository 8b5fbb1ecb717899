"""The reserve of a write-ahead log: it stays ahead of the commits, and SQLite reads the same rows with it."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.sqlite.wal_reserve import WalReserve
from walle.pipeline.tunnel.received import Received

_LIMIT = 4 << 20


def _upload(seq: int) -> Received:
    return Received("d", "e", seq, "t", os.urandom(30_000), seq, seq)


@pytest.mark.asyncio
async def test_the_log_of_a_store_is_longer_than_what_is_used_and_survives_a_crash(tmp_path: Path) -> None:
    path, copy = tmp_path / "u.db", tmp_path / "copy"
    copy.mkdir()
    sizes: list[int] = []
    async with SqliteUploadStore(path) as store:
        uploads = [_upload(seq) for seq in range(1, 61)]
        for upload in uploads:
            assert (await store.accept([upload])).fresh == [upload]
            sizes.append(os.stat(f"{path}-wal").st_size)  # noqa: PTH116 - nothing else runs
        await store.head()
        assert len(set(sizes[20:])) < 5  # commits within the reserve do not make the file longer
        assert sizes[-1] > 60 * 40_000
        shutil.copy(path, copy)  # files left by kill -9: what is committed is in the log
        shutil.copy(f"{path}-wal", copy)
    async with SqliteUploadStore(copy / "u.db") as restored:
        assert [row for _, row in await restored.query()] == uploads
        assert (await restored.accept([_upload(61)])).highest == {("d", "e"): 61}


@pytest.mark.asyncio
async def test_stores_that_want_a_longer_log_at_once_make_it_longer_once(tmp_path: Path) -> None:
    path = tmp_path / "u.db"
    async with SqliteUploadStore(path) as store, SqliteUploadStore(path) as other:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("CREATE TABLE t (a)")
            for _ in range(20):
                database.execute("INSERT INTO t VALUES (randomblob(30000))")
        before = os.stat(f"{path}-wal").st_size  # noqa: PTH116 - nothing else runs
        for each in (store, other):
            assert each._connection.log is not None
            each._thread.post(each._connection.log.grow_reserve)
        await store.head()
        await asyncio.gather(*(each.acked("d", "e") for each in (store, other)))  # answered after the posted calls
        assert os.stat(f"{path}-wal").st_size == max(4 * before, 1 << 20)  # noqa: PTH116 - nothing else runs


def _log(tmp_path: Path, rows: int) -> tuple[sqlite3.Connection, Path]:
    database = sqlite3.connect(tmp_path / "d.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA wal_autocheckpoint = 0")
    database.execute("CREATE TABLE t (a)")
    for _ in range(rows):
        database.execute("INSERT INTO t VALUES (randomblob(30000))")
    return database, tmp_path / "d.db-wal"


def test_the_reserve_is_low_near_the_end_of_the_log_and_not_after_its_restart(tmp_path: Path) -> None:
    database, path = _log(tmp_path, 20)
    reserve = WalReserve(path, page_bytes=4096, limit_bytes=_LIMIT, free_bytes=0)
    before = path.stat().st_size
    lows = [reserve.is_low]
    reserve.grow()
    lows.append(reserve.is_low)
    for _ in range(120):
        assert path.stat().st_size == max(4 * before, 1 << 20)
        database.execute("INSERT INTO t VALUES (randomblob(30000))")
        lows.append(reserve.is_low)
        if lows[-1]:
            break
    database.execute("PRAGMA wal_checkpoint(RESTART)")
    database.execute("INSERT INTO t VALUES (randomblob(30000))")
    lows.append(reserve.is_low)
    assert lows[:2] == [True, False]
    assert lows[-3:] == [False, True, False]  # frames of the earlier use are there, with other salts
    reserve.close()
    database.close()


def _rows(path: Path) -> tuple[str, int]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("INSERT INTO t VALUES (1)")  # the log goes on
        (check,) = database.execute("PRAGMA integrity_check").fetchone()
        return check, database.execute("SELECT count(*) FROM t").fetchone()[0]


def test_a_crash_that_leaves_any_part_of_the_zeros_loses_no_commit(tmp_path: Path) -> None:
    database, path = _log(tmp_path, 20)
    used = path.stat().st_size
    reserve = WalReserve(path, page_bytes=4096, limit_bytes=_LIMIT, free_bytes=0)
    reserve.grow()
    database.execute("INSERT INTO t VALUES (2)")  # written over the zeros
    database.execute("PRAGMA wal_checkpoint(RESTART)")
    database.execute("INSERT INTO t VALUES (3)")  # written at the beginning: frames of the earlier use and zeros follow
    copy = tmp_path / "copy.db"
    for size in (used - 1, used, used + 1, used + 24, used + 4119, path.stat().st_size - 1, path.stat().st_size):
        shutil.copy(tmp_path / "d.db", copy)
        shutil.copy(path, f"{copy}-wal")
        os.truncate(f"{copy}-wal", size)
        assert _rows(copy) == ("ok", 23)
    reserve.close()
    database.close()


def test_a_log_that_another_connection_truncates_grows_without_harm(tmp_path: Path) -> None:
    database, path = _log(tmp_path, 20)
    reserve = WalReserve(path, page_bytes=4096, limit_bytes=_LIMIT, free_bytes=0)
    with contextlib.closing(sqlite3.connect(tmp_path / "d.db", isolation_level=None)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert path.stat().st_size == 0
        reserve.grow()  # the log may have been truncated just before
        assert path.read_bytes() == bytes(1 << 20)
        copy = tmp_path / "copy.db"
        shutil.copy(tmp_path / "d.db", copy)
        shutil.copy(path, f"{copy}-wal")
        assert _rows(copy) == ("ok", 21)
        other.execute("INSERT INTO t VALUES (2)")
        database.execute("INSERT INTO t VALUES (3)")
    shutil.copy(path, f"{copy}-wal")
    shutil.copy(tmp_path / "d.db", copy)
    assert _rows(copy) == ("ok", 23)
    reserve.close()
    database.close()


def test_the_reserve_grows_to_its_limit_and_not_on_a_nearly_full_disk(tmp_path: Path) -> None:
    database, path = _log(tmp_path, 20)
    before = path.stat().st_size
    full = WalReserve(path, page_bytes=4096, limit_bytes=_LIMIT, free_bytes=1 << 60)
    full.grow()
    assert path.stat().st_size == before
    assert not full.is_low
    reserve = WalReserve(path, page_bytes=4096, limit_bytes=_LIMIT, free_bytes=0)
    for _ in range(5):
        reserve.grow()
    assert path.stat().st_size == _LIMIT
    assert not reserve.is_low
    assert database.execute("SELECT count(*) FROM t").fetchone() == (20,)
    database.close()


def test_a_reserve_that_the_store_s_thread_closes_meanwhile_is_not_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, path = _log(tmp_path, 20)
    reserve = WalReserve(path, page_bytes=4096, limit_bytes=_LIMIT, free_bytes=0)
    pread = os.pread

    def closed_after(file: int, size_bytes: int, offset: int) -> bytes:
        found = pread(file, size_bytes, offset)
        reserve.close()
        return found

    lows = [reserve.is_low]
    monkeypatch.setattr(os, "pread", closed_after)
    lows.append(reserve.is_low)
    monkeypatch.undo()
    assert lows == [True, False]
    database.close()


def test_a_log_that_does_not_exist_has_no_reserve(tmp_path: Path) -> None:
    reserve = WalReserve(tmp_path / "none-wal", page_bytes=4096, limit_bytes=_LIMIT)
    assert not reserve.is_low
    reserve.grow()
    assert not (tmp_path / "none-wal").exists()
