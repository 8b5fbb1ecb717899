"""The gateway in a process of its own, with the scheduler of fallback inference. On a cluster, one on every node that
devices reach, each with replicas on its own node.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from walle.actors.node import NodeActor, Remote, ask, returns_errors
from walle.cloud import CloudConfig, GatewayAddress, GatewayNode
from walle.cloud.inference import InferenceNode
from walle.cloud.inference.process_engine import ProcessEngine
from walle.cloud.malloc import map_tls_buffers


class GatewayActor(NodeActor):
    def __init__(self, config: CloudConfig) -> None:
        map_tls_buffers()
        super().__init__(config)
        self._node = GatewayNode(config)

    @returns_errors
    async def ray_node(self) -> str:
        """Return the id of the Ray node that this is on: sockets reach the processes of one node."""
        return str(ray.get_runtime_context().get_node_id())

    @returns_errors
    async def start(
        self,
        releases: ActorHandle[Any],
        monitor: ActorHandle[Any],
        identities: ActorHandle[Any],
        replicas: Sequence[ActorHandle[Any]],
    ) -> GatewayAddress:
        async def find(number: int) -> Path:
            path: Path = await ask(replicas[number], "address")
            return path

        engine = ProcessEngine(len(replicas), find)
        inference = InferenceNode(self._config, engine)
        self._undo.push_async_callback(inference.close)
        await engine.start()
        await inference.start(Remote(releases))
        self._undo.push_async_callback(self._node.close)
        address: GatewayAddress = await self._node.start(
            Remote(releases), Remote(monitor), inference, Remote(identities)
        )
        return address
