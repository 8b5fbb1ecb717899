"""The gateway in a process of its own. On a cluster, one on every node that devices reach."""

from typing import Any

from ray.actor import ActorHandle

from walle.actors.node import NodeActor, Remote, returns_errors
from walle.cloud import CloudConfig, GatewayAddress, GatewayNode
from walle.cloud.malloc import map_tls_buffers


class GatewayActor(NodeActor):
    def __init__(self, config: CloudConfig) -> None:
        map_tls_buffers()
        super().__init__(config)
        self._node = GatewayNode(config)

    @returns_errors
    async def start(
        self, releases: ActorHandle[Any], monitor: ActorHandle[Any], inference: ActorHandle[Any]
    ) -> GatewayAddress:
        self._undo.push_async_callback(self._node.close)
        address: GatewayAddress = await self._node.start(Remote(releases), Remote(monitor), Remote(inference))
        return address
