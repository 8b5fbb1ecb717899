"""Payloads that are stored compressed: what a damaged one is, and what the rows have."""

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest
import zstandard

from tests.pipeline.ingest.sqlite.test_loop_commits import accept, quick
from tests.pipeline.ingest.upload_samples import as_read, came_compressed, moved, received, stored
from walle.base import plain
from walle.pipeline.features.losses import LossCause
from walle.pipeline.ingest.sqlite import groups as sqlite_groups
from walle.pipeline.ingest.sqlite import quarantine as sqlite_quarantine
from walle.pipeline.ingest.sqlite import streams as sqlite_streams
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store import receipt
from walle.pipeline.ingest.store.packed_payload import DamagedPayloadError, unpack_payload
from walle.pipeline.ingest.store.receipt import LossTotal
from walle.pipeline.ingest.store.upload_columns import UploadColumns
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.protocol import Hello, Origin, origins_to_text


def _body(size_bytes: int) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=True).compress(bytes(size_bytes))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not zstd",
        came_compressed(1).packed[:-1],
        came_compressed(1).packed + b"more",
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100)),
        _body(8 << 20),  # no upload
        _body((8 << 20) + 1),
    ],
    ids=["empty", "other", "cut", "longer", "no size", "no upload", "too large"],
)
def test_a_damaged_body_is_refused(body: bytes) -> None:
    with pytest.raises(sqlite3.DatabaseError, match="upload at position 7 is damaged: "):
        unpack_payload(7, body)


def damage(path: Path, *positions: int) -> None:
    """Write zeros over the stored bodies of these uploads, as another connection."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        statement = "UPDATE uploads SET stored_payload = zeroblob(length(stored_payload)) WHERE position = ?"
        database.executemany(statement, [(position,) for position in positions])


@pytest.mark.asyncio
async def test_a_damaged_upload_is_set_aside_and_every_group_and_query_reads_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "uploads.db"
    rows = [came_compressed(1), received(2), came_compressed(3), came_compressed(4)]
    async with SqliteUploadStore(path) as store, SqliteUploadStore(path) as other:
        await store.accept(rows)
        topic = rows[0].topic
        assert len(await store.query(topic=topic)) == 4  # the index finds the topic
        damage(path, 1, 4)  # the last one too
        for reader in (store, other):
            for group in ("first", "second"):
                async with reader.consume(f"{group} of {id(reader)}") as consumer:
                    batch = await anext(consumer)
                    assert batch.uploads == as_read(rows[1:3])
                    assert await batch.commit()
            for query in ({}, {"topic": topic}, {"device_id": "d"}):
                assert [row.seq for _, row in await reader.query(**query)] == [2, 3]  # type: ignore[arg-type]
        refused = await store.refused()
        assert [(one.device_id, one.epoch, one.seq) for one in refused] == [("d", "e", 1), ("d", "e", 4)]
        assert "the upload at position 1 is damaged" in refused[0].reason
        assert refused[0].contents is not None
        assert plain.decode(refused[0].contents)[:2] == [topic, bytes(len(rows[0].packed))]
        assert (await store.loss_totals())[LossCause.REFUSED] == LossTotal(2, 2)
        assert [await store.count(), await store.refused_count(), await store.head()] == [2, 2, 4]
        assert sum("is set aside, and those behind it are read" in one.message for one in caplog.records) == 2
        after = [came_compressed(5)]
        assert (await store.accept([rows[3], *after])).fresh == after  # a known number, whose position is not free
        assert [position for position, _ in await other.query()] == [2, 3, 5]
        await store.forget_refused()
        trimmed = await store.trim(
            topic, before_ms=1 << 60, now_ms=1 << 60, over_bytes=0, keep_unconsumed=False, limit=100
        )
        assert (trimmed.uploads, await store.count()) == (2, 1)


@pytest.mark.asyncio
async def test_a_damaged_upload_is_set_aside_and_the_others_are_read_in_columns(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    rows = [came_compressed(1), received(2), came_compressed(3)]
    async with SqliteUploadStore(path) as store:
        await store.accept(rows)
        damage(path, 1)
        found = await store.columns(0, 3, 100, 1 << 20)
        assert (found.positions, found.payloads) == ((2, 3), (rows[1].payload, rows[2].payload))
        assert (await store.columns(0, 3, 100, 1)).positions == (2,)
        assert (await store.columns(0, 2, 100, 1 << 20)).positions == (2,)
        assert (await store.refused_count(), await store.columns(3, 3, 100, 1)) == (1, UploadColumns())


@pytest.mark.asyncio
async def test_a_damaged_upload_for_which_the_quarantine_has_no_room_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is damaged all over is not emptied into the quarantine."""
    monkeypatch.setattr(sqlite_quarantine, "MAX_OF_DEVICE", 1)
    path = tmp_path / "uploads.db"
    async with SqliteUploadStore(path) as store:
        rows = [came_compressed(1), received(2), came_compressed(3), came_compressed(4)]
        await store.accept(rows)
        damage(path, 1, 3)
        for _ in range(2):
            with pytest.raises(
                IngestError, match=r"uploads\.db: .* position 3 is damaged: .* no room for it"
            ) as raised:
                await store.query()
            assert not raised.value.may_pass
            assert not raised.value.of_contents
        assert await store.refused_count() == 1
        assert [row for _, row in await store.query(after=3)] == as_read(rows[3:])
        await store.forget_refused("d")
        assert [row.seq for _, row in await store.query()] == [2, 4]


