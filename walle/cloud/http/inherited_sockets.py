"""Listening sockets that a service manager opened for this process: systemd's socket activation (LISTEN_FDS).

The service manager keeps them open while the process is started again, and the kernel keeps the connections that come
meanwhile in their queues: none is refused. Source: sd_listen_fds(3).
"""

import contextlib
import ipaddress
import os
import socket
from collections.abc import MutableMapping
from typing import Self

from walle.errors import ConfigError

_FIRST = 3  # file descriptor
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class InheritedSocketError(ConfigError):
    """A socket of the service manager that this cloud cannot listen on."""


class InheritedSockets:
    """Sockets for HTTP and for the tunnel; each is None where none was handed over."""

    def __init__(self, http: socket.socket | None = None, tunnel: socket.socket | None = None) -> None:
        self._http = http
        self._tunnel = tunnel

    @classmethod
    def take(cls, environment: MutableMapping[str, str], host: str, *, http_port: int, tunnel_port: int) -> Self:
        """Take the sockets over that were handed to this process; the port says for what each is.

        Their variables are removed from the environment, and child processes do not get the sockets.

        Raises:
            InheritedSocketError: a file descriptor is not a socket that listens at `host` and one of the ports, or two
                are for the same port.
        """
        count = environment.get("LISTEN_FDS", "")
        is_ours = environment.get("LISTEN_PID") == str(os.getpid())
        for name in _VARIABLES:
            environment.pop(name, None)
        if not is_ours or not count.isdecimal():
            return cls()
        found: dict[int, socket.socket] = {}
        with contextlib.ExitStack() as undo:
            for descriptor in range(_FIRST, _FIRST + int(count)):
                inherited = undo.enter_context(_listening(descriptor))
                address, port = inherited.getsockname()[:2]
                if port not in (http_port, tunnel_port):
                    what = f"HTTP has {http_port} and the tunnel {tunnel_port}; give ListenStream= of the .socket unit"
                    raise InheritedSocketError(
                        f"a socket of port {port} was handed over (LISTEN_FDS), but {what} the ports of"
                        " --http-port and --tunnel-port"
                    )
                if port in found:
                    raise InheritedSocketError(
                        f"two sockets of port {port} were handed over (LISTEN_FDS); give one ListenStream= for it"
                    )
                if not _is_at(address, host):
                    raise InheritedSocketError(
                        f"the socket of port {port} that was handed over (LISTEN_FDS) listens at {address}, not at"
                        f" {host}: give the same address as --host and in ListenStream= of the .socket unit"
                    )
                found[port] = inherited
            undo.pop_all()
        return cls(found.get(http_port), found.get(tunnel_port))

    def __bool__(self) -> bool:
        return self._http is not None or self._tunnel is not None

    @property
    def http(self) -> socket.socket | None:
        """A further descriptor of the socket for HTTP, for the caller to close."""
        return self._http and self._http.dup()

    @property
    def tunnel(self) -> socket.socket | None:
        """A further descriptor of the socket for the tunnel, for the caller to close."""
        return self._tunnel and self._tunnel.dup()


def _listening(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        what = f"file descriptor {descriptor} was announced by LISTEN_FDS and is not a socket ({error.strerror})"
        raise InheritedSocketError(f"{what}; start this command by its .socket unit") from error
    is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type is socket.SOCK_STREAM
    if not is_tcp or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        found.detach()
        raise InheritedSocketError(
            f"file descriptor {descriptor} (LISTEN_FDS) is not a TCP socket that listens; use ListenStream=ADDRESS:PORT"
        )
    found.setblocking(False)
    return found


def _is_at(address: str, host: str) -> bool:
    """Return whether a socket's address is the host's."""
    if ipaddress.ip_address(address).is_unspecified:
        with contextlib.suppress(ValueError):
            return not host or ipaddress.ip_address(host).is_unspecified
        return False
    try:
        return address in {one[4][0] for one in socket.getaddrinfo(host, None)}
    except OSError:
        return False
