"""TLS sessions of the tunnel: the second connection is resumed, and certificates are still checked."""

import asyncio
import ssl
from pathlib import Path

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient, RawDevice, fill, running, until
from walle.pipeline.tunnel.client.client import TunnelClient


async def _reconnect(cloud: TunnelCloud, client: TunnelClient, times: int) -> list[bool]:
    """Cut the client's connection several times; return whether each connection was resumed."""
    resumed = []
    for number in range(1, times + 1):
        await until(lambda number=number: client.connected and client.connections == number)  # type: ignore[misc]
        assert client._link is not None
        assert client._link._transport is not None
        resumed.append(client._link._transport.get_extra_info("ssl_object").session_reused)
        client._link._transport.abort()
    return resumed


async def _scenario(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    async with cloud, asyncio.timeout(20):
        outbox = MemoryOutbox()
        client = TunnelClient(
            outbox,
            device_id="device-0",
            host="127.0.0.1",
            port=cloud.server.port,
            ssl_context=authority.device_context(),
            backoff_s=0.005,
            backoff_max_s=0.02,
        )
        async with running(client):
            assert await _reconnect(cloud, client, 4) == [False, True, True, True]
            fill(outbox, 100)
            await client.drained()
        assert await cloud.ingest.count() == 100
        assert cloud.server.counts.resumed >= 3


@pytest.mark.asyncio
async def test_the_second_connection_is_resumed(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    await _scenario(cloud, authority)


def test_the_second_connection_is_resumed_on_uvloop(authority: TunnelAuthority, tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    cloud = TunnelCloud(ssl_context=authority.server_context(), path=tmp_path / "ingest.db")
    uvloop.run(_scenario(cloud, authority))


@pytest.mark.asyncio
async def test_a_session_is_not_offered_to_a_server_of_another_name(
    cloud: TunnelCloud, authority: TunnelAuthority
) -> None:
    """Both names lead to the same server; its certificate must be checked for each."""
    context = authority.device_context()
    async with cloud:
        for host, is_resumed in (("127.0.0.1", False), ("localhost", False), ("localhost", True), ("127.0.0.1", True)):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", cloud.server.port, ssl=context, server_hostname=host
            )
            device = RawDevice(reader, writer)
            await device.hello()
            tls = writer.get_extra_info("ssl_object")
            assert (host, tls.session_reused) == (host, is_resumed)
            context.keep(tls)
            writer.transport.abort()


@pytest.mark.asyncio
async def test_a_server_with_another_key_is_checked_in_full(
    cloud: TunnelCloud, authority: TunnelAuthority, make_client: MakeClient, tmp_path: Path
) -> None:
    """A server that cannot decrypt the ticket, and has a certificate of another authority, is refused."""
    client = make_client(MemoryOutbox(), 0)
    await cloud.start()
    port = cloud.server.port
    client._address = ("127.0.0.1", port)
    async with running(client), asyncio.timeout(10):
        await until(lambda: client.connected)
        await cloud.stop()
        impostor = TunnelCloud(
            ssl_context=TunnelAuthority(tmp_path / "other").server_context(), path=tmp_path / "impostor.db"
        )
        await impostor.start()
        client._address = ("127.0.0.1", impostor.server.port)
        await until(lambda: isinstance(client.last_error, ssl.SSLCertVerificationError))
        assert impostor.server.counts.connections == 0
        await impostor.stop()


def test_a_session_is_used_once(authority: TunnelAuthority) -> None:
    context = authority.device_context()
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
