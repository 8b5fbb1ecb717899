"""Base class of the cloud's own actors: Ray starts one again that ends, and it continues from the cloud's folder."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import ray

from walle.actors.node import WAIT_S, NodeActor, NodeLostError, Remote, returns_errors
from walle.actors.process import find
from walle.actors.processes import note_process
from walle.clock import SystemClock
from walle.cloud import CloudConfig
from walle.cloud.background import in_background
from walle.deploy.cloud.lease import LeaseLostError

_LOG = logging.getLogger(__name__)

_RETRY_S = 0.2
_MAX_RETRY_S = 5.0


@dataclasses.dataclass(frozen=True)
class Place:
    """Namespace of Ray in which a cloud's actors find each other, and their folder of sockets."""

    namespace: str
    sockets: str

    def peer(self, name: str) -> Remote:
        """Return the node of the actor with this name. Raises NodeLostError."""
        return Remote(find(name, self.namespace))

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
        self._place = place
        self._has_node = asyncio.Event()
        self._is_open = asyncio.Event()
        self._opening: asyncio.Task[Any] | None = None
        if ray.is_initialized():
            note_process(Path(place.sockets), ray.get_runtime_context().get_actor_name() or "")
        if self.is_successor():
            self._opening = asyncio.get_running_loop().create_task(self._open_again())

    @staticmethod
    def is_successor() -> bool:
        """Return whether another process had this actor before."""
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
                with contextlib.suppress(Exception):
                    await self._undo.aclose()
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)
            else:
                self._is_open.set()
                return

    @returns_errors
    async def call(self, method: str, *args: Any) -> Any:
        """Return what `method` of the node gives, once it is open. Raises NodeLostError if it is not in WAIT_S."""
        event = self._has_node if method in self.early else self._is_open
        try:
            async with asyncio.timeout(WAIT_S):
                await event.wait()
        except TimeoutError:
            raise NodeLostError(method, "it has been started again, and cannot continue yet") from None
        return await getattr(self._node, method)(*args)

    @returns_errors
    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._undo.aclose()
