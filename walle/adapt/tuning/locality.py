"""Locality-sensitive hashing: vectors that are near share buckets, so that neighbours are found without a scan.

Hashes are p-stable (Datar et al. 2004, for p = 2): the place of a vector on a random line, in pieces of one width.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import starmap
from operator import mul

type Bucket = tuple[int, ...]


class LocalityIndex[Key: str | int]:
    """Vectors of one length by key, in `tables` sets of buckets; two vectors share a bucket of a table if all its
    `hashes` are equal. The seed determines all lines.

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
        self._tables: list[dict[Bucket, set[Key]]] = [{} for _ in range(tables)]
        self._vectors: dict[Key, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._vectors)

    def __contains__(self, key: Key) -> bool:
        return key in self._vectors

    def buckets(self, vector: Sequence[float]) -> list[Bucket]:
        """Return the bucket of a vector in each table.

        Raises:
            ValueError: the vector has another length, or a number that is not finite.
        """
        if len(vector) != self.dimensions or not all(map(math.isfinite, vector)):
            raise ValueError(f"a vector of {len(vector)} numbers; give {self.dimensions} finite ones")
        return [
            tuple(math.floor((sum(map(mul, line, vector)) + shift) / self._width) for line, shift in lines)
            for lines in self._lines
        ]

    def put(self, key: Key, vector: Sequence[float]) -> None:
        """Add a vector, or replace that of the key. Raises ValueError as `buckets`."""
        buckets = self.buckets(vector)
        self.remove(key)
        self._vectors[key] = tuple(vector)
        for table, bucket in zip(self._tables, buckets, strict=True):
            table.setdefault(bucket, set()).add(key)

    def remove(self, key: Key) -> None:
        """Remove a key, where the index has it."""
        vector = self._vectors.pop(key, None)
        if vector is None:
            return
        for table, bucket in zip(self._tables, self.buckets(vector), strict=True):
            keys = table[bucket]
            keys.discard(key)
            if not keys:
                del table[bucket]

    def near(self, vector: Sequence[float]) -> set[Key]:
        """Return the keys that share at least one bucket with a vector."""
        found: set[Key] = set()
        for table, bucket in zip(self._tables, self.buckets(vector), strict=True):
            found |= table.get(bucket, set())
        return found

    def nearest(self, vector: Sequence[float], count: int, *, but: Key | None = None) -> list[Key]:
        """Return up to `count` keys, the nearest first, without the key `but`; equal distances by key.

        Keys of shared buckets are compared; where these are fewer than `count`, all vectors are.
        """
        found = self.near(vector) - {but}
        if len(found) < count:
            found = self._vectors.keys() - {but}

        def distance(key: Key) -> tuple[float, Key]:
            return math.sqrt(sum(starmap(_squared, zip(self._vectors[key], vector, strict=True)))), key

        return sorted(found, key=distance)[:count]


def _squared(a: float, b: float) -> float:
    return (a - b) * (a - b)
