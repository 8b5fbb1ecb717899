"""The monitor that takes failing versions back, in a process of its own."""

from typing import Any

from ray.actor import ActorHandle

from walle.actors.node import NodeActor, Remote, returns_errors
from walle.cloud import CloudConfig, MonitorNode


class MonitorActor(NodeActor):
    def __init__(self, config: CloudConfig) -> None:
        super().__init__(config)
        self._owner = MonitorNode(config)

    @returns_errors
    async def start(self, releases: ActorHandle[Any]) -> None:
        self._undo.push_async_callback(self._owner.close)
        self._node = await self._owner.start()
        self._node.on_verdict = Remote(releases).verdict
