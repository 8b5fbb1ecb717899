"""The gateway's HTTP server: uvicorn behind limits of connections, time and bytes."""

import asyncio
import contextlib
import functools
import gc
import ipaddress
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from time import perf_counter
from typing import Any

import uvicorn
from prometheus_client.core import Metric
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from walle.cloud.http.acceptor import Acceptor, Connect
from walle.cloud.http.connection import DECRYPTED_BYTES, HttpConnection, Phase, first_record_mark, refusal
from walle.cloud.http.connection_table import ConnectionTable
from walle.cloud.http.edge_mark import FromEdges
from walle.cloud.http.fair_queue import Turns
from walle.cloud.http.limits import HttpLimits, Knows, RequestRules, address_key
from walle.cloud.http.request_guard import CONNECTION, RequestGuard
from walle.metrics.table import counter, gauge_of
from walle.pipeline.tunnel.server.listener import send_at_once
from walle.store.disk_space import DiskSpace

_LOG = logging.getLogger(__name__)

# A connection that ends by a shutdown of TLS leaves aiofastnet's timer of it and its transport, which refer to one
# another, with up to 256 KiB of buffers. Python looks for such cycles by the number of objects, of which these have
# few: thousands of them would take 600 MB. What ends otherwise is freed at once.
_ENDED_A_COLLECTION = 128
_BACKLOG = 2048
_NEWCOMERS = 1024  # connections that were accepted and have not begun
_SWEEP_S = 0.5
_LOOK_S = 0.01  # interval between two checks that the last request is answered
_FAREWELL_S = 3.0  # time for requests under way when the gateway closes
_SPARE_FILES = 512  # file descriptors for all but HTTP


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
        self.buffer = memoryview(bytearray(DECRYPTED_BYTES))
        self.refused = Counter[str]()
        self.is_tls = False
        self.sends_files = False  # true if the kernel sends files; not with TLS
        self.stop_accepting: Callable[[], None] = _nothing  # connections under way go on
        self.newcomers: Callable[[], int] = int  # how many were accepted and have not begun
        self.config: uvicorn.Config
        self.state: ServerState
        self._proxies = [ipaddress.ip_network(one) for one in proxies]
        self.connections = ConnectionTable(self.loop)
        self._guard = RequestGuard(
            app, limits, knows, space, rules=rules, remember=self.connections.remember, refused=self.refused
        )
        self._chain: ASGIApp = (
            ProxyHeadersMiddleware(self._guard, trusted_hosts=list(proxies))  # type: ignore[arg-type,assignment]
            if proxies
            else self._guard
        )
        if edge_key:
            self._chain = FromEdges(self._guard, self._chain, edge_key)
        self.files_each = files_each
        self.max_connections = limits.connections
        self.max_newcomers = _NEWCOMERS
        self._ended = 0  # connections, by a shutdown, since the last collection
        self._collect_from_s = 0.0

    # --- connections --------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self.connections)

    @property
    def is_draining(self) -> bool:
        """Return whether each answer is the last one of its connection."""
        return self._guard.is_draining

    def drain(self) -> None:
        """Make each answer the last one of its connection from now on."""
        self._guard.is_draining = True

    def begin(self, accepted: socket.socket, host: str, connect: Connect, *, is_tls: bool = False) -> None:
        """Serve an accepted connection, in a turn of its address, in the place of another if there is none."""
        address = address_key(host)
        table = self.connections
        if table.unfinished(address) >= self.limits.unfinished_each and not self._is_proxy(host):
            table.end_unfinished_of(address, "address")
        if self.count >= self.max_connections and not table.make_room(is_known=table.is_known(address)):
            self.refused["full"] += 1
            with contextlib.suppress(OSError):
                accepted.send(refusal(503, "the gateway is full; try again"))
            accepted.close()
            return
        connection = HttpConnection(self, address, accepted)
        table.add(connection)
        missing = first_record_mark(accepted) if is_tls else 0  # a client that waited to be accepted has often sent
        if missing:
            # One whose hello does not come costs a socket: no task, and none of the tens of KiB of TLS.
            # Its handshake has a separate turn: it takes longer than most requests.
            take = functools.partial(self.turns.take, address, lambda: self._start(connection, connect))
            connection.wait_for_first_record(missing, take)
        else:
            self._start(connection, connect)

    def _start(self, connection: HttpConnection, connect: Connect) -> None:
        if connection in self.connections:  # else it was ended while it waited
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
            self.connections.forget(connection)
            connection.accepted.close()

    def _is_proxy(self, host: str) -> bool:
        return bool(self._proxies) and any(ipaddress.ip_address(host) in network for network in self._proxies)

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
        self.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                while self._is_busy():  # noqa: ASYNC110 - each connection has a phase, and no event of it
                    await asyncio.sleep(_LOOK_S)

    def _is_busy(self) -> bool:
        return bool(self.newcomers()) or any(one.phase is not Phase.IDLE for one in self.connections)

    def close_unused(self) -> None:
        """End connections that have sent nothing; uvicorn ends the others."""
        for connection in self.connections:
            if not connection.requests:
                connection.close("closing")

    async def sweep(self) -> None:
        """End connections whose clients are too slow, until cancelled."""
        before_s = self.loop.time()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = self.loop.time()
            for connection in self.connections:
                connection.check(now_s, now_s - before_s)
            before_s = now_s

    # --- requests -----------------------------------------------------------------------------------------------------

    def app_of(self, connection: HttpConnection) -> Any:
        """Return the app for the requests of a connection."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope[CONNECTION] = connection
            await self._chain(scope, receive, send)

        return app

    # --- state --------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        return {
            "ok": True,
            "connections": self.count,
            "limit": self.max_connections,
            "streams": self._guard.streams,
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
