"""Locality-sensitive hashing: vectors that are near share buckets, so that neighbours are found without a scan.

Hashes are p-stable (Datar et al. 2004, for p = 2): the place of a vector on a random line, in pieces of one width.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import starmap
from operator import mul

_LEVELS = 3  # sizes of buckets
_COARSER = 4  # width of a level's buckets, by that of the level before

type Bucket = tuple[int, ...]


class LocalityIndex[Key: str | int]:
    """Vectors of one length by key, in `tables` sets of buckets; two vectors share a bucket of a table if all its
    `hashes` are equal. Each table has three levels, of buckets 1, 4 and 16 widths wide. The seed determines all lines.

    Raises:
        ValueError: a count or the width is not above 0.
    """

    def __init__(self, dimensions: int, *, seed: int, tables: int = 8, hashes: int = 4, width: float = 4.0) -> None:
        if min(dimensions, tables, hashes) < 1 or not 0 < width < math.inf:
            raise ValueError(f"{dimensions} dimensions, {tables} tables, {hashes} hashes, width {width}")
        draw = random.Random(seed)
        self.dimensions = dimensions
        self._width = width
        self._lines = [
            [([draw.gauss(0, 1) for _ in range(dimensions)], draw.uniform(0, width)) for _ in range(hashes)]
            for _ in range(tables)
        ]
        self._tables: list[list[dict[Bucket, set[Key]]]] = [[{} for _ in range(tables)] for _ in range(_LEVELS)]
        self._vectors: dict[Key, tuple[float, ...]] = {}
        self._buckets: dict[Key, list[list[Bucket]]] = {}  # kept: to hash a long vector takes a millisecond

    def __len__(self) -> int:
        return len(self._vectors)

    def __contains__(self, key: Key) -> bool:
        return key in self._vectors

    def buckets(self, vector: Sequence[float]) -> list[list[Bucket]]:
        """Return the buckets of a vector, by level and table.

        Raises:
            ValueError: the vector has another length, or a number that is not finite.
        """
        if len(vector) != self.dimensions or not all(map(math.isfinite, vector)):
            raise ValueError(f"a vector of {len(vector)} numbers; give {self.dimensions} finite ones")
        finest = [
            tuple(math.floor((sum(map(mul, line, vector)) + shift) / self._width) for line, shift in lines)
            for lines in self._lines
        ]
        return [[tuple(one // _COARSER**level for one in bucket) for bucket in finest] for level in range(_LEVELS)]

    def put(self, key: Key, vector: Sequence[float]) -> None:
        """Add a vector, or replace that of the key. Raises ValueError as `buckets`."""
        buckets = self.buckets(vector)
        self.remove(key)
        self._vectors[key] = tuple(vector)
        self._buckets[key] = buckets
        for table, bucket in self._pairs(buckets):
            table.setdefault(bucket, set()).add(key)

    def remove(self, key: Key) -> None:
        """Remove a key, where the index has it."""
        if self._vectors.pop(key, None) is None:
            return
        for table, bucket in self._pairs(self._buckets.pop(key)):
            keys = table[bucket]
            keys.discard(key)
            if not keys:
                del table[bucket]

    def near(self, vector: Sequence[float], level: int = 0) -> set[Key]:
        """Return the keys that share at least one bucket of a level with a vector."""
        return self._sharing(self.buckets(vector)[level], level)

    def nearest(self, vector: Sequence[float], count: int, *, but: Key | None = None) -> list[Key]:
        """Return up to `count` keys, the nearest first, without the key `but`; equal distances by key.

        Keys of shared buckets are compared, of the finest level that has `count` of them; without one, all vectors are.
        """
        for level, buckets in enumerate(self.buckets(vector)):
            found = self._sharing(buckets, level) - {but}
            if len(found) >= count:
                break
        else:
            found = self._vectors.keys() - {but}

        def distance(key: Key) -> tuple[float, Key]:
            return math.sqrt(sum(starmap(_squared, zip(self._vectors[key], vector, strict=True)))), key

        return sorted(found, key=distance)[:count]

    def _pairs(self, buckets: list[list[Bucket]]) -> Iterator[tuple[dict[Bucket, set[Key]], Bucket]]:
        for tables, of_level in zip(self._tables, buckets, strict=True):
            yield from zip(tables, of_level, strict=True)

    def _sharing(self, buckets: list[Bucket], level: int) -> set[Key]:
        found: set[Key] = set()
        for table, bucket in zip(self._tables[level], buckets, strict=True):
            found |= table.get(bucket, set())
        return found


def _squared(a: float, b: float) -> float:
    return (a - b) * (a - b)
