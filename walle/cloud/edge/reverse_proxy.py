"""Reverse proxy: passes requests on to the cloud's gateway and its answers back, both streamed.

While the gateway is started again, a request waits for up to HOLD_S, if it was not sent yet or may be sent twice
(`walle.cloud.api.routes.may_repeat`); others are answered 503 with Retry-After.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import httpcore
from prometheus_client.core import Metric

from walle.base.asgi import Receive, Scope, Send
from walle.base.backoff import Backoff, retry_after_s
from walle.base.clock import Clock
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.api.routes import may_repeat
from walle.cloud.edge.followed_answers import send_json
from walle.cloud.edge.gateway_connections import Answer, Field, GatewayConnections, Onward
from walle.cloud.http.edge_mark import EDGE_HEADER, EdgeMark
from walle.errors import WalleError
from walle.metrics.table import counter, gauge_of

_LOG = logging.getLogger(__name__)

HOLD_S = 20.0
KEPT_BYTES = 1 << 20  # bytes kept of a request's body, to send it again
ALL_KEPT_BYTES = 128 << 20  # limit of all bodies; above, a request is not sent again
MAX_HELD = 512  # requests that wait at once
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 0.5  # longest pause before the next look for a gateway that cannot be reached
_MAX_ANSWERED_PAUSE_S = 4.0  # beyond what a gateway asked for that answered 503
_RETRY = ((b"retry-after", b"2"),)
_RANDOM = random.Random()
_HOP_BY_HOP = frozenset(  # RFC 9110 §7.6.1
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
_NOT_PASSED_ON = frozenset({EDGE_HEADER, b"expect", b"x-forwarded-for", b"x-forwarded-proto"})
_NEVER_BY_NAME = frozenset({b"host", b"content-length"})  # whatever the header Connection names
_NOT_SENT = (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout)
_LOST = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.RemoteProtocolError)


class GatewayAwayError(WalleError):
    """The gateway's address is not known now. The message says why."""


class ClientGoneError(Exception):
    """The client has disconnected before the end of its request."""


class ReverseProxy:
    """ASGI app in front of the gateway.

    `find` returns the gateway's base URL, or raises GatewayAwayError; it is asked at first, and after a connection
    failed. `tls` is for an https address. `key` marks requests (`walle.cloud.http.edge_mark`). `connections` are as
    many as clients can have: with fewer of them, slow clients would keep others from the gateway.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[str]],
        key: bytes,
        clock: Clock,
        *,
        connections: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = ""
        self.passed = Counter[str]()  # answers by class of status
        self.held = 0  # requests that waited, ever
        self.refused = Counter[str]()
        self._find = find
        self._key = key
        self._clock = clock
        self._tls = tls
        self._most_connections = connections
        self._room = _Room(ALL_KEPT_BYTES)
        self._waiting = 0
        self._connections: GatewayConnections

    async def __aenter__(self) -> Self:
        self._connections = GatewayConnections(most=self._most_connections, tls=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connections.close()

    async def find(self) -> str:
        """Return the gateway's base URL, asked for again. Raises GatewayAwayError."""
        self.url = await self._find()
        return self.url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["raw_path"].startswith(b"/"):
            self.refused["invalid"] += 1
            await send_json(send, 400, {"error": "the target of a request is a path, which begins with /"})
            return
        body = _Body(scope, receive, self._room, may_keep=may_repeat(scope["method"], scope["path"]))
        passing = asyncio.ensure_future(self._pass_on(scope, body, send))
        leaving = asyncio.ensure_future(body.until_gone())
        try:
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():
                self.refused["gone"] += 1
        finally:
            passing.cancel()
            leaving.cancel()
            results = await asyncio.gather(passing, leaving, return_exceptions=True)
            body.forget()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ClientGoneError):
                raise result

    async def _pass_on(self, scope: Scope, body: "_Body", send: Send) -> None:
        method, path = scope["method"], scope["path"]
        headers = _onward_headers(scope, self._key)
        is_repeatable = may_repeat(method, path)
        began_s = self._clock.monotonic()
        unreached = Backoff(_RANDOM, first_s=_FIRST_PAUSE_S, most_s=_MAX_PAUSE_S)
        answered = Backoff(_RANDOM, first_s=_FIRST_PAUSE_S, most_s=_MAX_ANSWERED_PAUSE_S)
        is_held = has_answered = False
        try:
            while True:
                why = ""
                can_wait = body.is_kept
                asked_s = 0.0
                try:
                    async with self._answer(scope, headers, body) as answer:
                        asked = _first(answer.headers, b"retry-after") if answer.status == 503 else None
                        may_wait = is_repeatable and body.is_kept and not REQUEST_RULES.is_stream(path)
                        asked_s = retry_after_s(asked, self._clock.time())
                        if asked is None or not (may_wait and self._may_wait(began_s, asked_s, is_held=is_held)):
                            self.passed[f"{answer.status // 100}xx"] += 1
                            has_answered = True
                            body.forget()
                            await _send_back(answer, send)
                            return
                        why = "it is not ready"
                        pause_s = answered.failed(asked_s)
                except httpcore.LocalProtocolError as error:
                    self.refused["invalid"] += 1
                    await send_json(send, 400, {"error": f"this is not a request that can be passed on: {error}"})
                    return
                except (*_NOT_SENT, GatewayAwayError) as error:
                    why = str(error) or type(error).__name__
                    can_wait = body.is_kept
                    pause_s = unreached.failed()
                except _LOST as error:
                    if has_answered:
                        _LOG.warning("the gateway's connection ended within an answer: %r", error)
                        self.refused["cut"] += 1
                        return  # the server ends the client's connection, whose answer is not whole
                    why = str(error) or type(error).__name__
                    can_wait = is_repeatable and body.is_kept
                    pause_s = unreached.failed()
                if not can_wait or not self._may_wait(began_s, asked_s, is_held=is_held):
                    self.refused["away"] += 1
                    what = f"the cloud's gateway does not answer now ({why}); try again"
                    await send_json(send, 503, {"error": what, "type": "GatewayAwayError"}, _RETRY)
                    return
                if not is_held:
                    is_held = True
                    self.held += 1
                    self._waiting += 1
                await self._clock.sleep(pause_s)
                body.rewind()
                with contextlib.suppress(GatewayAwayError):
                    await self.find()
        finally:
            self._waiting -= is_held

    def _may_wait(self, began_s: float, asked_s: float, *, is_held: bool) -> bool:
        is_in_time = self._clock.monotonic() - began_s + asked_s < HOLD_S
        return is_in_time and (is_held or self._waiting < MAX_HELD)

    @contextlib.asynccontextmanager
    async def _answer(self, scope: Scope, headers: list[Field], body: "_Body") -> AsyncIterator[Answer]:
        url = self.url or await self.find()
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        onward = Onward(scope["method"], target, headers, body if body.is_there else None)
        answer = await self._connections.request(url, onward)
        try:
            yield answer
        finally:
            answer.close()

    # --- state --------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        refused = dict(self.refused)
        return {"ok": True, "passed": self.passed.total(), "held": self.held, "waiting": self._waiting, **refused}

    def metrics(self) -> list[Metric]:
        passed, refused = counter("walle_edge_passed_total"), counter("walle_edge_refused_total")
        for kind, count in self.passed.items():
            passed.add_metric([kind], count)
        for kind, count in self.refused.items():
            refused.add_metric([kind], count)
        held = counter("walle_edge_held_total")
        held.add_metric([], self.held)
        return [passed, refused, held, gauge_of("walle_edge_waiting_requests", self._waiting)]


