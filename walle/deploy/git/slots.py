"""Places for costly requests: a number in all, and a number for each caller.

When all are taken, a caller gets the place of one that has more of them and keeps its request waiting for it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from time import monotonic

from walle.errors import DeployError

SLOW_S = 5.0  # wait for the client after which another may have the place


class PlacesTakenError(DeployError):
    """All places are taken. `own`: by the caller itself."""

    retry_after_s = 5

    def __init__(self, caller: str, count: int, *, own: bool) -> None:
        super().__init__(caller, count, own)
        self.caller = caller
        self.count = count
        self.own = own
        self.status = 429 if own else 503

    def __str__(self) -> str:
        if self.own:
            return f"{self.caller} has {self.count} requests of this kind under way; try again when one has ended"
        return f"{self.count} requests of this kind are under way; try again in a few seconds"


class PlaceLostError(DeployError):
    """The place was given to another caller, since this one's client was slow."""

    def __init__(self) -> None:
        super().__init__()

    def __str__(self) -> str:
        return "the gateway was full, and this request waited for its client; try again"


class Place:
    """A place that a request has."""

    def __init__(self, caller: str, now: Callable[[], float]) -> None:
        self.caller = caller
        self.is_lost = False
        self._now = now
        self._scope: asyncio.Timeout | None = None
        self._since_s = 0.0

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Wait for the client within the block. Raises PlaceLostError where another gets the place meanwhile."""
        try:
            async with asyncio.timeout(None) as self._scope:
                self._since_s = self._now()
                yield
        except TimeoutError:
            if self.is_lost:
                raise PlaceLostError from None
            raise
        finally:
            self._scope = None

    @property
    def waited_s(self) -> float:
        """For how long it has waited for its client; negative while it works."""
        return self._now() - self._since_s if self._scope is not None else -1.0

    def lose(self) -> None:
        """Give the place up, while it waits."""
        assert self._scope is not None
        self.is_lost = True
        self._scope.reschedule(asyncio.get_running_loop().time())


class Places:
    """The places, of one event loop."""

    def __init__(self, count: int, count_each: int, *, now: Callable[[], float] = monotonic) -> None:
        self._count = count
        self._count_each = count_each
        self._now = now
        self._taken = Counter[str]()
        self._places: dict[Place, None] = {}

    @contextlib.contextmanager
    def taken(self, caller: str) -> Iterator[Place]:
        """Take a place within `with`. Raises PlacesTakenError at once where there is none."""
        own = self._taken[caller] >= self._count_each
        if own or (len(self._places) >= self._count and not self._make_room(caller)):
            raise PlacesTakenError(caller, self._count_each if own else self._count, own=own)
        place = Place(caller, self._now)
        self._places[place] = None
        self._taken[caller] += 1
        try:
            yield place
        finally:
            self._leave(place)

    def _make_room(self, caller: str) -> bool:
        """Take the place that has waited longest for its client from a caller with more places; False if none has."""
        slow = [
            one for one in self._places if one.waited_s >= SLOW_S and self._taken[one.caller] > self._taken[caller] + 1
        ]
        if not slow:
            return False
        slowest = max(slow, key=lambda one: (self._taken[one.caller], one.waited_s))
        slowest.lose()
        self._leave(slowest)
        return True

    def _leave(self, place: Place) -> None:
        if place in self._places:  # else it was given to another
            del self._places[place]
            self._taken[place.caller] -= 1
            if not self._taken[place.caller]:
                del self._taken[place.caller]
