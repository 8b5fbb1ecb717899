"""The releases in a separate process."""

from walle.actors.service import ServiceActor
from walle.cloud import ReleaseNode


class ReleaseActor(ServiceActor):
    async def _open(self) -> None:
        owner = ReleaseNode(self._config)
        self._undo.push_async_callback(owner.close)
        gateway, monitor = self._peer("gateway"), self._peer("monitor")
        self._set_node(await owner.start(gateway, monitor, is_successor=self.is_successor()))
        await self._end_when_lost(owner.lost)
