"""Time-level event sequence as a trigger sees it (§5.1): the latest events up to the one that triggered.

The sequence itself is in C++ (`EventStream`), in chunks that only grow. A view keeps the chunks of its events, so that
it costs no copy, and finds its events whatever the sequence drops later. A chunk has at most 64 events and 16 KiB, or
one larger event: a view keeps at most two chunks more than its own events.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from walle.pipeline.events.event import Event
from walle.pipeline.stream.events import encode_events


class RecentEvents:
    """An immutable view of the latest `length` events, oldest first: from index `first` of the first chunk on."""

    __slots__ = ("_chunks", "_first", "_length", "size_bytes")

    def __init__(self, chunks: Sequence[Sequence[Event]], first: int, length: int, size_bytes: int) -> None:
        self._chunks = chunks
        self._first = first
        self._length = length
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Event]:
        events = itertools.chain.from_iterable(self._chunks)
        return itertools.islice(events, self._first, self._first + self._length)

    def encode(self) -> bytes | list[dict[str, Any]]:
        """Return the events as `encode_events` does, for a task VM."""
        return encode_events(tuple(self))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, RecentEvents | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RecentEvents({list(self)!r})"
