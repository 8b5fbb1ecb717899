"""The gateway's HTTP server: uvicorn behind limits of connections, time and bytes.

When all connections are in use, a new one takes the place of one whose client keeps it waiting: the oldest without a
finished request, of the address that has the most of them; then an idle one; then one whose client does not read; then
one that sends the rest of a later request slowly. Whoever sends whole requests is served. Strangers go first: addresses
from which nobody has shown a valid token or session within the hour.
"""

import asyncio
import contextlib
import functools
import gc
import ipaddress
import json
import logging
import resource
import socket
import ssl
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

import uvicorn
from prometheus_client.core import Metric
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from walle.cloud.http.acceptor import Acceptor, Connect
from walle.cloud.http.connection import DECRYPTED_BYTES, HttpConnection, Phase, first_record_mark, refusal
from walle.cloud.http.edge_mark import FromEdges
from walle.cloud.http.fair_queue import Turns
from walle.cloud.http.limits import RETRY_AFTER_S, HttpLimits, Knows, RequestRules, address_key
from walle.errors import DeployError
from walle.metrics.table import counter, gauge_of
from walle.pipeline.tunnel.server.listener import send_at_once
from walle.protocol import DEVICE_HEADER
from walle.store.disk_space import DiskFullError, DiskSpace

_LOG = logging.getLogger(__name__)

# A connection that ends by a shutdown of TLS leaves aiofastnet's timer of it and its transport, which refer to one
# another, with up to 256 KiB of buffers. Python looks for such cycles by the number of objects, of which these have
# few: thousands of them would take 600 MB. What ends otherwise is freed at once.
_ENDED_A_COLLECTION = 128
_BACKLOG = 2048
_NEWCOMERS = 1024  # connections that were accepted and have not begun
_LARGE_BYTES = 64 << 10  # size from which on a body is large
_SWEEP_S = 0.5
_LOOK_S = 0.01  # interval between two checks that the last request is answered
_FAREWELL_S = 3.0  # time for requests under way when the gateway closes
_SPARE_FILES = 512  # file descriptors for all but HTTP
_RETRY = [(b"retry-after", str(RETRY_AFTER_S).encode())]
_CONNECTION = "walle.connection"  # key in a scope
_KNOWN_S = 3600.0  # time for which an address is known after a valid token or session
_MOST_KNOWN = 1 << 16
_DEVICE = DEVICE_HEADER.lower().encode()
_OF_BODY = (b"content-length", b"transfer-encoding", b"expect")


