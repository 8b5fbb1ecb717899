"""Application of a gateway: all routes under /v1, the dashboard, /cdn, /cen and /git, with what each of them asks."""

import dataclasses
import secrets
from collections.abc import Callable

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline

from walle.access.access import ANY_SCENARIO, Role
from walle.access.identity.authority import Authority
from walle.access.request_audit import RequestAudit
from walle.adapt.tuning.coordinator import TuningCoordinator
from walle.base.clock import Clock
from walle.cloud.api.attributes import attribute_router
from walle.cloud.api.audit import audit_router
from walle.cloud.api.devices import registry_router
from walle.cloud.api.exclusive import DeviceKey, cen_router, exclusive_router
from walle.cloud.api.feature_samples import FeatureSamples
from walle.cloud.api.features import feature_router
from walle.cloud.api.groups import group_router
from walle.cloud.api.identity import identity_router
from walle.cloud.api.interfaces import IdentityPeer, InferencePeer, KeeperPeer, MonitorPeer, ReleasesPeer, WatchedParts
from walle.cloud.api.nodes import node_router
from walle.cloud.api.outcomes import device_router
from walle.cloud.api.releases import check_role, identify, install_error_handlers, release_router
from walle.cloud.api.sightings import Sightings, sightings_router
from walle.cloud.api.signatures import signature_router
from walle.cloud.api.targeting import Targeting, targeting_router
from walle.cloud.api.tokens import token_router
from walle.cloud.api.tuning import tuning_router
from walle.cloud.dashboard import DashboardSources, MetricSeries, Pages, Shell, dashboard_router
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.nodes.gateway_answers import GatewayAnswers
from walle.cloud.nodes.gateway_callers import GatewayCallers
from walle.cloud.nodes.gateway_tunnel import GatewayTunnel
from walle.cloud.nodes.gateway_uploads import GatewayUploads
from walle.cloud.nodes.trust import trust_router
from walle.cloud.simulation.isolation import compiler
from walle.cloud.telemetry.status import CloudStatus, status_router
from walle.cloud.telemetry.tracing import Tracer
from walle.deploy.git.git_http import git_app
from walle.deploy.git.task_history import TaskHistory
from walle.deploy.push.table_feed import feed_router
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.file_address import signed_files
from walle.protocol import Profile
from walle.store.disk_space import DiskSpace


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatewayPeers:
    """The other nodes of a cloud. `keeper` looks after its machines, None where nobody does."""

    releases: ReleasesPeer
    monitor: MonitorPeer
    inference: InferencePeer
    identities: IdentityPeer
    keeper: KeeperPeer | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppSources:
    """Sources of a gateway's routes. `status` is None before the gateway has started."""

    config: CloudConfig
    home: CloudHome
    space: DiskSpace
    clock: Clock
    peers: GatewayPeers
    authority: Authority
    callers: GatewayCallers
    answers: GatewayAnswers
    uploads: GatewayUploads
    tunnel: GatewayTunnel
    sightings: Sightings
    tracer: Tracer | None
    series: MetricSeries
    parts: WatchedParts
    status: Callable[[], CloudStatus | None]


def gateway_app(sources: AppSources) -> FastAPI:
    """Return the application, without /healthz and /metrics. Anyone may call any route: `RouteGuard` is before it."""
    app = FastAPIOffline(
        title="Walle",
        description="Releases, task repositories and devices of a Walle cloud.",
        redoc_url=None,  # one page is enough
        static_url="/docs/assets",
        dependencies=[Depends(HTTPBearer(auto_error=False))],  # a field for the token on /docs; the guard checks it
    )
    install_error_handlers(app)
    audit = RequestAudit(sources.home.audit)
    _add_releases(app, sources, audit)
    _add_people(app, sources, audit)
    _add_gateways(app, sources, audit)
    _add_device_files(app, sources, audit)
    _mount_files(app, sources)
    return app


