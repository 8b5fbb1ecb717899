"""Slots that are taken by priority: requests on a device and in the cloud share it (§5.2)."""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator


class PrioritySlots:
    """A number of slots. Those that wait get one by priority, the highest first, then in order of arrival."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._order = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def slot(self, priority: int = 0) -> AsyncIterator[None]:
        """Hold a slot in the block; wait for one before it."""
        if self._free > 0:
            self._free -= 1
        else:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._order += 1
            entry = (-priority, self._order, granted)
            heapq.heappush(self._waiting, entry)
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self._release()
                elif entry in self._waiting:  # `_release` has removed it if it met it first
                    self._waiting.remove(entry)
                    heapq.heapify(self._waiting)
                raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        """Hand the slot to the first that waits, or free it."""
        while self._waiting:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1
