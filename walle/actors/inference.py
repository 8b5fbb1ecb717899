"""Fallback inference in a process of its own, where the bigger models' memory is."""

from typing import Any

from ray.actor import ActorHandle

from walle.actors.node import NodeActor, Remote, returns_errors
from walle.cloud import CloudConfig, InferenceNode


class InferenceActor(NodeActor):
    def __init__(self, config: CloudConfig) -> None:
        super().__init__(config)
        self._node = InferenceNode(config)

    @returns_errors
    async def start(self, releases: ActorHandle[Any]) -> None:
        await self._node.start(Remote(releases))
        self._undo.push_async_callback(self._node.close)
