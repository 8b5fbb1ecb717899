"""The tunnel's byte budget: compressed requests and unfinished frames of many devices, in a server process."""

import asyncio
import contextlib
import random
import struct
from pathlib import Path

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_process import TunnelProcess
from tests.sim.tunnel_rig import MakeClient, RawDevice, fill, running, until, upload
from walle import protocol
from walle.pipeline.tunnel.frames import MAX_PAYLOAD_BYTES
from walle.pipeline.tunnel.server.server import ServerLimits

_ADDED_BYTES = 100_000_000


async def _send_compressed_requests(device: RawDevice) -> int:
    """Send 16 requests of 8 MB of zeros; return their bytes on the wire."""
    bombs = [protocol.Request(number, "slow", bytes(MAX_PAYLOAD_BYTES)) for number in range(16)]
    packed = b"".join(map(device.encoder.encode, bombs))
    device.writer.write(packed)
    await device.writer.drain()
    return len(packed)


async def _send_unfinished_frame(device: RawDevice) -> None:
    header = struct.pack(">IBBH", 8 << 20, 3, 0, 0)
    with contextlib.suppress(OSError):  # the cloud may refuse it
        device.writer.write(header)
        for _ in range(6):
            device.writer.write(bytes(1 << 20))
            await device.writer.drain()


@pytest.mark.night
@pytest.mark.asyncio
async def test_an_attack_by_few_bytes_and_unfinished_frames_adds_less_than_100_mb(
    authority: TunnelAuthority, make_client: MakeClient, tmp_path: Path
) -> None:
    outbox = MemoryOutbox()
    async with (
        TunnelProcess.start(authority.folder, tmp_path / "ingest.db") as server,
        contextlib.AsyncExitStack() as devices,
        asyncio.timeout(60),
    ):
        honest = make_client(outbox, server.port)
        async with running(honest):
            fill(outbox, 10)
            await honest.drained()
            hostile = [
                await devices.enter_async_context(RawDevice.connect(authority, server.port, number))
                for number in range(1, 61)
            ]
            for number, device in enumerate(hostile, 1):
                await device.hello(number)
            before = await server.ask("reset")
            wire_bytes = sum([await _send_compressed_requests(device) for device in hostile[:20]])
            assert wire_bytes < 100_000
            await asyncio.gather(*(_send_unfinished_frame(device) for device in hostile[20:]))
            fill(outbox, 500, seed=2)
            await honest.drained()
            assert await honest.request("echo", b"still here") == b"device-0 echo still here"
            after = await server.ask()
        assert after["stored"] == 510
        assert after["peak"] - before["now"] < _ADDED_BYTES
        refusals = after["counts"]["refusals"]
        assert set(refusals) == {"memory"}
        assert refusals["memory"] >= 30


@pytest.mark.asyncio
async def test_requests_beyond_the_budget_wait_and_small_ones_of_others_do_not(
    authority: TunnelAuthority, cloud: TunnelCloud
) -> None:
    gate = asyncio.Event()
    answered: list[int] = []

    async def wait_if_large(device_id: str, topic: str, payload: bytes) -> bytes:
        if len(payload) > 100:
            await gate.wait()
        answered.append(len(payload))
        return b"done"

    cloud.on_request = wait_if_large
    cloud.limits = ServerLimits(memory_bytes=48 << 20)  # 12 MiB for requests, half of it for large ones
    async with cloud, contextlib.AsyncExitStack() as devices:
        large = [
            await devices.enter_async_context(RawDevice.connect(authority, cloud.server.port, number))
            for number in range(4)
        ]
        small = await devices.enter_async_context(RawDevice.connect(authority, cloud.server.port, 4))
        for number, device in enumerate((*large, small)):
            await device.hello(number)
        for device in large:
            device.say(protocol.Request(1, "ask", bytes(5 << 20)), upload(1))
        await until(lambda: cloud.server.counts.pauses == 3)
        assert cloud.server.budget.requests == (5 << 20) + len("ask")
        small.say(protocol.Request(1, "ask", bytes(100)))
        assert await small.hear() == protocol.Response(1, b"done")
        assert answered == [100]
        gate.set()
        for device in large:
            heard = [await device.hear(), await device.hear()]
            assert protocol.Response(1, b"done") in heard
            assert protocol.Ack(1) in heard
        assert cloud.server.budget.held_bytes == 0
        assert cloud.server.counts.refusals == {}


@pytest.mark.asyncio
async def test_answers_that_a_device_does_not_read_close_its_connection(
    authority: TunnelAuthority, cloud: TunnelCloud
) -> None:
    async def much(device_id: str, topic: str, payload: bytes) -> bytes:
        return random.Random(1).randbytes(1 << 20) if topic == "much" else b"little"

    cloud.on_request = much
    cloud.limits = ServerLimits(device_bytes=8 << 20)
    async with (
        cloud,
        RawDevice.connect(authority, cloud.server.port, 1) as deaf,
        RawDevice.connect(authority, cloud.server.port, 2) as honest,
    ):
        await deaf.hello(1)
        await honest.hello(2)
        deaf.say(*(protocol.Request(number, "much", b"") for number in range(16)))
        await until(lambda: cloud.server.counts.refusals == {"memory": 1})
        await until(lambda: cloud.server.counts.open == 1)
        honest.say(protocol.Request(1, "ask", b""))
        assert await honest.hear() == protocol.Response(1, b"little")
        assert cloud.server.budget.held_bytes == 0
