"""Selection of the uploads that retention deletes, from their order, sizes and times of receipt.

Uploads are in the order of their receipt. One whose time of receipt is in the future was received while the clock was
ahead: it is as old as a later one whose time does not. So a clock that was set back does not stop the deletion by age.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

STEP_BYTES = 16 << 20  # a database follows the pages of each payload that it deletes, while receipt waits


class StoredSize(NamedTuple):
    """An upload's position, the bytes of its payload, and its time of receipt."""

    position: int
    payload_bytes: int
    received_ms: int


def split_expired(
    rows: Iterable[StoredSize], *, before_ms: int | None, now_ms: int, over_bytes: int
) -> tuple[list[StoredSize], list[StoredSize]]:
    """Return the uploads to delete, and those of unknown age after them, whose times of receipt are after `now_ms`."""
    expired, ahead, size_bytes = list[StoredSize](), list[StoredSize](), 0
    for row in rows:
        if size_bytes < over_bytes:
            expired.append(row)
            size_bytes += row.payload_bytes
        elif before_ms is None:
            break
        elif row.received_ms > now_ms:
            ahead.append(row)
        elif row.received_ms < before_ms:
            expired += [*ahead, row]
            ahead = []
        else:
            break
    return expired, ahead


def first_step(rows: Sequence[StoredSize]) -> Sequence[StoredSize]:
    """Return the uploads that one transaction deletes: one at least, and until they have STEP_BYTES."""
    size_bytes = 0
    for count, row in enumerate(rows, start=1):
        size_bytes += row.payload_bytes
        if size_bytes >= STEP_BYTES:
            return rows[:count]
    return rows


class AgeSearch:
    """A search for the first upload after `position` whose time of receipt is not after `now_ms`.

    The caller looks at the first upload from each `next_position` on and passes it to `take`, until that is None. Then
    `received_ms` is the time found, None if there is none. The number of looks is logarithmic in the distance; of
    several runs of uploads ahead of the clock, the search may pass over the gaps between them.
    """

    def __init__(self, position: int, now_ms: int) -> None:
        self.received_ms: int | None = None
        self.next_position: int | None = position + 1
        self._now_ms = now_ms
        self._ahead = position  # the last position that is known to be ahead of the clock
        self._distance = 1
        self._known: int | None = None  # position up to which uploads are ahead of the clock; None: unknown

    def take(self, found: StoredSize | None) -> None:
        assert self.next_position is not None
        if found is not None and found.received_ms > self._now_ms:
            self._ahead = found.position
        else:
            self._known = self.next_position
            if found is not None:
                self.received_ms = found.received_ms
        if self._known is None:
            self._distance *= 2
            self.next_position = self._ahead + self._distance
        elif self._known - self._ahead > 1:
            self.next_position = (self._ahead + self._known) // 2
        else:
            self.next_position = None
