"""The tunnel's server in the cloud (§5.2): one bounded stream of uploads from all devices' connections.

Invariants:
- A device's uploads are yielded in the order of their numbers, after the last durable one. A known number is dropped
  and acknowledged again. A missing number closes the connection, and the device resumes after the last durable one.
- Only `acknowledge` acknowledges. A device that reconnects repeats what was not acknowledged, so the consumer must drop
  numbers that it has (`walle.pipeline.tunnel.ingest.Ingest` does).
- Memory is bounded by `ByteBudget`: while the queue is full, or a request does not fit, its connection is not read,
  and TCP slows the device down. Connections that hold too many unfinished or unread bytes are closed and counted.
- A device has one connection. A new one replaces the old one.
"""

import asyncio
import collections
import contextlib
import dataclasses
import enum
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import zstandard

from walle import protocol
from walle.clock import Clock, SystemClock
from walle.errors import PipelineError, WalleError
from walle.pipeline.tunnel import sockets
from walle.pipeline.tunnel.budget import ByteBudget
from walle.pipeline.tunnel.frames import MAX_BODY_BYTES, Decoder, Encoder, FrameError, UploadFields, encode_ack

_LOG = logging.getLogger(__name__)

_HELLO_BODY_BYTES = 4096  # a Hello needs no more
_CHUNK = 256  # uploads of a connection that enter the queue between two checks of its bound
_CHUNK_BYTES = 256 << 10
_READ_AHEAD_BYTES = 64 << 10  # that TLS holds for a connection that is not read
_BACKLOG = 4096  # connections that wait for accept(): a fleet that lost its cloud comes back at once


class TunnelServerError(PipelineError):
    """A tunnel server that is configured wrongly, or used before its start or after its end."""


class Received(NamedTuple):
    """One received upload. `sent_ms` is by the device's clock, `received_ms` by the cloud's."""

    device_id: str
    epoch: str
    seq: int
    topic: str
    payload: bytes
    sent_ms: int
    received_ms: int


class ResumePoint(NamedTuple):
    """The highest durable number of a (device, epoch), and the chain value there."""

    seq: int
    chain: int


