"""Background work of a device: asyncio tasks that are logged when they fail and cancelled together."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_LOG = logging.getLogger(__name__)


class BackgroundWork:
    """The running asyncio tasks of one device, between the first `spawn` and `aclose`."""

    def __init__(self, device_id: str) -> None:
        self._device_id = device_id
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any] | None":
        """Run `work` in the background; an error ends it and is logged. After `aclose` it is not begun: None."""
        if self._is_closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work, name=f"{self._device_id} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    async def aclose(self) -> None:
        """Cancel all work and wait for its end."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s ended: %s", task.get_name(), error)
