"""Replicas of fallback inference in a process of their own, where the bigger models' memory is."""

import asyncio
from pathlib import Path

import ray

from walle.actors.node import NodeActor, Raised, returns_errors
from walle.cloud import CloudConfig
from walle.cloud.inference.node_cache import default_folder
from walle.cloud.inference.replica_address import TlsAddress, UnixAddress
from walle.cloud.inference.replica_server import ReplicaServer


class InferenceActor(NodeActor):
    """One process with replicas; when it or its node ends, Ray starts another in its place, where there is room.

    On `scheduler_node`, a node of Ray, it listens at `socket` and reads the cloud's folder. On another one it is
    reached by TLS, and fetches what it needs into that node's cache for the cloud named `cloud`.
    """

    def __init__(self, config: CloudConfig, number: int, socket: Path, scheduler_node: str, cloud: str) -> None:
        super().__init__(config)
        is_near = ray.get_runtime_context().get_node_id() == scheduler_node
        self._socket = socket if is_near else None
        self._node = self._server = ReplicaServer(config, number, cache=None if is_near else default_folder(cloud))
        self._starting = asyncio.Lock()
        self._address: UnixAddress | None = None
        self._is_started = False

    @returns_errors
    async def start(self) -> None:
        """Start it, unless it has been.

        Raises:
            ConfigError, IngestError, OSError: as `ReplicaServer.start`.
        """
        async with self._starting:
            if not self._is_started:
                self._undo.push_async_callback(self._server.close)
                await self._server.start()
                if self._socket is not None:
                    self._address = await self._server.listen(self._socket)
                self._is_started = True

    @returns_errors
    async def listen(self, certificate: str) -> UnixAddress | TlsAddress:
        """Return where the scheduler with this certificate (PEM) finds this process, once it listens there."""
        if isinstance(failed := await self.start(), Raised):
            raise failed.error()
        if self._address is not None:
            return self._address
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        return await self._server.listen_tls(host, certificate)
