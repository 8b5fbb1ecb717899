"""Tunnel of a gateway: its own server or processes, and the ring of the tunnel servers that report to it."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator
from typing import Any

from walle.access.identity.authority import Authority, AuthorityError
from walle.access.identity.watch import IdentityWatch
from walle.base.clock import Clock
from walle.base.device_identity import Revocations
from walle.cloud.api.interfaces import WatchedParts
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.http.inherited_sockets import InheritedSockets
from walle.cloud.nodes.device_requests import DeviceRequests
from walle.cloud.nodes.tunnel_dictionary import stored_dictionary
from walle.cloud.nodes.tunnel_servers import TunnelReport, TunnelServers
from walle.cloud.telemetry.tracing import Tracer
from walle.cloud.telemetry.tunnel_watch import TunnelWatch
from walle.cloud.telemetry.upload_delays import UploadDelays
from walle.pipeline.ingest.processes import TunnelProcesses, WorkerSettings
from walle.pipeline.ingest.service import DeviceConnection, DrainTarget, TunnelService, TunnelState
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.tunnel.received import Received
from walle.store.background import Works

_LOG = logging.getLogger(__name__)

_RENEW_S = 86_400.0  # pause between two checks of the certificate
_LOOK_S = 1.0  # pause between two checks of whether tunnel servers report
_MOVE_S = 1.0  # time over which devices go to their tunnel servers


class GatewayTunnel:
    """The tunnel, within the block of `serving`; `requests` answers what devices ask through it.

    With a `tracer` the spans of stored uploads are made.
    """

    service: TunnelService | TunnelProcesses
    watch: TunnelWatch
    tracer: Tracer | None = None

    def __init__(self, config: CloudConfig, home: CloudHome, requests: DeviceRequests, clock: Clock) -> None:
        self.servers = TunnelServers(clock)
        self.delays = UploadDelays()
        self._config = config
        self._home = home
        self._requests = requests
        self._clock = clock

    @contextlib.asynccontextmanager
    async def serving(
        self, store: UploadStore, authority: Authority, identity: IdentityWatch, sockets: InheritedSockets
    ) -> AsyncIterator[None]:
        """Serve within the block.

        Raises:
            TunnelProcessError: a tunnel process cannot start.
            OSError: the port is taken.
        """
        if self._config.tunnel_processes == 1:
            self.service = self._server(store, authority, identity, sockets)
        else:
            self.service = self._processes(authority, identity)
        await self.revoke(identity.revocations)
        async with self.service:
            self.watch = self._watch(self.service)
            yield

    def _server(
        self, store: UploadStore, authority: Authority, identity: IdentityWatch, sockets: InheritedSockets
    ) -> TunnelService:
        config = self._config
        return TunnelService(
            store,
            ssl_context=authority.server_context(client_ca_pem=identity.ca_pem),
            on_request=self._requests.answer,
            dictionaries=stored_dictionary(self._home.files),
            host=config.host,
            port=config.tunnel_port,
            sock=sockets.tunnel,
            on_stored=self._note_batch,
            foreign_tasks=self._requests.foreign_tasks,
            drain_to=DrainTarget.parse(config.drain_to, config.drain_s),
            clock=self._clock,
        )

    def _processes(self, authority: Authority, identity: IdentityWatch) -> TunnelProcesses:
        config, tracer = self._config, self.tracer
        settings = WorkerSettings(
            host=config.host,
            port=config.tunnel_port,
            uploads=config.uploads or str(self._home.uploads_db),
            server_pem=authority.server_path,
            device_ca_pem=identity.ca_pem,
            drain_to=DrainTarget.parse(config.drain_to, config.drain_s),
            device_quota=DeviceQuota.parse(config.device_quota),
            trace_ratio=0.0 if tracer is None else config.trace_ratio,
        )
        return TunnelProcesses(
            config.tunnel_processes,
            settings,
            on_request=self._requests.answer,
            dictionaries=stored_dictionary(self._home.files),
            on_stored=self.delays.add,
            foreign_tasks=self._requests.foreign_tasks,
            on_traced=None if tracer is None else tracer.stored,
        )

    def _watch(self, tunnel: TunnelService | TunnelProcesses) -> TunnelWatch:
        if isinstance(tunnel, TunnelService):
            servers = self.servers
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

    def works(self, authority: Authority) -> Works:
        """Return what is done while the gateway runs."""
        works: Works = {"renewal of the certificate": functools.partial(self._renew_daily, authority)}
        return {**works, "tunnel servers": self._follow_servers} if self._config.tunnel_servers else works

    def parts(self) -> WatchedParts:
        """Return what /healthz and /metrics show."""
        parts: WatchedParts = {"tunnel": self.watch, "delays": self.delays}
        return {**parts, "tunnel servers": self.servers} if self._config.tunnel_servers else parts

    async def connection(self, device_id: str) -> DeviceConnection:
        """Return the connection of a device to this gateway's tunnel."""
        return await self.service.connection(device_id)

    async def revoke(self, revocations: Revocations) -> None:
        """Disconnect revoked devices, and refuse them from now on."""
        await self.service.revoke(revocations.version, revocations.lowest)

    def states(self) -> list[TunnelState]:
        """Return the states of all servers and processes that run, and the counts of those that have ended."""
        if isinstance(self.service, TunnelService):
            return [self.service.state(), *self.servers.states(), *self.servers.ended()]
        return [*self.service.states(), *self.service.ended()]

    def take_report(self, report: TunnelReport) -> dict[str, Any] | None:
        """Take note of a tunnel server's report; return the ring that it is to follow, None while none is known."""
        ring = self.servers.take(report)
        self._follow_ring()
        self.delays.add(report.delays_ms)
        if self.tracer is not None:
            for device_id, epoch, seq, topic, sent_ms, received_ms, stored_s in report.traced:
                self.tracer.stored([Received(device_id, epoch, seq, topic, b"", sent_ms, received_ms)], stored_s)
        return None if ring is None else ring.to_plain()

    async def _note_batch(self, batch: list[Received]) -> None:
        self.delays.add(received.received_ms - received.sent_ms for received in batch)
        if self.tracer is not None:
            self.tracer.stored(batch, self._clock.time())

    async def _follow_servers(self) -> None:
        """Notice tunnel servers that do not report any more, until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_S)
            self.servers.look()
            self._follow_ring()

    def _follow_ring(self) -> None:
        """Send the devices of this gateway's own tunnel to their servers."""
        if isinstance(self.service, TunnelService):
            self.service.server.take_ring(self.servers.ring, over_s=_MOVE_S)

    async def _renew_daily(self, authority: Authority) -> None:
        """Issue a new certificate for the tunnel before the old one expires, until cancelled."""
        while True:
            await self._clock.sleep(_RENEW_S)
            try:
                if await asyncio.to_thread(authority.renew):
                    _LOG.info("the tunnel's certificate was renewed")
                    if isinstance(self.service, TunnelProcesses):
                        await self.service.renew_certificate()
            except (AuthorityError, OSError) as error:
                _LOG.error("the tunnel's certificate cannot be renewed, trying again in a day: %s", error)
