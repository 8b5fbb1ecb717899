"""Tunnel servers beside a cloud's gateway: shares of devices, requests, drain, loss of a server and of the gateway."""

import asyncio
import contextlib
import dataclasses
import functools
import random
from pathlib import Path
from typing import Any

import pytest

from tests.sim.device_session import device_context
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from tests.sim.tunnel_rig import KeepingOutbox, fill, running
from tests.sim.visits import TASK_CONFIG
from walle.base import plain
from walle.base.clock import SystemClock
from walle.cloud import CloudConfig
from walle.cloud.nodes.tunnel_node import TunnelNode
from walle.cloud.nodes.tunnel_servers import TunnelReport, TunnelServers
from walle.errors import ConfigError, PipelineError
from walle.pipeline.ingest.processes import sum_ended
from walle.pipeline.tunnel.client.client import TunnelClient
from walle.pipeline.tunnel.server.ring import RingError, RingMember

MAIN = """\
def execute(ctx, x):
    return ctx.escalate({"n": 5}) if "event" in x else {"answer": x["n"] * 10}
"""
AUTO = TASK_CONFIG + '[phases]\nexecute = "auto"\n'
LIMIT_S = 90.0


class SteppedClock(SystemClock):
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


def report(name: str, *, pid: int = 1, stored: int = 0, **changes: Any) -> TunnelReport:
    values: dict[str, Any] = {
        "member": RingMember(name, "127.0.0.1", 7443),
        "node": "n",
        "is_leaving": False,
        "state": dataclasses.replace(sum_ended([]), pid=pid, stored=stored),
        "generation": 0,
        "sent_on": 0,
        "delays_ms": [],
        "traced": [],
    }
    return TunnelReport(**{**values, **changes})


def test_a_server_joins_the_ring_by_its_report_and_is_out_of_it_when_it_leaves_or_is_silent() -> None:
    clock = SteppedClock()
    servers = TunnelServers(clock)
    servers.take(report("a"))
    ring = servers.take(report("b"))
    assert ring is not None
    assert [member.name for member in ring.members] == ["a", "b"]
    later = servers.take(report("b", is_leaving=True))
    assert later is not None
    assert [member.name for member in later.members] == ["a"]
    assert later.generation > ring.generation
    servers.take(report("a", pid=2, stored=3))  # another process: what the one before counted is kept
    clock.now_s += 6
    assert servers.look()
    assert servers.ring.members == ()
    assert servers.lost == 1
    assert sum(state.stored for state in servers.ended()) == 3


def test_a_gateway_that_was_started_again_makes_no_ring_until_all_servers_had_time_to_report() -> None:
    clock = SteppedClock()
    servers = TunnelServers(clock)
    assert not servers.look()
    assert servers.take(report("a", generation=7)) is None
    assert servers.take(report("b", generation=7)) is None
    clock.now_s += 3.5
    ring = servers.take(report("a", generation=7))
    assert ring is not None
    assert [member.name for member in ring.members] == ["a", "b"]
    assert ring.generation > 7


def test_servers_follow_a_gateway_whose_clock_is_behind_that_of_the_one_before() -> None:
    clock = SteppedClock()
    servers = TunnelServers(clock)
    ahead = int(clock.time() * 1000) + 3_600_000
    servers.take(report("a", generation=ahead))
    clock.now_s += 3.5
    ring = servers.take(report("a", generation=ahead))
    assert ring is not None
    assert ring.generation > ahead
    later = servers.take(report("b", generation=ahead + 9))  # a server that heard from the gateway before for longer
    assert later is not None
    assert later.generation > ahead + 9
    assert servers.take(report("b", generation=later.generation)) is later


def node_of(shop: ShopCloud, name: str, config: CloudConfig | None = None, *, public_port: int = 0) -> TunnelNode:
    cloud = shop.cloud
    return TunnelNode(
        config or cloud.config,
        cloud.gateway,
        cloud.identities,
        name=name,
        node=f"node-{name}",
        bind="127.0.0.1",
        host="127.0.0.1",
        public_port=public_port,
    )


