"""Connections of a server, and which of them makes room for a new one.

When all are in use, a new one takes the place of one whose client keeps it waiting: the oldest without a finished
request, of the address that has the most of them; then an idle one; then one whose client does not read; then one that
sends the rest of a later request slowly. Whoever sends whole requests is served. Strangers go first: addresses from
which nobody has shown a valid token or session within the hour.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator

from walle.cloud.http.connection import HttpConnection, Phase

_KNOWN_S = 3600.0  # time for which an address is known after a valid token or session
_MOST_KNOWN = 1 << 16


class ConnectionTable:
    """The connections, in the order in which they began or became idle. Times are those of `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connections: dict[HttpConnection, None] = {}
        self._unfinished: dict[str, dict[HttpConnection, None]] = {}  # by address; the oldest first
        self._known: OrderedDict[str, float] = OrderedDict()  # end of the time for which an address is known

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[HttpConnection]:
        """Iterate over the connections of now: they may end meanwhile."""
        return iter(list(self._connections))

    def __contains__(self, connection: HttpConnection) -> bool:
        return connection in self._connections

    def add(self, connection: HttpConnection) -> None:
        """Take note of a connection that has sent nothing yet."""
        self._connections[connection] = None
        self._unfinished.setdefault(connection.address, {})[connection] = None

    def unfinished(self, address: str) -> int:
        """Return how many connections of an address are without a finished request."""
        return len(self._unfinished.get(address, ()))

    def end_unfinished_of(self, address: str, kind: str) -> bool:
        """End the oldest of an address that waits for its client, and not for this server; return whether one does."""
        found = next((one for one in self._unfinished.get(address, ()) if not one.waits), None)
        if found is not None:
            found.close(kind)
        return found is not None

    def make_room(self, *, is_known: bool = True) -> bool:
        """End the connection that keeps the server waiting most; return whether there is one.

        A client that is not known does not take the place of one that is, but while that is idle or does not read.
        """
        if self._end_unfinished(are_known=False) or self._end_waiting(are_known=False):
            return True
        if self._end_slow(are_known=False) or self._end_waiting(are_known=True):
            return True
        return is_known and (self._end_unfinished(are_known=True) or self._end_slow(are_known=True))

    def is_known(self, address: str) -> bool:
        """Return whether somebody at an address has shown a valid token or session within the hour."""
        return self._known.get(address, 0.0) > self._loop.time()

    def remember(self, address: str) -> None:
        """Take note that somebody at an address has shown a valid token or session."""
        self._known.pop(address, None)
        if len(self._known) >= _MOST_KNOWN:
            self._known.popitem(last=False)  # a `dict` would scan all that went before
        self._known[address] = self._loop.time() + _KNOWN_S

    def _end_unfinished(self, *, are_known: bool) -> bool:
        """End the oldest without a finished request, of the address with the most of them."""
        addresses = [one for one in self._unfinished if self.is_known(one) is are_known]
        most = max(addresses, key=lambda one: len(self._unfinished[one]), default=None)
        return most is not None and self.end_unfinished_of(most, "evicted")

    def _end_waiting(self, *, are_known: bool) -> bool:
        """End one that is idle, else one whose client does not read."""
        own = [one for one in self._connections if self.is_known(one.address) is are_known]
        idle = next((one for one in own if one.phase is Phase.IDLE), None)
        found = idle or next((one for one in own if one.stalled_s is not None), None)
        if found is not None:
            found.close("evicted")
        return found is not None

    def _end_slow(self, *, are_known: bool) -> bool:
        """End the one that keeps a later request waiting for longest, of the address with the most of them."""
        now_s = self._loop.time()
        slow = [one for one in self._connections if one.is_slow(now_s) and self.is_known(one.address) is are_known]
        count = Counter(one.address for one in slow)
        found = max(slow, key=lambda one: (count[one.address], now_s - one.began_s), default=None)
        if found is not None:
            found.close("evicted")
        return found is not None

    def note(self, connection: HttpConnection) -> None:
        """Take note of a connection's new phase: whoever has sent a whole request is not waited for."""
        waits = connection.phase in (Phase.HEADER, Phase.BODY, Phase.DISCARD) and not connection.has_finished
        of_address = self._unfinished.get(connection.address)
        if waits:
            self._unfinished.setdefault(connection.address, {}).setdefault(connection)
        elif of_address is not None:
            of_address.pop(connection, None)
            if not of_address:
                del self._unfinished[connection.address]
        if connection.phase is Phase.IDLE and connection in self._connections:
            del self._connections[connection]  # moved to the end: the one that is idle for longest is the first
            self._connections[connection] = None

    def forget(self, connection: HttpConnection) -> None:
        """Take note of a connection's end."""
        self._connections.pop(connection, None)
        of_address = self._unfinished.get(connection.address)
        if of_address is not None:
            of_address.pop(connection, None)
            if not of_address:
                del self._unfinished[connection.address]
