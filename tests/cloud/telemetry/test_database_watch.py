"""The watch of a cloud's database: outages, leases, a full disk."""

import asyncio
from pathlib import Path

import pytest

from tests.sim.postgres_server import postgres_server
from tests.sim.shop_cloud import until
from walle.base.clock import SystemClock
from walle.cloud.folder.folder import CloudHome
from walle.cloud.telemetry.database_watch import DatabaseWatch

pytest.importorskip("asyncpg", reason="asyncpg is not installed")

from walle.store.postgres_connection import outage_of, without_password
from walle.store.postgres_database import PostgresDatabase
from walle.store.postgres_leases import PostgresLeases


@pytest.mark.night
@pytest.mark.asyncio
async def test_an_outage_is_shown_while_it_lasts(tmp_path: Path) -> None:
    with postgres_server() as server:
        dsn = server.dsn()
        watch = DatabaseWatch(CloudHome(tmp_path, database=dsn), SystemClock())
        running = asyncio.create_task(watch.run())

        async def has_leases() -> bool:
            return bool(await watch.leases())

        async with PostgresDatabase(dsn) as database:
            assert await PostgresLeases(database).acquire("monitor", "me", 60) is not None
        await until(has_leases)
        assert [metric.samples[0].value for metric in watch.metrics()][::2] == [1, 0]
        server.stop()
        await until(lambda: not watch.health()["ok"])
        assert watch.health()["away_s"] > 0
        assert await watch.leases() is None
        assert [metric.samples[0].value for metric in watch.metrics()][::2] == [0, 1]
        server.start()
        await until(lambda: bool(watch.health()["ok"]))
        assert await has_leases()
        assert watch.health()["error"] == ""
        outage_of(without_password(dsn)).full()
        assert watch.health()["error"] == "its disk is full"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
