"""The PostgreSQL store: the contract, on a real server, and the faults of one."""

import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.pipeline.ingest.upload_samples import MakeStore, RefuseTopic, received, stored, until
from tests.pipeline.ingest.upload_store_contract import UploadStoreContract
from tests.sim.postgres_programs import postgres_program
from tests.sim.postgres_proxy import PostgresProxy
from tests.sim.postgres_server import PostgresServer, postgres_server
from walle.pipeline.ingest.pump import PumpStatus, pump
from walle.pipeline.ingest.store.upload_store import IngestError, UploadStore
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received


class TestPostgresUploadStore(UploadStoreContract):
    @pytest.fixture
    def make_store(self, postgres: PostgresServer) -> MakeStore:
        self.dsn = postgres.make_database()
        return lambda: open_uploads(self.dsn, create=True)

    @pytest.fixture
    def refuse_topic(self, make_store: MakeStore) -> RefuseTopic:
        def refuse(topic: str) -> None:
            run(self.dsn, f"ALTER TABLE walle.uploads ADD CONSTRAINT refused_by_a_rule CHECK (topic <> '{topic}')")

        return refuse


def run(dsn: str, statement: str) -> None:
    subprocess.run(
        [postgres_program("psql"), "-q", "-v", "ON_ERROR_STOP=1", dsn, "-c", statement], check=True, capture_output=True
    )


@pytest.mark.asyncio
async def test_a_database_of_format_1_gets_the_tables_that_it_lacks(postgres: PostgresServer) -> None:
    dsn = postgres.make_database()
    async with open_uploads(dsn, create=True) as store:
        await store.accept([received(1)])
    drop = "ALTER TABLE walle.uploads DROP COLUMN version; DROP TABLE walle.merged_losses; DROP TABLE walle.refused;"
    drop += " UPDATE walle.head SET format = 1"
    await asyncio.to_thread(run, dsn, drop)
    async with open_uploads(dsn, create=True) as store:
        assert await store.refused_count() == 0
        assert await stored(store) == [received(1)]


@pytest.mark.asyncio
async def test_uploads_of_a_database_of_format_2_have_unknown_versions_and_those_after_it_have_theirs(
    postgres: PostgresServer,
) -> None:
    dsn = postgres.make_database()
    async with open_uploads(dsn, create=True) as store:
        await store.accept([received(1)._replace(version="v9")])
    drop = "ALTER TABLE walle.uploads DROP COLUMN version; ALTER TABLE walle.merged_losses DROP COLUMN open_reports;"
    drop += " UPDATE walle.head SET format = 2"
    await asyncio.to_thread(run, dsn, drop)
    async with open_uploads(dsn, create=True) as store:
        later = [received(2)._replace(version="v1"), received(3)]
        await store.accept(later)
        assert await stored(store) == [received(1), *later]


@pytest.mark.asyncio
async def test_a_position_that_is_taken_is_a_fault_of_the_database_and_not_of_the_upload(
    postgres: PostgresServer,
) -> None:
    dsn = postgres.make_database()
    async with open_uploads(dsn, create=True) as store:
        await store.accept([received(1)])
        await asyncio.to_thread(run, dsn, "UPDATE walle.head SET position = 0")
        with pytest.raises(IngestError, match="uploads_pkey") as raised:
            await store.accept([received(2)])
        assert not raised.value.of_contents


