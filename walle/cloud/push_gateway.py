"""Push gateway: a process that answers profiles from the table of another gateway, beside a business's own app.

It follows the other gateway's table (`TableFollower`) and needs neither its folder nor its keys: directives are signed,
and sessions are verified by a public key. Everything else, such as files, outcomes and releases, stays there.
"""

import contextlib
import dataclasses
import functools
import hmac
import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from walle.clock import Clock, SystemClock
from walle.cloud.background import in_background
from walle.cloud.business_app import load_app
from walle.cloud.http_limits import HttpLimits
from walle.cloud.http_server import HttpFront, serving
from walle.cloud.https import CertificateFiles
from walle.cloud.identity.sessions import SessionRefusedError, SessionVerifier
from walle.cloud.sighting_report import SightingReport
from walle.deploy.cloud.api import Scrape, WatchedPart
from walle.deploy.cloud.asgi import ASGIApp, Receive, Scope, Send
from walle.deploy.cloud.metrics import gauge_of
from walle.deploy.cloud.pull_budget import PullBudget, PullRate
from walle.deploy.cloud.push import Answerer, WallePush
from walle.deploy.cloud.release_metrics import push_metrics
from walle.deploy.cloud.release_table import ReleaseTable
from walle.deploy.cloud.table_feed import WAIT_S
from walle.errors import WalleError
from walle.identity import Revocations
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, Directive

_LOG = logging.getLogger(__name__)

LATE_S = 30.0  # without an answer of the other gateway: /healthz says so
_MARGIN_S = 5.0  # for an answer, beyond the time that it may wait
_RETRY_S = 0.2
_MAX_RETRY_S = 2.0


class TableFeedError(WalleError):
    """The other gateway cannot be followed. The message says why."""


