"""All nodes of a cloud in one process: for tests, and for a fleet that one machine serves."""

import contextlib
from typing import Self

from walle.cloud.config import CloudConfig
from walle.cloud.gateway import GatewayAddress, GatewayNode
from walle.cloud.home import CloudHome
from walle.cloud.inference import InferenceNode
from walle.cloud.releases import release_node
from walle.cloud.rollback import rollback_node


class Cloud:
    """A cloud at work within `async with Cloud(config) as cloud`; `cloud.address` says where.

    Raises, from entering:
        ConfigError, OSError: as `GatewayNode.open`.
    """

    def __init__(self, config: CloudConfig) -> None:
        self.config = config
        self.home = CloudHome(config.folder)
        self.gateway = GatewayNode(config)
        self.inference = InferenceNode(config)
        self.address: GatewayAddress

    async def __aenter__(self) -> Self:
        self.home.prepare(self.config.scenarios)
        async with contextlib.AsyncExitStack() as undo:
            self.monitor = await undo.enter_async_context(rollback_node(self.config))
            self.releases = await undo.enter_async_context(release_node(self.config, self.gateway, self.monitor))
            self.monitor.on_verdict = self.releases.verdict
            await self.inference.open(self.releases)
            undo.push_async_callback(self.inference.close)
            self.address = await self.gateway.open(self.releases, self.monitor, self.inference)
            undo.push_async_callback(self.gateway.close)
            self._undo = undo.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._undo.aclose()
