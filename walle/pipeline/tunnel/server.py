"""The tunnel's server in the cloud (§5.2): one bounded stream of uploads from all devices' connections.

Invariants:
- A device's uploads are yielded in the order of their numbers, after the last durable one. A known number is dropped
  and acknowledged again. A missing number closes the connection, and the device resumes after the last durable one.
- Only `acknowledge` acknowledges. A device that reconnects repeats what was not acknowledged, so the consumer must drop
  numbers that it has (`walle.pipeline.tunnel.ingest.Ingest` does).
- Memory is bounded: while the queue is full, connections with more uploads are not read, and TCP slows the devices
  down.
- A device has one connection. A new one replaces the old one.
"""

import asyncio
import collections
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
from walle.pipeline.tunnel.frames import MAX_BODY_BYTES, Decoder, Encoder, FrameError

_LOG = logging.getLogger(__name__)

_HELLO_BODY_BYTES = 4096  # a Hello needs no more
_CHUNK = 256  # uploads of a connection that enter the queue between two checks of its bound
_CHUNK_BYTES = 256 << 10


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
    queue_bytes: int = 64 << 20  # and their payloads
    requests: int = 16  # of one device, at once
    connections: int = 20_000
    hello_s: float = 10.0  # from TLS handshake to Hello
    idle_s: float = 90.0  # without a byte from the device, which pings more often
    linger_s: float = 2.0  # to send the last bytes of a connection
    closing_retry_s: float = 1.0  # delay that devices are told at a planned stop; they add jitter


type TokenCheck = Callable[[str, str], Awaitable[bool]]
type ResumeLookup = Callable[[protocol.Hello], Awaitable[ResumePoint]]
type RequestHandler = Callable[[str, str, bytes], Awaitable[bytes]]


class TunnelServer:
    """A server that accepts devices over TLS 1.3 and yields their uploads.

        async with TunnelServer(ssl_context=..., token_check=..., resume=ingest.resume, on_request=...) as server:
            async for received in server:
                ...
                await server.acknowledge(received.device_id, received.epoch, received.seq)

    `token_check(device_id, token)` authenticates a device; `resume(hello)` returns where its uploads continue;
    `on_request(device_id, topic, payload)` answers a request. The device gets the message of a WalleError; of any other
    error it learns only that there was one. `port` 0 picks a free port, which is `.port`.

    Iteration ends after `close`, when the queue is empty.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext,
        token_check: TokenCheck,
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
        self.token_check = token_check
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
        self._queue: collections.deque[Received] = collections.deque()
        self._queued_bytes = 0
        self._paused: set[_Connection] = set()
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
        return len(self._queue)

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
            ssl=self._ssl_context,
            ssl_handshake_timeout=self.limits.hello_s,
            ssl_shutdown_timeout=self.limits.linger_s,
        )
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
            listener.abort_clients()  # also those in the middle of a handshake
            tasks = [self._sweeper, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
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

        Cancellation removes nothing from the queue.
        """
        while not self._queue:
            if self._closed:
                return []
            self._arrival.clear()
            await self._arrival.wait()
        taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        self._queued_bytes -= sum(len(received.payload) for received in taken)
        self._resume_paused()
        return taken

    def put_back(self, batch: list[Received]) -> None:
        """Put the latest batch of `arrived` back at the head of the queue: it was neither stored nor acknowledged."""
        self._queue.extendleft(reversed(batch))
        self._queued_bytes += sum(len(received.payload) for received in batch)
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

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= self.limits.queue_uploads or self._queued_bytes >= self.limits.queue_bytes

    def enqueue(self, uploads: list[Received], connection: "_Connection") -> None:
        """Queue a chunk of a connection's uploads, and pause the connection while the queue is full."""
        self._queue.extend(uploads)
        self._queued_bytes += sum(len(received.payload) for received in uploads)
        self.counts.uploads += len(uploads)
        self._arrival.set()
        if self._is_full and connection not in self._paused:
            self._paused.add(connection)
            self.counts.pauses += 1
            connection.pause()

    def _resume_paused(self) -> None:
        # At half of the bound, so that connections do not pause and resume at each upload.
        if (
            self._paused
            and len(self._queue) * 2 <= self.limits.queue_uploads
            and (self._queued_bytes * 2 <= self.limits.queue_bytes)
        ):
            paused, self._paused = self._paused, set()
            for connection in paused:
                connection.resume()

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
        self._paused.discard(connection)
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
    CHECKING = enum.auto()  # looking up token and numbers
    OPEN = enum.auto()
    CLOSED = enum.auto()  # refused or lost; further frames are dropped


