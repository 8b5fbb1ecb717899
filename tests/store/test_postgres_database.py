"""A cloud's database: writes take effect once, whatever is cut; a server that restarts; migrations; no password."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.ingest.upload_samples import received
from tests.sim.postgres_proxy import PostgresProxy
from tests.sim.postgres_server import PostgresServer, postgres_server
from walle.cloud.api.releases import error_status

pytest.importorskip("asyncpg", reason="asyncpg is not installed")

from walle.deploy.releases.journal import Journal
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.ingest.stores import open_uploads
from walle.store.postgres_connection import TRY_AGAIN_S
from walle.store.postgres_database import DatabaseError, PostgresDatabase, without_password
from walle.store.postgres_schema import MIGRATIONS, Migration
from walle.store.sync_database import SyncDatabase


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    with postgres_server() as server:
        yield server


@pytest.mark.asyncio
@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_write_whose_commit_is_cut_takes_effect_once(
    postgres: PostgresServer, short_folder: Path, cut: str
) -> None:
    dsn = postgres.make_database()
    proxy = PostgresProxy(short_folder, postgres)
    async with (
        proxy.serving(),
        PostgresDatabase(dsn.replace(str(postgres.folder), str(short_folder)), connections=1) as database,
    ):
        journal = Journal(database)
        assert await journal.draw("serial", 3) == 1
        proxy.cut = cut
        assert await journal.draw("serial", 3) == 4
        assert proxy.cuts == 1
        assert await journal.draw("serial") == 7


@pytest.mark.asyncio
async def test_writes_wait_for_a_server_that_is_killed_and_starts_again(own_server: PostgresServer) -> None:
    async with PostgresDatabase(own_server.dsn(), retry_s=120) as database:
        journal = Journal(database)
        drawn: list[int] = []
        was_killed = asyncio.Event()

        async def draw() -> None:
            while not was_killed.is_set():
                drawn.append(await journal.draw("serial"))

        writers = [asyncio.create_task(draw()) for _ in range(3)]
        for _ in range(2):
            seen = len(drawn)
            while len(drawn) < seen + 20:
                await asyncio.wait(writers, timeout=0.01)
            own_server.kill()
            await asyncio.to_thread(own_server.start_again)
        was_killed.set()
        await asyncio.gather(*writers)
        assert sorted(drawn) == list(range(1, len(drawn) + 1))


@pytest.mark.asyncio
async def test_a_write_that_cannot_be_made_is_reported(own_server: PostgresServer) -> None:
    async with PostgresDatabase(own_server.dsn(), retry_s=0.2) as database:
        own_server.stop()
        with pytest.raises(DatabaseError) as raised:
            await Journal(database).draw("serial")
        assert error_status(raised.value) == 503
        own_server.start()
        await asyncio.sleep(TRY_AGAIN_S)  # the database is not asked again before
        assert await Journal(database).draw("serial") == 1


@pytest.mark.night
@pytest.mark.asyncio
async def test_calls_end_in_their_time_at_a_stopped_server_and_later_ones_at_once(own_server: PostgresServer) -> None:
    async with asyncio.timeout(120), PostgresDatabase(own_server.dsn(), retry_s=2.0, connections=2) as database:
        journal = Journal(database)
        assert await journal.draw("serial") == 1
        own_server.freeze()
        try:
            calls = [journal.draw("serial") for _ in range(6)]  # more than it has connections
            failed = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(one, DatabaseError) and one.may_pass for one in failed), failed
            assert error_status(failed[0]) == 503  # type: ignore[arg-type]
            began_s = time.monotonic()
            refused = await asyncio.gather(*(journal.draw("serial") for _ in range(50)), return_exceptions=True)
            assert sum("has not answered for" in str(one) for one in refused) >= 49
            assert time.monotonic() - began_s < 60
        finally:
            own_server.thaw()
        await asyncio.sleep(TRY_AGAIN_S)
        drawn = await journal.draw("serial")  # what was sent to the stopped server may have been written
        assert 2 <= drawn <= 8


@pytest.mark.asyncio
async def test_a_database_that_is_hurried_ends_the_calls_that_wait(own_server: PostgresServer) -> None:
    async with asyncio.timeout(120):
        database = await PostgresDatabase(own_server.dsn()).__aenter__()
        own_server.freeze()
        waiting = asyncio.create_task(database.read("SELECT 1"))
        await asyncio.sleep(0.1)
        database.hurry(0.2)
        with pytest.raises(DatabaseError):
            await waiting
        with pytest.raises(DatabaseError):
            await Journal(database).draw("serial")
        await database.__aexit__()


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_fail_over_to_a_standby_loses_nothing_that_both_had() -> None:
    with postgres_server() as first, postgres_server(standby_of=first) as second:
        first.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        first.execute("SELECT pg_reload_conf()")
        both = f"postgresql://postgres@/postgres?host={first.folder},{second.folder}&target_session_attrs=read-write"
        async with (
            asyncio.timeout(120),
            PostgresDatabase(both, retry_s=100) as database,
            open_uploads(both, create=True) as uploads,
        ):
            journal = Journal(database)
            drawn = [await journal.draw("serial") for _ in range(5)]
            await uploads.accept([received(seq) for seq in (1, 2)])
            first.kill()
            drawing = asyncio.create_task(journal.draw("serial"))
            await asyncio.sleep(1.0)
            second.promote()
            assert await drawing == len(drawn) + 1
            accepted = None
            while accepted is None:
                with contextlib.suppress(IngestError):  # a connection to the first server may be left
                    accepted = await uploads.accept([received(seq) for seq in (1, 2, 3)])
            assert [one.seq for one in accepted.fresh] == [3]
            assert await uploads.count() == 3


@pytest.mark.asyncio
async def test_a_server_that_became_read_only_is_retried_by_a_new_connection(
    postgres: PostgresServer,
) -> None:
    dsn = postgres.make_database()
    name = dsn.partition("?")[0].rpartition("/")[2]
    async with PostgresDatabase(dsn, retry_s=60, connections=1) as database:
        assert await Journal(database).draw("serial") == 1
        await database.read("SELECT set_config('default_transaction_read_only', 'on', FALSE)")
        assert await Journal(database).draw("serial") == 2
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await database.read("SELECT set_config('default_transaction_read_only', 'on', FALSE)")
        drawing = asyncio.create_task(Journal(database).draw("serial"))
        await asyncio.sleep(0.5)
        assert not drawing.done()
        postgres.execute(f"ALTER DATABASE {name} RESET ALL")
        assert await drawing == 3


def test_a_database_that_is_closed_ends_the_calls_of_other_threads(own_server: PostgresServer) -> None:
    """Else their threads wait without end, and the process with them."""
    database = SyncDatabase(own_server.dsn())
    assert database.read("SELECT 1")[0][0] == 1
    own_server.freeze()
    failed: list[Exception] = []

    def read() -> None:
        try:
            database.read("SELECT 2")
        except DatabaseError as error:
            failed.append(error)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    database.close()
    for thread in threads:
        thread.join(60)
    assert len(failed) == 4
    own_server.thaw()
    assert database.read("SELECT 3")[0][0] == 3
    database.close()


@pytest.mark.asyncio
async def test_steps_of_the_schema_run_once_and_in_order(postgres: PostgresServer) -> None:
    dsn = postgres.make_database()
    next_ = Migration(
        len(MIGRATIONS) + 1, "colours", "ALTER TABLE walle.releases ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'"
    )
    broken = Migration(len(MIGRATIONS) + 2, "broken", "CREATE TABLE walle.half (x INT); SELECT * FROM nowhere")
    async with PostgresDatabase(dsn) as database:
        await database.read("INSERT INTO walle.releases VALUES ('r', 1, '{}') RETURNING 1")
    for _ in range(2):
        async with PostgresDatabase(dsn, migrations=(*MIGRATIONS, next_)) as database:
            assert [tuple(row) for row in await database.read("SELECT * FROM walle.releases")] == [
                ("r", 1, "{}", "red")
            ]
            numbers = await database.read("SELECT number, name FROM walle.migrations ORDER BY number")
            assert [row[0] for row in numbers] == [one.number for one in (*MIGRATIONS, next_)]
    with pytest.raises(DatabaseError, match="nowhere"):
        await PostgresDatabase(dsn, migrations=(*MIGRATIONS, next_, broken)).__aenter__()
    async with PostgresDatabase(dsn, migrations=(*MIGRATIONS, next_)) as database:
        assert (await database.read("SELECT to_regclass('walle.half')"))[0][0] is None
    with pytest.raises(
        DatabaseError, match=f"version {next_.number}, this walle knows {len(MIGRATIONS)}: run the newer walle"
    ):
        await PostgresDatabase(dsn).__aenter__()


@pytest.mark.asyncio
async def test_several_processes_may_make_the_schema_at_once(postgres: PostgresServer) -> None:
    dsn = postgres.make_database()
    async with contextlib.AsyncExitStack() as undo:
        opening = (undo.enter_async_context(PostgresDatabase(dsn, connections=1)) for _ in range(6))
        databases = await asyncio.gather(*opening)
        assert {len(await one.read("SELECT * FROM walle.migrations")) for one in databases} == {len(MIGRATIONS)}


@pytest.mark.asyncio
async def test_a_database_of_the_version_before_is_brought_up_to_date_and_refused_by_that_version(
    postgres: PostgresServer,
) -> None:
    dsn, first = postgres.make_database(), MIGRATIONS[:1]
    async with PostgresDatabase(dsn, migrations=first) as database:
        assert await Journal(database).draw("serial", 5) == 1
        assert (await database.read("SELECT to_regclass('walle.identities')"))[0][0] is None
    async with PostgresDatabase(dsn) as database:
        assert await Journal(database).draw("serial") == 6
        for table in ("identities", "enrolment_tokens", "revocations", "exclusive_files", "group_files"):
            assert await database.read(f"SELECT * FROM walle.{table}") == []
    with pytest.raises(DatabaseError, match=r"version 2, this walle knows 1: run the newer walle"):
        await PostgresDatabase(dsn, migrations=first).__aenter__()


@pytest.mark.asyncio
async def test_errors_name_the_database_without_its_password(postgres: PostgresServer) -> None:
    secret = f"postgresql://postgres:hu%24h@/nowhere?host={postgres.folder}&password=hu$h2"
    with pytest.raises(DatabaseError, match=r"postgresql://postgres@/nowhere\?host=.*does not exist") as raised:
        await PostgresDatabase(secret).__aenter__()
    assert not [one for one in ("hu$h", "hu%24h") if one in str(raised.value)]  # "hu" may be in the folder's name
    assert (
        without_password("postgresql://me:x@db:5432/a?sslmode=require") == "postgresql://me@db:5432/a?sslmode=require"
    )
    with pytest.raises(DatabaseError, match="is not open"):
        await PostgresDatabase(secret).read("SELECT 1")
    latin = "latin_state"
    postgres.execute(f"CREATE DATABASE {latin} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with pytest.raises(DatabaseError, match="make one with ENCODING 'UTF8'"):
        await PostgresDatabase(postgres.dsn(latin)).__aenter__()
