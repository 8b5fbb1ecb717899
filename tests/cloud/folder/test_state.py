"""A cloud whose state is in PostgreSQL: nothing is in files, and a second node is a standby."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer
from walle.base.clock import SystemClock
from walle.cloud import CloudHome
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.state import node_state
from walle.cloud.folder.state_place import choose_database, read_database
from walle.cloud.nodes.monitor import MonitorNode
from walle.deploy.releases.release import Release
from walle.deploy.releases.request import ReleaseRequest
from walle.errors import ConfigError
from walle.protocol import Outcome, OutcomeBatch, OutcomeKind
from walle.store.lease import MONITOR, RELEASES

RELEASE = Release(
    id="ipv-v1-1",
    number=1,
    request=ReleaseRequest(scenario="shop", task="ipv", version="v1"),
    created_s=5.0,
    updated_s=5.0,
)
OUTCOME = Outcome(task="shop/ipv", version="v1", release="r1", kind=OutcomeKind.RUN, ok=3, failed=1)
CLOCK = SystemClock()


@pytest.mark.asyncio
async def test_state_is_in_the_database_that_the_folder_names(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn = postgres.make_database()
    choose_database(tmp_path, dsn)
    home = CloudHome(tmp_path)
    with contextlib.closing(home):
        async with node_state(home, RELEASES, CLOCK) as state:
            await state.journal.record(RELEASE, None, ())
        assert await asyncio.to_thread(home.releases) == [RELEASE]
        await home.audit.record("release.created", who="test")
        assert (await asyncio.to_thread(home.audit.verified)).records == 1
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["database.toml"]


def test_a_folder_with_state_in_files_is_not_started_with_a_database(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn = postgres.make_database()
    CloudHome(tmp_path).audit.append("release.created", who="test")
    with pytest.raises(ConfigError, match=r"move them first: walle cloud move-state .* --to postgresql://"):
        choose_database(tmp_path, dsn)
    assert read_database(tmp_path) == ""
    other = tmp_path / "other"
    secret = "postgresql://walle:hush@db.example/walle"
    assert choose_database(other, secret) == secret
    assert "hush" not in (other / "database.toml").read_text()
    assert choose_database(other, "") == "postgresql://walle@db.example/walle"
    with pytest.raises(ConfigError, match=r"has its state in postgresql://walle@db\.example/walle, not in") as raised:
        choose_database(other, "postgresql://walle:hush@elsewhere/walle")
    assert "hush" not in str(raised.value)


@pytest.mark.asyncio
async def test_a_monitor_whose_lease_is_taken_stops_and_saves_nothing(
    tmp_path: Path, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    dsn = postgres.make_database()
    node = MonitorNode(CloudConfig(folder=tmp_path, database=dsn))
    monitor = await node.start()
    await monitor.unwatch("r1")  # evidence that is not saved yet
    from walle.store.postgres_database import PostgresDatabase

    async with PostgresDatabase(dsn) as database:
        await database.read("UPDATE walle.leases SET holder = 'thief', fence = fence + 1 RETURNING 1")
        async with asyncio.timeout(60):
            await node.lost.wait()
        await node.close()
        assert await database.read("SELECT * FROM walle.evidence") == []
        assert [tuple(row) for row in await database.read("SELECT holder FROM walle.leases")] == [("thief",)]
    assert "lease 'monitor' is lost: thief has it" in caplog.text
    assert "the monitor stops" in caplog.text


@pytest.mark.asyncio
async def test_a_second_node_waits_and_continues_with_what_the_first_has_saved(
    tmp_path: Path, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    dsn = postgres.make_database()
    nodes = [MonitorNode(CloudConfig(folder=tmp_path / name, database=dsn)) for name in "ab"]
    first = await nodes[0].start()
    waiting = asyncio.create_task(nodes[1].start())
    async with asyncio.timeout(60):
        while "standby" not in caplog.text:
            await asyncio.wait([waiting], timeout=0.01)
    await first.unwatch("r1")
    await first.take(OutcomeBatch("d1", "b1", (OUTCOME,)))
    await nodes[0].close()
    async with asyncio.timeout(60):
        second = await waiting
    totals = await second.totals("r1")
    assert (totals.ok, totals.failed) == (3, 1)
    await second.take(OutcomeBatch("d1", "b1", (OUTCOME,)))
    assert second.duplicates == 1
    await nodes[1].close()
    async with node_state(CloudHome(tmp_path, database=dsn), MONITOR, CLOCK) as state:
        assert state.keeper.grant.fence == 3
