"""The releases in a process of their own."""

from typing import Any

from ray.actor import ActorHandle

from walle.actors.node import NodeActor, Remote, returns_errors
from walle.cloud import CloudConfig, ReleaseNode


class ReleaseActor(NodeActor):
    def __init__(self, config: CloudConfig) -> None:
        super().__init__(config)
        self._owner = ReleaseNode(config)

    @returns_errors
    async def start(self, gateway: ActorHandle[Any], monitor: ActorHandle[Any]) -> None:
        self._undo.push_async_callback(self._owner.close)
        self._node = await self._owner.start(Remote(gateway), Remote(monitor))
