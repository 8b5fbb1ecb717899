"""Bounds of the tunnel: slow readers, unacknowledged uploads, silent and greedy devices."""

import asyncio
import dataclasses
import random

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.fault_proxy import FaultProxy
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import (
    GatedHandler,
    MakeClient,
    RawDevice,
    bare_server,
    fill,
    running,
    until,
    upload,
)
from walle import protocol
from walle.base.clock import ManualClock
from walle.pipeline.tunnel.frames import Decoder
from walle.pipeline.tunnel.server.server import ServerLimits


@pytest.mark.asyncio
async def test_a_slow_consumer_stops_the_reading_and_memory_stays_bounded(authority: TunnelAuthority) -> None:
    limits = ServerLimits(window=2_000, queue_uploads=50)
    size = 20_000
    async with (
        bare_server(authority, limits=limits) as server,
        RawDevice.connect(authority, server.port) as device,
        asyncio.timeout(20),
    ):
        await device.hello()
        device.say(*(upload(seq, size) for seq in range(1, 2_001)))  # far beyond its credit
        await until(lambda: server.counts.pauses == 1)
        # The queue's bound, and what a handful of uploads may be more.
        assert 50 <= server.queued <= 50 + 14
        stalled = server.queued
        in_flight = server.counts.uploads
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.queued == stalled
        assert server.counts.bytes_in < 5 << 20  # a part of 40 MB
        seqs = [received.seq for received in await server.arrived(stalled - 20)]
        await until(lambda: server.counts.pauses == 2)  # reading was resumed, and paused again
        while len(seqs) < 2_000:
            batch = await server.arrived(10)
            seqs += [received.seq for received in batch]
            assert server.queued <= 50 + 14
            await server.acknowledge("device-0", "e", seqs[-1])
        assert in_flight < 2_000
        assert seqs == list(range(1, 2_001))
        while await device.hear() != protocol.Ack(2_000):
            pass


@pytest.mark.asyncio
async def test_few_bytes_that_unpack_to_many_do_not_fill_the_memory(authority: TunnelAuthority) -> None:
    async with (
        bare_server(authority, limits=ServerLimits(memory_bytes=24 << 20)) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        await device.hello()
        bombs = [protocol.Upload(seq, "t", bytes(1 << 20), 0) for seq in range(1, 201)]
        packed = b"".join(map(device.encoder.encode, bombs))
        assert len(packed) < 50_000  # one read from the socket
        device.writer.write(packed)
        await until(lambda: server.counts.pauses == 1)
        seqs: list[int] = []
        while len(seqs) < 200:
            seqs += [received.seq for received in await server.arrived(3)]
            assert server.budget.uploads <= 10 << 20
        assert seqs == list(range(1, 201))
        assert server.counts.pauses > 20
        device.say(protocol.Ping(1))
        assert await device.hear() == protocol.Pong(1)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["uploads", "requests"])
