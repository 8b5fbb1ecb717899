"""One connection of the gateway's HTTP server: uvicorn's protocol on h11, with limits around it.

Bytes are read 16 KiB at a time and parsed in turns (walle.cloud.turns). The body of a request is not read before the
app asks for it.
"""

import asyncio
import enum
import socket
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from walle.cloud.http_limits import RETRY_AFTER_S

if TYPE_CHECKING:
    from walle.cloud.http_server import HttpFront

READ_BYTES = 16 << 10
_DISCARD_BYTES = 1 << 20  # of a body after its refusal: a client that sends it all before it reads sees the answer
_DISCARD_S = 3.0
_FLUSH_S = 1.0  # for the client to take a refusal
_CHUNKS = 256  # of a body, from which on their mean size counts
_CHUNK_BYTES = 64  # which it must have: each chunk costs as much as a small request
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
    DISCARD = "discard"  # of a body whose request was answered already
    IDLE = "idle"


def _is_closing(transport: asyncio.Transport) -> bool:  # which parsing may change
    return transport.is_closing()


def refusal(status: int, message: str) -> bytes:
    """Return a whole answer that closes the connection, for a request that no app sees."""
    body = f"{message}\n".encode()
    retry = f"retry-after: {RETRY_AFTER_S}\r\n" if status == 503 else ""
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: text/plain; charset=utf-8\r\n{retry}"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


class _Parser(h11.Connection):
    """A parser that refuses requests with too many headers, and bodies in tiny chunks."""

    def __init__(self, max_header_bytes: int, max_headers: int) -> None:
        super().__init__(h11.SERVER, max_header_bytes)
        self._max_header_bytes = max_header_bytes
        self._max_headers = max_headers
        self._chunks = 0
        self._body_bytes = 0
        self.refused_status = 400

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refused_status = 431 if error.error_status_hint == 431 else 400
            raise
        if isinstance(event, h11.Data):
            self._chunks += 1
            self._body_bytes += len(event.data)
            if self._chunks >= _CHUNKS and self._body_bytes < _CHUNK_BYTES * self._chunks:
                raise h11.RemoteProtocolError("the body comes in tiny chunks")
        elif isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
            size_bytes = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
            if len(event.headers) > self._max_headers or size_bytes > self._max_header_bytes:
                self.refused_status = 431
                raise h11.RemoteProtocolError("the header is too large")
        return event


