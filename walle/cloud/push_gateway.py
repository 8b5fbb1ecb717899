"""Push gateway: a process that answers profiles from the table of another gateway, beside a business's own app.

It follows the other gateway's table (`TableFollower`) and needs neither its folder nor its keys: directives are signed,
and sessions are verified by a public key. Everything else, such as files, outcomes and releases, stays there.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from walle.clock import Clock, SystemClock
from walle.cloud.background import in_background
from walle.cloud.business_app import load_app
from walle.cloud.http_limits import HttpLimits
from walle.cloud.http_server import HttpFront, serving
from walle.cloud.https import CertificateFiles
from walle.cloud.identity.sessions import SessionRefusedError, SessionVerifier
from walle.deploy.cloud.asgi import ASGIApp, Receive, Scope, Send
from walle.deploy.cloud.pull_budget import PullBudget, PullRate
from walle.deploy.cloud.push import Answerer, WallePush
from walle.deploy.cloud.release_table import ReleaseTable
from walle.deploy.cloud.table_feed import WAIT_S
from walle.errors import WalleError
from walle.identity import Revocations
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER

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
        self._answered_s = clock.monotonic()
        self._error = "it has not answered yet"

    def device_id(self, session: bytes | None) -> str:
        """Return the device whose valid session this is; raises as `SessionVerifier.identity`."""
        if self._verifier is None:
            raise SessionRefusedError("this gateway has no table yet; ask again")
        return self._verifier.device_id(session)

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
        revoked = plain["revoked"]
        self.revocations.update(int(revoked["version"]), {str(one): int(at) for one, at in revoked["lowest"].items()})
        decided = table.without_uploaded()
        self._left_out = len(table.rows) - len(decided.rows)
        number = str(plain["number"])
        if number.partition(".")[0] != self._number.partition(".")[0]:
            self._answerer.forget()  # another process, such as a restored cloud, may count generations again
        self._answerer.swap(decided)
        self._number = number

    def health(self) -> Mapping[str, Any]:
        """Return whether the other gateway has answered lately, and the generation that is served."""
        late_s = self._clock.monotonic() - self._answered_s
        ok = self._verifier is not None and late_s < LATE_S
        late = {"why": self._error} if self._error else {}
        left_out = {"tasks_left_out": self._left_out} if self._left_out else {}
        generation = self._answerer.table.generation
        return {"ok": ok, "generation": generation, "answered_s": round(late_s, 1), **left_out, **late}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushGatewayConfig:
    """`url` is the other gateway's, `token` one with the role reader on `*`, `tls` trusts its certificate.

    `business_app` is as in
    `CloudConfig`. `pulls_s` is this gateway's own pull budget, 0 for none.
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
    budget = PullBudget(PullRate(config.pulls_s), clock, lambda one: one.size_bytes) if config.pulls_s else None
    answerer = Answerer(budget=budget)
    async with httpx.AsyncClient(base_url=config.url, verify=config.tls or True, trust_env=False) as http:
        follower = TableFollower(http, config.token, answerer, clock)
        await follower.ask(0.0)
        app = _routes(follower, WallePush(business, answerer, follower.device_id), answerer)

        def knows(headers: Mapping[bytes, bytes]) -> bool:
            session = headers.get(DEVICE_HEADER.lower().encode())
            return session is not None and bool(follower.device_id(session))

        front = HttpFront(app, config.http_limits, knows, config.trusted_proxies)
        async with contextlib.AsyncExitStack() as undo:
            await undo.enter_async_context(in_background("the release table", follower.follow, clock))
            context = None
            if config.certificate is not None:
                context = config.certificate.context
                renew = functools.partial(config.certificate.follow, clock)
                await undo.enter_async_context(in_background("renewal of HTTP's certificate", renew, clock))
            yield await undo.enter_async_context(serving(front, config.host, config.http_port, tls=context))


def _routes(follower: TableFollower, business: ASGIApp, answerer: Answerer) -> ASGIApp:
    """Return /healthz and /v1/checkin before the business app, which has the push answer already."""
    checking_in = WallePush(_checked_in(follower), answerer, follower.device_id)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/healthz":
            state = follower.health()
            await _send(send, 200 if state["ok"] else 503, state)
        elif scope["type"] == "http" and scope["path"] == "/v1/checkin" and scope["method"] == "POST":
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
    body = b"" if plain is None else json.dumps(plain).encode()
    headers = []
    if plain is not None:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
