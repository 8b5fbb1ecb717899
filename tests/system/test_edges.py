"""A cloud of actors with edge gateways, of which one is killed."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import LIMIT_S, until
from walle.actors.wiring import ActorCloud, close_ray, start_ray
from walle.cloud import CloudConfig
from walle.protocol import PROFILE_HEADER, Profile

ROOT = Path(__file__).parents[2]


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(180)
@pytest.mark.asyncio
async def test_two_edges_serve_one_port_and_one_that_is_killed_comes_back(tmp_path: Path) -> None:
    start_ray(import_root=ROOT)
    try:
        cloud = await ActorCloud.start(CloudConfig(folder=tmp_path / "cloud", scenarios=("shop",), gateways=2))
        try:
            await _kill_an_edge(cloud)
        finally:
            await cloud.close()
    finally:
        close_ray()


async def _kill_an_edge(cloud: ActorCloud) -> None:
    assert cloud.address.url != cloud.address.inner_url
    person = {"Authorization": f"Bearer {cloud.home.admin_token}"}
    profile = Profile("d0", "10.1", {}, {}).to_header()
    device = {**session_headers(cloud.home, "d0"), PROFILE_HEADER: profile}
    async with httpx.AsyncClient(base_url=cloud.address.url, timeout=LIMIT_S) as http:

        async def edges() -> list[dict[str, object]]:
            processes = None
            while processes is None:  # Ray did not answer in its time
                answer = await http.get("/v1/cloud", headers=person)
                assert answer.status_code == 200, answer.text
                processes = answer.json()["processes"]
            return [one for one in processes if one["name"].startswith("edge-") and one["state"] == "running"]

        before = await edges()
        assert len(before) == 2
        assert all(one["address"] for one in before)
        for one in before:
            assert (await http.get(f"{one['address']}/healthz")).json()["ok"]
        killed = before[0]
        os.kill(int(str(killed["pid"])), signal.SIGKILL)
        checked_in = 0

        async def is_back() -> bool:
            nonlocal checked_in
            try:
                answer = await http.post("/v1/checkin", headers={**device, "Connection": "close"})
                assert answer.status_code == 204, answer.text
                checked_in += 1
                now = await edges()
            except httpx.TransportError:  # the killed process had this connection
                return False
            return len(now) == 2 and killed["pid"] not in [one["pid"] for one in now]

        await until(is_back)
        assert checked_in