class _Flow(FlowControl):
    """Uvicorn's control of what is read, which resumes reading by the connection."""

    def __init__(self, owner: "HttpConnection", transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._owner = owner

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._owner.resume_reading()


class _Protocol(H11Protocol):
    """Uvicorn's protocol, which parses in turns and reports to its connection."""

    def __init__(self, owner: "HttpConnection", config: Config, state: ServerState) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._owner = owner
        self.parser = _Parser(owner.front.limits.header_bytes, owner.front.limits.headers)
        self.conn = self.parser
        self.app = owner.front.app_of(owner)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(self._owner, transport)

    def handle_events(self) -> None:
        if self._owner.has_turn:
            super().handle_events()
        else:  # an answer has ended, and more requests may have been read already
            self._owner.wait_for_turn()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text is the same for all causes
        status = self.parser.refused_status
        limits = self._owner.front.limits
        if status == 431:
            message = f"the header has more than {limits.header_bytes} bytes or {limits.headers} fields; send less"
        else:
            message = "this is not a request of HTTP/1.1, or its body comes in tiny chunks"
        self._owner.refuse(status, message, "invalid" if status == 400 else "header")

    def on_response_complete(self) -> None:
        self._owner.on_answered(is_read=not self.cycle.more_body)
        super().on_response_complete()


class HttpConnection(asyncio.BufferedProtocol):
    """A connection. Times are the event loop's."""

    def __init__(self, front: "HttpFront", address: str) -> None:
        self.front = front
        self.address = address
        self.phase = Phase.HEADER
        self.began_s = front.loop.time()  # the phase
        self.has_finished = False  # a request, ever
        self.has_turn = False
        self.requests = 0
        self.stalled_s: float | None = None  # since when the client takes nothing of an answer
        self.accepted: socket.socket | None = None
        self.handshake: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self._protocol: _Protocol | None = None
        self._data = b""  # that waits for a turn
        self.waits = False  # for a turn
        self._body_bytes = 0
        self._body_wait_s = 0.0
        self._cycle: object = None

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
        if self.waits and self.transport is not None:  # an answer that ended has resumed reading
            self.transport.pause_reading()
        self.wait_for_turn()

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._data = b""
        self.front.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self.stalled_s = self.front.loop.time()
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self.stalled_s = None
        if self._protocol is not None:
            self._protocol.resume_writing()

    # --- turns --------------------------------------------------------------------------------------------------------

    def wait_for_turn(self) -> None:
        """Read nothing until the data has had its turn."""
        if self.waits or self.transport is None:
            return
        self.waits = True
        self.transport.pause_reading()
        self.front.turns.take(self.address, self._take_turn)

    def _take_turn(self) -> None:
        self.waits = False
        transport = self.transport
        if transport is None or _is_closing(transport):
            return
        if self._protocol is None:  # not made for a connection that sends nothing
            self._protocol = _Protocol(self, self.front.config, self.front.state)
            self._protocol.connection_made(transport)
        protocol = self._protocol
        data, self._data = self._data, b""
        if self.phase is Phase.BODY:
            self._body_bytes += len(data)
        self.has_turn = True
        try:
            if data:
                protocol.data_received(data)
            else:
                protocol.handle_events()
        finally:
            self.has_turn = False
        if _is_closing(transport):
            return
        self._note_request(protocol, len(data))
        if not protocol.flow.read_paused:
            self.resume_reading()

    def resume_reading(self) -> None:
        """Read on, first what the transport has decrypted or received already.

        aiofastnet 1.2.0 looks at the socket alone when reading is resumed: the rest of a body that it has received
        whole would never be read.
        """
        transport = self.transport
        if transport is None or _is_closing(transport):
            return
        transport.resume_reading()
        if hasattr(transport, "_do_read"):
            self.front.loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        transport: Any = self.transport
        if transport is None or _is_closing(transport):
            return
        try:
            transport._do_read()
        except OSError:  # what came is not TLS
            transport.abort()

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
                protocol.flow.pause_reading()  # until the app asks for the body
            else:
                self._enter(Phase.ANSWER)
        elif self.phase is Phase.BODY and not cycle.more_body:
            self._enter(Phase.ANSWER)
        elif self.phase is Phase.DISCARD:
            self._body_bytes += size_bytes
            if protocol.conn.their_state is h11.IDLE:
                self._enter(Phase.IDLE)
            elif self._body_bytes > _DISCARD_BYTES:
                self.close("discarded")

    def on_answered(self, *, is_read: bool) -> None:
        """Take note that an answer is complete; `is_read`: its request too."""
        self.has_finished = True
        self._body_bytes = 0
        self._enter(Phase.IDLE if is_read else Phase.DISCARD)

    def _enter(self, phase: Phase) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self.phase = phase
        self.began_s = self.front.loop.time()
        self.front.note(self)

    # --- limits -------------------------------------------------------------------------------------------------------

    def check(self, now_s: float, since_s: float) -> None:
        """End the connection if its client is too slow; `since_s` have passed since the last call."""
        limits = self.front.limits
        if self.stalled_s is not None and now_s - self.stalled_s > limits.stalled_s:
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
            transport.write(refusal(status, message))
        self.front.refused[kind] += 1
        self.front.forget(self)
        self._data = b""
        transport.close()
        self.front.loop.call_later(_FLUSH_S, transport.abort)

    def close(self, kind: str) -> None:
        """Close without an answer."""
        self.front.refused[kind] += 1
        self.front.forget(self)
        self._data = b""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()
        elif self.accepted is not None:
            self.accepted.close()
