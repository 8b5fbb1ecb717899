"""Push gateway: a process that answers profiles from the table of another gateway, beside a business's own app.

It follows the other gateway's table (`FollowedAnswers`). Everything else, such as files, outcomes and releases, stays
there.
"""

import contextlib
import dataclasses
import functools
import hmac
import ssl
from collections.abc import AsyncIterator

from prometheus_client import CONTENT_TYPE_LATEST

from walle.base.asgi import ASGIApp, Receive, Scope, Send
from walle.base.clock import Clock, SystemClock
from walle.base.cloud_options import PushOptions
from walle.client.cloud_client import CloudClient
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.edge.followed_answers import FollowedAnswers, send_bytes, send_json
from walle.cloud.http.business_app import load_app
from walle.cloud.http.https import CertificateFiles
from walle.cloud.http.limits import HttpLimits
from walle.cloud.http.server import HttpFront, serving
from walle.deploy.push.pull_budget import PullRate
from walle.store.background import in_background


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushGatewayConfig(PushOptions):
    """`url` is the other gateway's, `token` one with the role reader on `*`, `tls` trusts its certificate.

    `tls_cert` and `tls_key` are for HTTPS here, both or none. The pull budget is for versions whose sizes the cloud
    states.
    """

    url: str
    token: str
    tls: ssl.SSLContext | None = None
    http_limits: HttpLimits = dataclasses.field(default_factory=HttpLimits)
    metrics_token: str = ""  # a second token for /metrics, beside `token`


@contextlib.asynccontextmanager
async def push_gateway(config: PushGatewayConfig, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Serve a push gateway within the block; give its base URL.

    Raises:
        CloudAddressError: `url` is not an HTTP address.
        ConfigError: the business app or the certificate cannot be loaded.
        TableFeedError: the other gateway refuses its table, or does not answer.
        OSError: the port is taken.
    """
    clock = clock or SystemClock()
    certificate = CertificateFiles(config.tls_cert, config.tls_key) if config.tls_cert and config.tls_key else None
    business = load_app(config.business_app) if config.business_app else _unknown
    async with CloudClient(config.url, config.token, tls=config.tls, is_direct=True) as cloud:
        rate = PullRate(config.pulls_s, config.pull_mb_s * 1e6)
        answers = FollowedAnswers(cloud, rate, clock)
        await answers.follower.ask(0.0)
        app = _routes(config, answers, answers.pushing(business))
        front = HttpFront(app, config.http_limits, answers.knows_device, config.trusted_proxies, rules=REQUEST_RULES)
        answers.parts["http"] = front
        async with contextlib.AsyncExitStack() as undo:
            await undo.enter_async_context(answers.following())
            context = None
            if certificate is not None:
                context = certificate.context
                renew = functools.partial(certificate.follow, clock)
                await undo.enter_async_context(in_background("renewal of HTTP's certificate", renew, clock))
            yield await undo.enter_async_context(serving(front, config.host, config.http_port, tls=context))


def _routes(config: PushGatewayConfig, answers: FollowedAnswers, business: ASGIApp) -> ASGIApp:
    """Return /healthz, /metrics and /v1/checkin before the business app, which has the push answer already."""
    readers = [f"Bearer {one}".encode() for one in (config.token, config.metrics_token) if one]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_http, path = scope["type"] == "http", scope.get("path")
        if is_http and path == "/healthz":
            state = answers.health()
            await send_json(send, 200 if state["ok"] else 503, state)
        elif is_http and path == "/metrics" and scope["method"] == "GET":
            authorization = dict(scope["headers"]).get(b"authorization", b"")
            if any(hmac.compare_digest(authorization, one) for one in readers):
                await send_bytes(send, 200, answers.exposition(), CONTENT_TYPE_LATEST.encode())
            else:
                how = "send the header Authorization: Bearer TOKEN, with this gateway's token or that for metrics"
                await send_json(send, 401, {"error": how})
        elif is_http and path == "/v1/checkin" and scope["method"] == "POST":
            await answers.checking_in(scope, receive, send)
        else:
            await business(scope, receive, send)

    return app


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the ASGI signature
    await send_json(send, 404, {"error": "this gateway does not serve this path; it only answers profiles"})
