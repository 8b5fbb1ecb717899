"""A tunnel server of a cloud beside its gateway, on the same node or another: uploads go to the cloud's store.

It reports to the gateway twice a second, which answers with the ring of tunnel servers. While the gateway does not
answer, uploads are taken and stored as ever, by the last ring; requests of devices fail.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from walle.access.identity.authority import Authority, AuthorityError
from walle.access.identity.watch import IdentityWatch
from walle.base.clock import Clock, SystemClock
from walle.base.device_identity import Revocations
from walle.cloud.api.interfaces import IdentityPeer
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.nodes.tunnel_dictionary import stored_dictionary
from walle.cloud.nodes.tunnel_servers import TunnelReport
from walle.errors import ConfigError, WalleError
from walle.pipeline.ingest.service import DrainTarget, TunnelService
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.pipeline.ingest.store.topic_check import DeviceTask
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.stored_notes import StoredNotes
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.server.deadline import request_due_s
from walle.pipeline.tunnel.server.ring import Ring, RingMember
from walle.store.background import in_background

_LOG = logging.getLogger(__name__)

REPORT_S = 0.5
_ASK_S = 5.0  # time for the gateway's answer to a report
_HEARD_S = 2 * REPORT_S  # time from leaving the ring until the other servers know
_MOVES_S = 500  # devices that a server sends to others in a second, when the ring changes
_RENEW_S = 86_400.0


class TunnelGatewayPeer(Protocol):
    """Methods of a gateway that tunnel servers call."""

    async def report_tunnel(self, report: TunnelReport) -> dict[str, Any] | None: ...
    async def answer_request(self, device_id: str, topic: str, payload: bytes, left_s: float | None) -> bytes: ...
    async def foreign_tasks(self, pairs: Sequence[DeviceTask]) -> frozenset[DeviceTask]: ...


class TunnelNode:
    """One tunnel server, called `name` in the ring, between `start` and `close`.

    It listens at `bind` and `port` (0: chosen by the system); devices reach it at `host`, which its certificate names,
    and `public_port`, if that is another one. `node` is where it runs, for those who watch.
    """

    def __init__(
        self,
        config: CloudConfig,
        gateway: TunnelGatewayPeer,
        identities: IdentityPeer,
        *,
        name: str,
        node: str,
        bind: str,
        host: str,
        port: int = 0,
        public_port: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._gateway = gateway
        self._clock = clock or SystemClock()
        self._home = CloudHome(config.folder, database=config.database)
        self._identity = IdentityWatch(identities, self._clock)
        self._name = name
        self._node = node
        self._bind = bind
        self._host = host
        self._port = port
        self._public_port = public_port
        self._notes = StoredNotes(config.trace_ratio if config.traces else 0.0)
        self._undo = contextlib.AsyncExitStack()
        self._service: TunnelService
        self.member: RingMember
        self._is_leaving = False
        self._error = ""

    async def start(self) -> RingMember:
        """Serve, and return where.

        Raises:
            ConfigError: the cloud's folder is not there, or the quota cannot be read.
            AuthorityError: the authority's file is damaged or expired.
            IngestError: the store of uploads cannot be opened.
            RingError: `host` and `public_port` are not an address.
            OSError: the port is taken.
        """
        config, home = self._config, self._home
        if not home.authority_certificate.exists():
            raise ConfigError(f"{config.folder} has no cloud on this node: mount the cloud's folder there")
        await self._identity.start()
        server = f"tunnel-{hashlib.sha256(self._host.encode()).hexdigest()[:16]}"
        names = (self._host, *config.tunnel_names)
        authority = await asyncio.to_thread(home.authority, names, clock=self._clock, server=server)
        context = authority.server_context(client_ca_pem=self._identity.ca_pem)
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(home.close)
            location = config.uploads or home.uploads_db
            quota = DeviceQuota.parse(config.device_quota)
            store: UploadStore = open_uploads(location, create=True, clock=self._clock, device_quota=quota)
            await undo.enter_async_context(store)
            self._service = TunnelService(
                store,
                ssl_context=context,
                on_request=self._answer,
                dictionaries=stored_dictionary(home.files),
                host=self._bind,
                port=self._port,
                reuse_port=self._port != 0,  # beside the server that this one takes the place of
                on_stored=self._notes.add,
                foreign_tasks=self._foreign_tasks,
                drain_to=DrainTarget(over_s=config.drain_s),
                name=self._name,
                clock=self._clock,
            )
            await self._revoke(self._identity.revocations)
            await undo.enter_async_context(self._service)
            undo.callback(self._service.server.ring.leave)  # devices go to the others when it ends
            self.member = RingMember(self._name, self._host, self._public_port or self._service.port)
            Ring(members=[self.member])  # a report of another text than an address would be in the way of every server
            works: dict[str, Callable[[], Awaitable[None]]] = {
                "renewal of the certificate": functools.partial(self._renew_daily, authority, context),
                "revoked devices": functools.partial(self._identity.follow, self._revoke),
                "reports to the gateway": self._report,
            }
            for title, work in works.items():
                await undo.enter_async_context(in_background(title, work, self._clock))
            self._undo = undo.pop_all()
        return self.member

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return self._service.port

    @property
    def ring(self) -> Ring:
        """The ring that it follows."""
        return self._service.server.ring.ring

    async def drain(self, over_s: float) -> None:
        """Leave the ring, then send each device to its new server within `over_s` seconds; return once all have left.

        Uploads that have arrived are stored and acknowledged first.
        """
        self._is_leaving = True
        await self._report_once()
        await self._clock.sleep(_HEARD_S)  # else others would send them back
        server = self._service.server
        server.ring.leave()
        await server.drain(over_s=over_s)

    async def close(self) -> None:
        """Stop serving; uploads that have arrived are stored first, and devices are sent to the other servers."""
        self._is_leaving = True
        await self._undo.aclose()

    async def _report(self) -> None:
        while True:
            await self._report_once()
            await self._clock.sleep(REPORT_S)

    async def _report_once(self) -> None:
        """Report to the gateway, and follow the ring that it answers with, if it does."""
        delays_ms, traced = self._notes.take()
        report = TunnelReport(
            member=self.member,
            node=self._node,
            is_leaving=self._is_leaving,
            state=self._service.state(),
            generation=self.ring.generation,
            sent_on=self._service.server.ring.sent_on,
            delays_ms=delays_ms,
            traced=traced,
        )
        try:
            async with asyncio.timeout(_ASK_S):
                plain = await self._gateway.report_tunnel(report)
            if plain is not None and not self._is_leaving:
                server = self._service.server
                server.take_ring(Ring.from_plain(plain), over_s=max(1.0, server.counts.open / _MOVES_S))
        except (WalleError, TimeoutError) as error:
            if not self._error:
                what = f"{error}" or type(error).__name__
                _LOG.warning(
                    "tunnel server %s continues with its last ring of servers; the gateway: %s", self._name, what
                )
            self._error = str(error) or type(error).__name__
        else:
            self._error = ""

    async def _answer(self, device_id: str, topic: str, payload: bytes) -> bytes:
        due_s = request_due_s()
        left_s = None if due_s is None else due_s - self._clock.monotonic()
        return await self._gateway.answer_request(device_id, topic, payload, left_s)

    async def _foreign_tasks(self, pairs: Sequence[DeviceTask]) -> frozenset[DeviceTask]:
        return await self._gateway.foreign_tasks(pairs)

    async def _revoke(self, revocations: Revocations) -> None:
        await self._service.revoke(revocations.version, revocations.lowest)

    async def _renew_daily(self, authority: Authority, context: ssl.SSLContext) -> None:
        """Show a new certificate in time, which another server here may have issued, until cancelled."""
        while True:
            await self._clock.sleep(_RENEW_S)
            try:
                await asyncio.to_thread(authority.renew)
                context.load_cert_chain(authority.server_path)
            except (AuthorityError, OSError) as error:
                _LOG.error("the certificate of %s cannot be renewed, trying again in a day: %s", self._name, error)