@dataclasses.dataclass
class _Room:
    """Bytes that all requests together may keep of their bodies, beside those that they keep now."""

    free_bytes: int


class _Body:
    """The body of a request: an asynchronous iterable of its parts, again from the beginning after `rewind`.

    `is_kept` is whether that is possible still. Unless it `may_keep`, nothing of it is kept once it was read.
    """

    def __init__(self, scope: Scope, receive: Receive, room: _Room, *, may_keep: bool) -> None:
        names = {name for name, _ in scope["headers"]}
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self.is_there = b"transfer-encoding" in names or length != b"0"
        self.is_kept = True
        self._may_keep = may_keep
        self._room = room
        self._receive = receive
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._position = 0
        self._read = asyncio.Event()  # all of it
        if not self.is_there:
            self._read.set()

    def rewind(self) -> None:
        self._position = 0

    def forget(self) -> None:
        """Keep nothing of it from now on: it will not be sent again."""
        self.is_kept = self._may_keep = False
        self._room.free_bytes += self._kept_bytes
        self._kept_bytes = 0
        self._kept.clear()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts()

    async def _parts(self) -> AsyncIterator[bytes]:
        while self._position < len(self._kept):
            self._position += 1
            yield self._kept[self._position - 1]
        while not self._read.is_set():
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            part = message.get("body", b"")
            if not message.get("more_body"):
                self._read.set()
            if not part:
                continue
            has_room = self._kept_bytes + len(part) <= KEPT_BYTES and len(part) <= self._room.free_bytes
            if self._may_keep and has_room:
                self._kept.append(part)
                self._kept_bytes += len(part)
                self._room.free_bytes -= len(part)
                self._position += 1
            else:
                self.forget()
            yield part

    async def until_gone(self) -> None:
        """Return when the client disconnects after its whole request."""
        await self._read.wait()
        if not self.is_there:
            await self._receive()  # the empty body
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _onward_headers(scope: Scope, key: bytes) -> list[Field]:
    """Return the headers with which a request is passed on."""
    fields: list[Field] = scope["headers"]
    named = {one.strip().lower() for name, value in fields if name == b"connection" for one in value.split(b",")}
    left_out = (named - _NEVER_BY_NAME) | _HOP_BY_HOP | _NOT_PASSED_ON
    headers = [field for field in fields if field[0] not in left_out]
    if any(name == b"transfer-encoding" for name, _ in fields):
        headers.append((b"transfer-encoding", b"chunked"))
    mark = EdgeMark.of(scope, is_answered=not scope["path"].startswith("/cen/"))
    forwarded = [value for name, value in fields if name == b"x-forwarded-for"]
    headers.append((b"x-forwarded-for", b", ".join((*forwarded, (mark.host or "unknown").encode("latin-1")))))
    headers.append((b"x-forwarded-proto", mark.scheme.encode()))
    headers.append((EDGE_HEADER, mark.value(key)))
    return headers


def _first(headers: list[Field], name: bytes) -> str | None:
    """Return the value of the first header with this name, None without."""
    return next((value.decode("latin-1") for one, value in headers if one.lower() == name), None)


async def _send_back(answer: Answer, send: Send) -> None:
    fields = [(name.lower(), value) for name, value in answer.headers]
    named = {one.strip().lower() for name, value in fields if name == b"connection" for one in value.split(b",")}
    left_out = (named - _NEVER_BY_NAME) | _HOP_BY_HOP | {b"date"}  # the server adds a date
    headers = [field for field in fields if field[0] not in left_out]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    async for part in answer.parts():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