class HttpFront:
    """The connections of a server, what they have in common, and counts of refusals by kind.

    `rules` says what the server does by the paths of `app`. `knows` is asked before the body of a request is read,
    where the path is not for everybody. Connections of `proxies` are not limited by address; their X-Forwarded-For
    names the client. While `space` is low, no release begins. Requests with the mark of `edge_key` are those of an edge
    gateway's clients. A connection needs `files_each` open files.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        knows: Knows,
        proxies: tuple[str, ...] = (),
        space: DiskSpace | None = None,
        *,
        rules: RequestRules,
        edge_key: bytes = b"",
        files_each: int = 1,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.turns = Turns(self.loop)
        self._large = Turns(self.loop, most=1, rest=2.0)  # for what an app does with a large body: 30 ms and more
        self.buffer = memoryview(bytearray(DECRYPTED_BYTES))
        self.refused = Counter[str]()
        self.is_tls = False
        self.sends_files = False  # true if the kernel sends files; not with TLS
        self.stop_accepting: Callable[[], None] = _nothing  # connections under way go on
        self.newcomers: Callable[[], int] = int  # how many were accepted and have not begun
        self.config: uvicorn.Config
        self.state: ServerState
        self._app = app
        self._knows = knows
        self._rules = rules
        self._space = space
        self._proxies = [ipaddress.ip_network(one) for one in proxies]
        self._chain: ASGIApp = (
            ProxyHeadersMiddleware(self._guard, trusted_hosts=list(proxies))  # type: ignore[arg-type,assignment]
            if proxies
            else self._guard
        )
        if edge_key:
            self._chain = FromEdges(self._guard, self._chain, edge_key)
        self._connections: dict[HttpConnection, None] = {}
        self._unfinished: dict[str, dict[HttpConnection, None]] = {}  # by address; the oldest first
        self._known: OrderedDict[str, float] = (
            OrderedDict()
        )  # addresses, until when; the one that was known first is the first
        self._streams = Counter[str]()
        self.is_draining = False  # each answer is the last one of its connection
        self.files_each = files_each
        self.max_connections = limits.connections
        self.max_newcomers = _NEWCOMERS
        self._ended = 0  # connections, by a shutdown, since the last collection
        self._collect_from_s = 0.0

    # --- connections --------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._connections)

    def begin(self, accepted: socket.socket, host: str, connect: Connect, *, is_tls: bool = False) -> None:
        """Serve an accepted connection, in a turn of its address, in the place of another if there is none."""
        address = address_key(host)
        own = self._unfinished.get(address, {})
        if len(own) >= self.limits.unfinished_each and not self._is_proxy(host):
            self._end_one(own, "address")
        if self.count >= self.max_connections and not self.make_room(is_known=self._is_known(address)):
            self.refused["full"] += 1
            with contextlib.suppress(OSError):
                accepted.send(refusal(503, "the gateway is full; try again"))
            accepted.close()
            return
        connection = HttpConnection(self, address, accepted)
        self._connections[connection] = None
        self._unfinished.setdefault(address, {})[connection] = None
        missing = first_record_mark(accepted) if is_tls else 0  # a client that waited to be accepted has often sent
        if missing:
            # One whose hello does not come costs a socket: no task, and none of the tens of KiB of TLS.
            # Its handshake has a separate turn: it takes longer than most requests.
            take = functools.partial(self.turns.take, address, lambda: self._start(connection, connect))
            connection.wait_for_first_record(missing, take)
        else:
            self._start(connection, connect)

    def _start(self, connection: HttpConnection, connect: Connect) -> None:
        if connection in self._connections:  # else it was ended while it waited
            connection.began_s = self.loop.time()
            # At once: each pass of a busy loop takes milliseconds.
            connecting = self._connect(connection, connect)
            connection.handshake = asyncio.Task(connecting, loop=self.loop, eager_start=True)
            connection.handshake.add_done_callback(lambda _: self._connected(connection))

    async def _connect(self, connection: HttpConnection, connect: Connect) -> None:
        try:
            await connect(lambda: connection, connection.accepted)
        except OSError as error:  # ssl.SSLError is one
            self.refused["handshake"] += 1
            error.__traceback__ = None  # the frames hold the transport and refer to the error

    def _connected(self, connection: HttpConnection) -> None:
        connection.handshake = None
        if connection.transport is None:
            self.forget(connection)
            connection.accepted.close()

    def _is_proxy(self, host: str) -> bool:
        return bool(self._proxies) and any(ipaddress.ip_address(host) in network for network in self._proxies)

    def make_room(self, *, is_known: bool = True) -> bool:
        """End the connection that keeps the server waiting most; return whether there is one.

        A client that is not known does not take the place of one that is, but while that is idle or does not read.
        """
        if self._end_unfinished(are_known=False) or self._end_waiting(are_known=False):
            return True
        if self._end_slow(are_known=False) or self._end_waiting(are_known=True):
            return True
        return is_known and (self._end_unfinished(are_known=True) or self._end_slow(are_known=True))

    def _is_known(self, address: str) -> bool:
        return self._known.get(address, 0.0) > self.loop.time()

    def _remember(self, address: str) -> None:
        self._known.pop(address, None)
        if len(self._known) >= _MOST_KNOWN:
            self._known.popitem(last=False)  # a `dict` would scan all that went before
        self._known[address] = self.loop.time() + _KNOWN_S

    def _end_unfinished(self, *, are_known: bool) -> bool:
        """End the oldest without a finished request, of the address with the most of them."""
        addresses = [one for one in self._unfinished if self._is_known(one) is are_known]
        most = max(addresses, key=lambda one: len(self._unfinished[one]), default=None)
        return most is not None and self._end_one(self._unfinished[most], "evicted")

    def _end_waiting(self, *, are_known: bool) -> bool:
        """End one that is idle, else one whose client does not read."""
        own = [one for one in self._connections if self._is_known(one.address) is are_known]
        idle = next((one for one in own if one.phase is Phase.IDLE), None)
        found = idle or next((one for one in own if one.stalled_s is not None), None)
        if found is not None:
            found.close("evicted")
        return found is not None

    def _end_slow(self, *, are_known: bool) -> bool:
        """End the one that keeps a later request waiting for longest, of the address with the most of them."""
        now_s = self.loop.time()
        slow = [one for one in self._connections if one.is_slow(now_s) and self._is_known(one.address) is are_known]
        count = Counter(one.address for one in slow)
        found = max(slow, key=lambda one: (count[one.address], now_s - one.began_s), default=None)
        if found is not None:
            found.close("evicted")
        return found is not None

    def _end_one(self, unfinished: dict[HttpConnection, None], kind: str) -> bool:
        """End the oldest that waits for its client, and not for this server; return whether there is one."""
        found = next((one for one in unfinished if not one.waits), None)
        if found is not None:
            found.close(kind)
        return found is not None

    def note(self, connection: HttpConnection) -> None:
        """Take note of a connection's new phase: whoever has sent a whole request is not waited for."""
        waits = connection.phase in (Phase.HEADER, Phase.BODY, Phase.DISCARD) and not connection.has_finished
        of_address = self._unfinished.get(connection.address)
        if waits:
            self._unfinished.setdefault(connection.address, {}).setdefault(connection)
        elif of_address is not None:
            of_address.pop(connection, None)
            if not of_address:
                del self._unfinished[connection.address]
        if connection.phase is Phase.IDLE and connection in self._connections:
            del self._connections[connection]  # moved to the end: the one that is idle for longest is the first
            self._connections[connection] = None

    def forget(self, connection: HttpConnection) -> None:
        """Take note of a connection's end."""
        self._connections.pop(connection, None)
        of_address = self._unfinished.get(connection.address)
        if of_address is not None:
            of_address.pop(connection, None)
            if not of_address:
                del self._unfinished[connection.address]

    def collect(self) -> None:
        """Take note of the end of a connection by a shutdown, and collect the garbage of many."""
        self._ended += 1
        if self._ended >= _ENDED_A_COLLECTION and perf_counter() >= self._collect_from_s:
            self._ended = 0
            began_s = perf_counter()
            gc.collect()  # 10 to 90 ms, by what is alive: not again before others had ten times as long
            self._collect_from_s = perf_counter() + 10 * (perf_counter() - began_s)

    async def finish(self) -> None:
        """Return once all that were accepted are served, or after 3 s; each answer is the last of its connection."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                while self._is_busy():  # noqa: ASYNC110 - each connection has a phase, and no event of it
                    await asyncio.sleep(_LOOK_S)

    def _is_busy(self) -> bool:
        return bool(self.newcomers()) or any(one.phase is not Phase.IDLE for one in self._connections)

    def close_unused(self) -> None:
        """End connections that have sent nothing; uvicorn ends the others."""
        for connection in list(self._connections):
            if not connection.requests:
                connection.close("closing")

    async def sweep(self) -> None:
        """End connections whose clients are too slow, until cancelled."""
        before_s = self.loop.time()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = self.loop.time()
            for connection in list(self._connections):
                connection.check(now_s, now_s - before_s)
            before_s = now_s

    # --- requests -----------------------------------------------------------------------------------------------------

    def app_of(self, connection: HttpConnection) -> Any:
        """Return the app for the requests of a connection."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope[_CONNECTION] = connection
            await self._chain(scope, receive, send)

        return app

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope.pop(_CONNECTION)
        headers = dict(scope["headers"])
        path: str = scope["path"]
        if "\n" in path:
            # No limit may depend on it: `$` of the router's patterns also matches before a line break at the end.
            self.refused["invalid"] += 1
            await _refuse(send, 400, "a path has no line break (%0A)")
            return
        if not connection.has_shown and (_DEVICE in headers or b"authorization" in headers):
            connection.has_shown = True  # once: a wrong signature takes 0.1 ms
            if not self._why_unknown(headers):
                self._remember(connection.address)
        rule = self._rules.body_rule(path, self.limits)
        length = headers.get(b"content-length", b"0")
        has_body = b"transfer-encoding" in headers or length != b"0"
        unknown = self._why_unknown(headers) if has_body and rule.known_only else ""
        if unknown:
            self.refused["unknown"] += 1
            if path.startswith("/dashboard/"):  # a session that has ended: the guard leads to the login
                fields = [one for one in scope["headers"] if one[0] not in _OF_BODY]
                await self._app({**scope, "headers": fields}, _no_body(), send)
                return
            challenge = [(b"www-authenticate", b'Basic realm="walle", charset="UTF-8"')]
            await _refuse(send, 401, unknown, challenge)
            return
        if len(length) > 18 or int(length) > rule.max_bytes or (has_body and not rule.max_bytes):
            self.refused["body"] += 1
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
                self.refused["disk"] += 1
                await _refuse(send, 507, str(error), _RETRY)
                return
        if self.is_draining or connection.requests >= self.limits.requests_each:
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
        own = self._streams[address] >= self.limits.streams_each
        if own or self._streams.total() >= self.limits.streams:
            self.refused["streams"] += 1
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
                    self.refused["body"] += 1
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

    # --- state --------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        return {
            "ok": True,
            "connections": self.count,
            "limit": self.max_connections,
            "streams": self._streams.total(),
            "refused": dict(self.refused),
        }

    def metrics(self) -> list[Metric]:
        connections = gauge_of("walle_http_connections", self.count)
        limit = gauge_of("walle_http_connections_limit", self.max_connections)
        refused = counter("walle_http_refused_total")
        for kind, count in self.refused.items():
            refused.add_metric([kind], count)
        return [connections, limit, refused]


