"""The keys that make identities of devices, in a process of their own."""

from walle.actors.node import NodeActor, returns_errors
from walle.cloud import CloudConfig
from walle.cloud.identity.node import IdentityNode


class IdentityActor(NodeActor):
    def __init__(self, config: CloudConfig) -> None:
        super().__init__(config)
        self._owner = IdentityNode(config)

    @returns_errors
    async def start(self) -> None:
        self._undo.push_async_callback(self._owner.close)
        self._node = await self._owner.start()
