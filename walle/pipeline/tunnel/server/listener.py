"""The listening sockets of a tunnel server, and the transports of the connections that they accept.

The transports are aiofastnet's where it is installed, and the event loop's own elsewhere: the same TLS library and the
same protocol class, at less CPU time and memory (docs/adr/0023-tunnel.md). Their own servers are not
used: they accept without a bound on the handshakes under way, and aiofastnet's stops accepting in a tight loop of
errors when the process has no file descriptor left.
"""

import asyncio
import collections
import contextlib
import errno
import functools
import importlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from walle.trust.tls import name_sessions

_LOG = logging.getLogger(__name__)

_BACKLOG = 4096  # connections that wait for accept(): a fleet that lost its cloud comes back at once
_ACCEPTS = 64  # connections accepted in one turn of the event loop, so that connected devices are served in between
_FAILED_HANDSHAKE = "SSL handshake failed"
_HANDSHAKE_TURN_S = 2.0  # age at which a handshake is ended if others wait: a slow link needs four round trips
_TIMER_S = 0.01  # time by which a timer may be early
_ACCEPT_RETRY_S = 1.0  # pause after the process ran out of file descriptors or memory
_TRIES = 20  # attempts with port 0: the one that the system chooses for the first address may be in use at another
_NOT_HERE = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}  # the host lacks such an address: IPv6 is switched off, mostly
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# Bytes that a connection reads, or encrypts, at a time: 16 TLS records. The C library maps a buffer of this size by
# itself, so that its unused pages take no memory: a connection takes 34 KiB, and 47 with buffers of two records.
RECORDS_BYTES = 16 * (16 * 1024 + 64)


