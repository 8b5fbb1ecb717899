"""Listening of several tunnel servers at one address, and on a socket of the caller, with both kinds of transports."""

import asyncio
import contextlib
import errno
import importlib.util
import logging
import socket
import time
from typing import Any

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.tunnel_rig import RawDevice, bare_server, until
from walle.pipeline.tunnel.server.listener import listen
from walle.pipeline.tunnel.server.reserved_port import reserve
from walle.pipeline.tunnel.server.server import ServerLimits

FAST = [
    False,
    pytest.param(
        True, marks=pytest.mark.skipif(importlib.util.find_spec("aiofastnet") is None, reason="needs aiofastnet")
    ),
]


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_servers_with_reuse_port_divide_the_connections_of_one_address(
    authority: TunnelAuthority, fast: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(bare_server(authority, reuse_port=True, fast_transports=fast))
        second = bare_server(authority, reuse_port=True, port=first.port, fast_transports=fast)
        await stack.enter_async_context(second)
        assert second.port == first.port
        for number in range(40):  # the chance that the kernel gives all to one is 2 in 2^40
            device = await stack.enter_async_context(RawDevice.connect(authority, first.port, number))
            await device.hello(number)
        assert first.counts.open + second.counts.open == 40
        assert min(first.counts.open, second.counts.open) > 0


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_an_address_in_use_is_refused_without_reuse_port(authority: TunnelAuthority, fast: bool) -> None:
    async with bare_server(authority) as first:
        second = bare_server(authority, port=first.port, fast_transports=fast)
        with pytest.raises(OSError, match="in use"):
            await second.start()


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_a_given_socket_is_listened_on_and_closed(authority: TunnelAuthority, fast: bool) -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    async with bare_server(authority, sock=bound, fast_transports=fast) as server:
        assert server.port == port
        async with RawDevice.connect(authority, port) as device:
            await device.hello()
            (connection,) = server._connections
            end = connection._transport.get_extra_info("socket")
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert bound.fileno() == -1


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_every_address_of_a_host_is_listened_on(authority: TunnelAuthority, fast: bool) -> None:
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    async with bare_server(authority, host="localhost", fast_transports=fast) as server:
        assert server._listener is not None
        expected = {found[0] for found in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
        assert {listening.family for listening in server._listener.sockets} == expected


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_port_0_is_the_same_port_on_every_address_of_a_host(
    authority: TunnelAuthority, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second address of IPv4 stands for one of IPv6, which not every machine has."""
    addresses = ["127.0.0.1", "127.0.0.2"]

    async def look_up(_host: str | None, port: int, **_options: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    create_server, taken = socket.create_server, list[int]()

    def refuse_one_port(where: Any, **options: Any) -> socket.socket:
        if where[0] == "127.0.0.2" and not taken:
            taken.append(where[1])  # another program listens there
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return create_server(where, **options)

    monkeypatch.setattr(socket, "create_server", refuse_one_port)
    async with bare_server(authority, host="both.example", fast_transports=fast) as server:
        assert server._listener is not None
        assert [listening.getsockname() for listening in server._listener.sockets] == [
            (address, server.port) for address in addresses
        ]
        assert taken != [0]


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_addresses_of_a_host_that_this_machine_does_not_have_are_left_out(
    authority: TunnelAuthority, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that knows localhost as ::1 too, and has no IPv6."""
    addresses = ["127.0.0.1", "203.0.113.1"]  # the latter is for documentation (RFC 5737), so no machine has it

    async def look_up(_host: str | None, port: int, **_options: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    async with bare_server(authority, host="both.example", fast_transports=fast) as server:
        with socket.create_connection(("127.0.0.1", server.port)):
            pass
    reserved = await reserve("both.example", 0)
    reserved.close()
    addresses.pop(0)
    with pytest.raises(OSError, match="assign") as raised:
        await reserve("other.example", 0)
    assert raised.value.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_closing_ends_a_handshake_under_way(authority: TunnelAuthority, fast: bool) -> None:
    server = bare_server(authority, fast_transports=fast)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    await server.close()
    assert time.monotonic() - began_s < server.limits.linger_s
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_a_drained_server_is_closed(authority: TunnelAuthority, fast: bool) -> None:
    server = bare_server(authority, fast_transports=fast)
    await server.start()
    await server.drain(over_s=0.0, grace_s=0.0)
    assert server._closed
    await server.close()


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_accepting_continues_after_the_file_descriptors_ran_out(
    authority: TunnelAuthority, fast: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Exhausted(socket.socket):
        left = 3

        def accept(self) -> tuple[socket.socket, object]:
            if Exhausted.left:
                Exhausted.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr("walle.pipeline.tunnel.server.listener._ACCEPT_RETRY_S", 0.05)
    bound = Exhausted(socket.AF_INET, socket.SOCK_STREAM)
    bound.bind(("127.0.0.1", 0))
    with caplog.at_level(logging.ERROR, logger="walle.pipeline.tunnel.server.listener"):
        async with (
            bare_server(authority, sock=bound, fast_transports=fast) as server,
            RawDevice.connect(authority, server.port) as device,
        ):
            await device.hello()
    assert Exhausted.left == 0
    assert len(caplog.records) == 3  # one for each failure: no tight loop
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_handshakes_under_way_are_bounded_and_slow_ones_leave_room(
    authority: TunnelAuthority, fast: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("walle.pipeline.tunnel.server.listener._HANDSHAKE_TURN_S", 0.3)
    async with bare_server(authority, fast_transports=fast, limits=ServerLimits(handshakes=3)) as server:
        listener = server._listener
        assert listener is not None
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        await until(lambda: listener.handshakes == 3)
        await asyncio.sleep(0.1)
        assert listener.handshakes == 3
        async with asyncio.timeout(5), RawDevice.connect(authority, server.port) as device:  # behind the silent ones
            await device.hello()
            assert listener.handshakes <= 3
        assert "handshakes are slow" in caplog.text
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.asyncio
async def test_many_devices_that_come_at_once_all_get_a_handshake(authority: TunnelAuthority, fast: bool) -> None:
    async with (
        bare_server(authority, fast_transports=fast, limits=ServerLimits(handshakes=2)) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        connecting = [
            stack.enter_async_context(RawDevice.connect(authority, server.port, number)) for number in range(30)
        ]
        for number, device in enumerate(await asyncio.gather(*connecting)):
            await device.hello(number)
        assert server.counts.open == 30


@pytest.mark.asyncio
async def test_a_device_that_speaks_no_tls_is_dropped(authority: TunnelAuthority) -> None:
    async with bare_server(authority) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()
        assert server.counts.connections == 0
        async with RawDevice.connect(authority, server.port) as device:
            await device.hello()


@pytest.mark.asyncio
async def test_a_client_that_leaves_in_its_handshake_is_not_a_fault(
    authority: TunnelAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("aiofastnet", reason="needs aiofastnet")
    loop = asyncio.get_running_loop()
    found: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: found.append(context))
    listener = await listen(
        asyncio.Protocol,
        ("127.0.0.1", 0),
        ssl_context=authority.server_context(),
        reuse_port=False,
        handshake_s=5.0,
        shutdown_s=1.0,
        fast=True,
    )
    socket.create_connection(listener.sockets[0].getsockname()).close()
    await asyncio.sleep(0.2)
    loop.call_exception_handler({"message": "another"})
    listener.close()
    await listener.wait_closed()
    loop.call_exception_handler({"message": "after the end"})
    assert [context["message"] for context in found] == ["another", "after the end"]
    assert not caplog.records


@pytest.mark.parametrize("missing", ["address", "family"])
@pytest.mark.asyncio
async def test_an_address_that_the_machine_does_not_have_is_left_out(
    authority: TunnelAuthority, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    hosts = ("2001:db8::1", "127.0.0.1")
    places: list[Any] = [socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0] for host in hosts]

    async def found(_: str, port: int, **__: object) -> list[Any]:
        return [(*place, (host, port, *rest)) for *place, (host, _, *rest) in places]

    class WithoutIPv6(socket.socket):
        def __init__(self, family: int = -1, *arguments: Any, **options: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "getaddrinfo", found)
        if missing == "family":
            patch.setattr(socket, "socket", WithoutIPv6)
        held = await reserve("localhost", 0)
        server = bare_server(authority, reuse_port=True, host="localhost", port=held.number)
        await server.start()
        del places[1]
        with pytest.raises(OSError, match=r"not supported|[Cc]annot assign"):
            await reserve("localhost", 0)
    async with RawDevice.connect(authority, server.port, 1) as device:
        await device.hello(1)
    assert server.port == held.number
    await server.close()
    held.close()


@pytest.mark.asyncio
async def test_a_reserved_port_cannot_be_taken_before_the_processes_listen() -> None:
    held = await reserve("", 0)
    try:
        for address in ("127.0.0.1", "0.0.0.0"):
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # every server has the option
                with pytest.raises(OSError, match="in use"):
                    server.bind((address, held.number))
        with pytest.raises(OSError, match="in use"):
            await reserve("", held.number)  # another cloud starts at the same time
        for _ in range(2):
            socket.create_server(("", held.number), reuse_port=True).close()  # the tunnel's processes listen so
    finally:
        held.close()
    (await reserve("", held.number)).close()
