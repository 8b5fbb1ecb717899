"""Connections to PostgreSQL: the host that takes writes, servers that do not answer, poolers, errors that may pass."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer, free_port, postgres_server

pytest.importorskip("asyncpg", reason="asyncpg is not installed")

import asyncpg

from walle.store.postgres_connection import (
    Connector,
    Outage,
    ServerError,
    check_pooling,
    close_pool,
    explained,
    hosts_of,
    is_away,
    lent,
    may_pass,
    open_pool,
    without_password,
)

LIMIT_S = 60.0


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://me:x@a/db", ["postgresql://me:x@a/db"]),
        ("postgresql:///db", ["postgresql:///db"]),
        (
            "postgresql://me:x@a:1,b:2/db?target_session_attrs=read-write&sslmode=require",
            ["postgresql://me:x@a:1/db?sslmode=require", "postgresql://me:x@b:2/db?sslmode=require"],
        ),
        ("postgresql://me@[::1]:1,b/db", ["postgresql://me@[::1]:1/db", "postgresql://me@b/db"]),
        (
            "postgresql://me@/db?host=/a,/b&port=1,2",
            ["postgresql://me@/db?host=/a&port=1", "postgresql://me@/db?host=/b&port=2"],
        ),
        (
            "postgresql://me@/db?host=a,b&port=5",
            ["postgresql://me@/db?host=a&port=5", "postgresql://me@/db?host=b&port=5"],
        ),
    ],
)
def test_a_url_names_hosts(url: str, hosts: list[str]) -> None:
    assert hosts_of(url) == hosts


def test_errors_are_classified() -> None:
    full, read_only = asyncpg.DiskFullError("full"), asyncpg.ReadOnlySQLTransactionError("read-only")
    many, wrong = asyncpg.TooManyConnectionsError("many"), asyncpg.InvalidPasswordError("wrong x&y")
    deadlock, refused = asyncpg.DeadlockDetectedError("deadlock"), ConnectionRefusedError(111, "refused")
    assert [may_pass(one) for one in (full, read_only, many, wrong, deadlock, refused)] == [1, 1, 1, 0, 1, 1]
    assert [is_away(one) for one in (full, read_only, many, wrong, deadlock, refused)] == [0, 1, 1, 0, 0, 1]
    assert not may_pass(ValueError("of a URL"))
    text = explained(wrong, "postgresql://me:x%26y@a/db")
    assert text == "wrong ***; give the password in PGPASSWORD, ~/.pgpass or the URL"
    assert without_password("postgresql:///db") == "postgresql:///db"
    assert without_password("postgresql://me:x@a,b/db?password=y&host=a,b") == "postgresql://me@a,b/db?host=a,b"
    of_key = "postgresql://me@a/db?sslkey=k.pem&sslpassword=hush"
    assert without_password(of_key) == "postgresql://me@a/db?sslkey=k.pem"
    assert explained(OSError("key hush"), of_key) == "key ***"


@contextlib.asynccontextmanager
async def _silent_listener() -> AsyncIterator[int]:
    """Listen and accept connections, and say nothing; give the port."""
    is_over = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.transport.abort()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            is_over.set()


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_host_that_says_nothing_is_passed_over(postgres: PostgresServer) -> None:
    """asyncpg alone spends all its time on it, and never asks the second host."""
    with postgres_server(port=free_port()) as server:
        async with _silent_listener() as port, asyncio.timeout(LIMIT_S):
            connector = Connector(f"postgresql://postgres@127.0.0.1:{port},127.0.0.1:{server.port}/postgres", {})
            for _ in range(2):  # the second time the other host is asked first
                connection = await connector()
                assert await connection.fetchval("SELECT inet_server_port()") == server.port
                await connection.close()
            alone = Connector(f"postgresql://postgres@127.0.0.1:{port}/postgres", {})
            with pytest.raises(TimeoutError, match="does not answer within"):
                await alone()


@pytest.fixture(scope="module")
def standby(postgres: PostgresServer) -> Iterator[PostgresServer]:
    with postgres_server(standby_of=postgres) as server:
        yield server


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_read_only_server_is_not_used(postgres: PostgresServer, standby: PostgresServer) -> None:
    with pytest.raises(ServerError, match="is a standby, which refuses writes until it is promoted") as raised:
        await Connector(standby.dsn(), {})()
    assert raised.value.may_pass
    both = f"postgresql://postgres@/postgres?host={standby.folder},{postgres.folder}"
    connection = await Connector(both, {"lock_timeout": "7s"})()
    assert not await connection.fetchval("SELECT pg_is_in_recovery()")
    assert await connection.fetchval("SHOW lock_timeout") == "7s"
    await connection.close()
    name = postgres.make_database()
    database = name.partition("?")[0].rpartition("/")[2]
    postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with pytest.raises(ServerError, match="default_transaction_read_only"):
        await Connector(name, {})()


@pytest.mark.asyncio
async def test_a_server_that_is_too_old_is_refused(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walle.store.postgres_connection.OLDEST", 990000)
    with pytest.raises(ServerError, match=r"PostgreSQL \d+ is too old; 99 or newer is needed") as raised:
        await Connector(postgres.dsn(), {})()
    assert not raised.value.may_pass


@pytest.mark.asyncio
async def test_a_call_ends_at_its_limit_where_the_server_is_stopped() -> None:
    with postgres_server() as server:
        pool = await open_pool(server.dsn(), connections=1, settings={})
        async with asyncio.timeout(LIMIT_S):
            async with lent(pool, LIMIT_S) as connection:
                await connection.fetchval("SELECT 1")
            server.freeze()
            try:
                began_s = time.monotonic()
                with pytest.raises(TimeoutError, match=r"does not answer within 0\.5 s"):
                    async with lent(pool, 0.5) as connection, connection.transaction():
                        await connection.fetchval("SELECT 2")
                with pytest.raises(TimeoutError):  # a new connection does not help
                    async with lent(pool, 0.5):
                        pass
                assert time.monotonic() - began_s < LIMIT_S / 2
            finally:
                server.thaw()
            async with lent(pool, LIMIT_S) as connection:
                assert await connection.fetchval("SELECT 3") == 3
            await close_pool(pool, 5.0)


@pytest.mark.asyncio
async def test_a_connection_is_not_used_again_after_a_cancelled_call_or_a_fail_over(postgres: PostgresServer) -> None:
    pool = await open_pool(postgres.make_database(), connections=1, settings={"application_name": "walle"})
    pids: list[int] = []

    async def used(query: str) -> None:
        async with lent(pool, LIMIT_S) as connection:
            assert await connection.fetchval("SHOW application_name") == "walle"
            pids.append(await connection.fetchval("SELECT pg_backend_pid()"))
            await connection.execute(query)

    await used("SELECT 1")
    await used("SELECT 1")
    with pytest.raises(asyncpg.UndefinedTableError):
        await used("SELECT * FROM nowhere")
    assert len(set(pids)) == 1
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await used("BEGIN READ ONLY; CREATE TABLE x (y INT)")
    await used("SELECT 1")
    assert len(set(pids)) == 2
    slow = asyncio.create_task(used("SELECT pg_sleep(100)"))
    async with asyncio.timeout(LIMIT_S):
        while len(pids) < 6:
            await asyncio.wait([slow], timeout=0.01)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        await used("SELECT 1")
    assert len(set(pids)) == 3
    await close_pool(pool, 5.0)


def test_an_outage_is_logged_once_and_tried_by_one_caller_at_a_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("walle.store.postgres_connection.time.monotonic", lambda: now_s)
    outage = Outage("there")
    outage.failed("a connection was lost")
    outage.answered()
    assert caplog.text == ""
    for _ in range(5):
        outage.failed("refused")
        now_s += 1.0
    assert caplog.text.count("there: refused; trying again") == 1
    assert outage.lasts_s() == 5.0
    assert [outage.may_try(), outage.may_try()] == [True, False]
    outage.failed("refused")
    assert not outage.may_try()
    now_s += 1.0
    assert outage.may_try()
    outage.answered()
    assert not outage.is_on
    assert caplog.text.count("there: answers again after 6.0 s") == 1


@contextlib.contextmanager
def _pgbouncer(server: PostgresServer, mode: str, database: str, folder: Path) -> Iterator[str]:
    """Run pgbouncer before a server, and give the URL of the database through it."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not on the path")
    port = free_port()
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n{database} = host={server.folder} dbname={database} user=postgres\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n"
    )
    settings.chmod(0o644)
    folder.chmod(0o755)
    with subprocess.Popen(
        [program, "-u", "postgres", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            deadline_s = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline_s:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.05)
            yield f"postgresql://postgres@127.0.0.1:{port}/{database}"
        finally:
            process.terminate()


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
async def test_a_pooler_is_used_by_sessions_and_refused_by_transactions(
    postgres: PostgresServer, short_folder: Path, mode: str
) -> None:
    from walle.pipeline.ingest.stores import open_uploads
    from walle.store.postgres_database import DatabaseError, PostgresDatabase

    database = postgres.make_database().partition("?")[0].rpartition("/")[2]
    with _pgbouncer(postgres, mode, database, short_folder) as url:
        async with asyncio.timeout(LIMIT_S):
            if mode == "session":
                await check_pooling(url)
                async with PostgresDatabase(url) as state, open_uploads(url, create=True) as uploads:
                    assert (await state.read("SHOW lock_timeout"))[0][0] == "10s"
                    assert await uploads.count() == 0
                return
            with pytest.raises(DatabaseError, match=r"gives each transaction another session \(pool_mode") as raised:
                await PostgresDatabase(url).check_pooling()
            assert not raised.value.may_pass
            assert raised.value.status == 503