def client_of(shop: ShopCloud, outbox: KeepingOutbox, number: int) -> TunnelClient:
    name = f"device-{number}"
    return TunnelClient(
        outbox,
        device_id=name,
        host="127.0.0.1",
        port=shop.cloud.address.tunnel_port,
        ssl_context=device_context(shop.cloud.home, name),
        rng=random.Random(number),
        backoff_s=0.01,
        backoff_max_s=0.05,
    )


def devices_by_server(shop: ShopCloud) -> dict[str, int]:
    return {one["name"]: one["connections"] for one in shop.cloud.gateway._tunnel.servers.rows()}


@pytest.mark.night
@pytest.mark.asyncio
async def test_devices_are_divided_and_a_server_that_drains_or_is_lost_loses_nothing(tmp_path: Path) -> None:
    """Twelve devices know the gateway's address alone; all uploads are stored once."""
    outboxes = [KeepingOutbox() for _ in range(12)]
    async with (
        asyncio.timeout(LIMIT_S),
        shop_cloud(tmp_path, tunnel_servers=1) as shop,
        contextlib.AsyncExitStack() as stack,
    ):
        nodes = {name: node_of(shop, name) for name in ("x", "y", "z")}
        for node in nodes.values():
            await node.start()
            stack.push_async_callback(node.close)
        await until(lambda: len(nodes["x"].ring.members) == len(nodes["z"].ring.members) == 3)
        clients = [client_of(shop, outbox, number) for number, outbox in enumerate(outboxes)]
        for client in clients:
            await stack.enter_async_context(running(client))
        for outbox in outboxes:
            fill(outbox, 100)
        await until(lambda: sum(devices_by_server(shop).values()) == 12)
        assert min(devices_by_server(shop).values()) >= 1
        found = (await shop.http.get("/v1/cloud", headers=_admin(shop))).json()
        assert [one["node"] for one in found["tunnel_servers"]] == ["node-x", "node-y", "node-z"]

        for outbox in outboxes:
            fill(outbox, 100)
        await nodes["x"].drain(0.2)
        await nodes["x"].close()
        for outbox in outboxes:
            fill(outbox, 100)
        await nodes["y"].close()  # a closed node says nothing to the gateway, like one that is killed
        await asyncio.gather(*(client.drained() for client in clients))
        for number, outbox in enumerate(outboxes):
            rows = await shop.cloud.gateway._uploads.store.query(device_id=f"device-{number}", limit=10_000)
            assert [(row.seq, row.topic, row.payload) for _, row in rows] == outbox.sent
        await until(lambda: devices_by_server(shop) == {"z": 12})
        assert await shop.received() == 3600
        health = (await shop.http.get("/healthz")).json()
        assert health["tunnel servers"]["lost"] == 1
        metrics = (await shop.http.get("/metrics")).text
        assert 'walle_tunnel_server_connections{server="z"} 12.0' in metrics
        assert "walle_tunnel_servers 1.0" in metrics


def _admin(shop: ShopCloud) -> dict[str, str]:
    return {"Authorization": f"Bearer {shop.cloud.home.admin_token}"}


