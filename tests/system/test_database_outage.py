"""A cloud whose database is away for longer than its leases: it goes on, and a stop meanwhile ends."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.sim.database_walk import DATABASE, LIMIT_S, ROLE, Walk, killed
from tests.sim.postgres_server import free_port, postgres_server
from tests.sim.shop_cloud import device_config, until
from walle.device import Device

OUTAGE_S = 17.0  # longer than a lease, and than a write is tried
STOPPED_S = 60.0  # a bound of seconds, on a machine that is busy with other work


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.asyncio
async def test_a_cloud_continues_without_its_database_and_after_it_and_stops_without_it(tmp_path: Path) -> None:
    with postgres_server(port=free_port()) as server:
        await asyncio.to_thread(server.execute, f"CREATE ROLE {ROLE} LOGIN")
        await asyncio.to_thread(server.execute, f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
        walk = Walk(tmp_path, server)
        async with walk.running() as cloud, Device(device_config(walk.address, walk.home, tmp_path / "d0")) as device:
            await device.checkin()
            release = await walk.release("v1")

            async def is_in_beta() -> bool:
                return await walk.state_of(release) == "beta"

            await until(is_in_beta, LIMIT_S)
            fences = await walk.fences()
            found = await walk.fault("kill", OUTAGE_S, killed, cloud, device, release)
            assert found["runs"]
            assert set(found["check_ins"]) == {"204", "longest_s"}
            assert set(found["writes"]) <= {"200", "409", "503", "longest_s"}  # each 503 with Retry-After
            assert found["writes"]["503"] > 0
            assert set(found["status"]) == {"200", "longest_s"}
            assert found["unhealthy_after_s"] is not None
            assert (found["lost"], found["twice"]) == (0, 0)
            assert found["sent"] > 0
            assert await walk.fences() == fences
            server.kill()
            writing = asyncio.create_task(walk.write(release))
            await asyncio.sleep(2)  # writes wait for the database
            assert await cloud.end(signal.SIGINT) < STOPPED_S
            assert cloud.process.returncode == 0
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