class TableFollower:
    """Gives an answerer each table of another gateway, from its first one on.

    Tasks with a release by uploaded attributes, which are only in the other gateway's folder, are left out: that one
    alone answers about them.

    While the other one does not answer, the last table goes on to be served. Devices stop installing from it by
    themselves when its timestamp is over (`CloudConfig.timestamp_life_s`, an hour).
    """

    def __init__(self, http: httpx.AsyncClient, token: str, answerer: Answerer, clock: Clock) -> None:
        self.revocations = Revocations()
        self._http = http
        self._token = token
        self._answerer = answerer
        self._clock = clock
        self._verifier: SessionVerifier | None = None
        self._session_key = ""
        self._number = ""
        self._left_out = 0  # tasks
        self._sizes: dict[str, int] = {}
        self._answered_s = clock.monotonic()
        self._error = "it has not answered yet"

    def device_id(self, session: bytes | None) -> str:
        """Return the device whose valid session this is; raises as `SessionVerifier.identity`."""
        if self._verifier is None:
            raise SessionRefusedError("this gateway has no table yet; ask again")
        return self._verifier.device_id(session)

    def size_of(self, directive: Directive) -> int:
        """Return the bytes of a directive's version, those of its manifest where the cloud has not said."""
        return self._sizes.get(directive.manifest, directive.size_bytes)

    async def follow(self) -> None:
        """Ask for the next table again and again, until cancelled."""
        retry_s = _RETRY_S
        while True:
            try:
                await self.ask(WAIT_S if self._number else 0.0)
                retry_s = _RETRY_S
            except TableFeedError as error:
                if str(error) != self._error:
                    _LOG.warning("%s; the last table is served on", error)
                self._error = str(error)
                await self._clock.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)

    async def ask(self, wait_s: float) -> None:
        """Ask for a table that is newer than the present one, for up to `wait_s`. Raises TableFeedError."""
        asked_s = self._clock.monotonic()
        try:
            response = await self._http.get(
                "/v1/push-table",
                params={"number": self._number, "wait_s": wait_s},
                headers={"Authorization": f"Bearer {self._token}"},
                timeout=wait_s + _MARGIN_S,
            )
        except httpx.HTTPError as error:
            raise TableFeedError(f"the other gateway does not answer: {error or type(error).__name__}") from error
        if response.status_code == httpx.codes.NO_CONTENT:
            self._answered_s = self._clock.monotonic()
            self._error = ""
            return
        if response.status_code != httpx.codes.OK:
            raise TableFeedError(f"the other gateway refuses its table: {response.status_code} {response.text[:200]}")
        try:
            self._take(json.loads(response.content))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TableFeedError(f"the table of the other gateway cannot be read, is it older? {error!r}") from error
        self._answered_s = self._clock.monotonic()
        self._error = ""
        _LOG.info("generation %d after %.3f s", self._answerer.table.generation, self._answered_s - asked_s)

    def _take(self, plain: Mapping[str, Any]) -> None:
        table = ReleaseTable.from_plain(plain["table"])
        if plain["session_key"] != self._session_key:
            self._session_key = str(plain["session_key"])
            key = bytes.fromhex(self._session_key)
            self._verifier = SessionVerifier(key, self.revocations, now=self._clock.time)
        sizes = plain.get("sizes", {})  # an older cloud sends none
        self._sizes = {str(manifest): int(size) for manifest, size in sizes.items()}
        revoked = plain["revoked"]
        self.revocations.update(int(revoked["version"]), {str(one): int(at) for one, at in revoked["lowest"].items()})
        decided = table.without_uploaded()
        self._left_out = len(table.rows) - len(decided.rows)
        number = str(plain["number"])
        if number.partition(".")[0] != self._number.partition(".")[0]:
            self._answerer.forget()  # another process, such as a restored cloud, may count generations again
        self._answerer.swap(decided)
        self._number = number

    @property
    def late_s(self) -> float:
        """Return the time since the other gateway has answered."""
        return self._clock.monotonic() - self._answered_s

    def health(self) -> Mapping[str, Any]:
        """Return whether the other gateway has answered lately, and the generation that is served."""
        late_s = self.late_s
        ok = self._verifier is not None and late_s < LATE_S
        late = {"why": self._error} if self._error else {}
        left_out = {"tasks_left_out": self._left_out} if self._left_out else {}
        generation = self._answerer.table.generation
        return {"ok": ok, "generation": generation, "answered_s": round(late_s, 1), **left_out, **late}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushGatewayConfig:
    """`url` is the other gateway's, `token` one with the role reader on `*`, `tls` trusts its certificate.

    `business_app` is as in
    `CloudConfig`. `pulls_s` and `pull_mb_s` are this gateway's own pull budget, 0 for none.
    """

    url: str
    token: str
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    http_port: int = 0
    certificate: CertificateFiles | None = None  # of HTTPS; read again when its files change
    trusted_proxies: tuple[str, ...] = ()
    http_limits: HttpLimits = dataclasses.field(default_factory=HttpLimits)
    business_app: str = ""
    pulls_s: float = 0.0
    pull_mb_s: float = 0.0  # of the versions of these pulls, as far as the cloud tells their sizes
    metrics_token: str = ""  # of who may read /metrics, beside `token`


