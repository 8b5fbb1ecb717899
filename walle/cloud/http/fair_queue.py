"""Turns of an event loop, dealt to addresses in a circle.

The work of a server with one loop is as fair as its queue. Whoever sends the most would get the most: here each
address has its own queue, and each gets a turn before one gets a second. Work that waits is not dropped, so that
a fleet behind one address gets all of the time that nobody else asks for.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

_BUDGET_S = 0.002  # time for turns in one pass of the event loop, whose other work comes between
_PASS_S = 0.005  # longer passes have fewer turns
_MOST = 16  # turns in one pass


class Turns:
    """The queues, of one event loop. A caller has at most one turn waiting, so that they are bounded by connections.

    In one pass there are `most` turns. With `rest`, `rest` times as long as they took passes before the next ones.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, most: int = _MOST, rest: float = 0.0) -> None:
        self._loop = loop
        self._most = most
        self._rest = rest
        self._queues: dict[str, deque[Callable[[], None]]] = {}
        self._is_dealing = False
        self._count = most  # turns in one pass
        self._dealt_s = 0.0

    def take(self, address: str, work: Callable[[], None]) -> None:
        """Call `work` in its turn: soon, and never within this call."""
        queue = self._queues.get(address)
        if queue is None:
            queue = self._queues[address] = deque()
        queue.append(work)
        if not self._is_dealing:
            self._is_dealing = True
            self._dealt_s = perf_counter()
            self._loop.call_soon(self._deal)

    async def wait(self, address: str) -> None:
        """Return in a turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self.take(address, lambda: None if turn.done() else turn.set_result(None))
        await turn

    def _deal(self) -> None:
        began_s = perf_counter()
        # What a turn starts takes its time later in the pass: a request may take 100 us, and another 20 ms.
        is_slow = began_s - self._dealt_s > _PASS_S
        self._count = max(1, self._count // 2) if is_slow else min(self._most, self._count + 1)
        self._dealt_s = began_s
        count = self._count
        try:
            while self._queues and count:
                count -= 1
                address, queue = next(iter(self._queues.items()))
                work = queue.popleft()
                del self._queues[address]
                if queue:
                    self._queues[address] = queue  # last in the order of turns
                work()
                if perf_counter() >= began_s + _BUDGET_S:
                    break
        finally:
            self._is_dealing = bool(self._queues) or self._rest > 0
            if self._rest:
                self._loop.call_soon(self._pause, perf_counter())  # work that the turn woke comes first
            elif self._is_dealing:
                self._loop.call_soon(self._deal)

    def _pause(self, dealt_s: float) -> None:
        self._loop.call_later(self._rest * (perf_counter() - dealt_s), self._end_pause)

    def _end_pause(self) -> None:
        self._is_dealing = bool(self._queues)
        if self._is_dealing:
            self._deal()
