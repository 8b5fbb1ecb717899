"""The keys that make identities of devices, in a separate process."""

from walle.actors.service import ServiceActor
from walle.cloud.nodes.identity import IdentityNode


class IdentityActor(ServiceActor):
    async def _open(self) -> None:
        owner = IdentityNode(self._config)
        self._undo.push_async_callback(owner.close)
        self._set_node(await owner.start())
