"""The gateway in a process of its own, with the scheduler of fallback inference."""

from collections.abc import Sequence
from typing import Any

from ray.actor import ActorHandle

from walle.actors.node import NodeActor, Remote, ask, returns_errors
from walle.cloud import CloudConfig, CloudHome, GatewayAddress, GatewayNode
from walle.cloud.inference import InferenceNode
from walle.cloud.inference.process_engine import ProcessEngine
from walle.cloud.inference.replica_address import Connection, PeerKey, connect
from walle.cloud.inference.version_source import HomeSource
from walle.cloud.malloc import keep_what_is_loaded, map_tls_buffers


class GatewayActor(NodeActor):
    def __init__(self, config: CloudConfig) -> None:
        map_tls_buffers()
        super().__init__(config)
        self._node = GatewayNode(config)

    @returns_errors
    async def start(
        self,
        releases: ActorHandle[Any],
        monitor: ActorHandle[Any],
        identities: ActorHandle[Any],
        replicas: Sequence[ActorHandle[Any]],
    ) -> GatewayAddress:
        async def reach(number: int) -> Connection:
            key = PeerKey()
            return await connect(await ask(replicas[number], "listen", key.certificate), key)

        engine = ProcessEngine(len(replicas), reach, HomeSource(CloudHome(self._config.folder)))
        inference = InferenceNode(self._config, engine)
        self._undo.push_async_callback(inference.close)
        await engine.start()
        await inference.start(Remote(releases))
        self._undo.push_async_callback(self._node.close)
        address: GatewayAddress = await self._node.start(
            Remote(releases), Remote(monitor), inference, Remote(identities)
        )
        keep_what_is_loaded()
        return address
