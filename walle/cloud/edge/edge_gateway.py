"""Edge gateway: one of several that share a port in front of the cloud's gateway, on each node of a cluster.

It answers profiles, check-ins and shared files itself, from the release table that it follows and the cloud's folder.
Reports of outcomes go to the monitor, several in one call (`walle.cloud.edge.report_queue`). Everything else it passes
on to the gateway (`walle.cloud.edge.reverse_proxy`).
"""

import asyncio
import contextlib
import dataclasses
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from walle.access.access import ANY_SCENARIO, Role
from walle.base.asgi import ASGIApp, Receive, Scope, Send
from walle.base.clock import Clock, SystemClock
from walle.client.cloud_client import CloudClient
from walle.cloud.api.interfaces import ReportsPeer
from walle.cloud.api.outcomes import ReportApp
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.dashboard import Sessions, cookie_of
from walle.cloud.edge.followed_answers import FollowedAnswers, send_bytes, send_json
from walle.cloud.edge.report_queue import ReportQueue
from walle.cloud.edge.reverse_proxy import GatewayAwayError, ReverseProxy
from walle.cloud.edge.shared_listener import SharedListener, shared_listener
from walle.cloud.edge.table_follower import TableFeedError
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.http.https import CertificateFiles
from walle.cloud.http.server import HttpFront, serving, serving_on, url_of
from walle.cloud.telemetry.tracing import Tracer, exporter
from walle.deploy.push.pull_budget import PullRate
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.file_address import signed_files
from walle.protocol import DEVICE_HEADER
from walle.store.background import in_background

_DEVICE = DEVICE_HEADER.lower().encode()
_LOOK_S = 0.02  # interval between two checks that the last connection has ended
_WAIT_S = 20.0  # longest wait for the gateway's first table
_RETRY_S = 0.1


@dataclasses.dataclass(frozen=True)
class EdgeAddress:
    """Addresses of an edge: for clients, and that at which it alone answers /healthz and /metrics."""

    url: str
    watch_url: str


