"""The index of the SQLite store, which follows the uploads: nothing depends on how far behind it is."""

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.pipeline.ingest.upload_samples import chain_of, moved, received, stored, until
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.ingest.sqlite import index as sqlite_index
from walle.pipeline.ingest.sqlite import store as sqlite_store
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store.upload_store import TopicSize
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello, Origin, origins_to_text


def indexed(path: Path) -> int:
    """Return the position up to which the index goes."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        position: int = database.execute("SELECT position FROM indexed").fetchone()[0]
        return position


def killed(store: SqliteUploadStore, folder: Path) -> Path:
    """Return a copy of a store's file and log, as `kill -9` leaves them."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{store.path}{suffix}", folder)
    return folder / store.path.name


def report(seq: int) -> Received:
    """Return a device's report of a loss, of which no row is stored."""
    return received(seq, topic=LOSS_TOPIC, payload=Loss("before", 1, 2, LossCause.DAMAGED).encode())


@pytest.mark.asyncio
async def test_uploads_that_are_not_indexed_are_known_after_a_kill(tmp_path: Path) -> None:
    rows = [received(seq, topic="ab"[seq % 2]) for seq in range(1, 6)]
    async with SqliteUploadStore(tmp_path / "u.db") as store:
        for row in rows:
            await store.accept([row])
        path = killed(store, tmp_path / "killed")
    assert indexed(path) == 0
    async with SqliteUploadStore(path) as store:
        assert (await store.accept([*rows[3:], received(6)])).fresh == [received(6)]
    for call, expected in (
        (lambda store: store.resume(Hello("d", "e", "")), (6, chain_of([*rows, received(6)]))),
        (lambda store: store.acked("d", "e"), 6),
        (lambda store: store.count(), 6),
        (lambda store: store.topics(), {"a": TopicSize(2, 2), "b": TopicSize(3, 3), "t": TopicSize(1, 1)}),
    ):
        async with SqliteUploadStore(tmp_path / "killed" / "u.db") as store:
            assert await call(store) == expected  # type: ignore[no-untyped-call]


@pytest.mark.asyncio
async def test_a_device_that_connects_again_continues_after_its_latest_upload(tmp_path: Path) -> None:
    async with SqliteUploadStore(tmp_path / "u.db") as store:
        for seq in range(1, 5):
            assert (await store.resume(Hello("d", "e", ""))).seq == seq - 1
            await store.accept([received(seq)])


@pytest.mark.asyncio
async def test_each_query_finds_what_another_process_has_just_stored(tmp_path: Path) -> None:
    async with SqliteUploadStore(tmp_path / "u.db") as store, SqliteUploadStore(tmp_path / "u.db") as other:
        rows = list[Received]()
        for seq in range(1, 13):
            rows.append(received(seq))
            await store.accept(rows[-1:])
            match seq % 6:
                case 0:
                    assert (await other.resume(Hello("d", "e", ""))).seq == seq
                    await store.resume(Hello("d", "e", ""))
                case 1:
                    assert await other.acked("d", "e") == seq
                case 2:
                    assert await other.largest_topics(1) == ({"t": TopicSize(seq, seq)}, TopicSize(seq, seq))
                case 3:
                    assert [row for _, row in await other.query(device_id="d", topic="t")] == rows
                case 4:
                    assert [row async for part in other.stored_parts("d") for row in part.topics] == ["t"]
                case 5:
                    trimmed = await other.trim(
                        "t", before_ms=None, now_ms=10**6, over_bytes=0, keep_unconsumed=True, limit=10
                    )
                    assert trimmed.uploads == 0
                    assert indexed(store.path) == seq


@pytest.mark.asyncio
async def test_numbers_without_a_row_are_not_forgotten_when_the_index_follows(tmp_path: Path) -> None:
    async with SqliteUploadStore(tmp_path / "u.db") as store:
        await store.accept([received(1), received(2), report(3)])
        await store.accept([report(4)])
        for name in ("before", "after"):
            path = killed(store, tmp_path / name)
            async with SqliteUploadStore(path) as opened:
                assert await opened.resume(Hello("d", "e", "")) == (
                    4,
                    chain_of([received(1), received(2), report(3), report(4)]),
                )
                assert (await opened.accept([received(4)])).fresh == []
            assert await store.count() == 2  # brings the index up to date
            assert indexed(store.path) == 2


@pytest.mark.asyncio
async def test_uploads_that_a_new_epoch_repeats_are_found_before_they_are_indexed(tmp_path: Path) -> None:
    async with SqliteUploadStore(tmp_path / "u.db") as store:
        rows = [received(seq, payload=bytes([seq])) for seq in range(1, 6)]
        await store.resume(Hello("d", "e", ""))
        await store.resume(Hello("d", "e2", "", origins=origins_to_text([Origin("e", 0, 0, 5)])))
        await store.accept(rows[:3])
        await store.accept(rows[3:])
        assert indexed(store.path) < 5
        again = [*moved(rows, "e2"), received(6, epoch="e2")]
        assert (await store.accept(again)).fresh == again[5:]
        assert await stored(store) == [*rows, again[5]]


@pytest.mark.asyncio
async def test_the_index_follows_in_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "_INDEX_UPLOADS", 50)
    monkeypatch.setattr(sqlite_index, "_STEP", 7)
    async with SqliteUploadStore(tmp_path / "u.db") as store:
        for seq in range(1, 50, 7):
            await store.accept([received(number) for number in range(seq, seq + 7)])
            await asyncio.sleep(0)
        assert indexed(store.path) < 49
        await store.accept([received(50)])
        await asyncio.sleep(0)
        await until(lambda: store._thread.is_idle)
        assert indexed(store.path) == 50
        assert await store.topics() == {"t": TopicSize(50, 50)}
        assert await store.acked("d", "e") == 50


@pytest.mark.asyncio
async def test_an_index_that_cannot_follow_is_reported_and_uploads_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_store, "_INDEX_UPLOADS", 2)
    async with SqliteUploadStore(tmp_path / "u.db") as store:
        await store.accept([received(1)])
        assert store._connection.database is not None
        fault = "CREATE TEMP TRIGGER fault BEFORE INSERT ON places BEGIN SELECT RAISE(ABORT, 'fault'); END"
        store._connection.database.execute(fault)
        for seq in range(2, 6):
            assert (await store.accept([received(seq)])).highest == {("d", "e"): seq}
            await asyncio.sleep(0)
        await until(lambda: store._thread.is_idle)
        assert "the index does not follow: fault" in caplog.text
        store._connection.database.execute("DROP TRIGGER fault")
        assert await store.topics() == {"t": TopicSize(5, 5)}
