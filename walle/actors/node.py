"""What every cloud actor is, a node in a process of its own; and the handle to it, which looks like the node."""

import contextlib
from typing import Any

import ray
from ray.actor import ActorHandle

from walle.cloud import CloudConfig


class NodeActor:
    """Holds one node between `open` and `close`, and passes calls on to it. Subclasses say which node."""

    def __init__(self, config: CloudConfig) -> None:
        self._config = config
        self._undo = contextlib.AsyncExitStack()
        self._node: Any = None

    async def call(self, method: str, *args: Any) -> Any:
        """Return what `method` of the node gives."""
        return await getattr(self._node, method)(*args)

    async def close(self) -> None:
        await self._undo.aclose()


class Remote:
    """A node in another process: any method is awaited there, and its errors are raised here."""

    def __init__(self, actor: ActorHandle[Any]) -> None:
        self._actor = actor

    def __getattr__(self, method: str) -> Any:
        async def call(*args: Any) -> Any:
            try:
                return await self._actor.call.remote(method, *args)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None

        return call
