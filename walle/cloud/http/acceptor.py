"""Listening socket of the gateway's HTTP server: it accepts at once, and leaves the rest to turns of addresses."""

import asyncio
import errno
import functools
import importlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from walle.cloud.http.accept_queue import Newcomers
from walle.cloud.http.connection import READ_BYTES
from walle.cloud.http.limits import address_key

if TYPE_CHECKING:
    from walle.cloud.http.server import HttpFront

_LOG = logging.getLogger(__name__)

_ACCEPTS = 256  # connections accepted in one pass of the event loop
_ACCEPT_S = 0.004
_RETRY_S = 0.2  # pause after the process ran out of file descriptors
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

type Connect = Callable[[Callable[[], asyncio.BaseProtocol], socket.socket], Awaitable[object]]
"""`await connect(protocol_factory, accepted)` makes the transport of a socket, after the handshake of TLS if any."""


class Acceptor:
    """A listening socket whose connections `front` serves, in the place of an asyncio server."""

    def __init__(self, front: "HttpFront", listener: socket.socket, context: ssl.SSLContext | None) -> None:
        self._front = front
        self._listener = listener
        self._retry: asyncio.TimerHandle | None = None
        self._is_open = True
        connect, is_tls = _connector(front, context), context is not None
        self._newcomers = Newcomers(
            front.turns,
            front.max_newcomers,
            lambda accepted, host: front.begin(accepted, host, connect, is_tls=is_tls),
            front.refused,
        )
        front.newcomers = lambda: self._newcomers.count
        listener.setblocking(False)
        front.loop.add_reader(listener, self._accept)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._retry is not None:
            self._retry.cancel()
        self._front.loop.remove_reader(self._listener)
        self._newcomers.close()
        self._front.close_unused()

    def stop(self) -> None:
        """Accept nothing more; who was accepted is served."""
        if self._retry is not None:
            self._retry.cancel()
        self._front.loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Return at once: connections under way are the server's."""

    def _accept(self) -> None:
        end_s = perf_counter() + _ACCEPT_S
        for _ in range(_ACCEPTS):
            if perf_counter() >= end_s:
                return
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                if not self._front.refused["files"]:
                    _LOG.error("HTTP: cannot accept connections (%s); see walle_http_refused", error)
                self._front.refused["files"] += 1
                self._front.connections.make_room()
                self._front.loop.remove_reader(self._listener)
                self._retry = self._front.loop.call_later(_RETRY_S, self._resume)
                return
            accepted.setblocking(False)
            self._newcomers.add(accepted, peer[0], address_key(peer[0]))

    def _resume(self) -> None:
        self._retry = None
        self._front.loop.add_reader(self._listener, self._accept)


def _connector(front: "HttpFront", context: ssl.SSLContext | None) -> Connect:
    """Return what makes the transport of an accepted socket: with TLS aiofastnet's, which takes less memory."""
    if context is None:
        return front.loop.connect_accepted_socket
    options: dict[str, Any] = {
        "ssl": context,
        "ssl_handshake_timeout": front.limits.handshake_s,
        "ssl_shutdown_timeout": 2.0,
    }
    try:
        connect = importlib.import_module("aiofastnet").connect_accepted_socket
    except ImportError:
        return functools.partial(front.loop.connect_accepted_socket, **options)
    sizes = {"ssl_incoming_bio_size": READ_BYTES, "ssl_outgoing_bio_size": READ_BYTES}
    return functools.partial(connect, front.loop, **options, **sizes)
