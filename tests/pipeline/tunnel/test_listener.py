"""Listening of several tunnel servers at one address, and on a socket of the caller."""

import contextlib
import socket

import pytest

from tests.sim.tunnel_cloud import authenticate, echo
from tests.sim.tunnel_rig import RawDevice, nothing_acked
from walle.cloud.authority import Authority
from walle.pipeline.tunnel.server import TunnelServer


def _server(authority: Authority, **options: object) -> TunnelServer:
    return TunnelServer(
        ssl_context=authority.server_context(),
        authenticate=authenticate,
        resume=nothing_acked,
        on_request=echo,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.asyncio
async def test_servers_with_reuse_port_divide_the_connections_of_one_address(authority: Authority) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(_server(authority, reuse_port=True))
        second = await stack.enter_async_context(_server(authority, reuse_port=True, port=first.port))
        assert second.port == first.port
        for number in range(40):  # the chance that the kernel gives all to one is 2 in 2^40
            device = await stack.enter_async_context(RawDevice.connect(authority, first.port))
            await device.hello(number)
        assert first.counts.open + second.counts.open == 40
        assert min(first.counts.open, second.counts.open) > 0


@pytest.mark.asyncio
async def test_an_address_in_use_is_refused_without_reuse_port(authority: Authority) -> None:
    async with _server(authority) as first:
        second = _server(authority, port=first.port)
        with pytest.raises(OSError, match="in use"):
            await second.start()


@pytest.mark.asyncio
async def test_a_given_socket_is_listened_on_and_closed(authority: Authority) -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    async with _server(authority, sock=bound) as server:
        assert server.port == port
        async with RawDevice.connect(authority, port) as device:
            await device.hello()
    assert bound.fileno() == -1
