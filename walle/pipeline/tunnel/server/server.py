"""The tunnel's server in the cloud (§5.2): one bounded stream of uploads from all devices' connections.

Invariants:
- A device's uploads are yielded in the order of their numbers, after the last durable one. A known number is dropped
  and acknowledged again. A missing number closes the connection, and the device resumes after the last durable one.
- Only `acknowledge` acknowledges. A device that reconnects repeats what was not acknowledged, so the consumer must drop
  numbers that it has (`walle.pipeline.tunnel.ingest.Ingest` does).
- Devices have fair turns (deficit round robin by bytes), and each has a part of the queue, so that one that sends
  little waits for one turn of each of the others at most (docs/adr/0023).
- Memory is bounded by `ByteBudget`: while a device's part of the queue is full, a request does not fit, or `ReadCredit`
  has no memory, its connection is not read, and TCP slows the device down. Only connections that hold too many bytes
  beyond their window, or do not read their answers, are closed and counted.
- A device has one connection. A new one of the same key replaces the old one; no other device can.
"""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, cast

import zstandard

from walle import protocol
from walle.base.clock import Clock, SystemClock
from walle.base.device_identity import Revocations
from walle.engine_ext import _core
from walle.errors import PipelineError
from walle.pipeline.tunnel import sockets
from walle.pipeline.tunnel.dictionaries import DictionaryCache, DictionaryLookup
from walle.pipeline.tunnel.frames import Encoder
from walle.pipeline.tunnel.received import Received, ResumePoint
from walle.pipeline.tunnel.server.budget import ByteBudget, uploads_share
from walle.pipeline.tunnel.server.connection import READ_BYTES, READ_UPLOADS, Connection
from walle.pipeline.tunnel.server.handlers import Handlers
from walle.pipeline.tunnel.server.listener import RECORDS_BYTES, Listener, listen
from walle.pipeline.tunnel.server.read_credit import ReadCredit
from walle.pipeline.tunnel.server.refusal_pace import RefusalPace
from walle.pipeline.tunnel.server.ring import Ring, RingPlace
from walle.pipeline.tunnel.server.room_queue import RoomQueue

__all__ = ["ServerCounts", "ServerLimits", "TunnelServer", "TunnelServerError"]

# Of one read of a connection: all that its transport decrypts at a time, which may have had most of a record before.
# aiofastnet does not deliver the rest when reading is paused and resumed, unless more comes.
_RECEIVE_BYTES = RECORDS_BYTES + 16 * 1024
_TURN_BYTES = 128 << 10  # uploads that one turn of a device takes; a batch of fewer devices takes less time to store
# Of one device that are taken into the queue at a time, whatever the others have there.
_LEAST_UPLOADS = 32
_LEAST_BYTES = 32 << 10


class TunnelServerError(PipelineError):
    """A tunnel server that is configured wrongly, or used before its start or after its end."""


