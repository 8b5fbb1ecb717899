"""Two tunnel servers as Ray actors: one is killed in mid-upload, and what was produced is what is received."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.device_session import device_context
from tests.sim.processes import MARKER, wait_until_gone
from tests.sim.shop_cloud import until
from tests.sim.tunnel_rig import KeepingOutbox, fill, running
from walle.actors.node import Remote, ask
from walle.actors.process import find
from walle.actors.wiring import ActorCloud, close_ray, start_ray
from walle.cloud import CloudConfig
from walle.pipeline.tunnel.client.client import TunnelClient

ROOT = Path(__file__).parents[2]
DEVICES = 8

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_tunnel_server_that_is_killed_in_mid_upload_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = f"tunnels-{os.getpid()}"
    monkeypatch.setenv(MARKER, marker)
    start_ray(import_root=ROOT)
    try:
        cloud = await ActorCloud.start(CloudConfig(folder=tmp_path / "cloud", tunnel_servers=2))
        try:
            await _kill_in_mid_upload(cloud)
        finally:
            await cloud.close()
    finally:
        close_ray()
    assert wait_until_gone(marker) == []


async def _kill_in_mid_upload(cloud: ActorCloud) -> None:
    token = {"Authorization": f"Bearer {cloud.home.admin_token}"}
    async with (
        asyncio.timeout(120),
        httpx.AsyncClient(base_url=cloud.address.url, headers=token) as http,
        contextlib.AsyncExitStack() as stack,
    ):

        async def status() -> dict[str, Any]:
            while True:
                found: dict[str, Any] = (await http.get("/v1/cloud")).json()
                if found["processes"] is not None:  # else Ray did not answer in its time
                    return found

        async def connected(count: int) -> bool:
            servers = (await status())["tunnel_servers"]
            return len(servers) == 2 and sum(one["connections"] for one in servers) == count

        async def ring_of_two() -> bool:
            return len((await http.get("/healthz")).json()["tunnel servers"]["servers"]) == 2

        await until(ring_of_two)
        outboxes = [KeepingOutbox() for _ in range(DEVICES)]
        clients = [
            TunnelClient(
                outbox,
                device_id=f"device-{number}",
                host="127.0.0.1",
                port=cloud.address.tunnel_port,
                ssl_context=device_context(cloud.home, f"device-{number}"),
                rng=random.Random(number),
                backoff_s=0.05,
                backoff_max_s=0.5,
            )
            for number, outbox in enumerate(outboxes)
        ]
        for client in clients:
            await stack.enter_async_context(running(client))
        for outbox in outboxes:
            fill(outbox, 50)
        await until(lambda: connected(DEVICES))
        servers = (await status())["tunnel_servers"]
        killed = max(servers, key=lambda one: int(one["connections"]))
        address = await ask(find(killed["name"], cloud.place.namespace), "address")
        assert address == (killed["host"], killed["port"])
        pid = next(one["pid"] for one in (await status())["processes"] if one["name"] == killed["name"])
        for outbox in outboxes:
            fill(outbox, 2000, size=2000)
        before = sum(client._acked for client in clients)
        await until(lambda: sum(client._acked for client in clients) > before)
        os.kill(pid, signal.SIGKILL)
        for outbox in outboxes:
            fill(outbox, 50)
        await asyncio.gather(*(client.drained() for client in clients))
        stats = await Remote(cloud.actors["gateway"]).stats()
        assert stats.received == sum(len(outbox.sent) for outbox in outboxes)

        async def back() -> bool:
            one = next(one for one in (await status())["processes"] if one["name"] == killed["name"])
            return bool(one["state"] == "running" and one["pid"] != pid and one["restarts"] == 1)

        await until(back)
        await until(lambda: connected(DEVICES))  # none is left with the gateway
