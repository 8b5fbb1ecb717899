"""The SQLite store: the contract, and files that are replaced while they are in use."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.pipeline.ingest.store.test_feature_view import visit
from tests.pipeline.ingest.upload_samples import MakeStore, RefuseTopic, received
from tests.pipeline.ingest.upload_store_contract import UploadStoreContract
from walle.pipeline.ingest.sqlite.connection import SqliteConnection
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store.feature_view import FeatureView, ViewConfig
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello


class TestSqliteUploadStore(UploadStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: SqliteUploadStore(tmp_path / "uploads.db")

    @pytest.fixture
    def refuse_topic(self, tmp_path: Path) -> RefuseTopic:
        def refuse(topic: str) -> None:
            with contextlib.closing(sqlite3.connect(tmp_path / "uploads.db")) as database:
                database.execute(
                    f"CREATE TRIGGER refusal BEFORE INSERT ON uploads WHEN NEW.topic = '{topic}'"
                    " BEGIN SELECT RAISE(ABORT, 'refused by a rule'); END"
                )

        return refuse


@pytest.mark.asyncio
async def test_an_sqlite_that_is_too_old_is_refused_before_a_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 32, 3))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.32.3")
    store = SqliteUploadStore(tmp_path / "uploads.db")
    with pytest.raises(IngestError, match=r"need SQLite 3\.33\.0, and this Python has 3\.32\.3"):
        await store.start()
    assert not store.path.exists()


# --- a file that is replaced while it is in use -----------------------------------------------------------------------


def backup(path: Path) -> Path:
    """Return a copy of the database file."""
    copy = path.with_name("backup.db")
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def restore(copy: Path, path: Path) -> None:
    for log in ("-wal", "-shm"):
        path.with_name(path.name + log).unlink(missing_ok=True)
    copy.replace(path)


@pytest.mark.asyncio
async def test_every_holder_of_a_file_that_is_replaced_opens_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    visits = [visit(seq, {"page": "cart", "n": seq}) for seq in range(1, 9)]
    config = ViewConfig.parse("shop/visits=shop/ipv:page")
    async with (
        SqliteUploadStore(path) as store,
        SqliteUploadStore(path) as gateway,
        SqliteUploadStore(path) as reader,
        asyncio.timeout(60),
    ):
        await store.accept(visits[:3])
        copy = backup(path)
        await store.accept(visits[3:])
        view = FeatureView(config, gateway)
        while await view.refresh():
            pass
        assert view.latest({"page": "cart"})["n"] == 8
        consumer = reader.consume("g", poll_s=0.01)
        late = await anext(consumer)
        assert len(late) == 8

        restore(copy, path)
        assert await gateway.count() == 3
        while await view.refresh():
            pass
        assert view.latest({"page": "cart"})["n"] == 3
        assert not await late.commit()  # a batch of the file before: its positions are other uploads' now
        assert await store.acked("d", "e") == 3
        assert (await store.resume(Hello("d", "e", "", acked=3))).seq == 3
        new = [visit(seq, {"page": "cart", "n": -seq}) for seq in range(4, 7)]
        assert (await store.accept(new)).fresh == new
        used = list[Received]()
        while len(used) < 6:
            batch = await anext(consumer)
            used += batch.uploads
            assert await batch.commit()
        assert used == [*visits[:3], *new]
        while await view.refresh():
            pass
        assert view.latest({"page": "cart"})["n"] == -6
        assert (store.generation, gateway.generation, reader.generation) == (1, 1, 1)
        await consumer.close()
    async with SqliteUploadStore(path) as store:
        assert await store.count() == 6


@pytest.mark.asyncio
async def test_a_removed_file_stores_nothing_until_it_is_back(tmp_path: Path) -> None:
    path, away = tmp_path / "uploads.db", tmp_path / "away.db"
    async with SqliteUploadStore(path) as store:
        await store.accept([received(1)])
        path.rename(away)
        for call in (store.accept([received(2)]), store.count()):
            with pytest.raises(IngestError, match="was removed while it was in use; put it back") as raised:
                await call
            assert raised.value.may_pass
        with pytest.raises(IngestError, match="was removed"):
            await store.reopen()
        assert not path.exists()  # an empty one would have every device record losses
        away.rename(path)
        await store.reopen()
        assert (await store.accept([received(2)])).fresh == [received(2)]
        assert await store.count() == 2


@pytest.mark.asyncio
async def test_the_log_of_a_replaced_file_is_not_applied_to_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    async with SqliteUploadStore(path) as store:
        await store.accept([received(1)])
        copy = backup(path)
        await store.accept([received(seq) for seq in range(2, 400)])
        copy.replace(path)  # uploads.db-wal stays, with changes of the file before
        with pytest.raises(IngestError, match=r"uploads\.db-wal and .*uploads\.db-shm of the file before it") as raised:
            await store.accept([received(400)])
        assert raised.value.may_pass
        with pytest.raises(IngestError, match="remove them"):
            await store.reopen()
        for log in ("-wal", "-shm"):
            path.with_name(path.name + log).unlink()
        await store.reopen()
        assert await store.acked("d", "e") == 1
        assert (await store.accept([received(2)])).fresh == [received(2)]
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.asyncio
async def test_the_log_of_a_replaced_file_behind_a_symbolic_link_is_not_applied_either(tmp_path: Path) -> None:
    path, file = tmp_path / "uploads.db", tmp_path / "disk" / "data.db"
    file.parent.mkdir()
    path.symlink_to(file)
    async with SqliteUploadStore(path) as store:
        await store.accept([received(1)])
        copy = backup(file)
        await store.accept([received(seq) for seq in range(2, 400)])
        copy.replace(file)  # disk/data.db-wal stays
        with pytest.raises(IngestError, match=r"data\.db-wal and .*data\.db-shm of the file before it"):
            await store.accept([received(400)])
        for log in ("-wal", "-shm"):
            file.with_name(file.name + log).unlink()
        assert await store.acked("d", "e") == 1


@pytest.mark.asyncio
async def test_a_file_that_is_replaced_while_it_is_opened_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "uploads.db"
    async with SqliteUploadStore(path) as store:
        await store.accept([received(1)])
        copy = backup(path)
        await store.accept([received(2)])
    check = SqliteConnection._check_format

    def replace_first(connection: SqliteConnection, database: sqlite3.Connection) -> int:
        if copy.exists():
            restore(copy, path)
        return check(connection, database)

    monkeypatch.setattr(SqliteConnection, "_check_format", replace_first)
    store = SqliteUploadStore(path)
    with pytest.raises(IngestError, match="was replaced while it was opened") as raised:
        await store.start()
    assert raised.value.may_pass
    async with store:
        assert await store.acked("d", "e") == 1
        assert (await store.accept([received(2)])).fresh == [received(2)]


@pytest.mark.asyncio
async def test_a_folder_that_cannot_be_looked_at_is_an_error_of_the_store_that_may_pass(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    store = SqliteUploadStore(folder / "uploads.db")
    folder.write_text("a file")
    with pytest.raises(IngestError, match="File exists"):
        await store.start()
    folder.unlink()
    async with store:
        await store.accept([received(1)])
        folder.rename(tmp_path / "away")
        folder.write_text("a file")
        for call in (lambda: store.accept([received(2)]), store.count, store.reopen):
            with pytest.raises(IngestError, match="Not a directory") as raised:
                await call()
            assert raised.value.may_pass
        folder.unlink()
        (tmp_path / "away").rename(folder)
        await store.reopen()
        assert (await store.accept([received(2)])).fresh == [received(2)]


@pytest.mark.asyncio
async def test_a_closed_store_answers_no_query(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    store = SqliteUploadStore(path)
    async with store:
        await store.accept([received(1)])
        assert await store.count() == 1
    with pytest.raises(IngestError, match="is not open"):
        await store.count()
    assert not path.with_name("uploads.db-wal").exists()


@pytest.mark.asyncio
async def test_a_store_waits_for_another_process_that_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # locked like at the first statement that makes a log
        store = SqliteUploadStore(path)
        starting = asyncio.create_task(store.start())
        await asyncio.sleep(0.1)
        assert not starting.done()
        other.execute("ROLLBACK")
        await starting
        assert (await store.accept([received(1)])).fresh == [received(1)]
        await store.close()
