"""Replicas of fallback inference in a separate process, where the bigger models' memory is."""

import asyncio
import contextlib
from pathlib import Path

import ray

from walle.actors.node import NodeActor, returns_errors
from walle.actors.process import end_with_cloud
from walle.actors.processes import note_process
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
        self._number = number
        self._socket = socket if ray.get_runtime_context().get_node_id() == scheduler_node else None
        if self._socket is not None:
            note_process(socket.parent, f"inference-{number}")
        if ray.get_runtime_context().namespace.startswith("walle-"):  # the process may outlive the one that started it
            self._watching = asyncio.get_running_loop().create_task(end_with_cloud(ray.get_runtime_context().namespace))
        self._cloud = cloud
        self._server: ReplicaServer | None = None
        self._starting = asyncio.Lock()
        self._address: UnixAddress | None = None

    @returns_errors
    async def start(self) -> None:
        """Start it, unless it has been.

        Raises:
            ConfigError, IngestError, OSError: as `ReplicaServer.start` and `default_folder`.
        """
        await self._started()

    @returns_errors
    async def listen(self, certificate: str) -> UnixAddress | TlsAddress:
        """Return where the scheduler with this certificate (PEM) finds this process, once it listens there."""
        server = await self._started()
        if self._address is not None:
            return self._address
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        return await server.listen_tls(host, certificate)

    async def _started(self) -> ReplicaServer:
        async with self._starting:  # the scheduler and who started this process may ask at once
            if self._server is None:
                cache = None if self._socket is not None else default_folder(self._cloud)
                server = ReplicaServer(self._config, self._number, cache=cache)
                async with contextlib.AsyncExitStack() as undo:
                    undo.push_async_callback(server.close)
                    await server.start()
                    if self._socket is not None:
                        self._address = await server.listen(self._socket)
                    self._undo.push_async_exit(undo.pop_all())
                self._server = server
            return self._server
