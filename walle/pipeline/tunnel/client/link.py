"""One connection of a tunnel client (§5.2): frames, credit, and what waits for acknowledgements and answers."""

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, cast

from walle import protocol
from walle.base.clock import Clock
from walle.errors import PipelineError
from walle.pipeline.tunnel import sockets
from walle.pipeline.tunnel.client.pacing import InFlightBound
from walle.pipeline.tunnel.client.sessions import ResumingContext
from walle.pipeline.tunnel.dictionaries import Dictionary
from walle.pipeline.tunnel.frames import Decoder, FrameError
from walle.pipeline.tunnel.round_trip import RoundTrip
from walle.pipeline.tunnel.slots import PrioritySlots
from walle.pipeline.tunnel.sockets import is_address
from walle.pipeline.tunnel.tail_probe import TailProbe

WRITE_BYTES = 16 << 10  # uploads written at once, and unsent in the kernel: a request waits behind no more
_UNSENT_CHECK_S, _UNSENT_CHECK_MOST_S = 0.002, 0.02  # pause between checks of what the kernel has not sent
CLOSE_S = 2.0  # time for the last bytes of a connection to leave


class TunnelError(PipelineError):
    """The tunnel cannot continue, and connecting again unchanged would fail again."""


class TunnelClosedError(TunnelError):
    """The connection or the client was closed before the operation ended."""


class TunnelRefusedError(TunnelError):
    """The cloud refused this device: a wrong credential or protocol, or another device of the same name."""

    def __init__(self, refusal: protocol.Refusal) -> None:
        super().__init__(f"the cloud refused the tunnel ({refusal.code}): {refusal.message}")
        self.code = refusal.code
        self.message = refusal.message
        self.retry_s = refusal.retry_s
        self.host = refusal.host
        self.port = refusal.port


class _Sent(NamedTuple):
    """An upload in flight. Of uploads in one frame, the last has the frame's `wire_bytes`."""

    seq: int
    sent_s: float
    size_bytes: int
    wire_bytes: int


def upload_bytes(upload: protocol.Upload) -> int:
    """Return what an upload takes of the credit."""
    return len(upload.topic.encode()) + len(upload.payload)


def _is_sound(welcome: protocol.Welcome) -> bool:
    try:
        numbers = protocol.numbers_from_text(welcome.dictionaries)
    except protocol.ProtocolError:
        return False
    return (
        protocol.OLDEST_CLOUD <= welcome.protocol <= protocol.PROTOCOL_VERSION
        and 0 <= welcome.acked <= protocol.MAX_SEQ
        and welcome.chain >= 0
        and welcome.window > 0
        and welcome.window_bytes > 0
        and all(0 < number <= protocol.MAX_DICTIONARIES for number in numbers)
    )