class EdgeGateway:
    """One edge gateway of the cloud in `config.folder`, between `start` and `close`.

    `find_gateway` returns the base URL of the cloud's gateway, or raises GatewayAwayError. The `monitor` takes reports
    of outcomes; without one they are passed on to the gateway. The folder has been prepared
    (`CloudHome.prepare_edges`).
    """

    def __init__(
        self,
        config: CloudConfig,
        find_gateway: Callable[[], Awaitable[str]],
        monitor: ReportsPeer | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._home = CloudHome(config.folder, database=config.database)
        self._undo = contextlib.AsyncExitStack()
        self._front: HttpFront | None = None
        self._serving = contextlib.AsyncExitStack()  # clients
        tls = _tls_to_gateway(self._home) if config.https else None
        connections = config.http_limits.connections
        self._proxy = ReverseProxy(find_gateway, self._home.edge_key, self._clock, connections=connections, tls=tls)
        self._tls = tls
        self._reports = ReportQueue(monitor, self._clock) if monitor is not None else None
        self._listener: SharedListener
        self.address: EdgeAddress

    async def start(self, folder: Path) -> EdgeAddress:
        """Serve on the port of HTTP, together with the other edges of this node, whose sockets are in `folder`.

        Raises:
            ConfigError: a file of the cloud's folder or the certificate cannot be read, or the exporter of traces
                cannot be made.
            TableFeedError: the gateway refuses its table, or does not answer within 20 s.
            OSError: the port is taken.
        """
        config = self._config
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self._home.close)
            await undo.enter_async_context(self._proxy)
            until_s = self._clock.monotonic() + _WAIT_S
            cloud = await undo.enter_async_context(await self._client(until_s))

            async def find() -> None:
                with contextlib.suppress(GatewayAwayError):
                    cloud.move(await self._proxy.find())

            share = max(1, config.gateways)
            rate = PullRate(config.pulls_s / share, config.pull_mb_s * 1e6 / share)
            ratio = config.trace_ratio if config.traces else 0.0
            answers = FollowedAnswers(cloud, rate, self._clock, trace_ratio=ratio, has_uploaded=True, on_lost=find)
            # Before the first answer: without its group a device would be sent back from the group's version.
            await asyncio.to_thread(self._home.uploaded.read)
            answers.answerer.swap_uploaded(self._home.uploaded.current)
            follow_uploaded = functools.partial(self._home.uploaded.follow, self._clock, answers.answerer.swap_uploaded)
            await undo.enter_async_context(in_background("uploaded attributes", follow_uploaded, self._clock))
            await undo.enter_async_context(in_background("use of tokens", self._home.access.save_uses, self._clock))
            await self._first_table(answers, find, until_s)
            self._sessions = Sessions(
                self._home.dashboard_key(), self._home.access, self._clock, self._home.ended_sessions(self._clock)
            )
            self._answers = answers
            answers.parts["edge"] = self._proxy
            tracer: Tracer | None = None
            if self._reports is not None:
                answers.parts["reports"] = self._reports
                await undo.enter_async_context(self._reports.passing_on())
                if config.traces:
                    tracer = Tracer(config.trace_ratio, exporter(config.traces), self._clock)
                    undo.push_async_callback(asyncio.to_thread, tracer.close)
            routes, limits = self._routes(answers, tracer), config.http_limits
            front = HttpFront(
                routes, limits, self._knows, config.trusted_proxies, files_each=2, rules=REQUEST_RULES
            )  # one to the gateway
            watch = HttpFront(self._watch(), config.http_limits, self._knows, rules=REQUEST_RULES)
            answers.parts["http"] = front
            await undo.enter_async_context(answers.following())
            context = await self._certificate(undo)
            watch_url = await undo.enter_async_context(serving(watch, config.host, 0, tls=context))
            await undo.enter_async_context(self._serving)
            self._listener = await self._serving.enter_async_context(
                shared_listener(folder, config.host, config.http_port)
            )
            port = self._listener.socket.getsockname()[1]
            await self._serving.enter_async_context(serving_on(front, self._listener.socket, tls=context))
            self._front = front
            self._undo = undo.pop_all()
        self.address = EdgeAddress(url_of(config.host, port, is_tls=context is not None), watch_url)
        return self.address

    async def _client(self, until_s: float) -> CloudClient:
        """Return a client of the gateway as soon as its address is known. Raises TableFeedError after `until_s`."""
        while True:
            try:
                url = await self._proxy.find()
            except GatewayAwayError as error:
                if self._clock.monotonic() > until_s:
                    raise TableFeedError(f"the gateway's address is not known: {error}") from error
            else:
                return CloudClient(url, self._home.edge_token, tls=self._tls, is_direct=True)
            await self._clock.sleep(_RETRY_S)

    async def _first_table(self, answers: FollowedAnswers, find: Callable[[], Awaitable[None]], until_s: float) -> None:
        while True:
            try:
                await answers.follower.ask(0.0)
            except TableFeedError:
                if self._clock.monotonic() > until_s:
                    raise
            else:
                return
            await self._clock.sleep(_RETRY_S)
            await find()

    async def _certificate(self, undo: contextlib.AsyncExitStack) -> ssl.SSLContext | None:
        """Return the TLS context of clients' connections, None without TLS; renewed while this runs."""
        config = self._config
        if not config.https:
            return None
        own = config.folder / "authority" / "server.pem"  # the gateway renews it
        files = CertificateFiles(config.tls_cert or own, config.tls_key or own)
        follow = functools.partial(files.follow, self._clock)
        await undo.enter_async_context(in_background("renewal of HTTP's certificate", follow, self._clock))
        return files.context

    async def drain(self, over_s: float) -> None:
        """Return once no client depends on this edge, or after `over_s`.

        /healthz says 503 at once, so that load balancers leave, and each connection is closed after its next answer.
        New connections are taken until the end, unless another edge of this node takes them.
        """
        front = self._front
        if front is None or front.is_draining:
            return
        began_s = self._clock.monotonic()
        is_replaced = await self._listener.leave()
        front.drain()
        if is_replaced:
            front.stop_accepting()
        while (left_s := over_s - (self._clock.monotonic() - began_s)) > 0 and (front.count or not is_replaced):
            await self._clock.sleep(min(_LOOK_S, left_s))
        await self._serving.aclose()

    async def close(self) -> None:
        await self._undo.aclose()

    # --- requests -----------------------------------------------------------------------------------------------------

    def _routes(self, answers: FollowedAnswers, tracer: Tracer | None) -> ASGIApp:
        # A device sends its profile to /cen for its groups, as in the gateway.
        passing = answers.pushing(self._proxy, except_under="/cen/")
        config = self._config
        files = cdn_app(self._home.files, self._home.coded_files, accel_redirect=config.accel_redirect)
        signed = answers.pushing(signed_files(files, self._home.file_addresses))
        reporting: ASGIApp = passing
        if self._reports is not None:
            on_batch = None if tracer is None else tracer.reported
            reporting = answers.pushing(ReportApp(self._reports.take, answers.follower.device_id, on_batch))

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            path, method = scope["path"], scope["method"]
            if path == "/v1/checkin" and method == "POST":
                await answers.checking_in(scope, receive, send)
            elif path == "/v1/outcomes" and method == "POST":
                await reporting(scope, receive, send)
            elif path.startswith("/cdn/") and method in ("GET", "HEAD"):
                await signed({**scope, "root_path": "/cdn"}, receive, send)
            elif path == "/healthz" and method == "GET":
                await self._tell_health(scope, send)
            else:
                await passing(scope, receive, send)

        return app

    def _watch(self) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the ASGI signature
            if scope["path"] == "/healthz":
                await self._tell_health(scope, send)
            elif scope["path"] != "/metrics":
                await send_json(
                    send, 404, {"error": "this address serves only /healthz and /metrics of one edge gateway"}
                )
            elif self._may_watch(scope):
                await send_bytes(send, 200, self._answers.exposition(), CONTENT_TYPE_LATEST.encode())
            else:
                await send_json(send, 401, {"error": "this needs a token with the role metrics on `*`"})

        return app

    async def _tell_health(self, scope: Scope, send: Send) -> None:
        """Tell everyone whether all is well, and the state of the parts to who may read metrics."""
        state = self.health()
        shown = state if self._may_watch(scope) else {name: state[name] for name in ("ok", "draining")}
        await send_json(send, 200 if state["ok"] else 503, shown)

    def _may_watch(self, scope: Scope) -> bool:
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        identity = self._home.access.identify_header(authorization)
        return identity is not None and identity.role(ANY_SCENARIO) >= Role.METRICS

    def health(self) -> dict[str, Any]:
        """Return the state of this edge and of its parts."""
        is_draining = self._front is not None and self._front.is_draining
        state = self._answers.health()
        return {**state, "ok": state["ok"] and not is_draining, "draining": is_draining}

    def _knows(self, headers: Mapping[bytes, bytes]) -> bool:
        """Say whether a request's headers have a valid token of a person, or a session of a device or a person.

        Raises:
            SessionRefusedError: the device's session is not valid.
        """
        if _DEVICE in headers:
            return self._answers.knows_device(headers)
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        if self._home.access.identify_header(authorization) is not None:
            return True
        return self._sessions.find(cookie_of(headers)) is not None


def _tls_to_gateway(home: CloudHome) -> ssl.SSLContext:
    """Return the context of connections to the gateway, which shows a certificate of the cloud's own authority.

    That is for its servers alone, under whatever address: names are not compared.
    """
    context = ssl.create_default_context(cadata=home.authority_certificate.read_text())
    context.check_hostname = False
    context.set_alpn_protocols(["http/1.1"])
    return context


@contextlib.asynccontextmanager
async def edge_gateway(
    config: CloudConfig,
    find_gateway: Callable[[], Awaitable[str]],
    folder: Path,
    monitor: ReportsPeer | None = None,
    *,
    clock: Clock | None = None,
) -> AsyncIterator[EdgeGateway]:
    """Serve an edge gateway within the block. Raises as `EdgeGateway.start`."""
    edge = EdgeGateway(config, find_gateway, monitor, clock=clock)
    await edge.start(folder)
    try:
        yield edge
    finally:
        await edge.close()
