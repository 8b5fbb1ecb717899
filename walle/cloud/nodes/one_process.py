"""All nodes of a cloud in one process: for tests, and for a fleet that one machine serves."""

import contextlib
from typing import Self

from walle.base.waiting import first_of
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.folder.state import STOP_S, is_database_away
from walle.cloud.http.inherited_sockets import InheritedSockets
from walle.cloud.nodes.gateway import GatewayAddress, GatewayNode
from walle.cloud.nodes.identity import IdentityNode
from walle.cloud.nodes.inference import InferenceNode
from walle.cloud.nodes.monitor import MonitorNode
from walle.cloud.nodes.releases import ReleaseNode

_SHORT_DRAIN_S = 10.0
_REQUESTS_S = 2.0  # less than HTTP waits for requests when it stops


class Cloud:
    """A cloud that runs within `async with Cloud(config) as cloud`; `cloud.address` is where it listens.

    `sockets`, if any, take the place of the ports.

    Raises, from entering:
        ConfigError, OSError: as `GatewayNode.start`.
    """

    def __init__(self, config: CloudConfig, sockets: InheritedSockets | None = None) -> None:
        self.config = config
        self._sockets = sockets
        self.home = CloudHome(config.folder, database=config.database)
        self.gateway = GatewayNode(config)
        self.inference = InferenceNode(config)
        self._identity_node = IdentityNode(config)
        self._monitor_node = MonitorNode(config)
        self._release_node = ReleaseNode(config)
        self.address: GatewayAddress

    async def __aenter__(self) -> Self:
        self.home.prepare(self.config.scenarios)
        if self.config.gateways:
            self.home.prepare_edges()
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self.home.close)
            for node in (self._identity_node, self._monitor_node, self._release_node):
                undo.push_async_callback(node.close)  # a node that was never started ignores it
            undo.callback(self._hurry)
            for other in (self.inference, self.gateway):
                undo.push_async_callback(other.close)
            self.identities = await self._identity_node.start()
            self.monitor = await self._monitor_node.start()
            self.releases = await self._release_node.start(self.gateway, self.monitor)
            self.monitor.on_verdict = self.releases.verdict
            await self.inference.start(self.releases)
            self.address = await self.gateway.start(
                self.releases, self.monitor, self.inference, self.identities, sockets=self._sockets
            )
            self._undo = undo.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.config.drain_s <= _SHORT_DRAIN_S and is_database_away(self.home):
            self._hurry(_REQUESTS_S)  # else requests that wait for it would be cut, and not answered
        await self._undo.aclose()

    def _hurry(self, limit_s: float = STOP_S) -> None:
        """Let the nodes wait for a database that is away at the same time, not one after the other."""
        self._release_node.hurry(limit_s)
        self._monitor_node.hurry(limit_s)
        self._identity_node.hurry(limit_s)

    async def lost(self) -> None:
        """Return when the release service or the monitor has lost its lease, and stops: another cloud may act."""
        await first_of(self._monitor_node.lost.wait(), self._release_node.lost.wait())
