"""Connections of an edge gateway to the cloud's gateway: HTTP/1.1, kept and used again, on asyncio's streams and h11.

httpcore's pool was measured in its place. It looks at each of its connections for each request, and takes its locks and
streams from anyio: the reverse proxy passes on 500 requests a second of CPU time with it and 4,700 with this one, where
32 are under way. It reads an answer only after the whole body is sent, so that a refusal of a long body does not come
through. Bytes after an answer become the answer to the next request, which may be of another client. Errors are
httpcore's.
"""

import asyncio
import collections
import contextlib
import select
import socket
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import h11
import httpcore

_READ_BYTES = 64 << 10
_MOST_HEADER_BYTES = 100 << 10  # limit of an answer
_IDLE_CONNECTIONS = 64
_IDLE_S = 2.0  # less than after what the gateway ends an idle connection
_CONNECT_S = 3.0
_ROOM_S = 10.0  # time that a request waits where all connections are in use
# A gateway whose machine is gone says nothing: the kernel ends such a connection after half a minute.
_SOCKET_OPTIONS: list[tuple[int, int, int]] = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]

type Field = tuple[bytes, bytes]


class Place(NamedTuple):
    """Address of a gateway."""

    is_tls: bool
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Place":
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        return cls(is_tls, parts.hostname or "", parts.port or (443 if is_tls else 80))


class Onward(NamedTuple):
    """A request to pass on. `body` is None for none."""

    method: str
    target: bytes
    headers: Sequence[Field]
    body: AsyncIterable[bytes] | None


@contextlib.contextmanager
def _local_errors() -> Iterator[None]:
    try:
        yield
    except h11.LocalProtocolError as error:
        raise httpcore.LocalProtocolError(str(error)) from error


class _Reader(asyncio.StreamReader):
    """Reader that gives what came before the connection was reset, unlike its base class; `lost` is why it was."""

    lost: Exception | None = None

    def set_exception(self, exc: Exception) -> None:
        self.lost = exc
        self.feed_eof()