class Link(asyncio.Protocol):
    """One connection: decodes frames, and wakes the calls that wait for them."""

    # Set by the client at the Welcome.
    window = 1
    window_bytes = 1
    version = protocol.OLDEST_CLOUD  # version of the protocol
    numbers: Mapping[str, int] = {}  # numbers of the dictionaries that the cloud has, by digest
    offered: frozenset[str] = frozenset()  # digests of the dictionaries that the Hello named

    def __init__(self, clock: Clock) -> None:
        self.acked = 0
        self.epoch = ""  # epoch that the Hello named
        self.heard_s = clock.monotonic()
        self.writable = asyncio.Event()
        self.writable.set()
        self.ack_came = asyncio.Event()
        self.drain: protocol.Drain | None = None
        self.leaving = asyncio.Event()  # a Drain came, or the client wants a new connection
        self._is_leaving = False
        self.bound = InFlightBound(self.window_bytes)
        self.round_trip = RoundTrip()
        self.tail = TailProbe(self.round_trip)
        self._has_tail = asyncio.Event()  # a frame was written since the latest look at `tail`
        self.in_flight_bytes = 0  # uploads on the wire
        self._credit_used = 0  # topics and payloads of the same uploads
        self._clock = clock
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._socket: sockets.SupportsOptions | None = None
        self._welcome: protocol.Welcome | None = None
        self._error: Exception | None = None
        self._moved = asyncio.Event()  # a Welcome or an Ack came, or the link ended
        self._ended = asyncio.Event()
        self._lost = asyncio.Event()
        self._in_flight: collections.deque[_Sent] = collections.deque()  # at most a window of them
        self._latencies: list[tuple[int, float]] = []
        self._answers: dict[int, asyncio.Future[protocol.Response]] = {}
        self._waiting_requests = 0  # requests that wait until they may be written
        self._turn = PrioritySlots(1)  # one waiting request at a time is written

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # What is written waits in the transport and in the kernel; the limits keep both short.
        self._transport.set_write_buffer_limits(WRITE_BYTES)
        connection = self._socket = transport.get_extra_info("socket")
        sockets.bound_unsent(connection, WRITE_BYTES)
        sockets.recover_fast(connection)
        sockets.send_past_losses(connection)
        self.heard_s = self._clock.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        self._end(exc or TunnelClosedError("the cloud disconnected"))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self._ended.is_set():
            return
        self.heard_s = self._clock.monotonic()
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except FrameError as error:
            self._end(TunnelClosedError(f"the cloud sent an invalid frame: {error}"))

    def _on_frame(self, frame: protocol.Frame) -> None:
        match frame:
            case protocol.Ack():
                if frame.seq > self.acked:
                    self._on_ack(frame.seq)
            case protocol.Response():
                answer = self._answers.pop(frame.request_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
                    self._moved.set()
                    self._settle()
            case protocol.Welcome() if self._welcome is None and _is_sound(frame):
                self._welcome = frame
                self._moved.set()
            case protocol.Drain() if self._welcome is not None and is_address(frame.host, frame.port):
                self.drain = frame
                self.leaving.set()
            case protocol.Refusal() if is_address(frame.host, frame.port):
                self._end(TunnelRefusedError(frame))
            case protocol.Pong():
                self.tail.answered(frame.token, self.acked, self.heard_s)
            case _:
                name = type(frame).__name__
                self._end(TunnelClosedError(f"the cloud sent a {name} out of turn, or with impossible values"))

    def _on_ack(self, seq: int) -> None:
        self.acked = seq
        wire_bytes = 0
        while self._in_flight and self._in_flight[0].seq <= seq:
            sent = self._in_flight.popleft()
            wire_bytes += sent.wire_bytes
            self._credit_used -= sent.size_bytes
            delay_s = self.heard_s - sent.sent_s
            self._latencies.append((sent.seq, delay_s))
        if wire_bytes:
            self.in_flight_bytes -= wire_bytes
            self.bound.acknowledged(wire_bytes, delay_s, self.heard_s)
            self.round_trip.note(delay_s, self.heard_s)
        self._settle()
        self.ack_came.set()
        self._moved.set()

    def _settle(self) -> None:
        if self.is_idle:
            self.tail.settle()

    def _end(self, error: Exception) -> None:
        if self._error is None:  # the first reason is the true one
            self._error = error
        self._ended.set()
        self._moved.set()
        self.writable.set()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(TunnelClosedError(f"the tunnel dropped before the answer came: {error}"))

    # --- the client's calls ---

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._ended.is_set():
            self._transport.write(data)

    def _write_tail(self, data: bytes) -> None:
        """Write a frame that the cloud is to answer."""
        self.write(data)
        self.tail.wrote(self._clock.monotonic())
        if self.tail.due_s is not None:
            self._has_tail.set()

    async def probe_tails(self, encode: Callable[[protocol.Frame], bytes]) -> None:
        """Send Pings behind frames that are not answered, at the times of `tail`. Does not return."""
        while True:
            self._has_tail.clear()
            due_s, now_s = self.tail.due_s, self._clock.monotonic()
            if due_s is None or self.ended or self.is_leaving:
                await self._has_tail.wait()
            elif now_s < due_s and self.tail.is_second:  # another frame's first probe is due earlier
                works: list[Coroutine[Any, Any, object]] = [self._clock.sleep(due_s - now_s), self._has_tail.wait()]
                waits = [asyncio.ensure_future(work) for work in works]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
            elif now_s < due_s:
                await self._clock.sleep(due_s - now_s)
            elif not self.writable.is_set() or sockets.unsent_bytes(self._socket):
                self.tail.postpone(now_s)
            else:
                last_upload = self._in_flight[-1].seq if self._in_flight else self.acked
                self.write(encode(protocol.Ping(self.tail.sent(last_upload, now_s))))

    def accept(self, welcome: protocol.Welcome, offer: Sequence[Dictionary]) -> None:
        """Take over a Welcome's numbers; `offer` are the dictionaries that the Hello named."""
        self.acked = max(self.acked, welcome.acked)  # an Ack of an earlier connection's uploads may have come since
        self.window, self.window_bytes = welcome.window, welcome.window_bytes
        self.version = welcome.protocol
        self.bound = InFlightBound(welcome.window_bytes)
        known = protocol.numbers_from_text(welcome.dictionaries)
        agreed = {number: dictionary for number, dictionary in enumerate(offer, 1) if number in known}
        self.numbers = {dictionary.digest: number for number, dictionary in agreed.items()}
        self.offered = frozenset(dictionary.digest for dictionary in offer)
        self._decoder.dictionaries = agreed
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        if tls is not None and isinstance(tls.context, ResumingContext):
            tls.context.keep(tls)

    def send(self, uploads: Sequence[protocol.Upload], data: bytes) -> None:
        """Write uploads, which `data` encodes, and record when."""
        now_s = self._clock.monotonic()
        for upload in uploads:
            size_bytes = upload_bytes(upload)
            self._credit_used += size_bytes
            self._in_flight.append(_Sent(upload.seq, now_s, size_bytes, 0))
        self._in_flight[-1] = self._in_flight[-1]._replace(wire_bytes=len(data))
        self.in_flight_bytes += len(data)
        self._write_tail(data)

    def allows(self, upload: protocol.Upload) -> bool:
        """Return whether the credit and the bound allow one more upload now; one of any size always may be sent."""
        if not self._in_flight:
            return True
        return (
            upload.seq <= self.acked + self.window
            and self._credit_used + upload_bytes(upload) <= self.window_bytes
            and self.in_flight_bytes < self.bound.limit_bytes
        )

    @property
    def is_leaving(self) -> bool:
        """True once nothing new is sent any more."""
        return self._is_leaving

    def leave(self) -> None:
        """Send nothing new from now on."""
        self._is_leaving = True

    @property
    def credit_bytes(self) -> int:
        """The bytes of uploads that the cloud still accepts."""
        return self.window_bytes - self._credit_used

    @property
    def is_idle(self) -> bool:
        """True if no upload is unacknowledged and no request is unanswered."""
        return not self._in_flight and not self._answers

    async def writable_for_uploads(self) -> None:
        """Return once uploads may be written: after the requests that wait, and soon before their transmission."""
        check_s = _UNSENT_CHECK_S
        while True:
            await self.writable.wait()
            if self.ended:
                return
            if self._waiting_requests:
                await asyncio.sleep(0)
            elif self.expects_requests and sockets.unsent_bytes(self._socket):
                await self._clock.sleep(check_s)
                check_s = min(_UNSENT_CHECK_MOST_S, 1.25 * check_s)
            else:
                return

    @property
    def expects_requests(self) -> bool:
        """True if a request was made a short time ago, so that others are likely."""
        return self.bound.expects_requests(self._clock.monotonic())

    def take_latencies(self) -> list[tuple[int, float]]:
        taken, self._latencies = self._latencies, []
        return taken

    async def welcome(self) -> protocol.Welcome:
        while self._welcome is None:
            if self._error is not None:
                raise self._error
            await self._moved.wait()
            self._moved.clear()
        return self._welcome

    async def room(self) -> None:
        """Return at the next acknowledgement or answer, or when the link has ended."""
        self._moved.clear()
        await self._moved.wait()

    async def over(self) -> None:
        """Block until the link has ended, and raise the reason."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def ask(
        self, request: protocol.Request, encode: Callable[[protocol.Frame], bytes], due_s: float
    ) -> protocol.Response:
        """Write a request once the link takes it, and return the answer.

        The cloud is told how long this side waits, which is until `due_s`, and when it stops waiting before an answer.
        """
        self._waiting_requests += 1
        self.bound.note_request(self._clock.monotonic())
        try:
            async with self._turn.slot(request.priority):
                while not self.writable.is_set():
                    await self.writable.wait()
                if self._error is not None:
                    raise TunnelClosedError(f"request {request.topic!r} was not sent: {self._error}")
                left_ms = max(1, int((due_s - self._clock.monotonic()) * 1000))
                data = encode(dataclasses.replace(request, deadline_ms=min(left_ms, protocol.MAX_DEADLINE_MS)))
                answer: asyncio.Future[protocol.Response] = asyncio.get_running_loop().create_future()
                self._answers[request.request_id] = answer
                self._write_tail(data)
        finally:
            self._waiting_requests -= 1
        try:
            return await answer
        finally:
            if self._answers.pop(request.request_id, None) is not None:  # cancelled, or too late
                self.write(encode(protocol.Cancel(request.request_id)))
                self._moved.set()
                self._settle()

    async def close(self) -> None:
        """Send what is written and disconnect; wait for that at most CLOSE_S."""
        self._end(TunnelClosedError("the tunnel client disconnected"))
        if self._transport is not None:
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._lost.wait()

    def abort(self) -> None:
        """Drop the connection at once, if it is open."""
        self._end(TunnelClosedError("the tunnel client disconnected"))
        if self._transport is not None and not self._lost.is_set():
            self._transport.abort()
