"""The tunnel over real sockets and TLS: uploads arrive once and in order, and requests are answered."""

import asyncio
import contextlib
import random
import socket
import sqlite3
from pathlib import Path

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.fault_proxy import FaultProxy
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import (
    KeepingOutbox,
    MakeClient,
    RawDevice,
    bare_server,
    fill,
    running,
    stored,
    until,
    upload,
)
from walle import protocol
from walle.errors import PipelineError
from walle.pipeline.tunnel.client.client import (
    RequestError,
    TunnelClosedError,
    TunnelError,
)
from walle.pipeline.tunnel.frames import MAX_PAYLOAD_BYTES
from walle.pipeline.tunnel.server.server import TunnelServerError


@pytest.mark.asyncio
async def test_uploads_arrive_once_in_order_and_leave_the_outbox(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 700, size=3_000)
    async with cloud:
        latencies: list[tuple[int, float]] = []
        client = make_client(outbox, cloud.server.port, on_ack=lambda seq, seconds: latencies.append((seq, seconds)))
        async with running(client), asyncio.timeout(10):
            await client.drained()
            assert await client.send("late", b"one more") == 701
            await client.drained()
            await until(lambda: len(latencies) == 701)
        assert await stored(cloud.ingest) == [*sent, (701, "late", b"one more")]
        assert await cloud.ingest.count() == 701
        assert outbox.uploads == []
        assert [seq for seq, _ in latencies] == list(range(1, 702))
        assert all(0 <= seconds < 10 for _, seconds in latencies)
        assert cloud.server.counts.uploads == 701
        assert cloud.server.counts.duplicates == 0


@pytest.mark.asyncio
async def test_many_devices_at_once(cloud: TunnelCloud, make_client: MakeClient) -> None:
    async with cloud, contextlib.AsyncExitStack() as stack:
        sent = {}
        clients = []
        for device in range(10):
            outbox = MemoryOutbox()
            sent[device] = fill(outbox, 60, seed=device)
            client = make_client(outbox, cloud.server.port, device=device)
            await stack.enter_async_context(running(client))
            clients.append(client)
        async with asyncio.timeout(20):
            await asyncio.gather(*(client.drained() for client in clients))
        for device in range(10):
            assert await stored(cloud.ingest, device) == sent[device]


@pytest.mark.asyncio
async def test_a_new_epoch_numbers_from_one_again(cloud: TunnelCloud, make_client: MakeClient) -> None:
    async with cloud:
        for epoch in ("first", "second"):
            outbox = MemoryOutbox(epoch)
            fill(outbox, 5)
            client = make_client(outbox, cloud.server.port)
            async with running(client), asyncio.timeout(10):
                await client.drained()
        assert [seq for seq, _, _ in await stored(cloud.ingest)] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]


@pytest.mark.asyncio
async def test_tcp_nodelay_is_set_on_both_ends(cloud: TunnelCloud, make_client: MakeClient) -> None:
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client):
            await until(lambda: client.connected)
            assert client._link is not None
            assert client._link._transport is not None
            (connection,) = cloud.server._connections
            for transport in (client._link._transport, connection._transport):
                end = transport.get_extra_info("socket")
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert client._link._transport.get_extra_info("ssl_object").version() == "TLSv1.3"


@pytest.mark.asyncio
async def test_requests_ride_beside_uploads(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 500)
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        async with running(client), asyncio.timeout(10):
            answers = await asyncio.gather(*(client.request("ask", bytes([n]) * n * 100) for n in range(40)))
            await client.drained()
        assert answers == [b"device-0 ask " + bytes([n]) * n * 100 for n in range(40)]
        assert cloud.server.counts.requests == 40
        assert await cloud.ingest.count() == 500


@pytest.mark.asyncio
async def test_a_failed_request_says_why_and_nothing_of_the_clouds_inside(
    cloud: TunnelCloud, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(device_id: str, topic: str, payload: bytes) -> bytes:
        if topic == "known":
            raise PipelineError("no model named ipv")
        if topic == "huge":
            return b"x" * (MAX_PAYLOAD_BYTES * 2)
        raise KeyError("secret internals")

    cloud.on_request = fail
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client):
            with pytest.raises(RequestError, match="'known': no model named ipv"):
                await client.request("known", b"")
            with pytest.raises(RequestError, match="the cloud failed at this request"):
                await client.request("unknown", b"")
            assert "secret internals" in caplog.text
            with pytest.raises(RequestError, match="the answer cannot be sent"):
                await client.request("huge", b"")
            with pytest.raises(RequestError, match="at most"):
                await client.request("big", b"x" * (MAX_PAYLOAD_BYTES + 1))
            assert client.connected


