"""The SQLite store: the contract, and files of older formats."""

import sqlite3
from pathlib import Path

import pytest

from tests.pipeline.ingest.upload_store_contract import MakeStore, UploadStoreContract, chain_of, received
from walle.pipeline.ingest.sqlite_store import SqliteUploadStore
from walle.pipeline.ingest.upload_store import TopicSize
from walle.protocol import Hello


class TestSqliteUploadStore(UploadStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: SqliteUploadStore(tmp_path / "uploads.db")


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


@pytest.mark.asyncio
async def test_a_file_of_format_2_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    rows = [received(seq) for seq in (1, 2, 3)]
    database = sqlite3.connect(path)
    database.executescript(_FORMAT_2)
    database.execute("INSERT INTO streams VALUES (1, 'd', 'e', 3, ?, 0)", (chain_of(rows),))
    database.executemany("INSERT INTO uploads VALUES (?, 1, ?, ?, ?, ?, ?)", [(row.seq, *row[2:]) for row in rows])
    database.commit()
    database.close()
    async with SqliteUploadStore(path) as store:
        assert await store.resume(Hello("d", "e", "")) == (3, chain_of(rows))
        assert (await store.accept([received(4)])).fresh == [received(4)]
        assert await store.topics() == {"t": TopicSize(4, 4)}
        async with store.consume("g") as consumer:
            assert (await anext(consumer)).uploads == [*rows, received(4)]
