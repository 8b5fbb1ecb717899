"""Limits of requests, between the server and its app: tokens before bodies, sizes, streams, room on the disk."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from walle.cloud.http.connection import HttpConnection
from walle.cloud.http.fair_queue import Turns
from walle.cloud.http.limits import RETRY_AFTER_S, HttpLimits, Knows, RequestRules, address_key
from walle.errors import DeployError
from walle.protocol import DEVICE_HEADER
from walle.store.disk_space import DiskFullError, DiskSpace

_LOG = logging.getLogger(__name__)

CONNECTION = "walle.connection"  # key in a scope
_LARGE_BYTES = 64 << 10  # size from which on a body is large
_RETRY = [(b"retry-after", str(RETRY_AFTER_S).encode())]
_DEVICE = DEVICE_HEADER.lower().encode()
_OF_BODY = (b"content-length", b"transfer-encoding", b"expect")


class RequestGuard:
    """ASGI middleware: `app` behind the limits of a request. Scopes have their HttpConnection at CONNECTION.

    `remember` is called with the address of a client that has shown a valid token or session. Refusals are counted by
    kind in `refused`. While `is_draining`, each answer is the last one of its connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        knows: Knows,
        space: DiskSpace | None,
        *,
        rules: RequestRules,
        remember: Callable[[str], None],
        refused: Counter[str],
    ) -> None:
        self._app = app
        self._limits = limits
        self._knows = knows
        self._space = space
        self._rules = rules
        self._remember = remember
        self._refused = refused
        self._large = Turns(asyncio.get_running_loop(), most=1, rest=2.0)  # large bodies: 30 ms and more
        self._streams = Counter[str]()  # under way, by address
        self.is_draining = False

    @property
    def streams(self) -> int:
        """The number of streams of server-sent events under way."""
        return self._streams.total()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope.pop(CONNECTION)
        headers = dict(scope["headers"])
        path: str = scope["path"]
        if "\n" in path:
            # No limit may depend on it: `$` of the router's patterns also matches before a line break at the end.
            self._refused["invalid"] += 1
            await _refuse(send, 400, "a path has no line break (%0A)")
            return
        if not connection.has_shown and (_DEVICE in headers or b"authorization" in headers):
            connection.has_shown = True  # once: a wrong signature takes 0.1 ms
            if not self._why_unknown(headers):
                self._remember(connection.address)
        rule = self._rules.body_rule(path, self._limits)
        length = headers.get(b"content-length", b"0")
        has_body = b"transfer-encoding" in headers or length != b"0"
        unknown = self._why_unknown(headers) if has_body and rule.known_only else ""
        if unknown:
            self._refused["unknown"] += 1
            if path.startswith("/dashboard/"):  # a session that has ended: the guard leads to the login
                fields = [one for one in scope["headers"] if one[0] not in _OF_BODY]
                await self._app({**scope, "headers": fields}, _no_body(), send)
                return
            challenge = [(b"www-authenticate", b'Basic realm="walle", charset="UTF-8"')]
            await _refuse(send, 401, unknown, challenge)
            return
        if len(length) > 18 or int(length) > rule.max_bytes or (has_body and not rule.max_bytes):
            self._refused["body"] += 1
            await _refuse(send, 413, _too_large(rule.max_bytes))
            return
        if (
            self._space is not None
            and self._rules.is_new_work(scope["method"], path)
            and not self._why_unknown(headers)
        ):
            try:
                self._space.check()
            except DiskFullError as error:
                self._refused["disk"] += 1
                await _refuse(send, 507, str(error), _RETRY)
                return
        if self.is_draining or connection.requests >= self._limits.requests_each:
            send = _closing(send)
        if scope["method"] == "GET" and self._rules.is_stream(path):
            await self._stream(scope, receive, send)
        elif has_body:
            await self._with_body(connection, rule.max_bytes, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _why_unknown(self, headers: Mapping[bytes, bytes]) -> str:
        """Return why nothing of a client's body is read, "" where the client is known."""
        try:
            if self._knows(headers):
                return ""
        except DeployError as error:
            return str(error)
        what = "this needs a valid token: send the header Authorization: Bearer TOKEN, a device its"
        return f"{what} session in {DEVICE_HEADER}"

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = address_key((scope.get("client") or ("",))[0])
        own = self._streams[address] >= self._limits.streams_each
        if own or self._streams.total() >= self._limits.streams:
            self._refused["streams"] += 1
            whose = "your address has" if own else "there are"
            message = f"{whose} as many streams as the gateway serves; poll the release instead"
            await _refuse(send, 429 if own else 503, message, _RETRY)
            return
        self._streams[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._streams[address] -= 1
            if not self._streams[address]:
                del self._streams[address]

    async def _with_body(
        self, connection: HttpConnection, max_bytes: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run the app; answer 413 in its place once the body turns out to be too large."""
        size_bytes = 0
        has_begun = is_refused = False

        async def receive_bounded() -> Message:
            nonlocal size_bytes, is_refused
            if is_refused:
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.request":
                if size_bytes > _LARGE_BYTES and not message.get("more_body"):
                    await self._large.wait(connection.address)
                size_bytes += len(message.get("body", b""))
                if size_bytes > max_bytes:
                    is_refused = True
                    self._refused["body"] += 1
                    if not has_begun:
                        await _refuse(send, 413, _too_large(max_bytes))
                    return {"type": "http.disconnect"}
            return message

        async def send_unless_refused(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if not is_refused:
                await send(message)

        try:
            await self._app(scope, receive_bounded, send_unless_refused)
        except ClientDisconnect:
            _LOG.debug("a client disconnected before the end of its request")
        except Exception:
            if not is_refused:
                raise
            _LOG.debug("an app failed on a request that was refused", exc_info=True)


def _too_large(max_bytes: int) -> str:
    return f"a body of this path has at most {max_bytes} bytes; send less, or in parts"


def _closing(send: Send) -> Send:
    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_and_close


def _no_body() -> Receive:
    """Return a request's body that is empty; nothing comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


async def _refuse(send: Send, status: int, message: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    body = json.dumps({"error": message, "type": "HttpLimitError"}).encode()
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": False})
