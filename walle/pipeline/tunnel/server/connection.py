"""One device's connection of a tunnel server (§5.2): frames to calls of the server, and back.

The server holds the queue, the byte budget and the table of devices; a connection holds one device's decoder, its place
in the stream of uploads, and the reasons for which it is not read.
"""

import asyncio
import enum
import functools
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from walle import protocol
from walle.base.device_identity import CertifiedDevice, certified_device
from walle.engine_ext import _core
from walle.errors import WalleError
from walle.pipeline.tunnel import sockets
from walle.pipeline.tunnel.dictionaries import Dictionary
from walle.pipeline.tunnel.frames import (
    MAX_BODY_BYTES,
    Decoder,
    FrameError,
    UnknownDictionaryError,
    UploadFields,
)
from walle.pipeline.tunnel.layouts import split_version
from walle.pipeline.tunnel.received import Received, ResumePoint, memory_bytes
from walle.pipeline.tunnel.server.handlers import RequestBusyError, RequestExpiredError, RequestRefusedError
from walle.pipeline.tunnel.tail_probe import answer_probe_delay_s

if TYPE_CHECKING:
    from walle.pipeline.tunnel.server.server import TunnelServer

__all__ = ["READ_BYTES", "READ_UPLOADS", "Connection"]

_LOG = logging.getLogger(__name__)

_HELLO_BODY_BYTES = 4096  # a Hello needs no more
READ_UPLOADS = 256  # uploads of a connection that enter the queue between two checks of its bound
READ_BYTES = 256 << 10
_TURN_BYTES = 1 << 20  # bytes that a connection decompresses before the others have a turn; a frame is not divided
_UPLOADS = (protocol.Upload, protocol.UploadBatch)
_POSTPONED = 1.25  # times the delay before, of a probe whose answer has not left yet
_MOST_POSTPONED_S = 1.0
_READ_AHEAD_BYTES = 64 << 10  # bytes that TLS holds for a connection that is not read
_FRAME_BYTES = 64 << 10  # size of a frame without its uploads' topics and payloads


class _ConnectionState(enum.Enum):
    GREETING = enum.auto()  # waiting for its Hello
    CHECKING = enum.auto()  # looking up numbers
    OPEN = enum.auto()
    CLOSED = enum.auto()  # refused or lost; further frames are dropped