async def listen(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    address: tuple[str, int] | socket.socket,
    *,
    ssl_context: ssl.SSLContext,
    reuse_port: bool,
    handshake_s: float,
    shutdown_s: float,
    fast: bool | None,
    handshakes: int = 1024,
) -> "Listener":
    """Accept TLS connections at an address, or on a bound socket, which the result owns.

    `fast` chooses aiofastnet's transports or the event loop's; None: aiofastnet's where it is installed. While
    `handshakes` are under way, others wait to be accepted; one that is slow is ended then.

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
    connect = functools.partial(_connect_accepted(loop, fast, ssl_context), protocol_factory, **options)
    sockets = [address] if isinstance(address, socket.socket) else await _bind(address, reuse_port)
    return Listener(loop, sockets, connect, handshakes=handshakes, turn_s=_HANDSHAKE_TURN_S)


def _connect_accepted(
    loop: asyncio.AbstractEventLoop, fast: bool | None, context: ssl.SSLContext
) -> Callable[..., Awaitable[object]]:
    """Return aiofastnet's function that makes the transport of an accepted socket, or the event loop's."""
    if fast is not False:
        try:
            connect_fast = importlib.import_module("aiofastnet").connect_accepted_socket
        except ImportError:
            if fast:
                raise
        else:
            name_sessions(context)
            sizes = {"ssl_incoming_bio_size": RECORDS_BYTES, "ssl_outgoing_bio_size": RECORDS_BYTES}
            return functools.partial(connect_fast, loop, **sizes)
    return loop.connect_accepted_socket


async def local_addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Return the family and the address of each socket that is to listen; an empty host is every address here.

    A host's addresses that this machine does not have are left out, as event loops do: many containers know localhost
    as `::1` too, and have no IPv6.

    Raises:
        OSError: the host is unknown, or none of its addresses is this machine's.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = list[tuple[socket.AddressFamily, tuple[Any, ...]]]()
    missing: OSError | None = None
    for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
        try:
            with socket.socket(family) as probe:
                probe.bind((where[0], 0, *where[2:]))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            _LOG.warning("tunnel: this machine has no address %s of %r; not listening there", where[0], host)
            missing = error
        else:
            places.append((family, where))
    if missing is not None and not places:
        raise missing
    return places


async def bind_all(
    host: str, port: int, bind: Callable[[socket.AddressFamily, tuple[Any, ...]], socket.socket]
) -> list[socket.socket]:
    """Return what `bind(family, address)` makes for each address of the host, all with the same port.

    Port 0 is the one that the system chooses for the first address.

    Raises:
        OSError: as `local_addresses`, or the port is in use.
    """
    places = await local_addresses(host, port)
    for tries_left in reversed(range(_TRIES)):
        with contextlib.ExitStack() as undo:
            sockets = list[socket.socket]()
            chosen = port
            try:
                for family, (address, _, *rest) in places:
                    sockets.append(undo.enter_context(bind(family, (address, chosen, *rest))))
                    chosen = sockets[0].getsockname()[1]
            except OSError as error:
                if port != 0 or error.errno != errno.EADDRINUSE or not tries_left:
                    raise
            else:
                undo.pop_all()
                return sockets
    raise AssertionError


async def _bind(address: tuple[str, int], reuse_port: bool) -> list[socket.socket]:
    """Return a listening socket for each address of the host."""

    def bind(family: socket.AddressFamily, where: tuple[Any, ...]) -> socket.socket:
        return socket.create_server(where, family=family, backlog=_BACKLOG, reuse_port=reuse_port)

    return await bind_all(*address, bind)


def send_at_once(listening: socket.socket) -> None:
    """Set TCP_NODELAY, so that nothing waits 40 ms for the acknowledgement of what was sent before it.

    Accepted sockets inherit it. Event loops set it only on sockets that name TCP as their protocol, which those of
    `socket` do not.
    """
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Listener:
    """Listening sockets, and the handshakes of the connections that they accepted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        connect: Callable[[socket.socket], Awaitable[object]],
        *,
        handshakes: int,
        turn_s: float,
    ) -> None:
        self.sockets = sockets
        self._loop = loop
        self._connect = connect
        self._limit = handshakes
        self._turn_s = turn_s
        # Those under way, and when they began, the oldest first.
        self._handshakes: collections.OrderedDict[asyncio.Task[None], float] = collections.OrderedDict()
        self._waiting: asyncio.TimerHandle | None = None  # timer for the end of the oldest handshake's turn
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handle_before = loop.get_exception_handler()
        loop.set_exception_handler(self._handle_exception)
        for listening in sockets:
            send_at_once(listening)
            listening.setblocking(False)
            listening.listen(_BACKLOG)
            loop.add_reader(listening, self._accept, listening)

    @property
    def handshakes(self) -> int:
        """The number of handshakes under way."""
        return len(self._handshakes)

    def close(self) -> None:
        """Stop accepting. Handshakes under way continue. May be called twice."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
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
            if len(self._handshakes) >= self._limit:
                self._wait_for_turn()
                return
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _LOG.error("tunnel: cannot accept connections (%s); trying again in %s s", error, _ACCEPT_RETRY_S)
                self._loop.remove_reader(listening)
                self._retries[listening] = self._loop.call_later(_ACCEPT_RETRY_S, self._retry, listening)
                return
            handshake = self._loop.create_task(self._handshake(accepted))
            self._handshakes[handshake] = self._loop.time()
            handshake.add_done_callback(self._on_handshake_end)

    def _retry(self, listening: socket.socket) -> None:
        del self._retries[listening]
        self._loop.add_reader(listening, self._accept, listening)

    def _wait_for_turn(self) -> None:
        """Accept nothing until a handshake ends; end the oldest once it has had its turn."""
        for listening in self.sockets:
            if listening not in self._retries:
                self._loop.remove_reader(listening)
        if self._waiting is None:
            oldest_s = next(iter(self._handshakes.values()))
            self._waiting = self._loop.call_at(oldest_s + self._turn_s, self._end_slow)

    def _end_slow(self) -> None:
        """End all handshakes that have had their turn: their places are free once they have ended."""
        self._waiting = None
        before_s = self._loop.time() - self._turn_s + _TIMER_S
        slow = [handshake for handshake, began_s in self._handshakes.items() if began_s <= before_s]
        _LOG.warning("tunnel: %d of %d handshakes are slow; they are ended for others", len(slow), self.handshakes)
        for handshake in slow:
            handshake.cancel()

    def _on_handshake_end(self, handshake: asyncio.Task[None]) -> None:
        del self._handshakes[handshake]
        if len(self._handshakes) == self._limit - 1:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None
            for listening in self.sockets:
                if listening not in self._retries:
                    self._loop.add_reader(listening, self._accept, listening)

    async def _handshake(self, accepted: socket.socket) -> None:
        try:
            await self._connect(accepted)
        except OSError as error:  # ssl.SSLError is one
            _LOG.debug("tunnel: a connection ended in its handshake: %s", error)