class _Server(uvicorn.Server):
    """A uvicorn server on connections of `front`, which leaves signals to the program around it."""

    def __init__(self, config: uvicorn.Config, front: HttpFront, context: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._front = front
        self._context = context

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        self._front.config, self._front.state = self.config, self.server_state
        self.servers = [Acceptor(self._front, one, self._context) for one in sockets]  # type: ignore[misc]
        self.started = True

    def stop_accepting(self) -> None:
        for one in self.servers:
            one.stop()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def serving(
    front: HttpFront,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    inherited: socket.socket | None = None,
) -> AsyncIterator[str]:
    """Serve within the block; give the base URL.

    An `inherited` socket takes the place of host and port. Others have it too, so that connections wait in its queue
    for whoever serves next: those that were accepted here are served before the end.

    Raises:
        OSError: the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = inherited or socket.create_server((host, port), family=family, backlog=_BACKLOG)
    async with serving_on(front, listener, tls=tls):
        try:
            yield url_of(host, listener.getsockname()[1], is_tls=tls is not None)
        finally:
            if inherited is not None:
                front.stop_accepting()
                await front.finish()


def url_of(host: str, port: int, *, is_tls: bool) -> str:
    """Return the base URL of a server."""
    return f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.asynccontextmanager
async def serving_on(
    front: HttpFront, listener: socket.socket, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve within the block on a socket that listens, which is closed at its end."""
    front.is_tls = tls is not None
    front.sends_files = not front.is_tls
    front.max_connections = _connections_that_fit(front.limits.connections, front.files_each)
    front.max_newcomers = min(_NEWCOMERS, front.max_connections)
    send_at_once(listener)
    config = uvicorn.Config(
        front.app_of,  # each connection has an app of its own
        http="httptools",
        interface="asgi3",
        log_level="error",  # strangers may cause warnings
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=max(1, round(front.limits.idle_s)),
        timeout_graceful_shutdown=int(_FAREWELL_S),  # streams of server-sent events never end by themselves
    )
    server = _Server(config, front, tls)
    sweeping = asyncio.create_task(front.sweep())
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not running.done():  # noqa: ASYNC110 - uvicorn tells its start by a flag only
            await asyncio.sleep(0.005)
        if running.done():
            await running
        front.stop_accepting = server.stop_accepting
        yield
    finally:
        server.should_exit = True
        await running
        sweeping.cancel()
        await asyncio.wait([sweeping])
        listener.close()


def _nothing() -> None:
    pass


def _connections_that_fit(wanted: int, files_each: int) -> int:
    """Raise the number of files that this process may open as needed; return how many connections they allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * files_each + _NEWCOMERS + 2 * _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    fit = max(64, soft // 3 // files_each)
    if fit < wanted:
        _LOG.warning("HTTP: %d connections at most, since the process may open %d files (ulimit -n)", fit, soft)
    return min(wanted, fit)


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