class Connection(_core.UploadReceiver, asyncio.BufferedProtocol):
    """One device's connection: frames to calls of the server, and back.

    All connections of a server are read into one buffer: a read is processed before the next one begins, and only an
    unfinished frame is copied. A TLS transport would otherwise allocate its largest read for each small one.

    Its native base class reads that buffer. Most reads are whole uploads that are due, and it queues them; any others
    are passed to `on_bytes`.
    """

    def __init__(self, server: "TunnelServer") -> None:
        super().__init__(server.queue)
        self.request_bytes = 0  # this, `buffered_bytes` and `upload_bytes` are the server's accounts
        self._server = server
        self._state = _ConnectionState.GREETING
        self._decoder = Decoder(max_body_bytes=_HELLO_BODY_BYTES, decompressor=server.decompressor)
        self._transport: asyncio.Transport
        self._is_reading = True  # the transport; while `resume` processes what came before, it is not
        self._has_credit = True
        self._is_beyond_credit = False  # the connection receives a frame that is larger than its window
        self._credit_bytes = 0  # received bytes that are held within the window
        self._writable = asyncio.Event()  # beside `is_writable`, for those who wait
        self._writable.set()
        self._answer_bytes = 0  # answers that wait until the device reads
        self._since_s = 0.0  # time of the latest progress
        self._tasks: set[asyncio.Task[None]] = set()
        self._version = protocol.OLDEST_PROTOCOL  # version of the frames that are sent: until the Hello, the oldest
        self._answers: dict[int, asyncio.Task[None]] = {}  # answers being made, by the ids of their requests
        self._request_since_s: float | None = None  # arrival of the request that waits for memory
        self._pings = 0  # read so far
        self._last_answer = 0  # `written` after the latest answer that a Pong may have to follow
        self._is_probing = False
        self._is_slowed = False  # reading is paused for a while: the device sends requests that are refused
        self._certified: CertifiedDevice | None = None

    @property
    def _is_closed(self) -> bool:
        return self._state is _ConnectionState.CLOSED

    def _enter(self, state: _ConnectionState) -> None:
        self._state = state
        self.is_open = state is _ConnectionState.OPEN
        if state is _ConnectionState.CLOSED:
            self._credit_bytes = 0

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        self._since_s = self._server.clock.monotonic()
        set_limits = getattr(transport, "set_read_buffer_limits", None)
        if set_limits is not None:  # TLS transports have it
            set_limits(_READ_AHEAD_BYTES)
        else:  # aiofastnet's: bytes wait here only once its buffer of encrypted ones is full
            self._transport.set_write_buffer_limits(high=0)
        tls = transport.get_extra_info("ssl_object")
        self._server.counts.resumed += bool(tls is not None and tls.session_reused)
        self._certified = certified_device(tls.getpeercert()) if tls is not None else None
        self._server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the device reconnects after any reason
        self._enter(_ConnectionState.CLOSED)
        self.write = None
        self._writable.set()
        for task in self._tasks:
            task.cancel()
        self._decoder.clear()
        self._server.credit.remove(self)
        self._server.set_buffered(0, self)
        self._server.left(self)

    def pause_writing(self) -> None:
        self.is_writable = False
        self._writable.clear()
        self._since_s = self._server.clock.monotonic()
        self._count_buffered()

    def resume_writing(self) -> None:
        self.is_writable = True
        self._writable.set()
        self._count_buffered()
        if self.owes_ack and not self._is_closed:
            self.send_ack()

    # --- the native receiver's calls ---

    def on_bytes(self, received: memoryview, unpacked: bytes | None) -> None:
        """Process received bytes that are not whole uploads, or not due.

        `unpacked` is the body of the first frame, if it was decompressed already.
        """
        if not self._is_closed:
            self._decoder.add(received, unpacked)
            self._take()
            self._server.credit.note_read(self)

    def on_bound(self) -> None:
        """Wait: there is no room for more uploads of this connection."""
        self._server.hold_back(self)

    def _take(self) -> None:
        """Process the received frames until the connection is paused: a few bytes may decompress to many."""
        server, decoder = self._server, self._decoder
        turn_end = decoder.unpacked_bytes + _TURN_BYTES
        try:
            while self.pauses == 0 and self._state is not _ConnectionState.CLOSED:
                if decoder.unpacked_bytes > turn_end:
                    self.pause()
                    asyncio.get_running_loop().call_soon(self.resume)
                    break
                if self.is_open:
                    if server.are_uploads_full and (ahead := decoder.peek()) and ahead[0] in _UPLOADS:
                        server.pause_uploads(self)
                        break
                    if self._take_due() or self._take_others():
                        if decoder.buffered_bytes == 0:
                            break
                        continue
                    ahead = decoder.peek()
                    if ahead is None:
                        break
                    if ahead[0] is protocol.Request and not server.admit_request(ahead[1], self):
                        self._request_since_s = server.clock.monotonic()
                        break
                frame = decoder.next()
                if frame is None or not self._on_other(frame):
                    break
        except UnknownDictionaryError as error:
            self.refuse("dictionary", f"{error}; send without dictionaries", 0.0)
        except FrameError as error:
            self.refuse("frame", str(error), 60.0)
        finally:
            rest_bytes = decoder.trim()  # the server's buffer is the next connection's, also after a failure
        if rest_bytes or self.buffered_bytes:
            self._count_buffered()

    def _take_due(self) -> bool:
        """Queue the uploads that come next and are due; return whether there is one."""
        server = self._server
        uploads, _ = self._decoder.records(
            Received,
            (self.device_id, self.epoch, int(server.clock.time() * 1000)),
            (self.due, self.acked + server.limits.window),
            *self.room,
        )
        if uploads:
            self.push(uploads)
        return bool(uploads)

    def _take_others(self) -> bool:
        """Process the uploads that come next, of which the first is not due or wrong; return whether there is one."""
        uploads = self._decoder.uploads(READ_UPLOADS, READ_BYTES)
        if uploads:
            self._on_uploads(uploads)
        return bool(uploads)

    def _on_uploads(self, uploads: list[UploadFields]) -> None:
        """Queue what is due; acknowledge what is known. Uploads before one out of turn are complete and in order."""
        received_ms = int(self._server.clock.time() * 1000)
        due, last_allowed = self.due, self.acked + self._server.limits.window
        device_id, epoch = self.device_id, self.epoch
        fresh: list[Received] = []
        duplicates = 0
        for seq, topic, payload, sent_ms in uploads:
            if seq == due and seq <= last_allowed:
                due += 1
                name, version = split_version(topic) if self._decoder.has_versions else (topic, "")
                fresh.append(Received(device_id, epoch, seq, name, payload, sent_ms, received_ms, version=version))
            elif seq < due:
                duplicates += 1
            else:
                break
        if fresh:
            self.push(fresh)
        if duplicates:
            self._server.counts.duplicates += duplicates
            self.send_ack()
        if len(fresh) + duplicates < len(uploads):
            self._refuse_out_of_turn(uploads[len(fresh) + duplicates][0])

    def _count_buffered(self) -> None:
        buffered_bytes = self._decoder.buffered_bytes + self._answer_bytes
        if self.is_open:
            self._count_credit()
        if not self.is_writable:
            # aiofastnet leaves what is encrypted already out of the usual size.
            size = getattr(self._transport, "get_local_write_buffer_size", self._transport.get_write_buffer_size)
            buffered_bytes += size()
        if buffered_bytes != self.buffered_bytes:
            self._server.set_buffered(buffered_bytes, self)

    def _count_credit(self) -> None:
        """Record the received bytes that are held; those of a frame beyond the window are the device's risk."""
        server = self._server
        is_beyond = self._decoder.unfinished[0] > server.limits.window_bytes + _FRAME_BYTES
        self._credit_bytes = 0 if is_beyond else self._decoder.buffered_bytes
        if is_beyond == self._is_beyond_credit:
            server.credit.hold(self, self._credit_bytes)
            return
        self._is_beyond_credit = is_beyond
        if is_beyond:
            server.credit.remove(self)
            self.set_credit(may_read=True)
        else:
            server.credit.add(self)
            server.credit.hold(self, self._credit_bytes)

    @property
    def own_risk_bytes(self) -> int:
        """The buffered bytes that only the device, or the end of its connection, releases."""
        return self.buffered_bytes - self._credit_bytes

    # --- the calls of `ReadCredit` ---

    @property
    def missing_bytes(self) -> int:
        return self._decoder.unfinished[1]

    @property
    def wants_to_read(self) -> bool:
        return self.pauses == 0 and not self._is_closed

    def unread_bytes(self) -> int:
        return sockets.unread_bytes(self._transport.get_extra_info("socket"))

    def set_credit(self, *, may_read: bool) -> None:
        self._has_credit = may_read
        self._follow()

    def _follow(self) -> None:
        """Read exactly while nothing hinders."""
        if self._is_closed:
            return
        should_read = self.pauses == 0 and self._has_credit
        if should_read and not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
        elif self._is_reading and not should_read:
            self._is_reading = False
            self._transport.pause_reading()

    # --- the server's calls ---

    def refuse(self, code: str, message: str, retry_s: float, host: str = "", port: int = 0) -> None:
        """Send the reason, and where to connect instead if not here; disconnect once it is sent."""
        if self._is_closed:
            return
        self._server.counts.refusals[code] += 1
        self._write(protocol.Refusal(code, message, retry_s, host, port))
        self._enter(_ConnectionState.CLOSED)
        self._since_s = self._server.clock.monotonic()
        self._server.credit.remove(self)
        if not self._is_reading:
            self._transport.resume_reading()  # else the device's end of the connection is not noticed
        self._transport.close()

    def ask_to_move(self, drain: protocol.Drain) -> bool:
        """Send the device elsewhere; return False if it does not know how to, or has not sent its Hello yet."""
        if self._version < 3 or not self.is_open:
            return self._is_closed
        self._write(drain)
        return True

    def drop_for_memory(self, why: str) -> None:
        """Close the connection and release what it has buffered."""
        self.refuse(
            "memory", f"{why}; what was not acknowledged is to be sent again", self._server.limits.memory_retry_s
        )
        if not self.is_writable:
            self._transport.abort()
        self._decoder.clear()
        self._answer_bytes = 0
        self._server.set_buffered(0, self)

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def pause(self) -> None:
        self.pauses += 1
        self._follow()

    def resume(self) -> None:
        self.pauses -= 1
        if self.pauses == 0 and not self._is_closed:
            if self.is_writable:  # else the device is late to read, whoever paused it
                self._since_s = self._server.clock.monotonic()
            self._take()
            self._follow()
            if self.pauses == 0 and not self._has_credit:
                self._server.credit.wait(self)

    def check_identity(self) -> bool:
        """Return whether the device's certificate is valid now; disconnect the device if it is not."""
        if self._certified is None or self._is_closed:
            return not self._is_closed
        identity, expires_s = self._certified
        if not self._server.revocations.allows(identity):
            self.refuse(
                "revoked", f"the key of device {identity.device_id!r} was revoked; enrol the device again", -1.0
            )
        elif expires_s <= self._server.clock.time():
            self.refuse("expired", "the device's certificate has expired; renew it, or enrol the device again", -1.0)
        return not self._is_closed

    def check_patience(self, now_s: float) -> None:
        """Disconnect a device that has been silent, or has not read, beyond the limits."""
        # Single bytes before the Hello do not extend its timeout, nor bytes of a device that does not read.
        if self.has_sent and self.is_open and self.is_writable:
            self._since_s = now_s
        self.has_sent = False
        limits, waited_s = self._server.limits, now_s - self._since_s
        if self._is_closed:
            if waited_s >= limits.linger_s:
                self._transport.abort()
        elif self._state is _ConnectionState.GREETING:
            if waited_s >= limits.hello_s:
                self.refuse("hello", f"no Hello within {limits.hello_s} s", 10.0)
        elif self._state is _ConnectionState.CHECKING:
            if waited_s >= limits.check_s:
                _LOG.error("tunnel: a device's numbers were not looked up within %s s", limits.check_s)
                self.refuse("unavailable", "the cloud cannot look this device up now", 5.0)
        elif waited_s >= limits.idle_s and (self.pauses == 0 or not self.is_writable):
            self.refuse("idle", f"silent for {limits.idle_s} s", 0.0)
        else:
            self.check_identity()

    # --- frames ---

    def _refuse_out_of_turn(self, seq: int) -> None:
        window = self._server.limits.window
        if seq != self.due:
            self.refuse("gap", f"received upload {seq} where {self.due} was expected", 0.0)
        else:
            self.refuse("window", f"upload {seq} is more than {window} past {self.acked}, the last acknowledged", 10.0)

    def _on_other(self, frame: protocol.Frame) -> bool:
        """Process any frame but an upload in order. Return False if the connection has ended."""
        match frame:
            case protocol.Hello() if self._state is _ConnectionState.GREETING:
                self._enter(_ConnectionState.CHECKING)
                self._since_s = self._server.clock.monotonic()
                self.pause()
                self._spawn(self._greet(frame))
            case protocol.Request() if self.is_open:
                self._on_request(frame)
            case protocol.Cancel() if self.is_open:
                if (answer := self._answers.pop(frame.request_id, None)) is not None:
                    self._server.counts.cancelled_requests += 1
                    answer.cancel()
            case protocol.Ping() if self.is_open:
                self._pings += 1
                if self.is_writable:
                    self._write(protocol.Pong(frame.token))
            case _:
                name = type(frame).__name__
                self.refuse("order", f"received {name} while the connection was {self._state.name.lower()}", 60.0)
        return not self._is_closed

    def _on_request(self, request: protocol.Request) -> None:
        server, now_s = self._server, self._server.clock.monotonic()
        server.counts.requests += 1
        waited_s = 0.0 if self._request_since_s is None else now_s - self._request_since_s
        self._request_since_s = None
        if request.priority not in protocol.PRIORITIES:
            raise FrameError("Request.priority", f"{request.priority} is not from -100 to 100")
        if not 0 <= request.deadline_ms <= protocol.MAX_DEADLINE_MS:
            raise FrameError(
                "Request.deadline_ms", f"{request.deadline_ms} is not from 0 to {protocol.MAX_DEADLINE_MS}"
            )
        if request.request_id in self._answers:
            raise FrameError("Request.request_id", f"{request.request_id} is the id of a request that is not answered")
        left_s = request.deadline_ms / 1000 - waited_s if request.deadline_ms else None
        if len(self._answers) >= server.limits.requests:
            what = f"busy: {len(self._answers)} requests of this device are being answered; send fewer at once"
            self._write(protocol.Response(request.request_id, b"", what, "busy"))
            self._note_refusal()
        elif left_s is not None and left_s <= 0:
            server.counts.expired_requests += 1
            server.counts.failed_requests += 1
            what = "the request was too old when it was read"
            self._write(protocol.Response(request.request_id, b"", what, "expired"))
        else:
            self._start_answer(request, left_s)

    def _start_answer(self, request: protocol.Request, left_s: float | None) -> None:
        handlers, request_id = self._server.handlers, request.request_id
        held = self._server.hold_request(memory_bytes(request.topic, request.payload), self)
        handler = functools.partial(self._server.on_request, self.device_id, request.topic, request.payload)
        work = handlers.start(handler, device_id=self.device_id, priority=request.priority, left_s=left_s)
        work.add_done_callback(lambda _: held.close())
        answer = self._spawn(self._answer(request_id, request.topic, work, left_s, self._pings))
        self._answers[request_id] = answer
        answer.add_done_callback(lambda _: handlers.abandon(work))  # the task may have been cancelled before it began

    async def _greet(self, hello: protocol.Hello) -> None:
        server = self._server
        try:
            self._version = min(max(hello.protocol, protocol.OLDEST_PROTOCOL), protocol.PROTOCOL_VERSION)
            if hello.protocol < protocol.OLDEST_PROTOCOL:
                spoken = f"{protocol.OLDEST_PROTOCOL} to {protocol.PROTOCOL_VERSION}"
                what = f"protocol {hello.protocol} is not supported; the cloud speaks {spoken}; update walle here"
                self.refuse("protocol", what, -1.0)
            elif not hello.device_id or not hello.epoch:
                self.refuse("hello", "device_id and epoch cannot be empty", -1.0)
            elif self._certified is None:
                self.refuse("identity", "the certificate is not a device's; enrol this device", -1.0)
            elif self._certified.identity.device_id != hello.device_id:
                self.refuse("identity", f"the certificate is not that of device {hello.device_id!r}", -1.0)
            elif self.check_identity() and not self._is_sent_on(hello.device_id):
                digests = protocol.digests_from_text(hello.dictionaries)
                found = {number: await server.dictionaries.get(digest) for number, digest in enumerate(digests, 1)}
                point = await server.resume(hello)
                is_here = self._state is _ConnectionState.CHECKING and self.check_identity()
                if is_here and not self._is_sent_on(hello.device_id):  # the ring may have changed meanwhile
                    server.revocations.supersede(self._certified.identity)
                    known = {number: dictionary for number, dictionary in found.items() if dictionary is not None}
                    self._open(hello, point, known)
        except protocol.ProtocolError as error:
            self.refuse("hello", str(error), -1.0)
        except Exception:  # noqa: BLE001 - the device gets an answer after any failure
            _LOG.exception("tunnel: device %r could not be looked up", hello.device_id)
            self.refuse("unavailable", "the cloud cannot look this device up now", 5.0)

    def _is_sent_on(self, device_id: str) -> bool:
        """Refuse a device that belongs to another server of the ring, with that one's address; return whether it does.

        Devices of protocol 2 stay where they are: they do not read the address.
        """
        owner = self._server.ring.send_on(device_id) if self._version >= 3 else None
        if owner is not None:
            self.refuse("elsewhere", "another tunnel server has this device", 0.0, owner.host, owner.port)
        return owner is not None

    def _open(self, hello: protocol.Hello, point: ResumePoint, dictionaries: dict[int, Dictionary]) -> None:
        server = self._server
        if server.is_draining:
            server.redirect(self)
            return
        self._decoder.max_body_bytes = MAX_BODY_BYTES
        self._decoder.dictionaries = dictionaries
        has_versions = self._decoder.has_versions = self._version >= protocol.VERSIONS_FROM
        self.open(hello.device_id, hello.epoch, point.seq, self._decoder.decompressors, MAX_BODY_BYTES, has_versions)
        self._enter(_ConnectionState.OPEN)
        self._since_s = self._server.clock.monotonic()
        server.credit.add(self)
        server.admit(self)
        limits, numbers = server.limits, ",".join(map(str, dictionaries))
        self._write(
            protocol.Welcome(point.seq, limits.window, point.chain, self._version, limits.window_bytes, numbers)
        )
        self.resume()

    async def _answer(
        self, request_id: int, topic: str, work: asyncio.Task[bytes], left_s: float | None, pings: int
    ) -> None:
        """Write the Response once there is one; `pings` were read before the request."""
        payload, error_text, code = b"", "", ""
        counts = self._server.counts
        try:
            payload = await self._server.handlers.result(work, left_s)
        except RequestExpiredError as error:
            counts.expired_requests += 1
            error_text, code = str(error), "expired"
        except RequestBusyError as error:
            error_text, code = str(error), "busy"
        except WalleError as error:
            error_text, code = str(error) or type(error).__name__, "failed"
            if isinstance(error, RequestRefusedError):
                self._note_refusal()
        except Exception:  # noqa: BLE001 - the device gets an answer after any failure
            _LOG.exception("tunnel: request %r of device %r failed", topic, self.device_id)
            error_text, code = "the cloud failed at this request", "internal"
        counts.failed_requests += bool(error_text)
        await self._wait_writable(len(payload))
        try:
            self._write(protocol.Response(request_id, payload, error_text[:2000], code))
        except FrameError as error:
            self._write(protocol.Response(request_id, b"", f"the answer cannot be sent: {error}", "internal"))
        self._answers.pop(request_id, None)
        if self._pings > pings and not self._is_closed:  # otherwise the Pong to the Ping behind the request follows
            self._last_answer = self.written
            if not self._is_probing:
                self._is_probing = True
                self._spawn(self._probe_answer())  # a task apart: this one holds the payload

    def _note_refusal(self) -> None:
        """Count a refused request, and stop to read the device for a while where it has sent too many."""
        pause_s = self._server.refusal_pace.note(self.device_id)
        if pause_s and not self._is_slowed and not self._is_closed:
            self._is_slowed = True
            self._server.counts.slowed += 1
            self.pause()
            self._spawn(self._read_again(pause_s))

    async def _read_again(self, pause_s: float) -> None:
        await self._server.clock.sleep(pause_s)
        self._is_slowed = False
        self.resume()

    async def _probe_answer(self) -> None:
        """Send a Pong behind the latest answer unless another frame follows, so that TCP learns of its loss.

        See walle/pipeline/tunnel/tail_probe.py.
        """
        connection = self._transport.get_extra_info("socket")
        delay_s = answer_probe_delay_s(sockets.least_round_trip_s(connection))
        try:
            while (last := self._last_answer) == self.written:
                await self._server.clock.sleep(delay_s)
                if self.written != last:
                    continue
                if self.is_writable and not sockets.unsent_bytes(connection):
                    self._write(protocol.Pong(0))
                    return
                delay_s = min(_MOST_POSTPONED_S, _POSTPONED * delay_s)  # a probe now would share the last packet
        finally:
            self._is_probing = False

    async def _wait_writable(self, answer_bytes: int) -> None:
        """Return once an answer may be written. Another answer may fill the buffer again first."""
        if self.is_writable:
            return
        self._answer_bytes += answer_bytes
        self._count_buffered()
        try:
            while not self.is_writable:
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

    def _write(self, frame: protocol.Frame) -> None:
        if not self._is_closed:
            self.send(self._server.encoder.encode(frame, version=self._version))