@dataclasses.dataclass(kw_only=True)
class ServerCounts:
    """Counts since a server's start. `refusals` counts by code."""

    queue: _core.UploadQueue
    connections: int = 0
    open: int = 0
    duplicates: int = 0
    requests: int = 0
    failed_requests: int = 0
    expired_requests: int = 0
    cancelled_requests: int = 0
    resumed: int = 0  # connections whose TLS session was resumed
    pauses: int = 0
    slowed: int = 0  # times that a device was not read for a while, since it sent many requests that were refused
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    @property
    def uploads(self) -> int:
        return self.queue.uploads

    @property
    def bytes_in(self) -> int:
        return self.queue.bytes_in

    @property
    def bytes_out(self) -> int:
        return self.queue.bytes_out


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds on the memory that devices take in a server, and timeouts."""

    window: int = 256  # uploads of a device that may be unacknowledged
    window_bytes: int = 1 << 20  # unacknowledged bytes of a device; one that sends more is not read for a while
    handlers: int = 1024  # requests of all devices that are answered at once, a quarter of one; others wait by priority
    queue_uploads: int = 10_000  # uploads waiting for the consumer, over all devices
    memory_bytes: int = 64 << 20  # unprocessed bytes, requests and uploads, over all devices; see `ByteBudget`
    device_bytes: int = 16 << 20  # memory for one device; twice the largest frame
    memory_retry_s: float = 30.0  # delay that a device is told whose connection was closed for memory
    requests: int = 16  # requests of one device that are answered at once
    connections: int = 20_000
    handshakes: int = 1024  # TLS handshakes under way at once; others wait to be accepted
    hello_s: float = 10.0  # time for a TLS handshake, and from it to the Hello
    check_s: float = 30.0  # time for `dictionaries` and `resume` of a device
    frame_s: float = 30.0  # time for the rest of a frame, while other devices wait for the memory of its bytes
    idle_s: float = 90.0  # silence after which a connection is closed; a device pings more often
    linger_s: float = 2.0  # time to send the last bytes of a connection
    closing_retry_s: float = 1.0  # delay that devices are told at a planned stop; they add jitter


def _set_done(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)


type ResumeLookup = Callable[[protocol.Hello], Awaitable[ResumePoint]]
type RequestHandler = Callable[[str, str, bytes], Awaitable[bytes]]


class TunnelServer:
    """A server that accepts devices over TLS 1.3 and yields their uploads.

        async with TunnelServer(ssl_context=..., resume=ingest.resume, on_request=...) as server:
            async for received in server:
                ...
                await server.acknowledge(received.device_id, received.epoch, received.seq)

    `ssl_context` checks certificates of devices (`walle.trust.tls`): the certificate says which device it is,
    and a Hello that claims another id is refused, as are the keys that `revoke` named. `resume(hello)` returns where
    its uploads continue; `on_request(device_id, topic, payload)` answers a request, and is cancelled when the device
    cancels it or its deadline passes. The device gets the message of a WalleError; of any other error it learns only
    that there was one. `dictionaries(digest)` returns the bytes of a zstd dictionary with that SHA-256, None if there
    is none.
    `port` 0 picks a free port, which is `.port`. With `reuse_port`, several processes listen at one address, and the
    kernel divides new connections among them. A bound socket `sock` takes the place of `host` and `port`; the server
    closes it. `name` is the server's in a ring (`take_ring`). `fast_transports` chooses aiofastnet's transports or the
    event loop's; None: aiofastnet's where it is installed.

    Iteration ends after `close`, when the queue is empty.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext,
        resume: ResumeLookup,
        on_request: RequestHandler,
        host: str = "127.0.0.1",
        port: int = 0,
        reuse_port: bool = False,
        sock: socket.socket | None = None,
        fast_transports: bool | None = None,
        limits: ServerLimits | None = None,
        dictionaries: DictionaryLookup | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        name: str = "",
    ) -> None:
        if ssl_context.minimum_version < ssl.TLSVersion.TLSv1_3:
            raise TunnelServerError("the tunnel speaks TLS 1.3 only: set ssl_context.minimum_version to TLSv1_3")
        if ssl_context.verify_mode is not ssl.CERT_REQUIRED:
            raise TunnelServerError(
                "the tunnel knows devices by certificates: set ssl_context.verify_mode to CERT_REQUIRED"
            )
        self.limits = limits or ServerLimits()
        self.clock = clock or SystemClock()
        self.handlers = Handlers(self.limits.handlers, self.clock)
        self.refusal_pace = RefusalPace(self.clock)
        self.dictionaries = DictionaryCache(dictionaries)
        # Above the credit: an upload counts until the consumer comes back, longer than until its Ack.
        self._pause_bytes = min(self.limits.device_bytes, 4 * self.limits.window_bytes)
        self.queue = _core.UploadQueue(
            Received,
            bytearray(_RECEIVE_BYTES),
            self.clock.time,
            self.clock.monotonic,
            uploads=self.limits.queue_uploads,
            size_bytes=uploads_share(self.limits.memory_bytes),
            receiver_bytes=self._pause_bytes,
            window=self.limits.window,
            read_uploads=READ_UPLOADS,
            read_bytes=READ_BYTES,
            least_uploads=_LEAST_UPLOADS,
            least_bytes=_LEAST_BYTES,
            turn_bytes=_TURN_BYTES,
        )
        self.budget = ByteBudget(self.limits.memory_bytes, self.limits.device_bytes, self.queue)
        self.credit = ReadCredit[Connection](
            self.budget.buffered_share,
            _RECEIVE_BYTES,
            lambda: bool(self._waiting or self.held_back),
            self.clock.monotonic,
        )
        self.counts = ServerCounts(queue=self.queue)
        self.is_draining = False
        self.revocations = Revocations()
        self._rng = rng or random.Random()
        self._redirect = ("", 0)  # server for devices that come while this one drains, if the ring has no other
        self.ring = RingPlace(name, self.clock)
        self.resume = resume
        self.on_request = on_request
        # Both are stateless between frames; one of each serves every connection of this loop.
        self.encoder = Encoder()
        self.decompressor = zstandard.ZstdDecompressor()
        self._address = sock or (host, port)
        self._reuse_port = reuse_port
        self._fast_transports = fast_transports
        self._ssl_context = ssl_context
        self._listener: Listener | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False
        self._connections: set[Connection] = set()
        self._by_device: dict[str, Connection] = {}
        self._open_since_s: dict[str, float] = {}  # by device, in seconds since the epoch
        self._tasks: set[asyncio.Task[None]] = set()
        # Connections that are not read until enough uploads of their own device were taken, or the queue has room.
        self._bounded: set[Connection] = set()
        self._for_room = RoomQueue[Connection]()
        self._waiting: dict[Connection, int] = {}  # connections that wait for room for a request of that size; in order
        self._emptied = asyncio.Event()

    @property
    def port(self) -> int:
        if self._listener is None or self.is_draining:
            raise TunnelServerError("the tunnel server has no port before start() and after close()")
        return cast("int", self._listener.sockets[0].getsockname()[1])

    @property
    def queued(self) -> int:
        """The number of uploads that wait for the consumer."""
        return len(self.queue)

    @property
    def lag_s(self) -> float:
        """Seconds since the oldest upload that is not stored came, by the monotonic clock; 0 if there is none."""
        oldest_s = self.queue.oldest_s
        return 0.0 if oldest_s is None else self.clock.monotonic() - oldest_s

    async def start(self) -> None:
        """Listen. Raises OSError if the address is in use."""
        if self._listener is not None or self._closed:
            raise TunnelServerError("a tunnel server starts once; make another")
        self._listener = await listen(
            lambda: Connection(self),
            self._address,
            ssl_context=self._ssl_context,
            reuse_port=self._reuse_port,
            handshake_s=self.limits.hello_s,
            shutdown_s=self.limits.linger_s,
            fast=self._fast_transports,
            handshakes=self.limits.handshakes,
        )
        for listening in self._listener.sockets:
            sockets.recover_fast(listening)
        self._sweeper = asyncio.create_task(self._sweep(), name="tunnel server sweep")

    async def drain(self, *, host: str = "", port: int = 0, over_s: float = 10.0, grace_s: float = 10.0) -> None:
        """Send every device to `host` and `port`, or to the same address again if it is empty; then close.

        A device that another server of the ring has is sent to that one.

        New connections are not accepted. The devices move at random times within `over_s`, each once what it has in
        flight is acknowledged and answered: the consumer must continue meanwhile. Those that are left `grace_s` later
        are disconnected. Devices of protocol 2 are disconnected one after the other, and connect to the same address.
        On cancellation the server closes at once.
        """
        if self._listener is None or self._closed:
            return
        self._listener.close()
        self.is_draining = True
        self._redirect = (host, port)
        older = [
            connection
            for connection in self._connections
            if not connection.ask_to_move(protocol.Drain(0.0, over_s, *self._target(connection)))
        ]
        self._rng.shuffle(older)
        moving = self.spawn(self._redirect_all(older, over_s))
        waiting = asyncio.create_task(self.clock.sleep(over_s + grace_s))
        try:
            while self._connections and not waiting.done():
                self._emptied.clear()
                emptied = asyncio.create_task(self._emptied.wait())
                await asyncio.wait([waiting, emptied], return_when=asyncio.FIRST_COMPLETED)
                emptied.cancel()
        finally:
            waiting.cancel()
            moving.cancel()
            await self.close()

    async def _redirect_all(self, connections: list[Connection], over_s: float) -> None:
        for connection in connections:
            await self.clock.sleep(over_s / len(connections))
            self.redirect(connection)

    def redirect(self, connection: Connection) -> None:
        """Disconnect a device and tell it where to connect."""
        connection.refuse("draining", "the cloud is about to stop this tunnel", 0.0, *self._target(connection))

    def _target(self, connection: Connection) -> tuple[str, int]:
        """Return the address to which a device is sent while this server drains."""
        owner = self.ring.other(connection.device_id)
        return self._redirect if owner is None else (owner.host, owner.port)

    def take_ring(self, ring: Ring, *, over_s: float) -> int:
        """Follow a ring of tunnel servers from now on, if it is a later one; return how many devices move.

        Connected devices that belong to another server by it move there at random times within `over_s`, each once
        what it has in flight is acknowledged and answered. Those that come later are sent on at their Hello.
        """
        if not self.ring.take(ring) or self.is_draining:
            return 0
        moved = 0
        for connection in self._connections:
            owner = self.ring.other(connection.device_id) if connection.is_open else None
            if owner is not None and connection.ask_to_move(protocol.Drain(0.0, over_s, owner.host, owner.port)):
                moved += 1
        return moved

    def revoke(self, version: int, lowest: Mapping[str, int]) -> None:
        """Refuse keys of lower generations than these from now on, by device, and disconnect those that are here."""
        self.revocations.update(version, lowest)
        for connection in list(self._connections):
            connection.check_identity()

    async def close(self) -> None:
        """Tell the devices to reconnect later, disconnect, and end the iteration once the queue is empty."""
        if self._closed:
            return
        self._closed = True
        self._note_arrival()
        if self._listener is None or self._sweeper is None:
            return
        listener, self._listener = self._listener, None
        if not self.is_draining:
            listener.close()
        for connection in list(self._connections):
            connection.refuse(
                "closing", "the cloud stops this tunnel for now", self.limits.closing_retry_s, *self._redirect
            )
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
            listener.abort_clients()
            tasks = [self._sweeper, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.handlers.close(self.limits.linger_s)
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
        self.queue.release()
        self._resume_paused()
        while not self.queue:
            if self._closed:
                return []
            arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.queue.on_arrival = functools.partial(_set_done, arrival)
            try:
                await arrival
            finally:
                self.queue.on_arrival = None
        uploads: list[Received] = self.queue.take(limit)
        self._resume_paused()
        return uploads

    def put_back(self, batch: list[Received]) -> None:  # noqa: ARG002 - the queue has it, with its connections
        """Put the latest batch of `arrived` back at the head of the queue: it was neither stored nor acknowledged."""
        self.queue.put_back()
        self._note_arrival()

    async def acknowledge(self, device_id: str, epoch: str, seq: int) -> None:
        """Tell the device that everything up to and with `seq` is durable; do nothing if it is not connected."""
        self.acknowledge_all({(device_id, epoch): seq})

    def acknowledge_all(self, highest: Mapping[tuple[str, str], int]) -> None:
        """Do what `acknowledge` does, for each (device_id, epoch) and its number."""
        self.queue.acknowledge(self._by_device, highest)

    async def disconnect(self, device_id: str, epoch: str, code: str, message: str, retry_s: float) -> None:
        """Disconnect a device with a reason and a retry delay; do nothing if it is not connected."""
        connection = self._by_device.get(device_id)
        if connection is not None and connection.epoch == epoch:
            connection.refuse(code, message, retry_s)

    # --- the connections' side ---

    def hold_back(self, connection: Connection) -> None:
        """Pause a connection whose device has as much in the queue as it may."""
        if connection not in self._bounded:
            self._bounded.add(connection)
            self.counts.pauses += 1
            connection.pause()

    def _note_arrival(self) -> None:
        on_arrival, self.queue.on_arrival = self.queue.on_arrival, None
        if on_arrival is not None:
            on_arrival()

    @property
    def are_uploads_full(self) -> bool:
        return self.queue.is_full

    def pause_uploads(self, connection: Connection) -> None:
        """Do not read a connection until there is room for its uploads."""
        if self._for_room.add(connection):
            self.counts.pauses += 1
            connection.pause()

    def _resume_paused(self) -> None:
        """Read connections again, as far as there is room: by turns of those whose device has nothing in the queue."""
        for connection in self.queue.resumable():
            if connection in self._bounded:
                self._bounded.discard(connection)
                if self.queue.has_room:
                    connection.resume()
                else:
                    self._for_room.add_again(connection)
        while self.queue.has_room and (waiting := self._for_room.pop()) is not None:
            waiting.resume()
        self.credit.give_turns()

    @property
    def held_back(self) -> int:
        """The number of connections whose uploads wait for room in the queue, and which are not read meanwhile."""
        return len(self._bounded) + len(self._for_room)

    def admit_request(self, size_bytes: int, connection: Connection) -> bool:
        """Return whether a request may be decompressed now; pause the connection until it may."""
        if self.budget.fits_request(size_bytes, connection.request_bytes):
            return True
        self._waiting[connection] = size_bytes
        self.counts.pauses += 1
        connection.pause()
        return False

    def hold_request(self, size_bytes: int, connection: Connection) -> contextlib.ExitStack:
        """Count a request; the first `close` of the result releases it."""
        self.budget.requests += size_bytes
        connection.request_bytes += size_bytes
        held = contextlib.ExitStack()
        held.callback(self._release_request, size_bytes, connection)
        return held

    def _release_request(self, size_bytes: int, connection: Connection) -> None:
        self.budget.requests -= size_bytes
        connection.request_bytes -= size_bytes
        if not self._waiting or self.budget.requests >= self.budget.requests_share:
            return
        for waiting, waiting_bytes in list(self._waiting.items()):
            if self.budget.fits_request(waiting_bytes, waiting.request_bytes):
                del self._waiting[waiting]
                waiting.resume()

    def set_buffered(self, size_bytes: int, connection: Connection) -> None:
        """Record what a connection has buffered, and close those that hold most while it is too much for all."""
        self.budget.buffered += size_bytes - connection.buffered_bytes
        connection.buffered_bytes = size_bytes
        if size_bytes > self.limits.device_bytes:
            connection.drop_for_memory(f"{size_bytes} bytes of this device are unprocessed or unread")
        while self.budget.is_buffered_over:
            largest = max(self._connections, key=lambda held: held.own_risk_bytes)
            if not largest.own_risk_bytes:
                return
            what = f"{self.budget.buffered} bytes of all devices are unprocessed or unread"
            largest.drop_for_memory(f"{what}, {largest.buffered_bytes} of them of this device")

    def joined(self, connection: Connection) -> None:
        self.counts.connections += 1
        self._connections.add(connection)
        self.counts.open = len(self._connections)
        if self._closed:
            connection.refuse("closing", "the cloud stops this tunnel for now", self.limits.closing_retry_s)
        elif len(self._connections) > self.limits.connections:
            connection.refuse("busy", f"more than {self.limits.connections} devices are connected", 30.0)

    def open_since_s(self, device_id: str) -> float | None:
        """Return when the device's connection was opened, in seconds since the epoch; None where it has none."""
        return self._open_since_s.get(device_id)

    def admit(self, connection: Connection) -> None:
        """Make `connection` the current one of its device."""
        older = self._by_device.get(connection.device_id)
        self._by_device[connection.device_id] = connection
        self._open_since_s[connection.device_id] = self.clock.time()
        if older is not None:
            older.refuse("replaced", f"device {connection.device_id!r} has connected again", -1.0)

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._bounded.discard(connection)
        self._for_room.discard(connection)
        self._waiting.pop(connection, None)
        self.counts.open = len(self._connections)
        if self._by_device.get(connection.device_id) is connection:
            del self._by_device[connection.device_id]
            del self._open_since_s[connection.device_id]
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
            await self.clock.sleep(
                min(limits.hello_s, limits.check_s, limits.frame_s, limits.idle_s, limits.linger_s) / 2
            )
            now_s = self.clock.monotonic()
            for connection in list(self._connections):
                connection.check_patience(now_s)
            self.credit.give_turns()
            if (stalled := self.credit.stalled(limits.frame_s)) is not None:
                stalled.drop_for_memory(f"a frame was not complete within {limits.frame_s} s, while others waited")
