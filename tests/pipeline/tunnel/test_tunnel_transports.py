"""The tunnel on each event loop and kind of transports that is installed: they differ in details."""

import asyncio
import importlib
import importlib.util
import itertools
import random
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import RawDevice, fill, running, until, upload
from walle import protocol
from walle.pipeline.tunnel.client.client import TunnelClient
from walle.pipeline.tunnel.server.server import ServerLimits


def _run[T](loop: str, work: Coroutine[Any, Any, T]) -> T:
    factory = importlib.import_module("uvloop").new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    return asyncio.run(work, loop_factory=factory)


def _needs(module: str, *, needed: bool = True) -> pytest.MarkDecorator:
    return pytest.mark.skipif(needed and importlib.util.find_spec(module) is None, reason=f"needs {module}")


on_each = pytest.mark.parametrize(
    ("loop", "fast"),
    [
        pytest.param(loop, fast, marks=[_needs("uvloop", needed=loop == "uvloop"), _needs("aiofastnet", needed=fast)])
        for loop, fast in itertools.product(["asyncio", "uvloop"], [False, True])
    ],
)


@on_each
def test_uploads_requests_and_bounds_are_the_same(
    authority: TunnelAuthority, tmp_path: Path, loop: str, fast: bool
) -> None:
    async def scenario() -> None:
        assert loop in type(asyncio.get_running_loop()).__module__
        limits = ServerLimits(queue_uploads=20, device_bytes=1 << 20)
        cloud = TunnelCloud(
            ssl_context=authority.server_context(), path=tmp_path / "ingest.db", limits=limits, fast_transports=fast
        )
        outbox = MemoryOutbox()
        async with cloud, RawDevice.connect(authority, cloud.server.port, 1) as hostile:
            client = TunnelClient(
                outbox,
                device_id="device-0",
                host="127.0.0.1",
                port=cloud.server.port,
                ssl_context=authority.device_context(),
            )
            async with running(client):
                fill(outbox, 2_000)
                assert await client.request("ask", b"x" * 100_000) == b"device-0 ask " + b"x" * 100_000
                await client.drained()
            assert await cloud.ingest.count() == 2_000
            assert cloud.server.counts.pauses > 0
            await hostile.hello(1)
            hostile.writer.write(b"\0\x7f\xff\xff\x03\0\0\0" + bytes(2 << 20))
            await until(lambda: cloud.server.counts.refusals == {"memory": 1})
            assert isinstance(await hostile.hear(), protocol.Refusal)

    _run(loop, scenario())


@on_each
def test_uploads_that_were_received_while_reading_was_paused_are_read_to_their_end(
    authority: TunnelAuthority, tmp_path: Path, loop: str, fast: bool
) -> None:
    """The device sends all at once and then nothing, so that no byte that comes later lets the transport read on."""

    async def scenario() -> None:
        limits = ServerLimits(window=2_000, queue_uploads=20)
        cloud = TunnelCloud(
            ssl_context=authority.server_context(), path=tmp_path / "ingest.db", limits=limits, fast_transports=fast
        )
        async with cloud, RawDevice.connect(authority, cloud.server.port) as device, asyncio.timeout(20):
            await device.hello()
            last = 0
            for count in (50, 100, 200, 400):
                device.say(*(upload(seq, 997) for seq in range(last + 1, last + count + 1)))
                last += count
                while await device.hear() != protocol.Ack(last):
                    pass
            assert cloud.server.counts.pauses > 0

    _run(loop, scenario())


@on_each
def test_closing_does_not_wait_for_a_handshake_or_a_device(
    authority: TunnelAuthority, tmp_path: Path, loop: str, fast: bool
) -> None:
    async def scenario() -> float:
        cloud = TunnelCloud(
            ssl_context=authority.server_context(),
            path=tmp_path / "ingest.db",
            limits=ServerLimits(linger_s=0.3, hello_s=60.0),
            fast_transports=fast,
        )
        await cloud.start()
        with socket.create_connection(("127.0.0.1", cloud.server.port)):
            async with RawDevice.connect(authority, cloud.server.port) as device:
                await device.hello()
                device.say(upload(1))
                assert await device.hear() == protocol.Ack(1)
                began_s = time.monotonic()
                await cloud.stop()
                return time.monotonic() - began_s

    assert _run(loop, scenario()) < 5


@on_each
def test_answers_that_a_device_does_not_read_are_counted(
    authority: TunnelAuthority, tmp_path: Path, loop: str, fast: bool
) -> None:
    async def scenario() -> None:
        async def answer(_device_id: str, _topic: str, _payload: bytes) -> bytes:
            return random.Random(1).randbytes(1 << 20)

        cloud = TunnelCloud(
            ssl_context=authority.server_context(),
            path=tmp_path / "ingest.db",
            on_request=answer,
            limits=ServerLimits(device_bytes=3 << 20, memory_bytes=64 << 20),
            fast_transports=fast,
        )
        async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
            await device.hello()
            device.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(16):
                device.say(protocol.Request(number, "t", b""))
            await until(lambda: cloud.server.counts.refusals["memory"] == 1)
            await until(lambda: cloud.server.budget.buffered == 0)

    _run(loop, scenario())