@pytest.mark.asyncio
async def test_an_open_request_ends_with_the_link(cloud: TunnelCloud, make_client: MakeClient) -> None:
    asked = asyncio.Event()

    async def never(device_id: str, topic: str, payload: bytes) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    cloud.on_request = never
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        client = make_client(MemoryOutbox(), proxy.port)
        async with running(client), asyncio.timeout(10):
            question = asyncio.create_task(client.request("ask", b""))
            await asked.wait()
            proxy.cut()
            with pytest.raises(TunnelClosedError, match="dropped before the answer"):
                await question
            with pytest.raises(RequestError, match=r"no answer within|the deadline passed"):  # here, or there
                await client.request("ask", b"", timeout=0.05)
            before = cloud.server.counts.requests  # the second may not have been sent in its time
            last = asyncio.create_task(client.request("ask", b""))
            await until(lambda: cloud.server.counts.requests > before)
            await client.close()
            with pytest.raises(TunnelClosedError):
                await last
        assert not client._running
        with pytest.raises(TunnelClosedError):
            await client.request("ask", b"")


@pytest.mark.asyncio
async def test_closing_tells_devices_when_to_come_back_and_ends_the_iteration(
    authority: TunnelAuthority, tmp_path: Path
) -> None:
    server = bare_server(authority)
    await server.start()
    async with RawDevice.connect(authority, server.port) as device:
        await device.hello()
        device.say(upload(1), upload(2))
        await until(lambda: server.queued == 2)
        closing = asyncio.create_task(server.close())
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "closing"
        assert refusal.retry_s == server.limits.closing_retry_s
        assert await device.hear() is None
    await closing
    await server.close()
    assert [received.seq async for received in server] == [1, 2]
    with pytest.raises(TunnelServerError, match="no port"):
        _ = server.port
    with pytest.raises(TunnelServerError, match="starts once"):
        await server.start()


@pytest.mark.asyncio
async def test_no_task_outlives_client_and_cloud(cloud: TunnelCloud, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 100)
    before = asyncio.all_tasks()
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        async with running(client):
            await client.drained()
    assert asyncio.all_tasks() == before
    with pytest.raises(TunnelError, match="runs once"):
        await client.run()


@pytest.mark.asyncio
async def test_uploads_that_an_earlier_connection_stored_are_not_sent_again_and_block_no_others(
    authority: TunnelAuthority, make_client: MakeClient
) -> None:
    outbox = MemoryOutbox()
    payload = random.Random(1).randbytes(20_000)
    for _ in range(64):  # more than the client sends at once
        outbox.add("t", payload)
    async with (
        bare_server(authority) as server,
        running(make_client(outbox, server.port)),
        asyncio.timeout(10),
    ):
        await until(lambda: server.queued >= 3)
        await asyncio.sleep(0.1)  # the client waits for an acknowledgement
        await server.acknowledge("device-0", outbox.epoch, 64)  # the store had them from the earlier connection
        await until(lambda: outbox.forgotten == 64)
        for _ in range(64):
            outbox.add("t", payload)

        async def store() -> None:
            async for received in server:
                await server.acknowledge(received.device_id, received.epoch, received.seq)

        storing = asyncio.create_task(store())
        await until(lambda: outbox.forgotten == 128)
        assert server.counts.duplicates == 0
        await server.close()
        await storing


@pytest.mark.asyncio
async def test_large_uploads_are_stored_compressed_as_the_device_sent_them(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    outbox = KeepingOutbox()
    rng = random.Random(3)
    async with cloud:
        client = make_client(outbox, cloud.server.port)
        async with running(client):
            for size in (10_000, 50, 15_000):
                outbox.add("ipv", rng.randbytes(size).hex().encode())
                await client.drained()
        assert await stored(cloud.ingest) == outbox.sent
        with contextlib.closing(sqlite3.connect(cloud.path)) as database:
            sizes = database.execute("SELECT packed, length(stored_payload) FROM uploads ORDER BY seq").fetchall()
    assert [is_packed for is_packed, _ in sizes] == [1, 0, 1]
    assert 10_000 < sizes[0][1] < 15_000
