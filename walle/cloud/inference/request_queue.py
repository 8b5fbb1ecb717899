"""Requests of one version that wait, the earliest deadline first, those of devices that ask for much last."""

import asyncio
import bisect
import collections
import dataclasses
import heapq
import math
import operator

from walle.cloud.inference.request import MAX_VALUES, PhaseRequest

MAX_BATCH_BYTES = 32 << 20  # payloads of one batch
MAX_ATTEMPTS = 3  # attempts at a request whose replica is lost
_ORDER = operator.attrgetter("order")
_MAX_LEFT = 64  # deadlines of requests that have left, beside as many as there are requests


@dataclasses.dataclass(slots=True, eq=False)
class Waiting:
    """A request with the future of its answer.

    `rank` is 0 for a device's first requests, and grows with those that it has asked before and that have no answer
    yet; a lower rank runs first, then the earlier deadline, then the lower number. `order` is greatest for what runs
    first.
    """

    request: PhaseRequest
    number: int
    rank: int
    due_s: float
    arrived_s: float
    answer: asyncio.Future[bytes]
    attempts: int = 0
    order: tuple[int, float, int] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.order = -self.rank, -self.due_s, -self.number


class RequestQueue:
    """Waiting requests: `add`, `take` and `remove` cost the logarithm of their number, and a move of memory."""

    def __init__(self) -> None:
        self._sorted: list[Waiting] = []  # sorted by `order`, the last one runs first
        self._due: list[tuple[float, int]] = []  # heap of deadlines and numbers; those that left stay for a while
        # By number, the first one has waited longest.
        self._arrived: collections.OrderedDict[int, Waiting] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def first(self) -> Waiting:
        """The request that runs next: of the lowest rank, that with the earliest deadline, which came first."""
        return self._sorted[-1]

    @property
    def last(self) -> Waiting:
        """The request that runs last."""
        return self._sorted[0]

    @property
    def earliest(self) -> Waiting:
        """The request with the earliest deadline, of whatever rank."""
        while (number := self._due[0][1]) not in self._arrived:
            heapq.heappop(self._due)
        return self._arrived[number]

    @property
    def oldest(self) -> Waiting:
        return next(iter(self._arrived.values()))

    def add(self, waiting: Waiting) -> None:
        bisect.insort(self._sorted, waiting, key=_ORDER)
        self._arrived[waiting.number] = waiting
        if len(self._due) >= 2 * len(self._arrived) + _MAX_LEFT:
            self._due = [(one.due_s, one.number) for one in self._sorted]
            heapq.heapify(self._due)
        else:
            heapq.heappush(self._due, (waiting.due_s, waiting.number))

    def count_before(self, due_s: float, rank: int = 0) -> int:
        """Return how many requests run before one with this deadline and rank that comes now."""
        return len(self._sorted) - bisect.bisect_left(self._sorted, (-rank, -due_s, -math.inf), key=_ORDER)

    def remove(self, waiting: Waiting) -> bool:
        """Remove a request; return whether it was here."""
        if waiting.number not in self._arrived:
            return False
        del self._sorted[bisect.bisect_left(self._sorted, waiting.order, key=_ORDER)]
        del self._arrived[waiting.number]
        return True

    def take(self, max_batch: int) -> list[Waiting]:
        """Remove and return the next batch: the first request, and others of its phase as they come.

        Only `execute` has batches. A batch has MAX_BATCH_BYTES and MAX_VALUES at most, unless one alone has more.
        """
        batch = [self._sorted.pop()]
        del self._arrived[batch[0].number]
        first = batch[0].request
        size_bytes, values = len(first.payload), first.values
        while self._sorted and len(batch) < max_batch and first.phase == "execute":
            other = self._sorted[-1].request
            size_bytes, values = size_bytes + len(other.payload), values + other.values
            if other.phase != first.phase or size_bytes > MAX_BATCH_BYTES or values > MAX_VALUES:
                break
            batch.append(self._sorted.pop())
            del self._arrived[batch[-1].number]
        return batch