@pytest.mark.asyncio
async def test_a_request_is_answered_by_the_gateways_inference_and_cancelled_with_its_device(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        shop_cloud(tmp_path, tunnel_servers=1) as shop,
        contextlib.AsyncExitStack() as stack,
    ):
        node = node_of(shop, "a")
        await node.start()
        stack.push_async_callback(node.close)
        await until(lambda: len(node.ring.members) == 1)
        async with shop.device(tmp_path / "d0") as device:
            await shop.push("v1", main=MAIN, config=AUTO)
            await shop.release("v1", beta=["d0"])
            user = User(device)
            await until(lambda: _checked_in(user))

            async def is_answered() -> bool:  # a machine that is busy may take longer than a run's deadline
                await user.visit()
                await device.settled()
                return bool(await shop.cloud.gateway.uploads("shop/count", 0, 10))

            await until(is_answered)
            uploads = await shop.cloud.gateway.uploads("shop/count", 0, 10)
            assert {plain.decode(upload.payload)["answer"] for _, upload in uploads} == {50}
            assert node._service.server.counts.requests >= 1
            assert shop.cloud.gateway._tunnel.service.state().counts["requests"] == 0  # type: ignore[union-attr]

        started, stopped = asyncio.Event(), asyncio.Event()

        async def slow(device_id: str, topic: str, payload: bytes) -> bytes:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            return b""

        shop.cloud.gateway._requests.answer = slow  # type: ignore[method-assign]
        client = client_of(shop, KeepingOutbox(), 1)
        async with running(client):
            asking = asyncio.create_task(client.request("t", b"", 30.0))
            await started.wait()
            asking.cancel()
            await stopped.wait()


@pytest.mark.asyncio
async def test_a_server_asks_the_gateway_whose_tasks_topics_are(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        shop_cloud(tmp_path, tunnel_servers=1) as shop,
        contextlib.AsyncExitStack() as stack,
    ):
        node = node_of(shop, "a")
        await node.start()
        stack.push_async_callback(node.close)
        await until(lambda: len(node.ring.members) == 1)
        await shop.push("v1", main=MAIN, config=AUTO)
        await shop.release("v1", beta=["device-1"])
        await until(lambda: "shop/count" in shop.cloud.gateway._answers.answerer.table.rows)
        for number in (1, 2):
            outbox = KeepingOutbox()
            client = client_of(shop, outbox, number)
            async with running(client):
                await client.send("shop/count", b"x")
                await client.send("own", b"y")
                await until(functools.partial(_is_empty, outbox))
        rows = await shop.cloud.gateway._uploads.store.query(limit=100)
        found = sorted((row.device_id, row.topic) for _, row in rows)
        assert found == [("device-1", "own"), ("device-1", "shop/count"), ("device-2", "own")]
        assert node._service.pump.status.refused == 1


def _is_empty(outbox: KeepingOutbox) -> bool:
    return not outbox.uploads


async def _checked_in(user: User) -> bool:
    await user.device.checkin()
    return bool(user.device.tasks)


@pytest.mark.asyncio
async def test_uploads_are_stored_while_the_gateway_does_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        shop_cloud(tmp_path, tunnel_servers=1) as shop,
        contextlib.AsyncExitStack() as stack,
    ):
        node = node_of(shop, "a")
        await node.start()
        stack.push_async_callback(node.close)
        await until(lambda: len(node.ring.members) == 1)
        asked = 0

        async def gone(_: TunnelReport) -> None:
            nonlocal asked
            asked += 1
            raise PipelineError("gone")

        node._gateway.report_tunnel = gone  # type: ignore[method-assign, assignment]
        await until(lambda: asked >= 2)
        outbox = KeepingOutbox()
        client = client_of(shop, outbox, 0)
        async with running(client):
            fill(outbox, 50)
            await client.drained()
        assert node._service.state().stored == 50
        assert len([one for one in caplog.records if "continues with its last ring" in one.message]) == 1


@pytest.mark.asyncio
async def test_a_folder_without_a_cloud_and_an_address_that_is_none_are_refused(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        other = dataclasses.replace(shop.cloud.config, folder=tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match="no cloud on this node"):
            await node_of(shop, "a", other).start()
        assert not (tmp_path / "elsewhere").exists()
        wrong = node_of(shop, "a", public_port=70_000)  # a port as a label may state it
        with pytest.raises(RingError, match="port 70000"):
            await wrong.start()
        assert not shop.cloud.gateway._tunnel.servers.count
