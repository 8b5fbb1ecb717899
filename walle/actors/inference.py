"""Replicas of fallback inference in a process of their own, where the bigger models' memory is."""

from pathlib import Path

from walle.actors.node import NodeActor, returns_errors
from walle.cloud import CloudConfig
from walle.cloud.inference.replica_server import ReplicaServer


class InferenceActor(NodeActor):
    """One process with replicas; Ray starts another in its place when it ends, which listens at the same socket."""

    def __init__(self, config: CloudConfig, number: int, socket: Path) -> None:
        super().__init__(config)
        self._node = ReplicaServer(config, number)
        self._socket = socket
        self._is_started = False

    @returns_errors
    async def address(self) -> Path:
        """Return the socket at which the scheduler finds this process, once it listens there."""
        if not self._is_started:
            self._is_started = True
            self._undo.push_async_callback(self._node.close)
            await self._node.start(self._socket)
        return self._socket