class Source:
    """A tunnel server's side of the pump: one device that sends again what was not acknowledged."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.acked = 0
        self.putbacks = 0

    async def arrived(self, limit: int) -> list[Received]:
        await asyncio.sleep(0.002)
        await until(lambda: self.acked < self.total, 1000)
        upto = min(self.total, self.acked + 20)
        return [received(seq, payload=bytes(200)) for seq in range(self.acked + 1, upto + 1)]

    def put_back(self, batch: list[Received]) -> None:
        self.putbacks += 1

    def acknowledge_all(self, highest: Mapping[tuple[str, str], int]) -> None:
        for seq in highest.values():
            assert seq >= self.acked
            self.acked = seq

    async def disconnect(self, device_id: str, epoch: str, code: str, message: str, retry_s: float) -> None:
        raise AssertionError((code, message))


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    with postgres_server() as server:
        yield server


@pytest.mark.asyncio
@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_connection_that_is_cut_at_the_commit_loses_and_doubles_nothing(
    postgres: PostgresServer, short_folder: Path, cut: str
) -> None:
    database = postgres.make_database()
    proxy = PostgresProxy(short_folder, postgres)
    async with (
        proxy.serving(),
        open_uploads(database.replace(str(postgres.folder), str(short_folder)), create=True) as store,
    ):
        await store.accept([received(1)])
        proxy.cut = cut
        with pytest.raises(IngestError) as raised:
            await store.accept([received(2), received(3)])
        assert raised.value.may_pass
        assert proxy.cuts == 1
        async with open_uploads(database, create=True) as direct:
            assert await direct.acked("d", "e") == (3 if cut == "after" else 1)
        accepted = await store.accept([received(2), received(3), received(4)])
        assert accepted.highest == {("d", "e"): 4}
        assert [row.seq for row in await stored(store)] == [1, 2, 3, 4]


# --- restarts and kills -----------------------------------------------------------------------------------------------


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_server_that_is_killed_and_restarted_under_load_loses_and_doubles_nothing(
    own_server: PostgresServer,
) -> None:
    dsn, rng, source, status = own_server.make_database(), random.Random(4), Source(10**6), PumpStatus()
    failures = 0
    used = list[Received]()

    async def consume(store: UploadStore) -> None:
        async for batch in store.consume("g", batch_limit=50):
            used.extend(batch.uploads)
            await batch.commit()

    async with open_uploads(dsn, create=True) as store, asyncio.timeout(100):
        pumping = asyncio.create_task(pump(source, store, retry_s=0.05, status=status))
        consuming = asyncio.create_task(consume(store))
        for fault in ("terminate", "immediate", "terminate", "kill", "fast"):
            goal = source.acked + rng.randrange(50, 150)
            while source.acked < goal:
                await asyncio.sleep(0.005)
                assert not pumping.done(), pumping.exception()
                assert not consuming.done(), consuming.exception()
            if fault == "terminate":
                terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'uploads%'"
                await asyncio.to_thread(own_server.execute, terminate)
            elif fault == "kill":
                own_server.kill()
                await asyncio.to_thread(own_server.start_again)
            else:
                await asyncio.to_thread(own_server.stop, fault)
                await asyncio.sleep(0.2)
                await asyncio.to_thread(own_server.start)
        failures = status.total_failures
        source.total = source.acked + 100
        await until(lambda: source.acked == source.total)
        await until(lambda: {row.seq for row in used} == set(range(1, source.total + 1)))
        pumping.cancel()
        consuming.cancel()
        await asyncio.gather(pumping, consuming, return_exceptions=True)
        assert failures >= 3
        assert [row.seq for row in await stored(store)] == list(range(1, source.total + 1))


@pytest.fixture
def small_disk(own_server: PostgresServer) -> Iterator[Path]:
    """A file system of 8 MB that the server may write."""
    disk = own_server.folder / "small"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        data = disk / "data"
        data.mkdir()
        shutil.chown(data, "postgres")
        own_server.execute(f"CREATE TABLESPACE small LOCATION '{data}'")
        yield disk
        own_server.stop("immediate")
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.asyncio
async def test_a_full_disk_is_waited_for(own_server: PostgresServer, small_disk: Path) -> None:
    dsn = own_server.make_database()
    async with open_uploads(f"{dsn}&default_tablespace=small", create=True) as store, asyncio.timeout(60):
        source, status = Source(100), PumpStatus()
        pumping = asyncio.create_task(pump(source, store, retry_s=0.05, status=status))
        await until(lambda: source.acked == 100)
        filler = small_disk / "filler"
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
                file.flush()
        source.total = 3000
        await until(lambda: status.failures >= 3)
        assert "No space left on device" in status.error
        assert not status.is_storing
        filler.unlink()
        await until(lambda: source.acked == 3000)
        assert status.error == ""
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
        assert [row.seq for row in await stored(store)] == list(range(1, 3001))


# --- errors of the set-up ---------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_database_that_cannot_be_used_is_named_without_its_password(postgres: PostgresServer) -> None:
    secret = f"postgresql://postgres:hush@/nowhere?host={postgres.folder}"
    with pytest.raises(IngestError, match=r"postgresql://postgres@/nowhere.*does not exist") as raised:
        async with open_uploads(secret, create=True):
            pass
    assert "hush" not in str(raised.value)
    assert not raised.value.may_pass
    with pytest.raises(IngestError) as raised:
        async with open_uploads("postgresql://postgres@/x?host=/nowhere", create=True):
            pass
    assert raised.value.may_pass  # the server may start later
    newer = postgres.make_database()
    async with open_uploads(newer, create=True) as store:
        await store.accept([received(1)])
    await asyncio.to_thread(
        subprocess.run,
        [postgres_program("psql"), "-q", newer, "-c", "UPDATE walle.head SET format = 7"],
        check=True,
        capture_output=True,
    )
    with pytest.raises(IngestError, match="has format 7"):
        async with open_uploads(newer, create=True):
            pass


@pytest.mark.asyncio
async def test_a_database_that_cannot_hold_every_text_is_refused(postgres: PostgresServer) -> None:
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with pytest.raises(IngestError, match="encoding LATIN1; make one with ENCODING 'UTF8'"):
        async with open_uploads(postgres.dsn("latin"), create=True):
            pass


def test_a_missing_driver_is_named() -> None:
    code = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from walle.pipeline import open_uploads\n"
        "open_uploads('postgresql://localhost/x', create=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = "asyncpg is missing; keep uploads in a file, or install it with: pip install '"
    assert f"IngestError: received uploads in PostgreSQL: {expected}" in done.stderr
