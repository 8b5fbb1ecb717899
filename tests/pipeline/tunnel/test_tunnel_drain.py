"""Draining of a tunnel server: devices move to another address, at random times, with nothing in flight."""

import asyncio
import contextlib
import dataclasses
import random
import time
from pathlib import Path

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud, echo
from tests.sim.tunnel_rig import MakeClient, RawDevice, bare_server, fill, running, until, upload
from walle import protocol
from walle.pipeline.tunnel.server.server import TunnelServer


@pytest.mark.asyncio
async def test_devices_move_to_the_other_server_and_lose_nothing(
    cloud: TunnelCloud, authority: TunnelAuthority, make_client: MakeClient
) -> None:
    """Both servers store into one file; a slow request is answered before its device moves."""
    release = asyncio.Event()

    async def slow(device_id: str, topic: str, payload: bytes) -> bytes:
        await release.wait()
        return b"answered"

    cloud.on_request = slow
    async with (
        cloud,
        TunnelServer(
            ssl_context=authority.server_context(),
            resume=cloud.ingest.resume,
            on_request=echo,
        ) as other,
        asyncio.timeout(30),
    ):

        async def store() -> None:
            while batch := await other.arrived(100):
                accepted = await cloud.ingest.accept(batch)
                for (device_id, epoch), seq in accepted.highest.items():
                    await other.acknowledge(device_id, epoch, seq)

        storing = asyncio.create_task(store())
        outboxes = [MemoryOutbox() for _ in range(8)]
        clients = [
            make_client(outbox, cloud.server.port, device=n, rng=random.Random(n)) for n, outbox in enumerate(outboxes)
        ]
        async with contextlib.AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(running(client))
            for outbox in outboxes:
                fill(outbox, 200, size=3000)
            question = asyncio.create_task(clients[0].request("slow", b""))
            await until(lambda: cloud.server.counts.requests == 1 and all(client.connected for client in clients))
            draining = asyncio.create_task(cloud.server.drain(host="127.0.0.1", port=other.port, over_s=0.4))
            moved_s = []
            began_s = time.monotonic()
            for count in range(1, 8):
                await until(lambda count=count: other.counts.open >= count)  # type: ignore[misc]
                moved_s.append(time.monotonic() - began_s)
                for outbox in outboxes:
                    fill(outbox, 5)
            assert not question.done()
            release.set()
            assert await question == b"answered"
            await draining
            await asyncio.gather(*(client.drained() for client in clients))
            assert other.counts.open == 8
            assert moved_s[-1] - moved_s[0] > 0.1  # the moves are spread
            assert all(client.last_error is None for client in clients)
        assert await cloud.ingest.count() == sum(outbox.last_seq for outbox in outboxes)
        assert cloud.server.counts.duplicates == other.counts.duplicates == 0
        assert cloud.server.counts.refusals == {}
        await other.close()
        await storing


@pytest.mark.asyncio
async def test_a_device_of_protocol_2_is_disconnected_and_one_that_does_not_move_as_well(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    cloud.limits = dataclasses.replace(cloud.limits, linger_s=0.2)
    async with (
        cloud,
        RawDevice.connect(authority, cloud.server.port, 1) as old,
        RawDevice.connect(authority, cloud.server.port) as stubborn,
    ):
        old.say_version = 2
        old.say(protocol.Hello("device-1", "e", "", protocol=2))
        assert isinstance(await old.hear(), protocol.Welcome)
        await stubborn.hello()
        await cloud.server.drain(host="elsewhere", port=1234, over_s=0.05, grace_s=0.1)
        refusal = await old.hear()
        assert refusal == protocol.Refusal("draining", "the cloud is about to stop this tunnel", 0.0)
        assert await stubborn.hear() == protocol.Drain(0.0, 0.05, "elsewhere", 1234)
        refusal = await stubborn.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert (refusal.code, refusal.host, refusal.port) == ("closing", "elsewhere", 1234)
        assert cloud.server.counts.open == 0


@pytest.mark.asyncio
async def test_a_device_returns_from_an_address_that_does_not_answer(
    cloud: TunnelCloud, authority: TunnelAuthority, make_client: MakeClient, tmp_path: Path
) -> None:
    """The first server sends the device to a port where nothing listens; it returns to its configured address."""
    outbox = MemoryOutbox()
    async with cloud, asyncio.timeout(10):
        client = make_client(outbox, cloud.server.port)
        async with running(client):
            await until(lambda: client.connected)
            (connection,) = cloud.server._connections
            assert connection.ask_to_move(protocol.Drain(0.0, 0.0, "127.0.0.1", 1))
            await until(lambda: isinstance(client.last_error, OSError))
            await until(lambda: client.connected)
            fill(outbox, 3)
            await client.drained()
            assert cloud.server.counts.connections == 2
        assert await cloud.ingest.count() == 3


@pytest.mark.asyncio
async def test_a_refusal_with_an_address_is_followed_and_a_permanent_one_there_is_not_final(
    cloud: TunnelCloud, authority: TunnelAuthority, make_client: MakeClient
) -> None:
    async with (
        cloud,
        bare_server(authority) as foreign,
        asyncio.timeout(10),
    ):
        foreign.revoke(1, {"device-0": 2})
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client) as task:
            await until(lambda: client.connected)
            (connection,) = cloud.server._connections
            connection.refuse("draining", "go there", 0.0, "127.0.0.1", foreign.port)
            await until(lambda: foreign.counts.refusals == {"revoked": 1})
            await until(lambda: client.connected)
            assert not task.done()
            assert cloud.server.counts.connections == 2


@pytest.mark.asyncio
async def test_uploads_in_flight_are_acknowledged_before_the_server_closes(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        draining = asyncio.create_task(cloud.server.drain(over_s=0.0, grace_s=5.0))
        assert isinstance(await device.hear(), protocol.Drain)
        device.say(upload(1), upload(2))
        while await device.hear() != protocol.Ack(2):
            pass
        device.writer.transport.abort()
        async with asyncio.timeout(3):
            await draining


@pytest.mark.asyncio
async def test_a_drain_that_is_cancelled_closes_the_server_at_once(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    cloud.limits = dataclasses.replace(cloud.limits, linger_s=0.2)
    before = asyncio.all_tasks()
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device, asyncio.timeout(10):
        await device.hello()
        draining = asyncio.create_task(cloud.server.drain(over_s=1000.0))
        assert isinstance(await device.hear(), protocol.Drain)
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "closing"
        assert cloud.server.counts.open == 0
        assert cloud.server._sweeper is not None
        assert cloud.server._sweeper.done()
    assert asyncio.all_tasks() == before
