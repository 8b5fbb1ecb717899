"""Opening of a store of uploads that does not exist."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.pipeline.ingest.upload_samples import received
from tests.sim.postgres_server import PostgresServer
from walle.pipeline import open_uploads
from walle.pipeline.ingest.store.upload_store import IngestError


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["typo.db", "typo/uploads.db"])
async def test_a_mistyped_path_makes_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        IngestError, match=rf"{name}: this file does not exist; name the uploads.db of a cloud's folder"
    ):
        async with open_uploads(tmp_path / name):
            pass
    assert not list_names(tmp_path)


@pytest.mark.asyncio
async def test_a_file_of_another_program_is_not_changed(tmp_path: Path) -> None:
    path, empty, note = tmp_path / "shop.db", tmp_path / "empty.db", tmp_path / "note.txt"
    note.write_text("not a database, and longer than the header of one: " + "x" * 100)
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE orders (item TEXT)")
    empty.touch()
    for file in (path, empty, note):
        file.chmod(0o644)
        before = (file.read_bytes(), file.stat().st_mode)
        with pytest.raises(IngestError, match=f"{file.name}: this file has no uploads; name the uploads.db"):
            async with open_uploads(file):
                pass
        assert (file.read_bytes(), file.stat().st_mode) == before
    assert list_names(tmp_path) == ["empty.db", "note.txt", "shop.db"]


@pytest.mark.asyncio
async def test_a_store_that_exists_is_opened(tmp_path: Path) -> None:
    async with open_uploads(tmp_path / "new" / "uploads.db", create=True) as store:
        await store.accept([received(1)])
    async with open_uploads(str(tmp_path / "new" / "uploads.db")) as store:
        assert await store.count() == 1


@pytest.mark.asyncio
async def test_a_database_without_uploads_gets_no_tables(postgres: PostgresServer) -> None:
    dsn = postgres.make_database()
    with pytest.raises(IngestError, match="this database has no uploads; name a cloud's database"):
        async with open_uploads(dsn):
            pass
    async with open_uploads(dsn, create=True) as store:
        await store.accept([received(1)])
    async with open_uploads(dsn) as store:
        assert await store.count() == 1
