"""The monitor that takes failing versions back, in a process of its own."""

from typing import Any

from ray.actor import ActorHandle

from walle.actors.node import NodeActor, Remote, telling
from walle.cloud import rollback_node


class RollbackActor(NodeActor):
    @telling
    async def open(self, releases: ActorHandle[Any]) -> None:
        self._node = await self._undo.enter_async_context(rollback_node(self._config))
        self._node.on_verdict = Remote(releases).verdict
