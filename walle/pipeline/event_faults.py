"""Faults of events, and the search for duplicates: the same for a file of events and for a live source."""

import collections
import enum
import hashlib
from typing import Self


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

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def copy(self) -> Self:
        """Return a window with the same digests."""
        copied = type(self)(self._size)
        copied._digests = self._digests.copy()
        return copied

    def add(self, digest: bytes) -> None:
        """Remember a digest; the oldest beyond the size is forgotten."""
        self._digests[digest] = None
        if len(self._digests) > self._size:
            self._digests.popitem(last=False)


def digest_of(data: bytes) -> bytes:
    """Return the digest by which duplicates are found."""
    return hashlib.blake2b(data, digest_size=8).digest()
