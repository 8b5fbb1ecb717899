"""Faults of events, and the search for duplicates: the same for a file of events and for a live source."""

import collections
import contextlib
import enum
import hashlib
from collections.abc import Iterator


class Fault(enum.StrEnum):
    """The reasons for skipping an event or a line."""

    BROKEN = "broken"
    OUT_OF_ORDER = "out of order"
    DUPLICATE = "duplicate"
    ENORMOUS = "enormous"


class DuplicateWindow:
    """The digests of the latest `size` events."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._digests: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self._additions: list[tuple[bytes, bytes | None]] | None = None  # each with the digest that it displaced

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Take back what the block has added, if it raises. The cost grows with what it has added, not the window."""
        self._additions = additions = list[tuple[bytes, bytes | None]]()
        try:
            yield
        except BaseException:
            for digest, forgotten in reversed(additions):
                del self._digests[digest]
                if forgotten is not None:
                    self._digests[forgotten] = None
                    self._digests.move_to_end(forgotten, last=False)
            raise
        finally:
            self._additions = None

    def add(self, digest: bytes) -> None:
        """Remember a digest; the oldest beyond the size is forgotten."""
        if digest in self._digests:
            return
        self._digests[digest] = None
        forgotten = self._digests.popitem(last=False)[0] if len(self._digests) > self._size else None
        if self._additions is not None:
            self._additions.append((digest, forgotten))


def digest_of(data: bytes) -> bytes:
    """Return the digest by which duplicates are found."""
    return hashlib.blake2b(data, digest_size=8).digest()