@pytest.mark.asyncio
async def test_an_upload_that_only_one_connection_cannot_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(position: int, _: bytes) -> bytes:
        raise DamagedPayloadError(position, "a fault of the disk")

    async with SqliteUploadStore(tmp_path / "uploads.db") as store:
        await store.accept([came_compressed(1)])
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_groups, "unpack_payload", unreadable)
            with pytest.raises(IngestError, match="a fault of the disk"):
                await store.query()
        assert (len(await store.query()), await store.refused_count()) == (1, 0)


@pytest.mark.asyncio
async def test_a_stored_payload_is_read_only_for_a_repeated_one_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch of small uploads in a new epoch could make the store read gigabytes."""
    read = list[str]()

    def contents_of(topic: str, payload: bytes, sent_ms: int) -> receipt.Contents:
        read.append(topic)
        return receipt.contents_of(topic, payload, sent_ms)

    monkeypatch.setattr(sqlite_streams, "contents_of", contents_of)
    dense = came_compressed(2, payload=random.Random(2).randbytes(2000) + bytes(28_000))  # a fifteenth of its size
    rows = [came_compressed(1), dense, received(3, payload=bytes(20_000))]
    async with SqliteUploadStore(tmp_path / "uploads.db") as store:
        await store.accept(rows)
        origins = origins_to_text([Origin("e", 0, 0, 3)])
        for epoch, is_same in (("f", False), ("g", True)):
            await store.resume(Hello("d", epoch, "", origins=origins))
            uploads = as_read(rows) if is_same else [received(seq) for seq in (1, 2, 3)]
            accepted = await store.accept(moved(uploads, epoch))
            assert (len(accepted.fresh), len(read)) == ((0, 3) if is_same else (3, 0))


@pytest.mark.asyncio
async def test_a_device_that_repeats_a_damaged_upload_in_a_new_epoch_stores_it_again(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with SqliteUploadStore(path) as store:
        rows = [came_compressed(1), came_compressed(2)]
        await store.accept(rows)
        damage(path, 1)
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 0, 0, 2)])))
        repeated = moved(as_read(rows), "f")
        assert (await store.accept(repeated)).fresh == repeated[:1]


@pytest.mark.asyncio
async def test_alone_and_in_a_batch_the_row_has_the_compressed_body(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with quick(SqliteUploadStore(path)) as store:
        rows = [received(1), came_compressed(2), came_compressed(3), received(4)]
        for batch in (rows[:1], rows[1:2], rows[2:]):
            await accept(store, batch)
        assert await stored(store) == as_read(rows)
    with contextlib.closing(sqlite3.connect(path)) as database:
        kept = database.execute("SELECT packed, stored_payload FROM uploads ORDER BY position").fetchall()
    assert kept == [(0, b"x"), (1, rows[1].packed), (1, rows[2].packed), (0, b"x")]
