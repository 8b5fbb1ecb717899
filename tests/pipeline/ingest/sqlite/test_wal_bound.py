"""The write-ahead log of the SQLite store while another program reads the file in one long transaction."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.ingest.upload_samples import stored
from walle.base.clock import ManualClock
from walle.cloud.telemetry.uploads_watch import UploadsWatch
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store.retention import Retention
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.tunnel.received import Received

_MAX_BYTES = 4 << 20
_BATCH_BYTES = 10 * 30_000


def _batch(first: int) -> list[Received]:
    return [Received("d", "e", seq, "t", os.urandom(30_000), seq, seq) for seq in range(first, first + 10)]


@contextlib.contextmanager
def _long_read(path: Path) -> Iterator[None]:
    """Read the file in one transaction, which sees it as it is now."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM uploads").fetchone()
        yield


async def _fill(store: SqliteUploadStore, uploads: list[Received]) -> IngestError:
    """Store batches until the store refuses one, and return its error."""
    for _ in range(10 * _MAX_BYTES // _BATCH_BYTES):
        batch = _batch(len(uploads) + 1)
        try:
            await store.accept(batch)
        except IngestError as error:
            return error
        uploads += batch
        await store.head()  # the turn of the event loop that looks at the log comes first
    raise AssertionError("the log has no bound")


@pytest.mark.asyncio
async def test_the_log_is_bounded_while_a_long_read_lasts_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    uploads: list[Received] = []
    async with SqliteUploadStore(path, max_log_bytes=_MAX_BYTES) as store:
        watch = UploadsWatch(store, Retention(store, {}), ManualClock())
        for _ in range(2):
            with _long_read(path):
                error = await _fill(store, uploads)
                assert error.may_pass
                assert "another program reads the file in one transaction; end it (lsof" in str(error)
                assert _MAX_BYTES <= store.log_bytes < 2 * _MAX_BYTES + 4 * _BATCH_BYTES
                for _ in range(20):  # more uploads are refused without growth
                    with pytest.raises(IngestError, match="nothing is stored until then"):
                        await store.accept(_batch(len(uploads) + 1))
                assert store.log_bytes < 2 * _MAX_BYTES + 4 * _BATCH_BYTES
                await watch.refresh()
                (metric,) = [one for one in watch.metrics() if one.name == "walle_uploads_log_bytes"]
                assert metric.samples[0].value == watch.health()["log_bytes"] == store.log_bytes
            batch = _batch(len(uploads) + 1)
            assert (await store.accept(batch)).fresh == batch  # accepted once the read has ended
            uploads += batch
        assert await stored(store) == uploads


@pytest.mark.asyncio
async def test_readers_of_the_store_do_not_keep_the_log_from_beginning_again(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    count = 3 * _MAX_BYTES // _BATCH_BYTES
    async with SqliteUploadStore(path, max_log_bytes=_MAX_BYTES) as store, SqliteUploadStore(path) as other:
        position = 0
        for number in range(count):
            await store.accept(_batch(10 * number + 1))
            position = (await other.query(after=position, limit=3))[-1][0]
        assert await store.count() == 10 * count
        assert position == 3 * count


def test_a_store_without_a_log_has_no_bytes_of_it(tmp_path: Path) -> None:
    assert SqliteUploadStore(tmp_path / "uploads.db").log_bytes == 0
