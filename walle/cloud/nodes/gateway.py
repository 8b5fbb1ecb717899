"""Gateway node: HTTP with the push answer, and the tunnel; all that devices and engineers connect to.

Each mechanism is a module beside this one: `gateway_answers`, `gateway_tunnel`, `gateway_uploads`, `gateway_callers`,
`gateway_watches`, `gateway_app` and `gateway_http`. `GatewayNode.start` puts them together, in order.
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from walle.access.identity.authority import Authority
from walle.base.clock import Clock, SystemClock
from walle.base.device_identity import Revocations
from walle.cloud.api.interfaces import IdentityPeer, InferencePeer, KeeperPeer, MonitorPeer, ReleasesPeer
from walle.cloud.api.release_metrics import push_metrics
from walle.cloud.api.releases import WatchedPart, watch_router
from walle.cloud.api.routes import RouteTable, check_routes
from walle.cloud.api.sightings import Sightings
from walle.cloud.dashboard import SERIES_S, MetricSeries
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.epoch import read_epoch
from walle.cloud.folder.folder import CloudHome
from walle.cloud.http.business_app import load_app
from walle.cloud.http.inherited_sockets import InheritedSockets
from walle.cloud.nodes.device_requests import DeviceRequests
from walle.cloud.nodes.gateway_answers import GatewayAnswers
from walle.cloud.nodes.gateway_app import AppSources, GatewayPeers, gateway_app
from walle.cloud.nodes.gateway_callers import GatewayCallers
from walle.cloud.nodes.gateway_http import guarded, http_front, public_url, serving_http
from walle.cloud.nodes.gateway_tunnel import GatewayTunnel
from walle.cloud.nodes.gateway_uploads import GatewayUploads
from walle.cloud.nodes.gateway_watches import GatewayWatches
from walle.cloud.nodes.tunnel_servers import TunnelReport
from walle.cloud.telemetry.status import CloudStatus, OneProcess, Processes
from walle.cloud.telemetry.tracing import Tracer, exporter
from walle.deploy.git.git_process import check_git
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.table import ReleaseTable
from walle.errors import ConfigError
from walle.metrics.http_durations import HttpDurations
from walle.pipeline.ingest.store.topic_check import DeviceTask
from walle.pipeline.tunnel.received import Received
from walle.pipeline.tunnel.server.deadline import request_deadline
from walle.store.background import Works, in_background
from walle.store.disk_space import DiskSpace

_DRAWN = ("tunnel", "http")  # parts of which the dashboard draws metrics


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
        self._clock = clock = clock or SystemClock()
        self._home = home = CloudHome(config.folder, database=config.database)
        self._space = DiskSpace(config.folder)
        self._answers = GatewayAnswers(config, home, clock)
        answerer = self._answers.answerer
        self._requests = DeviceRequests(answerer.devices.profile, answerer.join_uploaded, clock)
        self._callers = GatewayCallers(home, clock)
        self._uploads = GatewayUploads(config, home, clock)
        self._tunnel = GatewayTunnel(config, home, self._requests, clock)
        self._tracer: Tracer | None = None
        self._durations = HttpDurations()
        self._series = MetricSeries()
        self._parts: dict[str, WatchedPart] = {}
        self._status: CloudStatus | None = None
        self._undo = contextlib.AsyncExitStack()

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
        config, clock, answerer = self._config, self._clock, self._answers.answerer
        sockets = sockets or InheritedSockets()
        peers = GatewayPeers(
            releases=releases, monitor=monitor, inference=inference, identities=identities, keeper=keeper
        )
        await self._check()
        await self._answer_requests(peers)
        self._start_tracer()
        await self._know_callers(peers)
        authority = self._home.authority(config.tunnel_names, clock=clock)
        sources = await self._sources(peers, authority)
        app = gateway_app(sources)
        business = load_app(config.business_app) if config.business_app else None
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self._home.close)
            await undo.enter_async_context(self._uploads.opened())
            serving = self._tunnel.serving(self._uploads.store, authority, self._callers.identity, sockets)
            await undo.enter_async_context(serving)
            # Before the first answer: without its group a device would be sent back from the group's version.
            await self._answers.read_uploaded()
            watches = GatewayWatches(config, self._home, self._space, clock)
            for name, work in self._works(peers, authority, watches).items():
                await undo.enter_async_context(in_background(name, work, clock))
            self._watch(peers, processes or OneProcess(), watches, sources.sightings)
            table = RouteTable(has_business=business is not None)
            routes = guarded(app, business, table, answerer, self._callers, self._durations)
            edge_key = self._home.edge_key if config.gateways else b""
            front = self._parts["http"] = http_front(routes, config, self._callers, self._space, edge_key)
            app.include_router(watch_router(releases, monitor, answerer, self._callers.access, self._parts))
            undo.push_async_callback(self._answers.tables.close)
            await self._answers.tables.start(inference)
            check_routes(app.routes, table)
            url = await undo.enter_async_context(serving_http(front, config, authority, sockets, clock))
            undo.callback(self._answers.feed.close)
            self._undo = undo.pop_all()
        ca_pem = authority.ca_path.read_text()
        return GatewayAddress(public_url(config, url), config.host, self._tunnel.service.port, ca_pem, url)

    async def close(self) -> None:
        """Stop serving; uploads that have arrived are stored first, if the disk takes them.

        What was not acknowledged the devices send again.
        """
        self._home.hurry()
        await self._undo.aclose()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    # --- steps of the start -------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Refuse what cannot be served. Raises ConfigError."""
        if self._config.tunnel_servers and self._config.tunnel_processes > 1:
            raise ConfigError("tunnel servers replace tunnel processes: give one of the two")
        await asyncio.to_thread(check_git)

    async def _answer_requests(self, peers: GatewayPeers) -> None:
        restored_s = await asyncio.to_thread(read_epoch, self._config.folder)  # 1: never
        self._requests.start(peers.releases, peers.monitor, peers.inference, restored_s=restored_s)

    def _start_tracer(self) -> None:
        """Follow a share of installs and runs, if that is asked for. Raises ConfigError."""
        config = self._config
        if config.traces and self._tracer is None:
            self._tracer = Tracer(config.trace_ratio, exporter(config.traces), self._clock)
            self._answers.answerer.on_directives = self._tracer.answered
            self._tunnel.tracer = self._tracer

    async def _know_callers(self, peers: GatewayPeers) -> None:
        """Have the keys of devices' sessions, for this gateway and for those that follow its table."""
        await self._callers.start(peers.identities)
        identity = self._callers.identity
        self._answers.feed.open(identity.session_key, identity.revocations)

    async def _sources(self, peers: GatewayPeers, authority: Authority) -> AppSources:
        await asyncio.to_thread(lambda: self._home.exclusive)
        return AppSources(
            config=self._config,
            home=self._home,
            space=self._space,
            clock=self._clock,
            peers=peers,
            authority=authority,
            callers=self._callers,
            answers=self._answers,
            uploads=self._uploads,
            tunnel=self._tunnel,
            sightings=Sightings(self._answers.answerer, self._callers.device_id),
            tracer=self._tracer,
            series=self._series,
            parts=self._parts,
            status=lambda: self._status,
        )

    def _works(self, peers: GatewayPeers, authority: Authority, watches: GatewayWatches) -> Works:
        """Return what is done while the gateway runs."""
        return {
            **self._tunnel.works(authority),
            **self._uploads.works(),
            "revoked devices": functools.partial(self._callers.identity.follow, self._revoke),
            **self._callers.works(),
            **watches.works(),
            **self._answers.works(peers.monitor),
            "history of metrics": self._note_series,
        }

    def _watch(self, peers: GatewayPeers, processes: Processes, watches: GatewayWatches, sightings: Sightings) -> None:
        """Show the state of all parts from now on, and that of the cloud."""
        tunnel = self._tunnel
        self._status = CloudStatus(
            self._home,
            processes,
            peers.releases,
            tunnel.watch.health,
            lambda: self._answers.answerer.table.generation,
            tunnel.servers.rows,
            peers.keeper,
            database=watches.database,
        )
        for parts in (tunnel.parts(), self._uploads.parts(), self._callers.parts(), watches.parts()):
            self._parts.update(parts)
        self._parts |= {"inference": peers.inference, "requests": self._durations, "sightings": sightings}
        if self._answers.pulls is not None:
            self._parts["pulls"] = self._answers.pulls
        if self._tracer is not None:
            self._parts["traces"] = self._tracer.queue

    async def _revoke(self, revocations: Revocations) -> None:
        """Disconnect revoked devices from the tunnel, and refuse them from now on."""
        self._answers.feed.tell()
        await self._tunnel.revoke(revocations)

    async def _note_series(self) -> None:
        """Note the metrics of this gateway for the charts of the dashboard, until cancelled."""
        clock = SystemClock()  # charts are of real time, as the times of use of tokens are
        while True:
            families = [metric for name in _DRAWN if name in self._parts for metric in self._parts[name].metrics()]
            self._series.note(clock.time(), [*families, *push_metrics(self._answers.answerer)])
            await clock.sleep(SERIES_S)

    # --- called by the release node -----------------------------------------------------------------------------------

    async def publish(self, table: ReleaseTable) -> None:
        """Answer from `table` from now on; new versions once fallback inference has loaded them."""
        self._requests.note_change()
        await self._answers.publish(table)

    async def recent_devices(self, count: int, policy: Policy, task: str) -> tuple[str, ...]:
        return self._answers.answerer.recent(count, policy, task)

    # --- called by tunnel servers -------------------------------------------------------------------------------------

    async def report_tunnel(self, report: TunnelReport) -> dict[str, Any] | None:
        """Take note of a tunnel server's report; return the ring that it is to follow, None while none is known."""
        return self._tunnel.take_report(report)

    async def answer_request(self, device_id: str, topic: str, payload: bytes, left_s: float | None) -> bytes:
        """Return fallback inference's answer to a device's request, for which it waits `left_s`, None for any time."""
        with request_deadline(None if left_s is None else self._clock.monotonic() + left_s):
            return await self._requests.answer(device_id, topic, payload)

    async def foreign_tasks(self, pairs: Sequence[DeviceTask]) -> frozenset[DeviceTask]:
        """Return those pairs of a device and a task whose features are not to be stored."""
        return await self._requests.foreign_tasks(pairs)

    # --- called by an operator ----------------------------------------------------------------------------------------

    async def stats(self) -> GatewayStats:
        connections = sum(state.counts["connections"] for state in self._tunnel.states())
        received = await self._uploads.store.count()
        return GatewayStats(received, connections, tuple(self._tunnel.delays.latest_ms))

    async def uploads(self, topic: str, after: int, limit: int) -> list[tuple[int, Received]]:
        """Return stored uploads of a topic with their positions, in the order of receipt, from past `after` on."""
        return await self._uploads.store.query(topic=topic, after=after, limit=limit)
