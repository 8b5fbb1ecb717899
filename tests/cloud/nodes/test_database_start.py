"""A cloud that starts while its database is away, or is one that it cannot use."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_server import WITH_PASSWORD, PostgresServer, free_port, postgres_server
from tests.sim.program import Programs
from walle.cloud import CloudConfig
from walle.cloud.nodes.database_start import wait_for_databases
from walle.errors import WalleError

pytest.importorskip("asyncpg", reason="asyncpg is not installed")

LIMIT_S = 60.0


@pytest.fixture
def start() -> Iterator[Programs]:
    with Programs() as programs:
        yield programs


def _named(url: str, *, user: str = "postgres", database: str = "") -> str:
    """Return the URL with another role, or database."""
    changed = url.replace("//postgres@", f"//{user}@")
    return changed.replace("@/uploads_", f"@/{database}_") if database else changed


@pytest.mark.asyncio
async def test_a_permanent_error_of_the_database_ends_the_start_with_the_remedy(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    said: list[str] = []

    async def refused(url: str) -> str:
        with pytest.raises(WalleError) as raised:
            async with asyncio.timeout(LIMIT_S):
                await wait_for_databases(CloudConfig(folder=tmp_path, database=url), said.append)
        assert "hush" not in str(raised.value)
        assert str(postgres.folder) in str(raised.value)
        return str(raised.value)

    dsn = postgres.make_database()
    name = dsn.partition("?")[0].rpartition("/")[2]
    postgres.execute(f"CREATE ROLE {WITH_PASSWORD} LOGIN PASSWORD 'right'; CREATE ROLE stranger LOGIN")
    try:
        wrong = await refused(_named(dsn, user=f"{WITH_PASSWORD}:hush"))
        assert f'password authentication failed for user "{WITH_PASSWORD}"; give the password in PGPASSWORD' in wrong
        unknown = await refused(_named(dsn, database="absent"))
        assert "does not exist; make it: CREATE DATABASE name ENCODING 'UTF8'" in unknown
        no_right = await refused(_named(dsn, user="stranger"))
        assert "permission denied for database" in no_right
        assert no_right.endswith("let the role make a schema: GRANT CREATE ON DATABASE name TO role")
        postgres.execute(f"GRANT CREATE ON DATABASE {name} TO {WITH_PASSWORD}")
        config = CloudConfig(folder=tmp_path, database=_named(dsn, user=f"{WITH_PASSWORD}:right"))
        await wait_for_databases(config, said.append)
        postgres.execute("INSERT INTO walle.migrations VALUES (999, 'of later')", name)
        assert "its schema has version 999, this walle knows" in await refused(dsn)
        other = CloudConfig(folder=tmp_path, uploads=_named(dsn, database="absent"))
        with pytest.raises(WalleError, match="does not exist; make it"):
            await wait_for_databases(other, said.append)
    finally:
        postgres.execute(f"DROP OWNED BY {WITH_PASSWORD} CASCADE", name)
        postgres.execute(f"DROP ROLE {WITH_PASSWORD}, stranger")
    assert said == []


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_start_waits_for_a_server_that_is_stopped_and_for_a_role_with_too_many_connections() -> None:
    with postgres_server() as server:
        server.execute("CREATE ROLE walle LOGIN CONNECTION LIMIT 0")
        server.execute("CREATE DATABASE state OWNER walle")
        said: list[str] = []
        config = CloudConfig(folder=server.folder, database=server.dsn("state", user="walle"))
        waiting = asyncio.create_task(wait_for_databases(config, said.append))

        async def until_said(what: str) -> None:
            async with asyncio.timeout(LIMIT_S):
                while not any(what in line for line in said):
                    assert not waiting.done()
                    await asyncio.wait([waiting], timeout=0.05)

        await until_said("too many connections")
        server.freeze()
        await until_said("does not answer within 4 s")
        server.thaw()
        server.execute("ALTER ROLE walle CONNECTION LIMIT -1")
        async with asyncio.timeout(LIMIT_S):
            await waiting
        assert said[-1] == "the database answers"
        assert all(line.startswith("waiting for the cloud's database postgresql://walle@/state") for line in said[:-1])


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(240)
def test_the_command_starts_before_its_database_and_continues_once_it_is_there(tmp_path: Path, start: Programs) -> None:
    with postgres_server(port=free_port()) as server:
        server.stop()
        arguments = ["cloud", "up", str(tmp_path / "cloud"), f"--database={server.dsn()}", "--http-port=0"]
        cloud = start(*arguments, "--tunnel-port=0", "--plain-http", "--json")
        waiting = cloud.wait_for(lambda line: "waiting" in line)["waiting"]
        assert waiting.startswith(f"waiting for the cloud's database {server.dsn()}: ")
        assert "Connect call failed" in waiting
        began_s = time.monotonic()
        cloud.process.send_signal(signal.SIGINT)
        assert cloud.end() == 130
        assert time.monotonic() - began_s < LIMIT_S / 4
        again = start(*arguments, "--tunnel-port=0", "--plain-http", "--json")
        again.wait_for(lambda line: "waiting" in line)
        server.start()
        again.wait_for(lambda line: "url" in line)
        again.process.send_signal(signal.SIGTERM)
        assert again.end() == 0
