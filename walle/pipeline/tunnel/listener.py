"""The listening socket of a tunnel server."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

_BACKLOG = 4096  # connections that wait for accept(): a fleet that lost its cloud comes back at once


async def listen(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    address: tuple[str, int] | socket.socket,
    *,
    ssl_context: ssl.SSLContext,
    reuse_port: bool,
    handshake_s: float,
    shutdown_s: float,
) -> asyncio.Server:
    """Accept TLS connections at an address, or on a bound socket, which the result owns.

    Raises:
        OSError: the address is in use.
    """
    options: dict[str, Any] = {
        "backlog": _BACKLOG,
        "ssl": ssl_context,
        "ssl_handshake_timeout": handshake_s,
        "ssl_shutdown_timeout": shutdown_s,
    }
    if isinstance(address, socket.socket):
        options["sock"] = address
    else:
        options["host"], options["port"] = address
        options["reuse_port"] = reuse_port
    return await asyncio.get_running_loop().create_server(protocol_factory, **options)