class _Connection(asyncio.Protocol):
    """One device's connection: frames to calls of the server, and back."""

    def __init__(self, server: TunnelServer) -> None:
        self.device_id = ""
        self.epoch = ""
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
        self._since_s = 0.0  # time of the latest progress
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _is_closed(self) -> bool:
        return self._state is _ConnectionState.CLOSED

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._since_s = self._server.clock.monotonic()
        self._server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the device reconnects after any reason
        self._state = _ConnectionState.CLOSED
        self._writable.set()
        for task in self._tasks:
            task.cancel()
        self._server.left(self)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._since_s = self._server.clock.monotonic()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._owed_ack:
            self._write_ack()

    def data_received(self, data: bytes) -> None:
        server = self._server
        server.counts.bytes_in += len(data)
        if self._is_closed:
            return
        if (
            self._state is _ConnectionState.OPEN and self._writable.is_set()
        ):  # single bytes before the Hello do not extend its timeout
            self._since_s = server.clock.monotonic()
        self._decoder.add(data)
        self._take()

    def _take(self) -> None:
        """Process the received frames until the connection is paused: a few bytes may decompress to many."""
        server = self._server
        received_ms = int(server.clock.time() * 1000)
        uploads: list[Received] = []
        size_bytes = duplicates = 0
        try:
            while self._pauses == 0 and (frame := self._decoder.next()) is not None:
                if type(frame) is protocol.Upload and self._state is _ConnectionState.OPEN:
                    if frame.seq < self._due:
                        duplicates += 1
                        continue
                    if not self._is_in_turn(frame.seq):
                        break
                    self._due += 1
                    what = (frame.seq, frame.topic, frame.payload, frame.sent_ms, received_ms)
                    uploads.append(Received(self.device_id, self.epoch, *what))
                    size_bytes += len(frame.payload)
                    if size_bytes >= _CHUNK_BYTES or len(uploads) >= _CHUNK:
                        server.enqueue(uploads, self)
                        uploads, size_bytes = [], 0
                elif not self._on_other(frame):
                    break
        except FrameError as error:
            self.refuse("frame", str(error), 60.0)
        # Uploads before a bad frame are complete and in order.
        if uploads:
            server.enqueue(uploads, self)
        if duplicates:
            server.counts.duplicates += duplicates
            self._write_ack()

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

    def _is_in_turn(self, seq: int) -> bool:
        window = self._server.limits.window
        if seq != self._due:
            self.refuse("gap", f"upload {seq} came where {self._due} was due", 0.0)
        elif seq > self._acked + window:
            self.refuse("window", f"upload {seq} is more than {window} past {self._acked}, the last acknowledged", 10.0)
        return self._state is _ConnectionState.OPEN

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
                    self._spawn(self._answer(frame))
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
            elif not await server.token_check(hello.device_id, hello.token):
                self.refuse("token", f"this token is not that of device {hello.device_id!r}", -1.0)
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

    async def _answer(self, request: protocol.Request) -> None:
        payload, error_text = b"", ""
        try:
            payload = await self._server.on_request(self.device_id, request.topic, request.payload)
        except WalleError as error:
            error_text = str(error) or type(error).__name__
        except Exception:  # noqa: BLE001 - the device gets an answer after any failure
            _LOG.exception("tunnel: request %r of device %r failed", request.topic, self.device_id)
            error_text = "the cloud failed at this request"
        self._server.counts.failed_requests += bool(error_text)
        while not self._writable.is_set():  # another answer may fill the buffer again first
            await self._writable.wait()
        try:
            self._write(protocol.Response(request.request_id, payload, error_text[:2000]))
        except FrameError as error:
            self._write(protocol.Response(request.request_id, b"", f"the answer cannot be sent: {error}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._server.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _write_ack(self) -> None:
        self._owed_ack = not self._writable.is_set()
        if not self._owed_ack:
            self._write(protocol.Ack(self._acked))

    def _write(self, frame: protocol.Frame) -> None:
        if not self._is_closed:
            data = self._server.encoder.encode(frame)
            self._server.counts.bytes_out += len(data)
            self._transport.write(data)
