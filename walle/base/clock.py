"""Clocks as arguments: the interface, the system's clock, and a manual one for tests."""

import asyncio
import heapq
import time as _time
from typing import Protocol

JUMP_MS = 3_600_000  # Times of a stream that are farther apart show that the device's clock was set.


class Clock(Protocol):
    """The interface to time for the rest of walle."""

    def time(self) -> float:
        """Return seconds since the epoch."""

    def monotonic(self) -> float:
        """Return seconds that never decrease."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; cancellation ends the sleep at once."""


class SystemClock:
    """The machine's clock."""

    time = staticmethod(_time.time)  # no Python call between: each put and each event asks for it
    monotonic = staticmethod(_time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that only `advance` moves; it wakes sleepers in the order of their due times."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def time(self) -> float:
        return self._now_s

    def monotonic(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._count += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + seconds, self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Advance time; every sleeper that becomes due runs, at its own due time, before this returns."""
        end_s = self._now_s + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            due_s, _, future = heapq.heappop(self._sleepers)
            self._now_s = due_s
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._now_s = end_s

    async def _settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
