"""Accepted connections that have not begun: they wait for turns of their addresses.

The kernel's queue of those who connect is first in, first out: an honest device waits there behind an attacker's
thousands. So the queue is emptied as fast as can be, and all that comes after, which costs several times as much, is
done in turns that are dealt to addresses in a circle.
"""

import socket
from collections import Counter, deque
from collections.abc import Callable

from walle.cloud.http.fair_queue import Turns

type Begin = Callable[[socket.socket, str], None]
"""`begin(accepted, host)` serves a connection."""


class Newcomers:
    """The newcomers of all addresses, at most `most`: then the oldest of the address with the most of them is closed.

    Those are counted in `refused`.
    """

    def __init__(self, turns: Turns, most: int, begin: Begin, refused: Counter[str]) -> None:
        self._turns = turns
        self._most = most
        self._begin = begin
        self._refused = refused
        self._queues: dict[str, deque[tuple[socket.socket, str]]] = {}  # by address
        self._count = 0

    @property
    def count(self) -> int:
        """The number of connections that have not begun."""
        return self._count

    def add(self, accepted: socket.socket, host: str, address: str) -> None:
        """Begin a connection soon, and never within this call."""
        queue = self._queues.get(address)
        if queue is None:
            queue = self._queues[address] = deque()
            self._turns.take(address, lambda: self._take_turn(address))  # one for each address that has any
        queue.append((accepted, host))
        self._count += 1
        if self._count > self._most:
            self._refuse_one()

    def close(self) -> None:
        """Close all of them."""
        for queue in self._queues.values():
            while queue:
                queue.popleft()[0].close()
        self._count = 0

    def _take_turn(self, address: str) -> None:
        queue = self._queues[address]
        found = queue.popleft() if queue else None  # the newcomers may have been closed
        if queue:
            self._turns.take(address, lambda: self._take_turn(address))
        else:
            del self._queues[address]
        if found is not None:
            self._count -= 1
            self._begin(*found)

    def _refuse_one(self) -> None:
        self._refused["newcomer"] += 1
        self._count -= 1
        max(self._queues.values(), key=len).popleft()[0].close()
