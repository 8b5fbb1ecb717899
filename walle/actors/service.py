"""Base class of the cloud's own actors: Ray starts one again that ends, and it continues from the cloud's folder."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import ray

from walle.actors.node import WAIT_S, NodeActor, NodeLostError, Remote, returns_errors, touch
from walle.actors.process import end_with_cloud, find
from walle.actors.processes import note_process
from walle.base.clock import SystemClock
from walle.cloud import CloudConfig
from walle.cloud.folder.shared_folder import check_cloud_id
from walle.errors import ConfigError
from walle.store.background import in_background
from walle.store.lease import LeaseLostError

_LOG = logging.getLogger(__name__)

_RETRY_S = 0.2
_MAX_RETRY_S = 5.0
_TOUCH_S = 10.0  # interval between two calls to peers that may have moved and were not called since
_PARENT_CHARS = 20  # a socket's path has at most 107


@dataclasses.dataclass(frozen=True)
class Place:
    """Namespace of Ray in which a cloud's actors find each other, and their folder of sockets and notes.

    With a `cloud_id` that folder is in the cloud's, which every node sees: no sockets are in it, and an actor may run
    on any node where the folder has this id. `is_successor`: another process had this actor before, on another node.
    `is_local`: all of them are on this machine's own Ray, with which that folder ends.
    """

    namespace: str
    sockets: str
    cloud_id: str = ""
    is_successor: bool = False
    is_local: bool = False

    def peer(self, name: str) -> Remote:
        """Return the node of the actor with this name. Raises NodeLostError."""
        found = functools.partial(find, name, self.namespace)
        return Remote(found(), found)

    @property
    def node_folder(self) -> Path:
        """Folder on this node alone, for this user's sockets; its path is short. Made where it is missing."""
        if self.is_local:
            folder = Path(self.sockets) / "node"
            folder.mkdir(mode=0o700, exist_ok=True)
            return folder
        parent = tempfile.gettempdir()
        parent = parent if len(parent) < _PARENT_CHARS else "/tmp"  # noqa: S108
        folder = Path(parent) / f"{self.namespace}-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid() or folder.is_symlink():
            raise ConfigError(f"{folder} belongs to another user; remove it")
        return folder

    def leave_node(self) -> None:
        """Remove that folder, unless others have something there."""
        with contextlib.suppress(OSError):
            self.node_folder.rmdir()

    def remove_notes(self) -> None:
        """Remove the folder of sockets and notes, when the cloud has ended."""
        shutil.rmtree(self.sockets, ignore_errors=True)

    @property
    def lost_file(self) -> Path:
        """File that is there once another cloud has a lease of this one."""
        return Path(self.sockets) / "lost"


class ServiceActor(NodeActor):
    """An actor whose node is opened once by `start`, and by itself in each process that Ray starts after the first.

    Calls wait until the node is open, for WAIT_S; those in `early` are passed on as soon as there is a node, because
    opening asks for them.
    """

    early: frozenset[str] = frozenset()

    def __init__(self, config: CloudConfig, place: Place) -> None:
        super().__init__(config)
        check_cloud_id(config.folder, place.cloud_id)
        self._place = place
        self._has_node = asyncio.Event()
        self._is_open = asyncio.Event()
        self._opening: asyncio.Task[Any] | None = None
        self._peers: list[Remote] = []
        if ray.is_initialized():
            note_process(Path(place.sockets), ray.get_runtime_context().get_actor_name() or "")
            loop = asyncio.get_running_loop()
            self._watching = loop.create_task(end_with_cloud(place.namespace))
            self._touching = loop.create_task(self._touch_peers())
        if self.is_successor():
            self._opening = asyncio.get_running_loop().create_task(self._open_again())

    def is_successor(self) -> bool:
        """Return whether another process had this actor before."""
        if self._place.is_successor:
            return True
        if not ray.is_initialized():
            return False
        with warnings.catch_warnings(action="ignore"):  # Ray warns of its own use of what it deprecates
            return bool(ray.get_runtime_context().was_current_actor_reconstructed)

    @returns_errors
    async def start(self) -> Any:
        """Open the node, and return what `_open` returns; its errors are the caller's."""
        result = await self._open()
        self._is_open.set()
        return result

    async def _open(self) -> Any:
        """Make and start the node; call `_set_node` before anything that asks for it. What it holds is in `_undo`."""
        raise NotImplementedError

    def _peer(self, name: str) -> Remote:
        """Return the node of the actor with this name, which is called now and then. Raises NodeLostError."""
        peer = self._place.peer(name)
        self._peers.append(peer)
        return peer

    async def _touch_peers(self) -> None:
        while True:
            await self._is_open.wait()
            await touch(self._peers)
            await asyncio.sleep(_TOUCH_S)

    def _set_node(self, node: Any) -> None:
        self._node = node
        self._has_node.set()

    async def _end_when_lost(self, lost: asyncio.Event) -> None:
        """End this process when its node has lost its lease: its successor waits for the lease, and begins again."""

        async def wait() -> None:
            await lost.wait()
            _LOG.error("%s has lost its lease, and ends", type(self).__name__)
            os._exit(1)

        await self._undo.enter_async_context(in_background("lease", wait, SystemClock()))

    async def _open_again(self) -> None:
        retry_s = _RETRY_S
        while True:
            try:
                await self._open()
            except Exception as error:  # noqa: BLE001 - nobody else can tell; what is missing may come back
                if isinstance(error, LeaseLostError):
                    await asyncio.to_thread(self._place.lost_file.touch)
                _LOG.exception("%s cannot continue yet; trying again in %.1f s", type(self).__name__, retry_s)
                self._has_node.clear()
                self._peers.clear()
                try:
                    await self._undo.aclose()
                except Exception:  # noqa: BLE001 - it is opened again all the same
                    _LOG.exception("what %s had opened did not close", type(self).__name__)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)
            else:
                self._is_open.set()
                return

    @returns_errors
    async def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Return what `method` of the node gives, once it is open. Raises NodeLostError if it is not in WAIT_S."""
        await self._until(self._has_node if method in self.early else self._is_open, method)
        return await getattr(self._node, method)(*args, **named)

    @returns_errors
    async def ready(self) -> None:
        """Return once the node is open. Raises NodeLostError if it is not in WAIT_S."""
        await self._until(self._is_open, "ready")

    async def _until(self, event: asyncio.Event, method: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await event.wait()
        except TimeoutError:
            raise NodeLostError(method, "it has been started again, and cannot continue yet") from None

    @returns_errors
    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._undo.aclose()
        await asyncio.to_thread(self._place.leave_node)
