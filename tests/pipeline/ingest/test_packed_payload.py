"""Payloads that are stored compressed: what a damaged one is, and what the rows have."""

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest
import zstandard

from tests.pipeline.ingest.test_loop_commits import accept, quick
from tests.pipeline.ingest.upload_samples import as_read, came_compressed, moved, received, stored
from walle.pipeline.ingest import receipt, sqlite_streams
from walle.pipeline.ingest.packed_payload import unpack_payload
from walle.pipeline.ingest.sqlite_store import SqliteUploadStore
from walle.pipeline.ingest.upload_store import IngestError
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


@pytest.mark.asyncio
async def test_a_damaged_row_is_an_error_that_names_it_and_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with SqliteUploadStore(path) as store:
        rows = [came_compressed(1), received(2), came_compressed(3)]
        await store.accept(rows)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE uploads SET stored_payload = zeroblob(length(stored_payload)) WHERE position = 1")
        with pytest.raises(IngestError, match=r"uploads\.db: .* upload at position 1 is damaged") as raised:
            await store.query()
        assert not raised.value.may_pass
        assert not raised.value.of_contents
        assert [row for _, row in await store.query(after=1)] == as_read(rows[1:])


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
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE uploads SET stored_payload = zeroblob(length(stored_payload)) WHERE position = 1")
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
