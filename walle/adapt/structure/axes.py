"""Positions along axes of a network's arrays, and which of them must be removed together.

Each position of an axis of a parameter has a number. An operator that lays two axes over each other joins their
positions; one that needs an axis whole fixes them. An axis without numbers (a batch, an image's rows) is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

type Axis = tuple[int, ...] | None


class Positions:
    """A union-find of positions; a set of which one is fixed is fixed as a whole, with the first reason given."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._reasons: dict[int, str] = {}  # by root of a fixed set

    def make(self, count: int) -> tuple[int, ...]:
        """Return numbers of `count` new positions."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return tuple(range(first, first + count))

    def find(self, position: int) -> int:
        """Return the number that stands for the position's set."""
        parent = self._parent
        while parent[position] != position:
            parent[position] = parent[parent[position]]
            position = parent[position]
        return position

    def join(self, one: Axis, other: Axis, reason: str) -> Axis:
        """Lay one axis over another of the same length, or of length 1, and return the axis of both."""
        if one is None or other is None:
            self.fix((one or ()) + (other or ()), reason)
            return None
        if len(one) != len(other):
            shorter, longer = sorted((one, other), key=len)
            self.fix(shorter, reason)
            return longer
        for a, b in zip(one, other, strict=True):
            self._unite(a, b)
        return one

    def fix(self, axis: Iterable[int] | None, reason: str) -> None:
        """Keep the axis whole."""
        for position in axis or ():
            self._reasons.setdefault(self.find(position), reason)

    def reason(self, position: int) -> str | None:
        """Return why the position's set is fixed; None where it is not."""
        return self._reasons.get(self.find(position))

    def sets(self, axes: Sequence[tuple[Any, tuple[int, ...]]]) -> dict[int, list[tuple[Any, int]]]:
        """Return the members of each set, as (name of an axis, place in it), by the number that stands for the set."""
        found: dict[int, list[tuple[Any, int]]] = {}
        for name, axis in axes:
            for place, position in enumerate(axis):
                found.setdefault(self.find(position), []).append((name, place))
        return found

    def _unite(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        if b in self._reasons:
            self._reasons.setdefault(a, self._reasons.pop(b))
        self._parent[b] = a
