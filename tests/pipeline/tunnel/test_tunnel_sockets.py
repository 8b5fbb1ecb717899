"""TCP options of both ends of a tunnel, as the kernel has them."""

import asyncio
import socket
import sys

import pytest

from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient, running, until
from walle.pipeline.tunnel import sockets

_TCP_RTO_MIN_US, _TCP_DELACK_MAX_US = 45, 46


def has_options() -> bool:
    with socket.socket() as probe:
        try:
            return probe.getsockopt(socket.IPPROTO_TCP, _TCP_RTO_MIN_US) > 0
        except OSError:
            return False


def option(connection: socket.socket, number: int) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, number)


@pytest.mark.asyncio
@pytest.mark.skipif(sys.platform != "linux" or not has_options(), reason="the kernel has no TCP_RTO_MIN_US")
async def test_both_ends_recover_from_a_lost_small_packet_sooner_than_by_default(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    async with cloud:
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client), asyncio.timeout(20):
            await until(lambda: client.connected)
            assert client._link is not None
            assert client._link._transport is not None
            (accepted,) = cloud.server._connections
            for transport in (client._link._transport, accepted._transport):
                connection = transport.get_extra_info("socket")
                assert option(connection, _TCP_RTO_MIN_US) == 40_000
                assert option(connection, _TCP_DELACK_MAX_US) == 20_000
                assert option(connection, socket.TCP_NODELAY) == 1
            assert option(client._link._transport.get_extra_info("socket"), socket.TCP_NOTSENT_LOWAT) == 16 << 10


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")
def test_the_kernel_tells_the_least_round_trip() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as sender:
        assert sockets.least_round_trip_s(sender) is None  # an unconnected socket has none
        sender.connect(listener.getsockname())
        found = sockets.least_round_trip_s(sender)
        assert found is not None
        assert 0 < found < 1
    assert sockets.least_round_trip_s(sender) is None  # closed
    assert sockets.least_round_trip_s(None) is None
