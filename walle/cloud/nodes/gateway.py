"""Gateway node: HTTP with the push answer, and the tunnel; all that devices and engineers connect to."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline

from walle.access.access import ANY_SCENARIO, Identity, Role
from walle.access.identity.authority import Authority, AuthorityError
from walle.access.identity.watch import IdentityWatch
from walle.access.request_audit import RequestAudit, RequestNotes
from walle.base.clock import Clock, SystemClock
from walle.base.device_identity import Revocations
from walle.cloud.api.attributes import attribute_router
from walle.cloud.api.audit import audit_router
from walle.cloud.api.devices import registry_router
from walle.cloud.api.exclusive import DeviceKey, cen_router, exclusive_router
from walle.cloud.api.feature_samples import FeatureSamples
from walle.cloud.api.features import feature_router
from walle.cloud.api.groups import group_router
from walle.cloud.api.identity import identity_router
from walle.cloud.api.interfaces import IdentityPeer, InferencePeer, KeeperPeer, MonitorPeer, ReleasesPeer
from walle.cloud.api.nodes import node_router
from walle.cloud.api.outcomes import device_router
from walle.cloud.api.release_metrics import push_metrics
from walle.cloud.api.releases import (
    WatchedPart,
    check_role,
    identify,
    install_error_handlers,
    release_router,
    watch_router,
)
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.api.routes import RouteGuard, RouteTable, check_routes
from walle.cloud.api.sightings import Sightings, sightings_router
from walle.cloud.api.signatures import signature_router
from walle.cloud.api.targeting import Targeting, targeting_router
from walle.cloud.api.tokens import token_router
from walle.cloud.dashboard import (
    SERIES_S,
    DashboardSources,
    MetricSeries,
    Pages,
    Sessions,
    Shell,
    cookie_of,
    dashboard_router,
)
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.epoch import read_epoch
from walle.cloud.folder.folder import CloudHome
from walle.cloud.http.business_app import load_app
from walle.cloud.http.https import CertificateFiles
from walle.cloud.http.inherited_sockets import InheritedSockets
from walle.cloud.http.limits import behind_edges
from walle.cloud.http.server import HttpFront, serving, url_of
from walle.cloud.nodes.device_requests import DeviceRequests
from walle.cloud.nodes.table_publisher import TablePublisher
from walle.cloud.nodes.trust import trust_router
from walle.cloud.nodes.tunnel_dictionary import stored_dictionary
from walle.cloud.nodes.tunnel_servers import TunnelReport, TunnelServers
from walle.cloud.simulation.isolation import compiler
from walle.cloud.telemetry.audit_watch import AuditWatch
from walle.cloud.telemetry.database_watch import DatabaseWatch
from walle.cloud.telemetry.disk_watch import DiskWatch
from walle.cloud.telemetry.losses_watch import LossesWatch
from walle.cloud.telemetry.status import CloudStatus, OneProcess, Processes, status_router
from walle.cloud.telemetry.tracing import Tracer, exporter
from walle.cloud.telemetry.tunnel_watch import TunnelWatch
from walle.cloud.telemetry.upload_delays import UploadDelays
from walle.cloud.telemetry.uploads_watch import UploadsWatch
from walle.cloud.upkeep.git_upkeep import GitUpkeep
from walle.cloud.upkeep.scrubbing import ScrubWatch
from walle.deploy.git.git_http import git_app
from walle.deploy.git.git_process import check_git
from walle.deploy.git.task_history import TaskHistory
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.middleware import WallePush
from walle.deploy.push.pull_budget import PullBudget, PullRate
from walle.deploy.push.pull_sizes import PullSizes
from walle.deploy.push.table_feed import TableFeed, feed_router
from walle.deploy.releases.table import ReleaseTable
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.file_address import signed_files
from walle.errors import ConfigError
from walle.metrics.http_durations import HttpDurations
from walle.pipeline.ingest.processes import TunnelProcesses, WorkerSettings
from walle.pipeline.ingest.service import DeviceConnection, DrainTarget, TunnelService, TunnelState
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.pipeline.ingest.store.retention import Retention, parse_rule
from walle.pipeline.ingest.store.topic_check import DeviceTask
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received
from walle.pipeline.tunnel.server.deadline import request_deadline
from walle.protocol import DEVICE_HEADER, Profile
from walle.store.background import in_background
from walle.store.disk_space import DiskSpace

_LOG = logging.getLogger(__name__)

_DRAWN = ("tunnel", "http")  # parts of which the dashboard draws metrics
_NOTE_S = 2.0  # interval between two lists of the devices that were seen
_RENEW_S = 86_400.0  # interval between two looks at the certificate
_LOOK_S = 1.0  # interval between two checks that tunnel servers report
_MOVE_S = 1.0  # over which devices go to their tunnel servers


@dataclasses.dataclass(frozen=True)
class GatewayAddress:
    """Address of a gateway, and the certificate with which a device trusts its tunnel.

    `url` is that of the edge gateways before it, where there are any, and `inner_url` its own.
    """

    url: str
    tunnel_host: str
    tunnel_port: int
    ca_pem: str
    inner_url: str = ""


@dataclasses.dataclass(frozen=True)
class GatewayStats:
    """`received` uploads are durable, `connections` of devices were made since the gateway was started.

    `delays_ms` are from the event, by the device's clock, to receipt; of the latest uploads.
    """

    received: int
    connections: int
    delays_ms: tuple[float, ...]


class GatewayNode:
    """One gateway. It takes the release table from when it is made, and serves between `start` and `close`."""

    def __init__(self, config: CloudConfig, *, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._home = CloudHome(config.folder, database=config.database)
        self._space = DiskSpace(config.folder)
        self._sizes = PullSizes(self._home.files)
        rate = PullRate(config.pulls_s, config.pull_mb_s * 1e6)
        self._pulls = PullBudget(rate, self._clock, self._sizes.of) if any(rate) else None
        self._tracer: Tracer | None = None
        ratio = config.trace_ratio if config.traces else 0.0
        self._answerer = Answerer(budget=self._pulls, trace_ratio=ratio)
        self._requests = DeviceRequests(self._answerer.devices.profile, self._answerer.join_uploaded, self._clock)
        self._feed = TableFeed(self._answerer, lambda: self._sizes.known)
        self._has_table = asyncio.Event()
        self._tables = TablePublisher(self._feed, self._clock)
        self._delays = UploadDelays()
        self._durations = HttpDurations()
        self._servers = TunnelServers(self._clock)
        self._parts: dict[str, WatchedPart] = {}
        self._series = MetricSeries()
        self._undo = contextlib.AsyncExitStack()
        self._status: CloudStatus | None = None
        self._keeper: KeeperPeer | None = None

    # --- lifetime -----------------------------------------------------------------------------------------------------

    async def start(
        self,
        releases: ReleasesPeer,
        monitor: MonitorPeer,
        inference: InferencePeer,
        identities: IdentityPeer,
        *,
        processes: Processes | None = None,
        keeper: KeeperPeer | None = None,
        sockets: InheritedSockets | None = None,
    ) -> GatewayAddress:
        """Serve, and return where. `processes` are those that /v1/cloud shows, this one if it is None.

        `keeper` looks after the nodes of the cloud, None where nobody does. `sockets` take the place of the ports.

        Raises:
            ConfigError: the exporter of traces cannot be made, the business app or HTTP's certificate cannot be loaded,
                a route has no entry in the table of routes, a retention rule or the quota cannot be read, or git is
                missing.
            IngestError: the store of uploads cannot be opened.
            TunnelProcessError: a tunnel process cannot start.
            OSError: a port is taken.
        """
        config = self._config
        if config.tunnel_servers and config.tunnel_processes > 1:
            raise ConfigError("tunnel servers take the place of tunnel processes: give one of the two")
        await asyncio.to_thread(check_git)
        restored_s = await asyncio.to_thread(read_epoch, config.folder)  # 1: never
        self._requests.start(releases, monitor, inference, restored_s=restored_s)
        sockets = sockets or InheritedSockets()
        if config.traces and self._tracer is None:
            tracer = self._tracer = Tracer(config.trace_ratio, exporter(config.traces), self._clock)
            self._answerer.on_directives = tracer.answered
        self._identity = IdentityWatch(identities, self._clock)
        await self._identity.start()
        self._feed.open(self._identity.session_key, self._identity.revocations)
        self._sightings = Sightings(self._answerer, self._identity.verifier.device_id)
        access = self._home.access
        self._sessions = Sessions(
            self._home.dashboard_key(), self._home.access, self._clock, self._home.ended_sessions(self._clock)
        )
        authority = self._home.authority(config.tunnel_names, clock=self._clock)
        self._keeper = keeper
        await asyncio.to_thread(lambda: self._home.exclusive)
        app = self._app(releases, monitor, identities, authority)
        business = load_app(config.business_app) if config.business_app else None
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self._home.close)
            rules = dict(parse_rule(rule) for rule in config.retention)
            location = config.uploads or self._home.uploads_db
            quota = DeviceQuota.parse(config.device_quota)
            uploads: UploadStore = open_uploads(location, create=True, clock=self._clock, device_quota=quota)
            self._uploads = await undo.enter_async_context(uploads)
            self._tunnel = self._make_tunnel(authority, sockets)
            await self._revoke(self._identity.revocations)
            await undo.enter_async_context(self._tunnel)
            self._retention = Retention(self._uploads, rules)
            self._uploads_watch = UploadsWatch(self._uploads, self._retention, self._clock)
            losses = LossesWatch(self._uploads.loss_totals, self._clock)
            # Before the first answer: without its group a device would be sent back from the group's version.
            await asyncio.to_thread(self._home.uploaded.read)
            self._answerer.swap_uploaded(self._home.uploaded.current)
            audit_watch = AuditWatch(self._home.audit, self._clock)
            git_upkeep = GitUpkeep(self._home.repos, config.git_quota, self._space, self._clock)
            works: dict[str, Callable[[], Awaitable[None]]] = {
                "renewal of the certificate": functools.partial(self._renew_daily, authority),
                "watch of uploads": self._uploads_watch.run,
                "watch of losses": losses.run,
                "revoked devices": functools.partial(self._identity.follow, self._revoke),
                "use of tokens": access.save_uses,
                "uploaded attributes": functools.partial(
                    self._home.uploaded.follow, self._clock, self._answerer.swap_uploaded
                ),
                "watch of the audit log": audit_watch.run,
                "upkeep of repositories": git_upkeep.run,
                "list of devices": functools.partial(self._note_devices, monitor),
                "sizes of versions": self._learn_sizes,
                "history of metrics": self._note_series,
            }
            if config.tunnel_servers:
                works["tunnel servers"] = self._follow_servers
            if rules:
                works["retention of uploads"] = self._retention.run
            database_watch = DatabaseWatch(self._home, self._clock) if self._home.database_url else None
            if database_watch is not None:
                works["watch of the database"] = database_watch.run
            for name, work in works.items():
                await undo.enter_async_context(in_background(name, work, self._clock))
            tunnel = self._watch(self._tunnel)
            self._status = CloudStatus(
                self._home,
                processes or OneProcess(),
                releases,
                tunnel.health,
                lambda: self._answerer.table.generation,
                self._servers.rows,
                keeper,
                database=database_watch,
            )
            parts = self._parts = {
                "tunnel": tunnel,
                "uploads": self._uploads_watch,
                "losses": losses,
                "inference": inference,
                "identity": self._identity,
                "tokens": access,
                "stored files": ScrubWatch(self._home.folder),
                "disk": DiskWatch(self._home.folder),
                "git": git_upkeep,
                "audit log": audit_watch,
                "delays": self._delays,
                "requests": self._durations,
            }
            if database_watch is not None:
                parts["database"] = database_watch
            if self._pulls is not None:
                parts["pulls"] = self._pulls
            if config.tunnel_servers:
                parts["tunnel servers"] = self._servers
            if self._tracer is not None:
                parts["traces"] = self._tracer.queue
            parts["sightings"] = self._sightings
            table = RouteTable(has_business=business is not None)
            identify = self._identity.verifier.device_id
            # A device sends its profile to /cen for its groups, without its tasks, which would all seem to be due.
            pushing = WallePush(RequestNotes(app), self._answerer, identify, except_under="/cen/")
            pushing_business = None if business is None else WallePush(business, self._answerer, identify)
            guarded = RouteGuard(
                pushing,
                access,
                table,
                pushing_business,
                find_session=self._session_owner,
                durations=self._durations,
            )
            front = HttpFront(
                guarded,
                behind_edges(config.http_limits) if config.gateways else config.http_limits,
                self._knows,
                config.trusted_proxies,
                self._space,
                edge_key=self._home.edge_key if config.gateways else b"",
                rules=REQUEST_RULES,
            )
            parts["http"] = front
            app.include_router(watch_router(releases, monitor, self._answerer, access, parts))
            undo.push_async_callback(self._tables.close)
            await self._tables.start(inference)
            check_routes(app.routes, table)
            context = await self._http_context(authority, undo)
            port = config.gateway_port if config.gateways else config.http_port
            url = await undo.enter_async_context(serving(front, config.host, port, tls=context, inherited=sockets.http))
            undo.callback(self._feed.close)
            self._undo = undo.pop_all()
        public_url = (
            url_of(config.host, config.http_port, is_tls=config.https) if config.gateways and config.http_port else url
        )
        return GatewayAddress(public_url, config.host, self._tunnel.port, authority.ca_path.read_text(), url)

    async def _http_context(self, authority: Authority, undo: contextlib.AsyncExitStack) -> ssl.SSLContext | None:
        """Return the TLS context of HTTP, None without TLS. Its certificate is renewed while the gateway runs."""
        config = self._config
        if not config.https:
            return None
        if config.gateways or config.tls_cert is None or config.tls_key is None:  # edge gateways know the authority
            return authority.server_context()
        files = CertificateFiles(config.tls_cert, config.tls_key)
        follow = functools.partial(files.follow, self._clock)
        await undo.enter_async_context(in_background("renewal of HTTP's certificate", follow, self._clock))
        return files.context

    def _make_tunnel(self, authority: Authority, sockets: InheritedSockets) -> TunnelService | TunnelProcesses:
        config = self._config
        drain_to = DrainTarget.parse(config.drain_to, config.drain_s)
        if config.tunnel_processes == 1:
            return TunnelService(
                self._uploads,
                ssl_context=authority.server_context(client_ca_pem=self._identity.ca_pem),
                on_request=self._requests.answer,
                dictionaries=stored_dictionary(self._home.files),
                host=config.host,
                port=config.tunnel_port,
                sock=sockets.tunnel,
                on_stored=self._note_batch,
                foreign_tasks=self._requests.foreign_tasks,
                drain_to=drain_to,
                clock=self._clock,
            )
        settings = WorkerSettings(
            host=config.host,
            port=config.tunnel_port,
            uploads=config.uploads or str(self._home.uploads_db),
            server_pem=authority.server_path,
            device_ca_pem=self._identity.ca_pem,
            drain_to=drain_to,
            device_quota=DeviceQuota.parse(config.device_quota),
            trace_ratio=0.0 if self._tracer is None else config.trace_ratio,
        )
        return TunnelProcesses(
            config.tunnel_processes,
            settings,
            on_request=self._requests.answer,
            dictionaries=stored_dictionary(self._home.files),
            on_stored=self._delays.add,
            foreign_tasks=self._requests.foreign_tasks,
            on_traced=None if self._tracer is None else self._tracer.stored,
        )

    async def _connection_of(self, device_id: str) -> DeviceConnection:
        return await self._tunnel.connection(device_id)

    def _watch(self, tunnel: TunnelService | TunnelProcesses) -> TunnelWatch:
        if isinstance(tunnel, TunnelService):
            servers = self._servers
            return TunnelWatch(
                lambda: [tunnel.state(), *servers.states()], further=lambda: servers.count, ended=servers.ended
            )
        return TunnelWatch(
            tunnel.states,
            processes=tunnel.count,
            ended=tunnel.ended,
            restarts=lambda: tunnel.restarts,
            hangs=lambda: tunnel.hangs,
        )

    async def close(self) -> None:
        """Stop serving; uploads that have arrived are stored first, if the disk takes them.

        What was not acknowledged the devices send again.
        """
        self._home.hurry()
        await self._undo.aclose()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _app(
        self, releases: ReleasesPeer, monitor: MonitorPeer, identities: IdentityPeer, authority: Authority
    ) -> FastAPI:
        app = FastAPIOffline(
            title="Walle",
            description="Releases, task repositories and devices of a Walle cloud.",
            redoc_url=None,  # one page is enough
            static_url="/docs/assets",
            dependencies=[Depends(HTTPBearer(auto_error=False))],  # a field for the token on /docs; the guard checks it
        )
        install_error_handlers(app)
        access, log, tracer = self._home.access, self._home.audit, self._tracer
        audit = RequestAudit(log)
        app.include_router(release_router(releases, monitor, access, audit))
        app.include_router(signature_router(releases, access, audit))
        app.include_router(audit_router(log, access))
        app.include_router(identity_router(identities, access, audit))
        app.include_router(
            device_router(monitor, self._identity.verifier.device_id, None if tracer is None else tracer.reported)
        )
        app.include_router(feature_router(lambda: self._uploads, access))
        app.include_router(registry_router(monitor, access, identities.states))
        uploaded = self._home.uploaded
        targeting = Targeting(releases, monitor, lambda: self._answerer.table, uploaded=lambda: uploaded.current)
        app.include_router(targeting_router(targeting, access))
        sources = DashboardSources(
            releases=releases,
            outcomes=monitor,
            devices=monitor,
            key_states=identities.states,
            targeting=targeting,
            history=TaskHistory(self._home.repos),
            features=FeatureSamples(lambda: self._uploads),
            connection=self._connection_of,
            parts=lambda: self._parts,
            series=lambda: self._series,
        )
        app.include_router(dashboard_router(Shell(Pages(), self._sessions, self._clock), sources, audit))
        app.include_router(token_router(access, authority.ca_path.read_text(), self._clock, audit))
        app.include_router(group_router(self._home.repos, access, audit))
        app.include_router(trust_router(self._home.trust))

        def may_follow(authorization: str) -> None:
            check_role(identify(access, authorization), ANY_SCENARIO, Role.READER)

        app.include_router(feed_router(self._feed, may_follow))
        app.include_router(sightings_router(self._sightings, may_follow))
        app.include_router(status_router(lambda: self._status, access))
        app.include_router(node_router(self._keeper, access, audit))
        exclusive = self._home.exclusive

        async def key_of(device_id: str) -> DeviceKey:
            return DeviceKey(*await identities.current_key(device_id))

        repos, space = self._home.repos, self._space
        groups = self._home.group_files

        def join(profile: Profile) -> Profile:
            return uploaded.current.join(profile)

        app.include_router(
            exclusive_router(
                exclusive,
                groups,
                repos,
                key_of,
                access,
                typed_policy=releases.typed_policy,
                space=space,
                audit=audit,
            )
        )
        attributes = self._home.attributes
        app.include_router(
            attribute_router(
                uploaded, attributes, access, on_change=self._read_uploaded, space=space, audit=audit, clock=self._clock
            )
        )
        app.include_router(
            cen_router(
                exclusive,
                groups,
                releases,
                self._identity.verifier.identity,
                key_of,
                join,
            )
        )
        files = cdn_app(self._home.files, self._home.coded_files, accel_redirect=self._config.accel_redirect)
        app.mount("/cdn", signed_files(files, self._home.file_addresses))
        git = git_app(
            repos,
            access,
            space=space,
            audit=log,
            compile_sources=compiler(self._config),
            large_file_limits=self._config.large_file_limits,
            quota=self._config.git_quota,
        )
        app.mount("/git", git)
        return app

    def _knows(self, headers: Mapping[bytes, bytes]) -> bool:
        """Say whether a request's headers have a valid token of a person, or a session of a device.

        Raises:
            SessionRefusedError: the session is not valid; the device is told why.
        """
        session = headers.get(DEVICE_HEADER.lower().encode())
        if session is None:
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            if self._home.access.identify_header(authorization) is not None:
                return True
            return self._sessions.find(cookie_of(headers)) is not None
        self._identity.verifier.device_id(session)
        return True

    def _session_owner(self, cookie_header: str) -> Identity | None:
        session = self._sessions.find(cookie_header)
        return None if session is None else session.identity

    async def _revoke(self, revocations: Revocations) -> None:
        """Disconnect revoked devices from the tunnel, and refuse them from now on."""
        self._feed.tell()
        await self._tunnel.revoke(revocations.version, revocations.lowest)

    async def _note_batch(self, batch: list[Received]) -> None:
        self._delays.add(received.received_ms - received.sent_ms for received in batch)
        if self._tracer is not None:
            self._tracer.stored(batch, self._clock.time())

    async def _read_uploaded(self) -> None:
        """Answer by the uploaded attributes of now."""
        uploaded = self._home.uploaded
        if await asyncio.to_thread(uploaded.read):
            self._answerer.swap_uploaded(uploaded.current)

    async def _note_series(self) -> None:
        """Note the metrics of this gateway for the charts of the dashboard, until cancelled."""
        clock = SystemClock()  # charts are of real time, as the times of use of tokens are
        while True:
            families = [metric for name in _DRAWN if name in self._parts for metric in self._parts[name].metrics()]
            self._series.note(clock.time(), [*families, *push_metrics(self._answerer)])
            await clock.sleep(SERIES_S)

    async def _note_devices(self, monitor: MonitorPeer) -> None:
        """Pass on which devices sent profiles, until cancelled."""
        while True:
            await self._answerer.devices.wait()
            await self._clock.sleep(_NOTE_S)
            await monitor.note_profiles(self._answerer.devices.take())

    async def _learn_sizes(self) -> None:
        """Tell other gateways how large versions are, after each table; a rollback does not wait for it."""
        while True:
            await self._has_table.wait()
            self._has_table.clear()
            if await self._sizes.learn(self._answerer.table.manifests):
                self._feed.tell()

    async def _renew_daily(self, authority: Authority) -> None:
        """Issue a new certificate for the tunnel before the old one expires, until cancelled."""
        while True:
            await self._clock.sleep(_RENEW_S)
            try:
                if await asyncio.to_thread(authority.renew):
                    _LOG.info("the tunnel's certificate was renewed")
                    if isinstance(self._tunnel, TunnelProcesses):
                        await self._tunnel.renew_certificate()
            except (AuthorityError, OSError) as error:
                _LOG.error("the tunnel's certificate cannot be renewed, trying again in a day: %s", error)

    # --- called by the release node -----------------------------------------------------------------------------------

    async def publish(self, table: ReleaseTable) -> None:
        """Answer from `table` from now on; new versions once fallback inference has loaded them."""
        self._requests.note_change()
        if self._pulls is not None:
            await self._sizes.learn(table.manifests)
        await self._tables.publish(table)
        self._has_table.set()

    async def recent_devices(self, count: int, policy: Policy, task: str) -> tuple[str, ...]:
        return self._answerer.recent(count, policy, task)

    # --- called by tunnel servers -------------------------------------------------------------------------------------

    async def report_tunnel(self, report: TunnelReport) -> dict[str, Any] | None:
        """Take note of a tunnel server's report; return the ring that it is to follow, None while none is known."""
        ring = self._servers.take(report)
        self._follow_ring()
        self._delays.add(report.delays_ms)
        if self._tracer is not None:
            for device_id, epoch, seq, topic, sent_ms, received_ms, stored_s in report.traced:
                self._tracer.stored([Received(device_id, epoch, seq, topic, b"", sent_ms, received_ms)], stored_s)
        return None if ring is None else ring.to_plain()

    async def answer_request(self, device_id: str, topic: str, payload: bytes, left_s: float | None) -> bytes:
        """Return fallback inference's answer to a device's request, for which it waits `left_s`, None for any time."""
        with request_deadline(None if left_s is None else self._clock.monotonic() + left_s):
            return await self._requests.answer(device_id, topic, payload)

    async def foreign_tasks(self, pairs: Sequence[DeviceTask]) -> frozenset[DeviceTask]:
        """Return those pairs of a device and a task whose features are not to be stored."""
        return await self._requests.foreign_tasks(pairs)

    async def _follow_servers(self) -> None:
        """Notice tunnel servers that do not report any more, until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_S)
            self._servers.look()
            self._follow_ring()

    def _follow_ring(self) -> None:
        """Send the devices of this gateway's own tunnel to their servers."""
        if isinstance(self._tunnel, TunnelService):
            self._tunnel.server.take_ring(self._servers.ring, over_s=_MOVE_S)

    # --- called by an operator ----------------------------------------------------------------------------------------

    async def stats(self) -> GatewayStats:
        tunnel = self._tunnel
        states = (
            self._service_states(tunnel) if isinstance(tunnel, TunnelService) else [*tunnel.states(), *tunnel.ended()]
        )
        connections = sum(state.counts["connections"] for state in states)
        return GatewayStats(await self._uploads.count(), connections, tuple(self._delays.latest_ms))

    def _service_states(self, tunnel: TunnelService) -> list[TunnelState]:
        return [tunnel.state(), *self._servers.states(), *self._servers.ended()]

    async def uploads(self, topic: str, after: int, limit: int) -> list[tuple[int, Received]]:
        """Return stored uploads of a topic with their positions, in the order of receipt, from past `after` on."""
        return await self._uploads.query(topic=topic, after=after, limit=limit)
