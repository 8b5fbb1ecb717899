"""The releases in a process of their own."""

from walle.actors.service import ServiceActor
from walle.cloud import ReleaseNode


class ReleaseActor(ServiceActor):
    async def _open(self) -> None:
        owner = ReleaseNode(self._config)
        self._undo.push_async_callback(owner.close)
        self._set_node(await owner.start(self._place.peer("gateway"), self._place.peer("monitor")))
        await self._end_when_lost(owner.lost)