@dataclasses.dataclass(kw_only=True)
class ServerCounts:
    """Counts since a server's start. `refusals` counts by code."""

    connections: int = 0
    open: int = 0
    uploads: int = 0
    duplicates: int = 0
    requests: int = 0
    failed_requests: int = 0
    pauses: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds on the memory that devices take in a server, and timeouts."""

    window: int = 256  # uploads of a device that may be unacknowledged
    queue_uploads: int = 10_000  # uploads waiting for the consumer, over all devices
    memory_bytes: int = 64 << 20  # unprocessed bytes, requests and uploads, over all devices; see `ByteBudget`
    device_bytes: int = 16 << 20  # the same of one device; twice the largest frame
    memory_retry_s: float = 30.0  # delay that a device is told whose connection was closed for memory
    requests: int = 16  # of one device, at once
    connections: int = 20_000
    hello_s: float = 10.0  # from TLS handshake to Hello
    idle_s: float = 90.0  # without a byte from the device, which pings more often
    linger_s: float = 2.0  # to send the last bytes of a connection
    closing_retry_s: float = 1.0  # delay that devices are told at a planned stop; they add jitter


@dataclasses.dataclass(slots=True)
class _Chunk:
    """Uploads of one connection that wait together."""

    connection: "_Connection"
    uploads: list[Received]
    size_bytes: int

    def split(self, count: int) -> "_Chunk":
        """Remove and return the first `count` uploads."""
        first, self.uploads = self.uploads[:count], self.uploads[count:]
        size_bytes = sum(len(received.payload) for received in first)
        self.size_bytes -= size_bytes
        return _Chunk(self.connection, first, size_bytes)


type Authenticate = Callable[[str], Awaitable[str | None]]
type ResumeLookup = Callable[[protocol.Hello], Awaitable[ResumePoint]]
type RequestHandler = Callable[[str, str, bytes], Awaitable[bytes]]


class TunnelServer:
    """A server that accepts devices over TLS 1.3 and yields their uploads.

        async with TunnelServer(ssl_context=..., authenticate=..., resume=ingest.resume, on_request=...) as server:
            async for received in server:
                ...
                await server.acknowledge(received.device_id, received.epoch, received.seq)

    `authenticate(credential)` returns the id of the device that a credential stands for, None if it is not known: a
    Hello that claims another id is refused. `resume(hello)` returns where its uploads continue;
    `on_request(device_id, topic, payload)` answers a request. The device gets the message of a WalleError; of any other
    error it learns only that there was one. `port` 0 picks a free port, which is `.port`.

    Iteration ends after `close`, when the queue is empty.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext,
        authenticate: Authenticate,
        resume: ResumeLookup,
        on_request: RequestHandler,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ServerLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        if ssl_context.minimum_version < ssl.TLSVersion.TLSv1_3:
            raise TunnelServerError("the tunnel speaks TLS 1.3 only: set ssl_context.minimum_version to TLSv1_3")
        self.counts = ServerCounts()
        self.limits = limits or ServerLimits()
        self.clock = clock or SystemClock()
        self.authenticate = authenticate
        self.resume = resume
        self.on_request = on_request
        # Both are stateless between frames; one of each serves every connection of this loop.
        self.encoder = Encoder()
        self.decompressor = zstandard.ZstdDecompressor()
        self._address = (host, port)
        self._ssl_context = ssl_context
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False
        self._connections: set[_Connection] = set()
        self._by_device: dict[str, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.budget = ByteBudget(self.limits.memory_bytes, self.limits.device_bytes)
        self._queue: collections.deque[_Chunk] = collections.deque()
        self._queued = 0  # uploads in the queue
        self._taken: list[_Chunk] = []  # by the latest `arrived`; their bytes are held until the next
        self._paused: dict[_Connection, None] = {}  # until there is room for uploads; in order
        self._waiting: dict[_Connection, int] = {}  # until there is room for a request of that size; in order
        self._arrival = asyncio.Event()
        self._emptied = asyncio.Event()

    @property
    def port(self) -> int:
        if self._listener is None:
            raise TunnelServerError("the tunnel server has no port before start() and after close()")
        return cast("int", self._listener.sockets[0].getsockname()[1])

    @property
    def queued(self) -> int:
        """The number of uploads that wait for the consumer."""
        return self._queued

    @property
    def oldest_ms(self) -> int | None:
        """The time of receipt of the oldest upload that is not stored, by the cloud's clock; None if there is none."""
        oldest = self._taken[0] if self._taken else self._queue[0] if self._queue else None
        return oldest.uploads[0].received_ms if oldest is not None else None

    async def start(self) -> None:
        """Listen. Raises OSError if the address is in use."""
        if self._listener is not None or self._closed:
            raise TunnelServerError("a tunnel server starts once; make another")
        host, port = self._address
        # asyncio sets TCP_NODELAY on every TCP transport, so that no acknowledgement waits for Nagle's 40 ms.
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self),
            host,
            port,
            backlog=_BACKLOG,
            ssl=self._ssl_context,
            ssl_handshake_timeout=self.limits.hello_s,
            ssl_shutdown_timeout=self.limits.linger_s,
        )
        for listening in self._listener.sockets:
            sockets.recover_fast(listening)
        self._sweeper = asyncio.create_task(self._sweep(), name="tunnel server sweep")

    async def close(self) -> None:
        """Tell the devices to reconnect later, disconnect, and end the iteration once the queue is empty."""
        if self._closed:
            return
        self._closed = True
        self._arrival.set()
        if self._listener is None or self._sweeper is None:
            return
        listener, self._listener = self._listener, None
        listener.close()
        for connection in list(self._connections):
            connection.refuse("closing", "the cloud stops this tunnel for now", self.limits.closing_retry_s)
        try:
            async with asyncio.timeout(self.limits.linger_s):
                while self._connections:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            pass  # connections that do not read are dropped below
        finally:
            for connection in list(self._connections):
                connection.abort()
            abort_clients = getattr(listener, "abort_clients", None)
            if abort_clients is not None:  # uvloop has none; connections in the middle of a handshake time out there
                abort_clients()
            tasks = [self._sweeper, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.linger_s):
                    await listener.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- the consumer's side ---

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        arrived = await self.arrived(1)
        if not arrived:
            raise StopAsyncIteration
        return arrived[0]

    async def arrived(self, limit: int) -> list[Received]:
        """Return up to `limit` uploads as soon as there is one; none after `close`, when the queue is empty.

        The call tells that the uploads of the previous one are stored. Cancellation removes nothing from the queue.
        """
        self._release_taken()
        while not self._queue:
            if self._closed:
                return []
            self._arrival.clear()
            await self._arrival.wait()
        uploads: list[Received] = []
        while self._queue and len(uploads) < limit:
            room = limit - len(uploads)
            chunk = self._queue[0].split(room) if len(self._queue[0].uploads) > room else self._queue.popleft()
            uploads += chunk.uploads
            self._taken.append(chunk)
        self._queued -= len(uploads)
        self._resume_paused()
        return uploads

    def put_back(self, batch: list[Received]) -> None:  # noqa: ARG002 - it is in `_taken`, with its connections
        """Put the latest batch of `arrived` back at the head of the queue: it was neither stored nor acknowledged."""
        self._queue.extendleft(reversed(self._taken))
        self._queued += sum(len(chunk.uploads) for chunk in self._taken)
        self._taken = []
        self._arrival.set()

    async def acknowledge(self, device_id: str, epoch: str, seq: int) -> None:
        """Tell the device that everything up to and with `seq` is durable; do nothing if it is not connected."""
        connection = self._by_device.get(device_id)
        if connection is not None and connection.epoch == epoch:
            connection.acknowledge(seq)

    async def disconnect(self, device_id: str, epoch: str, code: str, message: str, retry_s: float) -> None:
        """Disconnect a device with a reason and a retry delay; do nothing if it is not connected."""
        connection = self._by_device.get(device_id)
        if connection is not None and connection.epoch == epoch:
            connection.refuse(code, message, retry_s)

    # --- the connections' side ---

    def enqueue(self, uploads: list[Received], size_bytes: int, connection: "_Connection") -> None:
        """Queue a chunk of a connection's uploads, and pause the connection while the queue is full."""
        self._queue.append(_Chunk(connection, uploads, size_bytes))
        self._queued += len(uploads)
        self.budget.uploads += size_bytes
        connection.upload_bytes += size_bytes
        self.counts.uploads += len(uploads)
        if not self._arrival.is_set():
            self._arrival.set()
        if self.are_uploads_full or connection.upload_bytes >= self.limits.device_bytes:
            self.pause_uploads(connection)

    @property
    def are_uploads_full(self) -> bool:
        return self._queued >= self.limits.queue_uploads or self.budget.are_uploads_full

    def pause_uploads(self, connection: "_Connection") -> None:
        """Do not read a connection until there is room for its uploads."""
        if connection not in self._paused:
            self._paused[connection] = None
            self.counts.pauses += 1
            connection.pause()

    def _release_taken(self) -> None:
        for chunk in self._taken:
            self.budget.uploads -= chunk.size_bytes
            chunk.connection.upload_bytes -= chunk.size_bytes
        self._taken = []
        self._resume_paused()

    def _resume_paused(self) -> None:
        # At half of each bound, so that connections do not pause and resume at each upload.
        if self._paused and self._queued * 2 <= self.limits.queue_uploads and self.budget.are_uploads_low:
            half_bytes = self.limits.device_bytes // 2
            for connection in [paused for paused in self._paused if paused.upload_bytes <= half_bytes]:
                del self._paused[connection]
                connection.resume()
                if self.are_uploads_full:
                    break

    def admit_request(self, size_bytes: int, connection: "_Connection") -> bool:
        """Return whether a request may be decompressed now; pause the connection until it may."""
        if self.budget.fits_request(size_bytes, connection.request_bytes):
            return True
        self._waiting[connection] = size_bytes
        self.counts.pauses += 1
        connection.pause()
        return False

    def hold_request(self, size_bytes: int, connection: "_Connection") -> contextlib.ExitStack:
        """Count a request; the first `close` of the result releases it."""
        self.budget.requests += size_bytes
        connection.request_bytes += size_bytes
        held = contextlib.ExitStack()
        held.callback(self._release_request, size_bytes, connection)
        return held

    def _release_request(self, size_bytes: int, connection: "_Connection") -> None:
        self.budget.requests -= size_bytes
        connection.request_bytes -= size_bytes
        if not self._waiting or self.budget.requests >= self.budget.requests_share:
            return
        for waiting, waiting_bytes in list(self._waiting.items()):
            if self.budget.fits_request(waiting_bytes, waiting.request_bytes):
                del self._waiting[waiting]
                waiting.resume()

    def set_buffered(self, size_bytes: int, connection: "_Connection") -> None:
        """Record what a connection has buffered, and close those that hold most while it is too much for all."""
        self.budget.buffered += size_bytes - connection.buffered_bytes
        connection.buffered_bytes = size_bytes
        if size_bytes > self.limits.device_bytes:
            connection.drop_for_memory(f"{size_bytes} bytes of this device are unprocessed or unread")
        while self.budget.is_buffered_over:
            largest = max(self._connections, key=lambda held: held.buffered_bytes)
            what = f"{self.budget.buffered} bytes of all devices are unprocessed or unread"
            largest.drop_for_memory(f"{what}, {largest.buffered_bytes} of them of this device")

    def joined(self, connection: "_Connection") -> None:
        self.counts.connections += 1
        self._connections.add(connection)
        self.counts.open = len(self._connections)
        if self._closed:
            connection.refuse("closing", "the cloud stops this tunnel for now", self.limits.closing_retry_s)
        elif len(self._connections) > self.limits.connections:
            connection.refuse("busy", f"more than {self.limits.connections} devices are connected", 30.0)

    def admit(self, connection: "_Connection") -> None:
        """Make `connection` the current one of its device."""
        older = self._by_device.get(connection.device_id)
        self._by_device[connection.device_id] = connection
        if older is not None:
            older.refuse("replaced", f"device {connection.device_id!r} has connected again", -1.0)

    def left(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        self._paused.pop(connection, None)
        self._waiting.pop(connection, None)
        self.counts.open = len(self._connections)
        if self._by_device.get(connection.device_id) is connection:
            del self._by_device[connection.device_id]
        if not self._connections:
            self._emptied.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _sweep(self) -> None:
        limits = self.limits
        while True:
            await self.clock.sleep(min(limits.hello_s, limits.idle_s, limits.linger_s) / 2)
            now_s = self.clock.monotonic()
            for connection in list(self._connections):
                connection.check_patience(now_s)


class _ConnectionState(enum.Enum):
    GREETING = enum.auto()  # waiting for its Hello
    CHECKING = enum.auto()  # looking up credential and numbers
    OPEN = enum.auto()
    CLOSED = enum.auto()  # refused or lost; further frames are dropped


class _Connection(asyncio.Protocol):
    """One device's connection: frames to calls of the server, and back."""

    def __init__(self, server: TunnelServer) -> None:
        self.device_id = ""
        self.epoch = ""
        self.upload_bytes = 0  # of its uploads that are not stored; these three are the server's accounts
        self.request_bytes = 0
        self.buffered_bytes = 0
        self._server = server
        self._state = _ConnectionState.GREETING
        self._decoder = Decoder(max_body_bytes=_HELLO_BODY_BYTES, decompressor=server.decompressor)
        self._transport: asyncio.Transport
        self._acked = 0
        self._due = 1  # number of the next upload
        self._pauses = 0  # reasons for not reading
        self._writable = asyncio.Event()
        self._writable.set()
        self._owed_ack = False  # an Ack could not be written yet
        self._answer_bytes = 0  # of answers that wait until the device reads
        self._since_s = 0.0  # time of the latest progress
        self._has_sent = False  # since the latest sweep, which moves `_since_s` then
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _is_closed(self) -> bool:
        return self._state is _ConnectionState.CLOSED

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._since_s = self._server.clock.monotonic()
        set_limits = getattr(transport, "set_read_buffer_limits", None)
        if set_limits is not None:  # TLS transports have it
            set_limits(_READ_AHEAD_BYTES)
        self._server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the device reconnects after any reason
        self._state = _ConnectionState.CLOSED
        self._writable.set()
        for task in self._tasks:
            task.cancel()
        self._decoder.clear()
        self._server.set_buffered(0, self)
        self._server.left(self)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._since_s = self._server.clock.monotonic()
        self._count_buffered()

    def resume_writing(self) -> None:
        self._writable.set()
        self._count_buffered()
        if self._owed_ack:
            self._write_ack()

    def data_received(self, data: bytes) -> None:
        self._server.counts.bytes_in += len(data)
        if self._is_closed:
            return
        self._has_sent = True
        self._decoder.add(data)
        self._take()

    def _take(self) -> None:
        """Process the received frames until the connection is paused: a few bytes may decompress to many."""
        server, decoder = self._server, self._decoder
        try:
            while self._pauses == 0 and self._state is not _ConnectionState.CLOSED:
                if self._state is _ConnectionState.OPEN:
                    if server.are_uploads_full and (ahead := decoder.peek()) and ahead[0] is protocol.Upload:
                        server.pause_uploads(self)
                        break
                    if uploads := decoder.uploads(_CHUNK, _CHUNK_BYTES):
                        self._on_uploads(uploads)
                        if decoder.buffered_bytes == 0:
                            break
                        continue
                    ahead = decoder.peek()
                    if ahead is None or (ahead[0] is protocol.Request and not server.admit_request(ahead[1], self)):
                        break
                frame = decoder.next()
                if frame is None or not self._on_other(frame):
                    break
        except FrameError as error:
            self.refuse("frame", str(error), 60.0)
        decoder.trim()
        if self.buffered_bytes or decoder.buffered_bytes:
            self._count_buffered()

    def _on_uploads(self, uploads: list[UploadFields]) -> None:
        """Queue what is due; acknowledge what is known. Uploads before one out of turn are complete and in order."""
        received_ms = int(self._server.clock.time() * 1000)
        due, last_allowed = self._due, self._acked + self._server.limits.window
        device_id, epoch = self.device_id, self.epoch
        fresh: list[Received] = []
        size_bytes = duplicates = 0
        for seq, topic, payload, sent_ms in uploads:
            if seq == due and seq <= last_allowed:
                due += 1
                fresh.append(Received(device_id, epoch, seq, topic, payload, sent_ms, received_ms))
                size_bytes += len(payload)
            elif seq < due:
                duplicates += 1
            else:
                break
        self._due = due
        if fresh:
            self._server.enqueue(fresh, size_bytes, self)
        if duplicates:
            self._server.counts.duplicates += duplicates
            self._write_ack()
        if len(fresh) + duplicates < len(uploads):
            self._refuse_out_of_turn(uploads[len(fresh) + duplicates][0])

    def _count_buffered(self) -> None:
        buffered_bytes = self._decoder.buffered_bytes + self._answer_bytes
        if not self._writable.is_set():
            buffered_bytes += self._transport.get_write_buffer_size()
        if buffered_bytes != self.buffered_bytes:
            self._server.set_buffered(buffered_bytes, self)

    # --- the server's calls ---

    def acknowledge(self, seq: int) -> None:
        # Uploads of the device's previous connection may become durable during this one: continue after those.
        if self._state is _ConnectionState.OPEN and seq > self._acked:
            self._acked = seq
            self._due = max(self._due, seq + 1)
            self._write_ack()

    def refuse(self, code: str, message: str, retry_s: float) -> None:
        """Send the reason, and disconnect once it is sent."""
        if self._is_closed:
            return
        self._server.counts.refusals[code] += 1
        self._write(protocol.Refusal(code, message, retry_s))
        self._state = _ConnectionState.CLOSED
        self._since_s = self._server.clock.monotonic()
        self._transport.close()

    def drop_for_memory(self, why: str) -> None:
        """Close the connection and release what it has buffered."""
        self.refuse(
            "memory", f"{why}; what was not acknowledged is to be sent again", self._server.limits.memory_retry_s
        )
        if not self._writable.is_set():
            self._transport.abort()
        self._decoder.clear()
        self._answer_bytes = 0
        self._server.set_buffered(0, self)

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def pause(self) -> None:
        self._pauses += 1
        if self._pauses == 1 and not self._is_closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and not self._is_closed:
            self._since_s = self._server.clock.monotonic()  # the pause was the server's
            self._take()
            if self._pauses == 0 and not self._is_closed:
                self._transport.resume_reading()

    def check_patience(self, now_s: float) -> None:
        """Disconnect a device that has been silent, or has not read, beyond the limits."""
        # Single bytes before the Hello do not extend its timeout, nor bytes of a device that does not read.
        if self._has_sent and self._state is _ConnectionState.OPEN and self._writable.is_set():
            self._since_s = now_s
        self._has_sent = False
        limits, waited_s = self._server.limits, now_s - self._since_s
        if self._is_closed:
            if waited_s >= limits.linger_s:
                self._transport.abort()
        elif self._state is _ConnectionState.GREETING:
            if waited_s >= limits.hello_s:
                self.refuse("hello", f"no Hello within {limits.hello_s} s", 10.0)
        elif waited_s >= limits.idle_s and (self._pauses == 0 or not self._writable.is_set()):
            self.refuse("idle", f"silent for {limits.idle_s} s", 0.0)

    # --- frames ---

    def _refuse_out_of_turn(self, seq: int) -> None:
        window = self._server.limits.window
        if seq != self._due:
            self.refuse("gap", f"upload {seq} came where {self._due} was due", 0.0)
        else:
            self.refuse("window", f"upload {seq} is more than {window} past {self._acked}, the last acknowledged", 10.0)

    def _on_other(self, frame: protocol.Frame) -> bool:
        """Process any frame but an upload in order. Return False if the connection has ended."""
        match frame:
            case protocol.Hello() if self._state is _ConnectionState.GREETING:
                self._state = _ConnectionState.CHECKING
                self.pause()
                self._spawn(self._greet(frame))
            case protocol.Request() if self._state is _ConnectionState.OPEN:
                self._server.counts.requests += 1
                if len(self._tasks) < self._server.limits.requests:
                    held = self._server.hold_request(len(frame.payload), self)
                    self._spawn(self._answer(frame, held)).add_done_callback(lambda _: held.close())
                else:
                    what = f"busy: {len(self._tasks)} requests of this device are being answered; send fewer at once"
                    self._write(protocol.Response(frame.request_id, b"", what))
            case protocol.Ping() if self._state is _ConnectionState.OPEN:
                if self._writable.is_set():
                    self._write(protocol.Pong(frame.token))
            case _:
                name = type(frame).__name__
                self.refuse("order", f"{name} came while the connection was {self._state.name.lower()}", 60.0)
        return not self._is_closed

    async def _greet(self, hello: protocol.Hello) -> None:
        server = self._server
        try:
            if hello.protocol != protocol.PROTOCOL_VERSION:
                what = f"protocol {hello.protocol} is not supported; the cloud has protocol {protocol.PROTOCOL_VERSION}"
                self.refuse("protocol", what, -1.0)
            elif not hello.device_id or not hello.epoch:
                self.refuse("hello", "device_id and epoch cannot be empty", -1.0)
            elif (device_id := await server.authenticate(hello.token)) is None:
                self.refuse("token", "the credential is not known", -1.0)
            elif device_id != hello.device_id:
                self.refuse("identity", f"the credential is not that of device {hello.device_id!r}", -1.0)
            else:
                point = await server.resume(hello)
                if self._state is _ConnectionState.CHECKING:
                    self._open(hello, point)
        except protocol.ProtocolError as error:
            self.refuse("hello", str(error), -1.0)
        except Exception:  # noqa: BLE001 - the device gets an answer after any failure
            _LOG.exception("tunnel: device %r could not be looked up", hello.device_id)
            self.refuse("unavailable", "the cloud cannot look this device up now", 5.0)

    def _open(self, hello: protocol.Hello, point: ResumePoint) -> None:
        self.device_id, self.epoch = hello.device_id, hello.epoch
        self._acked, self._due = point.seq, point.seq + 1
        self._state = _ConnectionState.OPEN
        self._since_s = self._server.clock.monotonic()
        self._decoder.max_body_bytes = MAX_BODY_BYTES
        self._server.admit(self)
        self._write(protocol.Welcome(point.seq, self._server.limits.window, point.chain))
        self.resume()

    async def _answer(self, request: protocol.Request, held: contextlib.ExitStack) -> None:
        payload, error_text, request_id = b"", "", request.request_id
        try:
            payload = await self._server.on_request(self.device_id, request.topic, request.payload)
        except WalleError as error:
            error_text = str(error) or type(error).__name__
        except Exception:  # noqa: BLE001 - the device gets an answer after any failure
            _LOG.exception("tunnel: request %r of device %r failed", request.topic, self.device_id)
            error_text = "the cloud failed at this request"
        finally:
            del request
            held.close()
        self._server.counts.failed_requests += bool(error_text)
        await self._wait_writable(len(payload))
        try:
            self._write(protocol.Response(request_id, payload, error_text[:2000]))
        except FrameError as error:
            self._write(protocol.Response(request_id, b"", f"the answer cannot be sent: {error}"))

    async def _wait_writable(self, answer_bytes: int) -> None:
        """Return once an answer may be written. Another answer may fill the buffer again first."""
        if self._writable.is_set():
            return
        self._answer_bytes += answer_bytes
        self._count_buffered()
        try:
            while not self._writable.is_set():
                await self._writable.wait()
        finally:
            if not self._is_closed:
                self._answer_bytes -= answer_bytes
                self._count_buffered()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._server.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _write_ack(self) -> None:
        self._owed_ack = not self._writable.is_set()
        if not self._owed_ack:
            self._send(encode_ack(self._acked))

    def _write(self, frame: protocol.Frame) -> None:
        if not self._is_closed:
            self._send(self._server.encoder.encode(frame))

    def _send(self, data: bytes) -> None:
        if not self._is_closed:
            self._server.counts.bytes_out += len(data)
            self._transport.write(data)
