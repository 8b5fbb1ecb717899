"""HTTP of a gateway: the check of callers, the push answer on each response, and the server with its certificate."""

import contextlib
import functools
from collections.abc import AsyncIterator

from walle.access.identity.authority import Authority
from walle.access.request_audit import RequestNotes
from walle.base.asgi import ASGIApp
from walle.base.clock import Clock
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.api.routes import RouteGuard, RouteTable
from walle.cloud.folder.config import CloudConfig
from walle.cloud.http.https import CertificateFiles
from walle.cloud.http.inherited_sockets import InheritedSockets
from walle.cloud.http.limits import behind_edges
from walle.cloud.http.server import HttpFront, serving, url_of
from walle.cloud.nodes.gateway_callers import GatewayCallers
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.middleware import WallePush
from walle.metrics.http_durations import HttpDurations
from walle.store.background import in_background
from walle.store.disk_space import DiskSpace


def guarded(
    app: ASGIApp,
    business: ASGIApp | None,
    table: RouteTable,
    answerer: Answerer,
    callers: GatewayCallers,
    durations: HttpDurations,
) -> RouteGuard:
    """Return the gateway's routes and the business app with the push answer, behind the check of who may call."""
    # A device sends its profile to /cen for its groups, without its tasks, which would all seem to be due.
    pushing = WallePush(RequestNotes(app), answerer, callers.device_id, except_under="/cen/")
    pushing_business = None if business is None else WallePush(business, answerer, callers.device_id)
    return RouteGuard(
        pushing,
        callers.access,
        table,
        pushing_business,
        find_session=callers.session_owner,
        durations=durations,
    )


def http_front(
    app: ASGIApp, config: CloudConfig, callers: GatewayCallers, space: DiskSpace, edge_key: bytes
) -> HttpFront:
    """Return the server's front with the limits of a gateway, or of one behind edge gateways."""
    return HttpFront(
        app,
        behind_edges(config.http_limits) if config.gateways else config.http_limits,
        callers.knows,
        config.trusted_proxies,
        space,
        edge_key=edge_key,
        rules=REQUEST_RULES,
    )


@contextlib.asynccontextmanager
async def serving_http(
    front: HttpFront, config: CloudConfig, authority: Authority, sockets: InheritedSockets, clock: Clock
) -> AsyncIterator[str]:
    """Serve within the block; give the URL. A certificate in files is read again when they change.

    Raises:
        ConfigError: the certificate cannot be loaded.
        OSError: the port is taken.
    """
    port = config.gateway_port if config.gateways else config.http_port
    async with contextlib.AsyncExitStack() as undo:
        context = None
        if config.https and not config.gateways and config.tls_cert is not None and config.tls_key is not None:
            files = CertificateFiles(config.tls_cert, config.tls_key)
            follow = functools.partial(files.follow, clock)
            await undo.enter_async_context(in_background("renewal of HTTP's certificate", follow, clock))
            context = files.context
        elif config.https:  # edge gateways know the authority
            context = authority.server_context()
        yield await undo.enter_async_context(serving(front, config.host, port, tls=context, inherited=sockets.http))


def public_url(config: CloudConfig, url: str) -> str:
    """Return the URL of the edge gateways in front of the gateway at `url`, its own where there are none."""
    has_edges = config.gateways and config.http_port
    return url_of(config.host, config.http_port, is_tls=config.https) if has_edges else url