def _add_releases(app: FastAPI, sources: AppSources, audit: RequestAudit) -> None:
    """Add releases and what they are decided by: devices, features, targeting, and the pages of these."""
    access, peers, tracer = sources.callers.access, sources.peers, sources.tracer
    releases, monitor = peers.releases, peers.monitor
    app.include_router(release_router(releases, monitor, access, audit))
    app.include_router(signature_router(releases, access, audit))
    app.include_router(audit_router(sources.home.audit, access))
    app.include_router(identity_router(peers.identities, access, audit))
    on_batch = None if tracer is None else tracer.reported
    app.include_router(device_router(monitor, sources.callers.device_id, on_batch))
    coordinator = TuningCoordinator(seed=secrets.randbits(32))
    app.include_router(tuning_router(coordinator, sources.home.repos, sources.callers.device_id, sources.clock))
    app.include_router(feature_router(lambda: sources.uploads.store, access))
    app.include_router(registry_router(monitor, access, peers.identities.states))
    uploaded, answerer = sources.home.uploaded, sources.answers.answerer
    targeting = Targeting(releases, monitor, lambda: answerer.table, uploaded=lambda: uploaded.current)
    app.include_router(targeting_router(targeting, access))
    pages = DashboardSources(
        releases=releases,
        outcomes=monitor,
        devices=monitor,
        key_states=peers.identities.states,
        targeting=targeting,
        history=TaskHistory(sources.home.repos),
        features=FeatureSamples(lambda: sources.uploads.store),
        connection=sources.tunnel.connection,
        parts=lambda: sources.parts,
        series=lambda: sources.series,
    )
    shell = Shell(Pages(), sources.callers.sessions, sources.clock)
    app.include_router(dashboard_router(shell, pages, audit))


def _add_people(app: FastAPI, sources: AppSources, audit: RequestAudit) -> None:
    """Add who may do what: tokens, groups of scenarios, and the signing metadata."""
    access, ca_pem = sources.callers.access, sources.authority.ca_path.read_text()
    app.include_router(token_router(access, ca_pem, sources.clock, audit))
    app.include_router(group_router(sources.home.repos, access, audit))
    app.include_router(trust_router(sources.home.trust))


def _add_gateways(app: FastAPI, sources: AppSources, audit: RequestAudit) -> None:
    """Add what other gateways ask, and the state of the cloud's processes and machines."""
    access = sources.callers.access

    def may_follow(authorization: str) -> None:
        check_role(identify(access, authorization), ANY_SCENARIO, Role.READER)

    app.include_router(feed_router(sources.answers.feed, may_follow))
    app.include_router(sightings_router(sources.sightings, may_follow))
    app.include_router(status_router(sources.status, access))
    app.include_router(node_router(sources.peers.keeper, access, audit))


def _add_device_files(app: FastAPI, sources: AppSources, audit: RequestAudit) -> None:
    """Add exclusive files, the uploaded attributes by which groups of devices get them, and /cen."""
    home, peers, access, space = sources.home, sources.peers, sources.callers.access, sources.space
    uploaded = home.uploaded

    async def key_of(device_id: str) -> DeviceKey:
        return DeviceKey(*await peers.identities.current_key(device_id))

    def join(profile: Profile) -> Profile:
        return uploaded.current.join(profile)

    app.include_router(
        exclusive_router(
            home.exclusive,
            home.group_files,
            home.repos,
            key_of,
            access,
            typed_policy=peers.releases.typed_policy,
            space=space,
            audit=audit,
        )
    )
    app.include_router(
        attribute_router(
            uploaded,
            home.attributes,
            access,
            on_change=sources.answers.read_uploaded,
            space=space,
            audit=audit,
            clock=sources.clock,
        )
    )
    identity = sources.callers.identity.verifier.identity
    app.include_router(cen_router(home.exclusive, home.group_files, peers.releases, identity, key_of, join))


def _mount_files(app: FastAPI, sources: AppSources) -> None:
    """Mount shared files at /cdn, and the task repositories at /git."""
    config, home = sources.config, sources.home
    files = cdn_app(home.files, home.coded_files, accel_redirect=config.accel_redirect)
    app.mount("/cdn", signed_files(files, home.file_addresses))
    git = git_app(
        home.repos,
        sources.callers.access,
        space=sources.space,
        audit=home.audit,
        compile_sources=compiler(config),
        large_file_limits=config.large_file_limits,
        quota=config.git_quota,
    )
    app.mount("/git", git)