@contextlib.asynccontextmanager
async def push_gateway(config: PushGatewayConfig, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Serve a push gateway within the block; give its base URL.

    Raises:
        ConfigError: the business app cannot be loaded.
        TableFeedError: the other gateway refuses its table, or does not answer.
        OSError: the port is taken.
    """
    clock = clock or SystemClock()
    business = load_app(config.business_app) if config.business_app else _unknown
    answerer = Answerer()
    async with httpx.AsyncClient(base_url=config.url, verify=config.tls or True, trust_env=False) as http:
        follower = TableFollower(http, config.token, answerer, clock)
        await follower.ask(0.0)
        rate = PullRate(config.pulls_s, config.pull_mb_s * 1e6)
        answerer.budget = PullBudget(rate, clock, follower.size_of) if any(rate) else None
        report = SightingReport(http, config.token, answerer, clock)
        identify = report.noting(follower.device_id)
        watch = _Watch(follower, answerer, report, config)
        app = _routes(
            watch, WallePush(business, answerer, identify), WallePush(_checked_in(follower), answerer, identify)
        )

        def knows(headers: Mapping[bytes, bytes]) -> bool:
            session = headers.get(DEVICE_HEADER.lower().encode())
            return session is not None and bool(follower.device_id(session))

        front = HttpFront(app, config.http_limits, knows, config.trusted_proxies)
        watch.parts["http"] = front
        async with contextlib.AsyncExitStack() as undo:
            await undo.enter_async_context(in_background("the release table", follower.follow, clock))
            await undo.enter_async_context(in_background("the report of devices", report.run, clock))
            context = None
            if config.certificate is not None:
                context = config.certificate.context
                renew = functools.partial(config.certificate.follow, clock)
                await undo.enter_async_context(in_background("renewal of HTTP's certificate", renew, clock))
            yield await undo.enter_async_context(serving(front, config.host, config.http_port, tls=context))


class _Watch:
    """The parts of a gateway for /healthz and /metrics, which has the names of a cloud's."""

    def __init__(
        self, follower: TableFollower, answerer: Answerer, report: SightingReport, config: PushGatewayConfig
    ) -> None:
        self.parts: dict[str, WatchedPart] = {"sightings": report}
        if answerer.budget is not None:
            self.parts["pulls"] = answerer.budget
        self._follower = follower
        self._answerer = answerer
        self._readers = [f"Bearer {one}".encode() for one in (config.token, config.metrics_token) if one]

    def health(self) -> Mapping[str, Any]:
        """Return the state of the table, which decides whether all is well, and of the parts."""
        return {**self._follower.health(), **{name: part.health() for name, part in self.parts.items()}}

    def may_read(self, authorization: bytes) -> bool:
        """Return whether a request is of who may read the metrics."""
        return any(hmac.compare_digest(authorization, one) for one in self._readers)

    def metrics(self) -> list[Metric]:
        """Return the metrics of the answers and of the table."""
        return [*push_metrics(self._answerer), gauge_of("walle_table_late_seconds", self._follower.late_s)]

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Scrape([metric for part in (self, *self.parts.values()) for metric in part.metrics()]))
        return generate_latest(registry)


def _routes(watch: _Watch, business: ASGIApp, checking_in: ASGIApp) -> ASGIApp:
    """Return /healthz, /metrics and /v1/checkin before the business app, which has the push answer already."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_http, path = scope["type"] == "http", scope.get("path")
        if is_http and path == "/healthz":
            state = watch.health()
            await _send(send, 200 if state["ok"] else 503, state)
        elif is_http and path == "/metrics" and scope["method"] == "GET":
            if watch.may_read(dict(scope["headers"]).get(b"authorization", b"")):
                await _send_bytes(send, 200, watch.exposition(), CONTENT_TYPE_LATEST.encode())
            else:
                how = "send the header Authorization: Bearer TOKEN, with this gateway's token or that for metrics"
                await _send(send, 401, {"error": how})
        elif is_http and path == "/v1/checkin" and scope["method"] == "POST":
            await checking_in(scope, receive, send)
        else:
            await business(scope, receive, send)

    return app


def _checked_in(follower: TableFollower) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the ASGI signature
        headers = dict(scope["headers"])
        try:
            follower.device_id(headers.get(DEVICE_HEADER.lower().encode()))
        except SessionRefusedError as error:
            await _send(send, 401, {"error": str(error)})
            return
        if PROFILE_HEADER.lower().encode() not in headers:
            await _send(send, 400, {"error": f"{PROFILE_HEADER}: is missing"})
            return
        await _send(send, 204, None)

    return app


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the ASGI signature
    await _send(send, 404, {"error": "unknown here; this gateway answers profiles alone"})


async def _send(send: Send, status: int, plain: Mapping[str, Any] | None) -> None:
    if plain is None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await _send_bytes(send, status, json.dumps(plain).encode(), b"application/json")


async def _send_bytes(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
