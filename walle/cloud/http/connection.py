"""One connection of the gateway's HTTP server: uvicorn's protocol with limits around it.

Bytes are read 32 KiB at a time and parsed in turns (walle.cloud.http.fair_queue). The body of a request is not read
before the app asks for it.
"""

import asyncio
import enum
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from walle.cloud.http.files import EXTENSION, TRANSPORT_SECURITY, FileCycle
from walle.cloud.http.limits import RETRY_AFTER_S
from walle.cloud.http.parser import RequestError, RequestHeader, RequestParser

if TYPE_CHECKING:
    from walle.cloud.http.server import HttpFront

# Two records of TLS, which a transport reads at a time.
READ_BYTES = 2 * (16 * 1024 + 64)
# What it decrypts at a time: it may have had most of a record before. aiofastnet does not deliver the rest of what it
# has decrypted when reading is paused and resumed, unless more comes.
DECRYPTED_BYTES = READ_BYTES + 16 * 1024
_RECORD_HEAD_BYTES = 5  # head of a TLS record: the type, 2 bytes of version, 2 of length
_RECORD_BYTES = _RECORD_HEAD_BYTES + (16 << 10)  # longest TLS record in clear
_HANDSHAKE_RECORD = 22
_DISCARD_BYTES = 1 << 20  # rest of a body after its refusal: a client that sends it all before it reads sees the answer
_DISCARD_S = 3.0
_FLUSH_S = 1.0  # time for the client to take a refusal
_SLOW_S = 1.0  # time for the rest of a request to come, before a full server may end its connection
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Phase(enum.Enum):
    """State of a connection: it waits for its client in all but ANSWER."""

    HEADER = "header"
    BODY = "body"
    ANSWER = "answer"
    DISCARD = "discard"  # reading the rest of a body whose request was answered already
    IDLE = "idle"


def _is_closing(transport: asyncio.Transport) -> bool:  # parsing may close the transport
    return transport.is_closing()


def refusal(status: int, message: str, *, is_tls: bool = False) -> bytes:
    """Return a whole answer that closes the connection, for a request that no app sees."""
    body = f"{message}\n".encode()
    retry = f"retry-after: {RETRY_AFTER_S}\r\n" if status == 503 else ""
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: text/plain; charset=utf-8\r\n{retry}"
    if is_tls:
        head += f"{TRANSPORT_SECURITY[0].decode()}: {TRANSPORT_SECURITY[1].decode()}\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


def first_record_mark(accepted: socket.socket) -> int:
    """Return for how many bytes a handshake of TLS waits to begin, 0 if its first record has come or never will.

    As the socket's low-water mark (SO_RCVLOWAT) it keeps the kernel from telling of each of the bytes before.
    """
    try:
        sent = accepted.recv(_RECORD_BYTES, socket.MSG_PEEK)
    except BlockingIOError:
        return _RECORD_HEAD_BYTES
    except OSError:  # the handshake will see the error too
        return 0
    if not sent or sent[0] != _HANDSHAKE_RECORD:  # the end, or what the handshake will refuse
        return 0
    if len(sent) < _RECORD_HEAD_BYTES:
        return _RECORD_HEAD_BYTES
    size = _RECORD_HEAD_BYTES + int.from_bytes(sent[3:5])
    return size if len(sent) < size <= _RECORD_BYTES else 0


class _Flow(FlowControl):
    """Uvicorn's control of what is read, by the connection's."""

    def __init__(self, owner: "HttpConnection", transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._owner = owner

    def pause_reading(self) -> None:
        self.read_paused = True
        self._owner.pause_reading()

    def resume_reading(self) -> None:
        self.read_paused = False
        self._owner.resume_reading()


class _Protocol(HttpToolsProtocol):
    """Uvicorn's protocol with a parser of one request at a time, whose turns are its connection's."""

    def __init__(self, owner: "HttpConnection", config: Config, state: ServerState) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._owner = owner
        limits = owner.front.limits
        self.requests = RequestParser(self, limits.header_bytes, limits.headers)
        self.app = owner.front.app_of(owner)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(self._owner, transport)

    def free(self) -> None:
        """Drop what refers to this, after the end of the connection."""
        self._unset_keepalive_if_required()
        self.requests.free()
        self.cycle = None  # type: ignore[assignment]

    def parse(self, data: bytes) -> bytes:
        """Parse one request, or its next bytes; return what is left for later."""
        self._unset_keepalive_if_required()
        try:
            return self.requests.parse(data)
        except RequestError as error:
            limits = self._owner.front.limits
            if error.status == 431:
                message = f"the header has more than {limits.header_bytes} bytes or {limits.headers} fields; send less"
            else:
                message = f"this is not a request of HTTP/1.1, or its body has too many tiny chunks: {error}"
            self._owner.refuse(error.status, message, "header" if error.status == 431 else "invalid")
            return b""

    def on_request(self, header: RequestHeader) -> None:
        raw_path, _, query = header.target.partition(b"?")
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": header.version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "method": header.method,
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "headers": header.fields,
            "state": {},
        }
        if self._owner.front.sends_files:
            self.scope["extensions"] = {EXTENSION: {}}
        self.cycle = FileCycle(
            self._owner.note_file_stall,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=header.expects_continue,
            keep_alive=header.keeps_alive,
            on_response=self.on_response_complete,
        )
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, data: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += data
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_end(self) -> None:
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def timeout_keep_alive_handler(self) -> None:
        self._owner.note_shutdown()
        super().timeout_keep_alive_handler()

    def on_response_complete(self) -> None:
        self._owner.on_answered(is_read=self.requests.is_between)
        super().on_response_complete()
        self._owner.go_on()