async def test_few_bytes_that_unpack_to_many_do_not_stop_the_event_loop(authority: TunnelAuthority, kind: str) -> None:
    async def wait(_device_id: str, _topic: str, _payload: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    async with (
        bare_server(authority, on_request=wait) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        await device.hello()
        most = done = 0
        if kind == "uploads":
            frame = device.encoder.encode(protocol.Upload(0, "t", bytes(1 << 20), 0))  # 0: as if it were known
        else:
            device.say(*(protocol.Request(number, "t", b"") for number in range(16)))
            await until(lambda: server.counts.requests == 16)
            done = 16
            frame = device.encoder.encode(protocol.Request(16, "t", bytes(1 << 20)))  # one too many
        device.writer.write(frame * 50)
        async with asyncio.timeout(20):
            while server.counts.duplicates + server.counts.requests < done + 50:
                before = server.counts.duplicates + server.counts.requests
                await asyncio.sleep(0)
                most = max(most, server.counts.duplicates + server.counts.requests - before)
        assert 1 <= most <= 3


@pytest.mark.asyncio
async def test_a_connection_that_failed_keeps_nothing_of_the_shared_buffer(
    authority: TunnelAuthority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        bare_server(authority) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        await device.hello()
        (connection,) = server._connections
        kept: list[object] = []

        def fail(*_: object) -> None:
            asyncio.get_running_loop().call_soon(lambda: kept.append(connection._decoder._buffer))
            raise MemoryError

        monkeypatch.setattr(Decoder, "records", fail)
        device.say(protocol.Ping(1), upload(1))  # a read that begins with uploads is not added to the decoder first
        await until(lambda: kept != [])
        assert not isinstance(kept[0], memoryview)
        await until(lambda: server.counts.open == 0)


@pytest.mark.asyncio
async def test_a_device_with_a_large_upload_continues_while_others_keep_the_queue_half_full(
    authority: TunnelAuthority,
) -> None:
    async with (
        bare_server(authority, limits=ServerLimits(queue_uploads=10)) as server,
        RawDevice.connect(authority, server.port) as large,
        RawDevice.connect(authority, server.port, 1) as other,
    ):
        await large.hello(0)
        await other.hello(1)
        large.say(upload(1, 5 << 20))
        await until(lambda: server.queued == 1)
        large.say(protocol.Ping(1))
        other.say(*(upload(seq, 256 << 10) for seq in range(1, 7)))
        for seq in range(7, 30):  # more bytes than the large upload: its turn comes
            await until(lambda: server.queued == 7)
            await server.arrived(1)
            other.say(upload(seq, 256 << 10))
        assert await large.hear() == protocol.Pong(1)


@pytest.mark.asyncio
async def test_long_topics_do_not_fill_the_memory(authority: TunnelAuthority) -> None:
    handler = GatedHandler()
    async with (
        bare_server(authority, on_request=handler, limits=ServerLimits(memory_bytes=24 << 20)) as server,
        RawDevice.connect(authority, server.port) as device,
    ):
        await device.hello()
        topic = "t" * (1 << 20)
        device.say(*(protocol.Upload(seq, topic, b"", 0) for seq in range(1, 101)))
        await until(lambda: server.counts.pauses == 1)
        assert 1 << 20 <= server.budget.uploads <= 10 << 20
        seqs: list[int] = []
        while len(seqs) < 100:
            seqs += [received.seq for received in await server.arrived(3)]
            assert server.budget.uploads <= 10 << 20
        device.say(*(protocol.Request(number, topic, b"") for number in range(16)))
        await until(lambda: server.counts.requests > 0 and len(server._waiting) == 1)
        assert server.budget.requests <= 6 << 20
        handler.gate.set()
        assert {type(await device.hear()) for _ in range(16)} == {protocol.Response}
        assert server.budget.requests == 0


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_a_cloud_that_does_not_answer(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    async with cloud, FaultProxy(cloud.server.port) as proxy:
        proxy.swallow = True
        client = make_client(MemoryOutbox(), proxy.port, connect_s=1_000.0)
        async with running(client) as task:
            await until(lambda: proxy.connections == 1)
            async with asyncio.timeout(1):
                await client.close()
            await task


@pytest.mark.asyncio
async def test_the_window_bounds_what_is_unacknowledged(authority: TunnelAuthority, make_client: MakeClient) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 100)
    async with bare_server(authority, limits=ServerLimits(window=8)) as server:
        client = make_client(outbox, server.port)
        async with running(client), asyncio.timeout(10):
            await until(lambda: server.queued == 8)
            assert await client.request("still", b"answered") == b"device-0 still answered"
            assert server.queued == 8  # the answer came after anything that was sent before the question
            await server.acknowledge("device-0", "epoch-1", 5)
            await until(lambda: server.queued == 13)
            await client.request("still", b"answered")
            assert server.queued == 13
        async with RawDevice.connect(authority, server.port, 3) as greedy:
            await greedy.hello(3)
            greedy.say(*(upload(seq) for seq in range(1, 10)))
            refusal = await greedy.hear()
            assert isinstance(refusal, protocol.Refusal)
            assert refusal.code == "window"


@pytest.mark.asyncio
async def test_a_device_that_does_not_read_is_cut_off_and_its_answers_wait(
    authority: TunnelAuthority, cloud: TunnelCloud
) -> None:
    async def much(device_id: str, topic: str, payload: bytes) -> bytes:
        return random.Random(1).randbytes(1 << 20)

    clock = ManualClock()
    async with (
        bare_server(authority, on_request=much, clock=clock) as server,
        RawDevice.connect(authority, server.port) as deaf,
    ):
        await deaf.hello()
        deaf.say(*(protocol.Request(number, "ask", b"") for number in range(16)))
        (connection,) = server._connections
        await until(lambda: not connection._writable.is_set())
        written = server.counts.bytes_out
        assert written < 12 << 20  # a part of 16 MiB; the kernel's socket buffers hold some
        deaf.say(protocol.Request(99, "ask", b""))
        await clock.advance(5)
        connection.pause()
        connection.resume()  # resuming does not extend the timeout
        await clock.advance(server.limits.idle_s - 3)
        await clock.advance(server.limits.linger_s + 2)
        await until(lambda: server.counts.open == 0)
        assert server.counts.refusals == {"idle": 1}


@pytest.mark.asyncio
async def test_silent_devices_are_disconnected(authority: TunnelAuthority) -> None:
    clock = ManualClock()
    async with (
        bare_server(authority, clock=clock) as server,
        RawDevice.connect(authority, server.port) as mute,
        RawDevice.connect(authority, server.port) as idle,
    ):
        await idle.hello()
        await clock.advance(server.limits.hello_s - 3)
        heard = server.counts.bytes_in
        mute.writer.write(b"\0")  # a byte of a Hello does not extend its timeout
        await until(lambda: server.counts.bytes_in > heard)
        await clock.advance(4)
        refusal = await mute.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "hello"
        idle.say(protocol.Ping(5))
        assert await idle.hear() == protocol.Pong(5)
        await clock.advance(server.limits.idle_s - 2)
        idle.say(protocol.Ping(6))
        assert await idle.hear() == protocol.Pong(6)
        await clock.advance(server.limits.idle_s + 2)
        refusal = await idle.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "idle"


@pytest.mark.asyncio
async def test_too_many_requests_or_devices_are_asked_to_wait(authority: TunnelAuthority, cloud: TunnelCloud) -> None:
    handler = cloud.on_request = GatedHandler()
    cloud.limits = dataclasses.replace(cloud.limits, requests=2, connections=1)
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        await device.hello()
        device.say(*(protocol.Request(number, "ask", b"") for number in (1, 2, 3)))
        busy = await device.hear()
        assert isinstance(busy, protocol.Response)
        assert busy.request_id == 3
        assert "busy" in busy.error
        handler.gate.set()
        assert {await device.hear(), await device.hear()} == {protocol.Response(n, b"done") for n in (1, 2)}
        async with RawDevice.connect(authority, cloud.server.port) as extra:
            refusal = await extra.hear()
            assert isinstance(refusal, protocol.Refusal)
            assert refusal.code == "busy"
            assert refusal.retry_s > 0
