"""Requests of one version that wait, the earliest deadline first."""

import asyncio
import bisect
import dataclasses
import operator

from walle.cloud.inference.request import MAX_VALUES, PhaseRequest

MAX_BATCH_BYTES = 32 << 20  # of the payloads of one batch
MAX_ATTEMPTS = 3  # of a request whose replica is lost
_ORDER = operator.attrgetter("order")


@dataclasses.dataclass(slots=True, eq=False)
class Waiting:
    """A request with the future of its answer. `order` is greater for what is to run sooner."""

    request: PhaseRequest
    order: tuple[float, int]
    arrived_s: float
    answer: asyncio.Future[bytes]
    attempts: int = 0


class RequestQueue:
    """Waiting requests: `add`, `take` and `remove` cost the logarithm of their number, and a move of memory."""

    def __init__(self) -> None:
        self._sorted: list[Waiting] = []  # by `order`, the last one runs first
        self._arrived: dict[int, Waiting] = {}  # by number, the first one has waited longest

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def first(self) -> Waiting:
        """The request with the earliest deadline; of several, that which came first."""
        return self._sorted[-1]

    @property
    def oldest(self) -> Waiting:
        return next(iter(self._arrived.values()))

    def add(self, waiting: Waiting) -> None:
        bisect.insort(self._sorted, waiting, key=_ORDER)
        self._arrived[waiting.order[1]] = waiting

    def count_before(self, due_s: float) -> int:
        """Return how many requests run before one with this deadline that comes now."""
        return len(self._sorted) - bisect.bisect_left(self._sorted, (-due_s, float("-inf")), key=_ORDER)

    def remove(self, waiting: Waiting) -> bool:
        """Remove a request; return whether it was here."""
        if self._arrived.pop(waiting.order[1], None) is None:
            return False
        index = bisect.bisect_left(self._sorted, waiting.order, key=_ORDER)
        del self._sorted[index]
        return True

    def take(self, max_batch: int) -> list[Waiting]:
        """Remove and return the next batch: the first request, and others of its phase as they come.

        Only `execute` has batches. A batch has MAX_BATCH_BYTES and MAX_VALUES at most, unless one alone has more.
        """
        batch = [self._sorted.pop()]
        del self._arrived[batch[0].order[1]]
        first = batch[0].request
        size_bytes, values = len(first.payload), first.values
        while self._sorted and len(batch) < max_batch and first.phase == "execute":
            other = self._sorted[-1].request
            size_bytes, values = size_bytes + len(other.payload), values + other.values
            if other.phase != first.phase or size_bytes > MAX_BATCH_BYTES or values > MAX_VALUES:
                break
            del self._arrived[self._sorted[-1].order[1]]
            batch.append(self._sorted.pop())
        return batch
