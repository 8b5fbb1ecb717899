"""A port that is held for several processes, which listen on it with SO_REUSEPORT."""

import contextlib
import socket
from typing import Any

from walle.pipeline.tunnel.server.listener import bind_all


class ReservedPort:
    """The port on each address of a host, held by sockets that do not listen, until `close`."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self.number: int = sockets[0].getsockname()[1]

    def close(self) -> None:
        for held in self._sockets:
            held.close()


async def reserve(host: str, port: int) -> ReservedPort:
    """Hold a port on all addresses of `host` that this machine has, IPv4 and IPv6; an empty host is all that it has.

    Port 0 is chosen by the system, the same for all addresses.

    Raises:
        OSError: the port is in use, also by another cloud: sockets with SO_REUSEPORT would share it without an error.
    """
    return ReservedPort(await bind_all(host, port, _bind))


def _bind(family: socket.AddressFamily, where: tuple[Any, ...]) -> socket.socket:
    host, _, *rest = where
    with _socket(family) as probe:
        probe.bind(where)
        probe.listen(1)
        port = probe.getsockname()[1]
    with contextlib.ExitStack() as undo:
        sharing = undo.enter_context(_socket(family))
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sharing.bind((host, port, *rest))
        # Else every program with SO_REUSEADDR, as servers are, could take the port until the processes listen: the
        # system may even choose it for one that asks for any port.
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        undo.pop_all()
    return sharing


def _socket(family: int) -> socket.socket:
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:  # the tunnel's processes listen so too: IPv4 has its sockets apart
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made
