"""The releases in a process of their own."""

from typing import Any

from ray.actor import ActorHandle

from walle.actors.node import NodeActor, Remote, telling
from walle.cloud import release_node


class ReleaseActor(NodeActor):
    @telling
    async def open(self, gateway: ActorHandle[Any], monitor: ActorHandle[Any]) -> None:
        self._node = await self._undo.enter_async_context(release_node(self._config, Remote(gateway), Remote(monitor)))