class HttpConnection(asyncio.BufferedProtocol):
    """A connection. Times are the event loop's."""

    def __init__(self, front: "HttpFront", address: str, accepted: socket.socket) -> None:
        self.front = front
        self.address = address
        self.accepted = accepted
        self.phase = Phase.HEADER
        self.began_s = front.loop.time()  # the phase
        self.has_finished = False  # a request, ever
        self.has_shown = False  # a token or session, valid or not
        self.requests = 0
        self.stalled_s: float | None = None  # time since which the client takes nothing of an answer
        self._file_stall: asyncio.Future[None] | None = None  # answer that the kernel sends, while it stalls
        self.is_silent = False  # true until its first record comes; until then only the event loop watches it
        self.handshake: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self._protocol: _Protocol | None = None
        self._data = b""  # bytes that wait for a turn
        self.waits = False  # true while it waits for a turn
        self._is_paused = False
        self._is_shut = False  # the end comes by a shutdown from here, not by the client or at once
        self._body_bytes = 0
        self._body_wait_s = 0.0
        self._cycle: object = None
        self._farewell: asyncio.TimerHandle | None = None  # timer of a refusal: its client has until then to take it

    def wait_for_first_record(self, missing: int, then: Callable[[], None]) -> None:
        """Call `then` once the client's first record of TLS has come, unless the connection ends before.

        `missing` is what `first_record_mark` has returned.
        """

        def sent() -> None:
            more = first_record_mark(self.accepted)
            if more > missing:
                self.wait_for_first_record(more, then)
                return
            # It has come, or the client has ended the connection before, which the handshake will see.
            self._hear()
            self.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            then()

        self.is_silent = True
        self.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, missing)
        self.front.loop.add_reader(self.accepted.fileno(), sent)

    def _hear(self) -> None:
        self.is_silent = False
        self.front.loop.remove_reader(self.accepted.fileno())

    # --- called by the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the interface's
        return self.front.buffer  # one for all: its bytes are taken before another connection reads

    def buffer_updated(self, nbytes: int) -> None:
        self._data += self.front.buffer[:nbytes]
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEADER)
        if self._protocol is not None:
            self._protocol._unset_keepalive_if_required()
        if self.waits or self.phase is Phase.ANSWER:  # there is enough to go on with
            self.pause_reading()
        else:
            self._wait_for_turn()

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._data = b""
        if self._file_stall is not None and not self._file_stall.done():
            self._file_stall.set_result(None)
        if self._farewell is not None:
            self._farewell.cancel()  # the timer holds the transport and its buffers
        self.front.connections.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
            self._protocol.free()
            if self._is_shut:
                self.front.collect()
        # Else connection, protocol and transport refer to one another, and keep up to 256 KiB of TLS buffers until
        # Python looks for such cycles.
        self._protocol = self._cycle = None
        self.transport = None

    def pause_writing(self) -> None:
        self.stalled_s = self.front.loop.time()
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self.stalled_s = None
        if self._protocol is not None:
            self._protocol.resume_writing()

    def note_file_stall(self, stall: asyncio.Future[None] | None) -> None:
        """Take note that the client takes nothing of a file, until None; `stall` is done when the connection ends."""
        self._file_stall = stall
        self.stalled_s = None if stall is None else self.front.loop.time()

    # --- turns --------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Go on with what was read behind a request that is answered."""
        if self._data and self.phase is Phase.IDLE:
            self._enter(Phase.HEADER)
            if not self.waits:
                self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if self.transport is not None:
            self.waits = True
            self.front.turns.take(self.address, self._take_turn)

    def _take_turn(self) -> None:
        self.waits = False
        transport = self.transport
        if transport is None or _is_closing(transport):
            return
        if self._protocol is None:  # made late: a connection that sends nothing needs none
            self._protocol = _Protocol(self, self.front.config, self.front.state)
            self._protocol.connection_made(transport)
        protocol = self._protocol
        data, self._data = self._data, b""
        if self.phase is Phase.BODY:
            self._body_bytes += len(data)
        self._data = protocol.parse(data)
        if _is_closing(transport):
            self._data = b""
            return
        self._note_request(protocol, len(data))
        self.go_on()
        self.resume_reading()

    def pause_reading(self) -> None:
        if not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on if nothing is in the way."""
        transport = self.transport
        protocol = self._protocol
        if not self._is_paused or transport is None or _is_closing(transport):
            return
        if self.waits or (protocol is not None and protocol.flow.read_paused):
            return
        if self._data and self.phase is Phase.ANSWER:
            return  # the next request waits for the end of the answer
        self._is_paused = False
        transport.resume_reading()

    def _note_request(self, protocol: _Protocol, size_bytes: int) -> None:
        cycle = cast("RequestResponseCycle | None", protocol.cycle)  # None until the first request
        if cycle is None:
            return
        if cycle is not self._cycle:
            self._cycle = cycle
            self.requests += 1
            self._body_bytes, self._body_wait_s = size_bytes, 0.0
            if cycle.more_body:
                self._enter(Phase.BODY)
                protocol.flow.pause_reading()  # the app asks for the body when it wants it
            else:
                self._enter(Phase.ANSWER)
        elif self.phase is Phase.BODY and not cycle.more_body:
            self._enter(Phase.ANSWER)
        elif self.phase is Phase.DISCARD:
            self._body_bytes += size_bytes
            if protocol.requests.is_between:
                self._enter(Phase.IDLE)
            elif self._body_bytes > _DISCARD_BYTES:
                self.close("discarded")

    def on_answered(self, *, is_read: bool) -> None:
        """Take note that an answer is complete; `is_read`: its request too."""
        self.has_finished = True
        if self.transport is not None and self.transport.is_closing():
            self.note_shutdown()
        self._body_bytes = 0
        self._enter(Phase.IDLE if is_read else Phase.DISCARD)

    def note_shutdown(self) -> None:
        self._is_shut = True

    def _enter(self, phase: Phase) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self.phase = phase
        self.began_s = self.front.loop.time()
        self.front.connections.note(self)

    # --- limits -------------------------------------------------------------------------------------------------------

    def is_slow(self, now_s: float) -> bool:
        """Return whether the server waits for the rest of a request, whatever the connection had sent before."""
        if self.phase is Phase.BODY:
            return self._body_wait_s > _SLOW_S
        return self.phase in (Phase.HEADER, Phase.DISCARD) and not self.waits and now_s - self.began_s > _SLOW_S

    def check(self, now_s: float, since_s: float) -> None:
        """End the connection if its client is too slow; `since_s` have passed since the last call."""
        limits = self.front.limits
        if self.transport is None:
            if (self.is_silent or self.handshake is not None) and now_s - self.began_s > limits.handshake_s:
                self.close("handshake")
        elif self.stalled_s is not None and now_s - self.stalled_s > limits.stalled_s:
            self.close("slow_reader")
        elif self.phase is Phase.HEADER and now_s - self.began_s > limits.header_s:
            self.refuse(408, f"the header was not complete after {limits.header_s:g} s", "slow_header")
        elif self.phase is Phase.BODY:
            protocol = self._protocol
            if protocol is not None and not protocol.flow.read_paused:  # the client can send
                self._body_wait_s += since_s
            if self._body_wait_s > limits.grace_s + self._body_bytes / limits.body_rate:
                self.refuse(408, f"the body came at less than {limits.body_rate} bytes a second", "slow_body")
        elif self.phase is Phase.IDLE and not self.waits and now_s - self.began_s > 2 * limits.idle_s:
            # uvicorn closes it after `idle_s`, but not once the rest of a refused body has come.
            self.close("idle")
        elif self.phase is Phase.DISCARD and now_s - self.began_s > _DISCARD_S:
            self.close("discarded")

    def refuse(self, status: int, message: str, kind: str) -> None:
        """Answer, unless an answer has begun, and close."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        cycle = self._protocol.cycle if self._protocol is not None else None
        if cycle is None or cycle.response_complete or not cycle.response_started:
            transport.write(refusal(status, message, is_tls=self.front.is_tls))
        self.front.refused[kind] += 1
        self.front.connections.forget(self)
        self._data = b""
        self.note_shutdown()
        transport.close()
        self._farewell = self.front.loop.call_later(_FLUSH_S, transport.abort)

    def close(self, kind: str) -> None:
        """Close without an answer."""
        self.front.refused[kind] += 1
        self.front.connections.forget(self)
        self._data = b""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()
        else:
            if self.is_silent:
                self._hear()
            self.accepted.close()
