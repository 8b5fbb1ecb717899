"""A cloud of actors whose leases are in PostgreSQL, and another cloud that takes one of them."""

import asyncio
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer
from walle.actors.wiring import ActorCloud, close_ray, start_ray
from walle.cloud import CloudConfig

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
TAKEN = """
UPDATE walle.leases SET holder = 'thief', fence = fence + 1, until = clock_timestamp() + interval '1 hour'
WHERE name = 'monitor' RETURNING 1
"""


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(180)
@pytest.mark.asyncio
async def test_a_cloud_of_actors_whose_monitor_lost_its_lease_to_another_cloud_says_so(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Else each cloud would have one of the two leases, and wait for the other one."""
    from walle.store.postgres_database import PostgresDatabase

    dsn = postgres.make_database()
    start_ray(import_root=ROOT)
    try:
        cloud = await ActorCloud.start(CloudConfig(folder=tmp_path / "cloud", scenarios=("shop",), database=dsn))
        try:
            async with PostgresDatabase(dsn) as database:
                await database.read(TAKEN)
            async with asyncio.timeout(LIMIT_S):
                await cloud.lost()
        finally:
            await cloud.close()
    finally:
        close_ray()
