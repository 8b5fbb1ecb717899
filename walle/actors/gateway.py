"""The gateway in a separate process, with the scheduler of fallback inference."""

import asyncio
import dataclasses
import json
import logging
from pathlib import Path

import ray

from walle.actors.node import ask, returns_errors
from walle.actors.process import KEEPER, actor_names, end, find_soon
from walle.actors.processes import ClusterProcesses
from walle.actors.service import Place, ServiceActor
from walle.base.durable_file import write_file
from walle.cloud import CloudConfig, CloudHome, GatewayAddress, GatewayNode
from walle.cloud.http.malloc import keep_what_is_loaded, map_tls_buffers
from walle.cloud.inference.process_engine import ProcessEngine
from walle.cloud.inference.replica_address import Connection, PeerKey, connect
from walle.cloud.inference.version_source import HomeSource
from walle.cloud.nodes.inference import InferenceNode
from walle.errors import WalleError

_LOG = logging.getLogger(__name__)


class GatewayActor(ServiceActor):
    early = frozenset({"publish"})

    def __init__(self, config: CloudConfig, place: Place) -> None:
        map_tls_buffers()
        super().__init__(config, place)
        self._address: GatewayAddress
        self._moving: asyncio.Task[None] | None = None
        self._ports = Path(place.sockets) / "ports.json"

    async def _open(self) -> GatewayAddress:
        async def reach(number: int) -> Connection:
            key = PeerKey()
            replica = await find_soon(f"inference-{number}", self._place.namespace)
            return await connect(await ask(replica, "listen", key.certificate), key)

        is_successor = self.is_successor()
        config = await asyncio.to_thread(self._same_ports) if is_successor else self._config
        releases = self._peer("releases")
        node = GatewayNode(config)
        self._set_node(node)
        if is_successor:  # devices must not be answered from an empty table
            await releases.publish_again()
        engine = ProcessEngine(config.inference_processes, reach, HomeSource(CloudHome(config.folder)))
        inference = InferenceNode(config, engine)
        self._undo.push_async_callback(inference.close)
        await engine.start()
        await inference.start(releases)
        self._undo.push_async_callback(node.close)
        names = ["gateway", "releases", "monitor", "identities"]
        has_keeper = KEEPER in await asyncio.to_thread(actor_names, self._place.namespace)
        names += [f"inference-{number}" for number in range(config.inference_processes)]
        address = await node.start(
            releases,
            self._peer("monitor"),
            inference,
            self._peer("identities"),
            processes=ClusterProcesses(names, self._place.namespace, Path(self._place.sockets)),
            keeper=self._peer(KEEPER) if has_keeper else None,
        )
        self._address = address
        http = "gateway_port" if config.gateways else "http_port"
        ports = {http: int(address.inner_url.rpartition(":")[2]), "tunnel_port": address.tunnel_port}
        await asyncio.to_thread(write_file, self._ports, json.dumps(ports))
        keep_what_is_loaded()
        return address

    @returns_errors
    async def address(self) -> tuple[GatewayAddress, str]:
        """Return where the gateway serves, once it does, and the IP address of its node."""
        await self._until(self._is_open, "address")
        return self._address, str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    @returns_errors
    async def move_keeper(self, avoid: list[str]) -> None:
        """Move the keeper of nodes, which cannot move itself, from where it is to none of the nodes to avoid."""
        from walle.actors.layout import spawn_again  # the layout has this class

        async def move() -> None:
            try:
                await end(await find_soon(KEEPER, self._place.namespace))
                await spawn_again(self._config, self._place, KEEPER, avoid=avoid)
            except WalleError as error:  # the keeper gives the order again, if it is still there
                _LOG.warning("the keeper of nodes was not moved: %s", error)

        self._moving = asyncio.create_task(move())

    def _same_ports(self) -> CloudConfig:
        """Return the configuration with the ports that the process before this one had, where the system chose them."""
        try:
            ports = json.loads(self._ports.read_text())
        except FileNotFoundError:  # the gateway never served
            return self._config
        return dataclasses.replace(self._config, **ports)