class _Connection:
    def __init__(self, place: Place, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self.place = place
        self.reader = reader
        self.writer = writer
        self.state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEADER_BYTES)
        self.idle_since_s = 0.0
        self._sending: asyncio.Task[None] | None = None

    def is_usable(self, place: Place) -> bool:
        """Return whether an idle connection leads there and is open: one with something to read is being ended."""
        if self.place != place or time.monotonic() - self.idle_since_s > _IDLE_S:
            return False
        if self.writer.transport.is_closing() or self.reader.at_eof():
            return False
        poll = select.poll()
        poll.register(self.writer.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    async def exchange(self, onward: Onward) -> h11.Response:
        """Send a request and return status and headers of its answer.

        The gateway may answer before it read all, as with 413, and then read nothing more: the rest is sent while the
        answer is read, until `end_sending`.
        """
        self._sending = asyncio.Task(self._send(onward), loop=asyncio.get_running_loop(), eager_start=True)
        if self._sending.done():
            self._sending.result()
            return await self._receive_head()
        receiving = asyncio.ensure_future(self._receive_head())
        try:
            await asyncio.wait((self._sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                self._sending.result()
            return await receiving
        finally:
            receiving.cancel()

    def end_sending(self) -> None:
        """Send no more of the request."""
        if self._sending is not None and not self._sending.cancel() and not self._sending.cancelled():
            self._sending.exception()  # the answer has come, whatever it was
        self._sending = None

    async def _send(self, onward: Onward) -> None:
        with contextlib.suppress(OSError):  # what the gateway answered before it ended the connection is read
            await self._send_parts(onward)

    async def _send_parts(self, onward: Onward) -> None:
        """Send a request, its head together with the first part of its body."""
        with _local_errors():
            head = h11.Request(method=onward.method, target=onward.target, headers=list(onward.headers))
            data = self.state.send(head) or b""
        if onward.body is not None:
            async for part in onward.body:
                with _local_errors():
                    data += self.state.send(h11.Data(data=part)) or b""
                await self._write(data)
                data = b""
        with _local_errors():
            data += self.state.send(h11.EndOfMessage()) or b""
        await self._write(data)

    async def _write(self, data: bytes) -> None:
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def _receive_head(self) -> h11.Response:
        """Return status and headers of the answer."""
        while not isinstance(event := await self.receive(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise httpcore.RemoteProtocolError(f"the gateway's answer begins with {event!r}")
        return event

    async def receive(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self.state.next_event()
            except h11.RemoteProtocolError as error:
                raise httpcore.RemoteProtocolError(str(error)) from error
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]  # NEED_DATA is excluded
            data = await self.reader.read(_READ_BYTES)
            if not data and self.reader.lost is not None:
                raise httpcore.ReadError(str(self.reader.lost)) from self.reader.lost
            if not data and self.state.their_state is h11.SEND_RESPONSE:
                raise httpcore.RemoteProtocolError("the gateway ended the connection before its answer")
            self.state.receive_data(data)


class Answer:
    """Answer of the gateway: status and headers, and its body by `parts`, once. `close` it in any case."""

    def __init__(self, pool: "GatewayConnections", connection: _Connection, event: h11.Response) -> None:
        self.status = event.status_code
        self.headers: list[Field] = list(event.headers)
        self._pool = pool
        self._connection = connection
        self._is_closed = False

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body. Raises httpcore.NetworkError, httpcore.RemoteProtocolError."""
        while isinstance(event := await self._connection.receive(), h11.Data):
            yield bytes(event.data)

    def close(self) -> None:
        """Let the connection be used again, or end it where the answer was not read to its end."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.release(self._connection)


class GatewayConnections:
    """At most `most` connections, made as they are needed. `tls` is for addresses of https."""

    def __init__(self, *, most: int, tls: ssl.SSLContext | None = None) -> None:
        self.made = 0
        self._tls = tls
        self._room = asyncio.Semaphore(most)
        self._idle: collections.deque[_Connection] = collections.deque()
        self._is_closed = False

    async def request(self, url: str, onward: Onward) -> Answer:
        """Send a request to the gateway at a base URL, and return its answer, whose body is still to be read.

        Raises:
            httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout: it was not sent.
            httpcore.NetworkError, httpcore.RemoteProtocolError: the connection ended before the answer.
            httpcore.LocalProtocolError: it cannot be passed on.
        """
        try:
            async with asyncio.timeout(_ROOM_S):
                await self._room.acquire()
        except TimeoutError:
            raise httpcore.PoolTimeout("all connections to the gateway are in use") from None
        connection: _Connection | None = None
        try:
            connection = self._idle_connection(Place.of(url)) or await self._connect(Place.of(url))
            event = await connection.exchange(onward)
        except BaseException:
            self._room.release()
            if connection is not None:
                connection.end_sending()
                connection.writer.transport.abort()
            raise
        return Answer(self, connection, event)

    def _idle_connection(self, place: Place) -> _Connection | None:
        """Return the connection that became idle last; those that cannot be used any more are ended."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable(place):
                return connection
            connection.writer.close()
        return None

    async def _connect(self, place: Place) -> _Connection:
        tls = self._tls if place.is_tls else None
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            async with asyncio.timeout(_CONNECT_S):
                transport, _ = await loop.create_connection(
                    lambda: protocol, place.host, place.port, ssl=tls, server_hostname=place.host if tls else None
                )
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no connection within {_CONNECT_S:g} s") from None
        except OSError as error:  # ssl.SSLError is one
            raise httpcore.ConnectError(str(error)) from error
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        for option in _SOCKET_OPTIONS:
            writer.get_extra_info("socket").setsockopt(*option)
        self.made += 1
        return _Connection(place, reader, writer)

    def release(self, connection: _Connection) -> None:
        """Take a connection back after an answer."""
        self._room.release()
        connection.end_sending()
        state = connection.state
        is_done = state.our_state is h11.DONE and state.their_state is h11.DONE
        has_more, _ = state.trailing_data  # bytes that the next request would take for its answer
        if not is_done or has_more or self._is_closed:
            connection.writer.transport.abort()
            return
        state.start_next_cycle()
        connection.idle_since_s = time.monotonic()
        self._idle.append(connection)
        while len(self._idle) > _IDLE_CONNECTIONS or time.monotonic() - self._idle[0].idle_since_s > _IDLE_S:
            self._idle.popleft().writer.close()

    def close(self) -> None:
        """End the idle connections; each other one ends with its answer."""
        self._is_closed = True
        for connection in self._idle:
            connection.writer.transport.abort()
        self._idle.clear()
