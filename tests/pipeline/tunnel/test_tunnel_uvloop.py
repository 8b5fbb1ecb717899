"""The tunnel on uvloop, whose transports and servers differ from asyncio's in details."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import RawDevice, fill, running, until, upload
from walle import protocol
from walle.cloud.authority import Authority
from walle.pipeline.tunnel.client import TunnelClient, client_context
from walle.pipeline.tunnel.server import ServerLimits

uvloop = pytest.importorskip("uvloop")


def test_uploads_requests_and_bounds_are_the_same(authority: Authority, tmp_path: Path) -> None:
    async def scenario() -> None:
        assert "uvloop" in type(asyncio.get_running_loop()).__module__
        limits = ServerLimits(queue_uploads=20, device_bytes=1 << 20)
        cloud = TunnelCloud(ssl_context=authority.server_context(), path=tmp_path / "ingest.db", limits=limits)
        outbox = MemoryOutbox()
        async with cloud, RawDevice.connect(authority, cloud.server.port) as hostile:
            client = TunnelClient(
                outbox,
                device_id="device-0",
                token="token-0",
                host="127.0.0.1",
                port=cloud.server.port,
                ssl_context=client_context(authority.ca_path),
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

    uvloop.run(scenario())


def test_closing_does_not_wait_for_a_handshake_or_a_device(authority: Authority, tmp_path: Path) -> None:
    async def scenario() -> float:
        cloud = TunnelCloud(
            ssl_context=authority.server_context(),
            path=tmp_path / "ingest.db",
            limits=ServerLimits(linger_s=0.3, hello_s=60.0),
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

    assert uvloop.run(scenario()) < 5
