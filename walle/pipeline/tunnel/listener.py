"""The listening sockets of a tunnel server, and the transports of the connections that they accept.

The transports are aiofastnet's where it is installed, and the event loop's own elsewhere: the same TLS library and the
same protocol class, at less CPU time and memory (docs/adr/0113-transports-of-the-tunnel.md). aiofastnet's own server is
not used, because it stops accepting in a tight loop of errors when the process has no file descriptor left.
"""

import asyncio
import contextlib
import errno
import importlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

_LOG = logging.getLogger(__name__)

_BACKLOG = 4096  # connections that wait for accept(): a fleet that lost its cloud comes back at once
_ACCEPTS = 64  # in one turn of the event loop, so that connected devices are served in between
_FAILED_HANDSHAKE = "SSL handshake failed"
_ACCEPT_RETRY_S = 1.0  # after the process ran out of file descriptors or memory
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# Bytes that a connection reads, or encrypts, at a time: 16 TLS records. The C library maps a buffer of this size by
# itself, so that its unused pages take no memory: a connection takes 34 KiB, and 47 with buffers of two records.
_RECORDS_BYTES = 16 * (16 * 1024 + 64)

type ConnectAccepted = Callable[..., Awaitable[tuple[asyncio.Transport, asyncio.BaseProtocol]]]


class Listener(Protocol):
    """The interface of asyncio.Server that the tunnel server uses."""

    @property
    def sockets(self) -> Any: ...
    def close(self) -> None: ...
    async def wait_closed(self) -> None: ...


async def listen(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    address: tuple[str, int] | socket.socket,
    *,
    ssl_context: ssl.SSLContext,
    reuse_port: bool,
    handshake_s: float,
    shutdown_s: float,
    fast: bool | None,
) -> Listener:
    """Accept TLS connections at an address, or on a bound socket, which the result owns.

    `fast` chooses aiofastnet's transports or the event loop's; None: aiofastnet's where it is installed.

    Raises:
        OSError: the address is in use.
        ImportError: aiofastnet was chosen and is not installed.
    """
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {
        "ssl": ssl_context,
        "ssl_handshake_timeout": handshake_s,
        "ssl_shutdown_timeout": shutdown_s,
    }
    connect_accepted = _fast_transports(fast)
    if connect_accepted is not None:
        sockets = [address] if isinstance(address, socket.socket) else await _bind(loop, address, reuse_port)
        return _FastListener(loop, sockets, protocol_factory, connect_accepted, options)
    if isinstance(address, socket.socket):
        _send_at_once(address)
        return await loop.create_server(protocol_factory, sock=address, backlog=_BACKLOG, **options)
    host, port = address
    return await loop.create_server(protocol_factory, host, port, reuse_port=reuse_port, backlog=_BACKLOG, **options)


def _fast_transports(fast: bool | None) -> ConnectAccepted | None:
    """Return aiofastnet's `connect_accepted_socket`, None for the event loop's own transports."""
    if fast is False:
        return None
    try:
        found: ConnectAccepted = importlib.import_module("aiofastnet").connect_accepted_socket
    except ImportError:
        if fast:
            raise
        return None
    return found


async def _bind(loop: asyncio.AbstractEventLoop, address: tuple[str, int], reuse_port: bool) -> list[socket.socket]:
    """Return a listening socket for each address of the host."""
    host, port = address
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as undo:
        sockets = [
            undo.enter_context(socket.create_server(where, family=family, backlog=_BACKLOG, reuse_port=reuse_port))
            for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found)
        ]
        undo.pop_all()
    return sockets


def _send_at_once(listening: socket.socket) -> None:
    """Set TCP_NODELAY, so that no acknowledgement waits for Nagle's 40 ms. Accepted sockets inherit it.

    Event loops set it only on sockets that name TCP as their protocol, which those of `socket` do not.
    """
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _FastListener:
    """Listening sockets whose connections have aiofastnet's transports."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        connect_accepted: ConnectAccepted,
        options: dict[str, Any],
    ) -> None:
        self.sockets = sockets
        self._loop = loop
        self._protocol_factory = protocol_factory
        self._options = options
        self._connect_accepted = connect_accepted
        self._handshakes: set[asyncio.Task[None]] = set()
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handle_before = loop.get_exception_handler()
        loop.set_exception_handler(self._handle_exception)
        for listening in sockets:
            _send_at_once(listening)
            listening.setblocking(False)
            listening.listen(_BACKLOG)
            loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop accepting. Handshakes under way go on. May be called twice."""
        listening_sockets, self.sockets = self.sockets, []
        for listening in listening_sockets:
            if (retry := self._retries.pop(listening, None)) is not None:
                retry.cancel()
            self._loop.remove_reader(listening)
            listening.close()

    def abort_clients(self) -> None:
        """End the handshakes under way."""
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """Return once the handshakes have ended."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)
        if self._loop.get_exception_handler() == self._handle_exception:
            self._loop.set_exception_handler(self._handle_before)

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Pass a fault of the event loop on, but not handshakes that clients end, which aiofastnet reports as faults.

        Its report may hold an exception's class in place of the exception, which cannot be logged.
        """
        if context.get("message") == _FAILED_HANDSHAKE:
            _LOG.debug("tunnel: a connection ended in its handshake: %r", context.get("exception"))
        elif self._handle_before is not None:
            self._handle_before(loop, context)
        else:
            loop.default_exception_handler(context)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _LOG.error("tunnel: cannot accept connections (%s); trying again in %s s", error, _ACCEPT_RETRY_S)
                self._loop.remove_reader(listening)
                resume = self._loop.call_later(
                    _ACCEPT_RETRY_S, self._loop.add_reader, listening, self._accept, listening
                )
                self._retries[listening] = resume
                return
            handshake = self._loop.create_task(self._handshake(accepted))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket) -> None:
        try:
            await self._connect_accepted(
                self._loop,
                self._protocol_factory,
                accepted,
                ssl_incoming_bio_size=_RECORDS_BYTES,
                ssl_outgoing_bio_size=_RECORDS_BYTES,
                **self._options,
            )
        except OSError as error:  # ssl.SSLError is one
            _LOG.debug("tunnel: a connection ended in its handshake: %s", error)
