"""Windows of event time that close by the time of the stream: the events that wait for it (ADR 19).

The windows of a task are `size_ms` long and begin at multiples of `every_ms` since the epoch, which divides the size. A
window closes once the time of the stream has reached its end and the grace time after it. An event is late for a window
that would have closed.

Events are kept in panes, the spans of `every_ms`: an event is in one pane, and costs one append. A window is its panes.
Windows without events do not exist.
"""

import array
import collections
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from walle.base import plain
from walle.engine_ext._core import packed_value
from walle.pipeline.events.event import Event
from walle.protocol import TriggerCondition

MAX_WINDOW_EVENTS = 10_000  # events of one task, and below their bytes; above, the oldest are evicted
MAX_WINDOW_BYTES = 1 << 20
# Of one task. A condition has at most TriggerCondition.MAX_PANES panes that begin at or before the time of the stream.
# Of those that begin later, at most MAX_OVERLAP are in a window that begins before it.
MAX_PANES = TriggerCondition.MAX_PANES + TriggerCondition.MAX_OVERLAP


class ClosedWindow(NamedTuple):
    """A window that has closed: its events by their times, and the number of those that were evicted before."""

    start_ms: int
    end_ms: int
    events: tuple[Event, ...]
    size_bytes: int
    evicted: int


class EventTable:
    """Encoded events of a snapshot, each once, however many tasks have it in a window: `encoded`, by their index."""

    def __init__(self) -> None:
        self.encoded: list[bytes] = []
        self._indices: dict[int, int] = {}  # by id of the event, which the windows keep alive

    def add_all(self, events: Collection[Event]) -> array.array[int]:
        """Return the indices of the events. Hundreds of tasks may have 10,000 each: no Python runs for a known one."""
        keys, indices = list(map(id, events)), self._indices
        if not indices.keys() >= set(keys):
            for event in events:
                if indices.setdefault(id(event), len(self.encoded)) == len(self.encoded):
                    fields = event.event_id, event.page_id, event.ts_ms, event.contents
                    self.encoded.append(packed_value(fields) or event.encode())  # both make the same bytes
        return array.array("I", map(indices.__getitem__, keys))


class Pane:
    """Events of one span of time with their sizes, in the order they came.

    `first_ms` and `last_ms` are the begins of the earliest and of the latest window with this pane that have not
    closed, `serial` is the number of its timer.
    """

    __slots__ = ("events", "evicted", "first_ms", "last_ms", "serial", "size_bytes", "start_ms")

    def __init__(self, start_ms: int, first_ms: int) -> None:
        self.start_ms = start_ms
        self.first_ms = first_ms
        self.last_ms = start_ms
        self.serial = 0
        self.events: collections.deque[tuple[Event, int]] = collections.deque()
        self.size_bytes = 0
        self.evicted = 0


class TaskWindows:
    """The panes of one task by their begin."""

    def __init__(self, condition: TriggerCondition) -> None:
        self.panes: dict[int, Pane] = {}
        self.events = 0
        self.size_bytes = 0
        self.was_set_back = False  # the time, since a window closed; there may be panes after it
        self._size_ms = 1000 * condition.window_s
        self._every_ms = 1000 * (condition.window_every_s or condition.window_s)
        self._grace_ms = 1000 * condition.grace_s
        # Panes with events, the one that had events first at the front. The front of a dict is slow to find: it walks
        # over the places of removed keys.
        self._filled: collections.OrderedDict[int, Pane] = collections.OrderedDict()

    @property
    def is_crowded(self) -> bool:
        """True if there are panes beyond the bound: windows of a clock that was ahead must close."""
        return len(self.panes) > MAX_PANES

    def deadline_ms(self, pane: Pane) -> int:
        """Return the time of the stream at which the pane's next window closes."""
        return pane.first_ms + self._size_ms + self._grace_ms

    def add(self, event: Event, size_bytes: int, now_ms: int) -> tuple[Pane | None, int]:
        """Add an event at this time of the stream; return its pane if that is new, and for how many windows it is late.

        A new pane needs a timer.
        """
        every_ms = self._every_ms
        start_ms = event.ts_ms // every_ms * every_ms
        earliest_ms = start_ms + every_ms - self._size_ms
        found = pane = self.panes.get(start_ms)
        if pane is None:
            open_ms = ((now_ms - self._size_ms - self._grace_ms) // every_ms + 1) * every_ms
            if open_ms > start_ms:
                return None, self._size_ms // every_ms
            pane = self.panes[start_ms] = Pane(start_ms, max(earliest_ms, open_ms))
        if not pane.events:
            self._filled[start_ms] = pane
        pane.events.append((event, size_bytes))
        pane.size_bytes += size_bytes
        self.events += 1
        self.size_bytes += size_bytes
        late = (pane.first_ms - earliest_ms + start_ms - pane.last_ms) // every_ms
        return None if found is pane else pane, late

    def evict(self) -> int:
        """Remove the oldest events beyond the bounds; return their number.

        A window of which events were evicted closes with the others.
        """
        count = 0
        while self.events > MAX_WINDOW_EVENTS or self.size_bytes > MAX_WINDOW_BYTES:
            start_ms, pane = next(iter(self._filled.items()))
            _, size_bytes = pane.events.popleft()
            pane.size_bytes -= size_bytes
            pane.evicted += 1
            self.events -= 1
            self.size_bytes -= size_bytes
            count += 1
            if not pane.events:
                del self._filled[start_ms]
        return count

    def close(self, first_ms: int) -> ClosedWindow:
        """Close the earliest window, which begins at this time, and remove the panes that are in no later one."""
        closed = self._window(first_ms)
        for start_ms in range(first_ms, first_ms + self._size_ms, self._every_ms):
            pane = self.panes.get(start_ms)
            if pane is not None and pane.first_ms == first_ms:
                pane.first_ms += self._every_ms
                if pane.first_ms > pane.last_ms:
                    self._remove(pane)
        return closed

    def close_after(self, ts_ms: int) -> list[ClosedWindow]:
        """Close all windows that begin after this time: a clock was ahead, and it may be long until it comes."""
        self.was_set_back = False
        every_ms = self._every_ms
        last_ms = ts_ms // every_ms * every_ms
        ahead = [pane for pane in self.panes.values() if pane.last_ms > last_ms]
        begins = {
            begin_ms
            for pane in ahead
            for begin_ms in range(max(pane.first_ms, last_ms + every_ms), pane.last_ms + 1, every_ms)
        }
        closed = [self._window(begin_ms) for begin_ms in sorted(begins)]
        for pane in ahead:
            pane.last_ms = last_ms
            if pane.first_ms > last_ms:
                self._remove(pane)
        return closed

    def _window(self, begin_ms: int) -> ClosedWindow:
        """Return the window that begins at this time, of the panes of which it has not closed."""
        events: list[Event] = []
        size_bytes = evicted = 0
        for start_ms in range(begin_ms, begin_ms + self._size_ms, self._every_ms):
            pane = self.panes.get(start_ms)
            if pane is not None and pane.first_ms <= begin_ms <= pane.last_ms:
                events += [event for event, _ in pane.events]
                size_bytes += pane.size_bytes
                evicted += pane.evicted
        events.sort(key=_ts_ms)
        return ClosedWindow(begin_ms, begin_ms + self._size_ms, tuple(events), size_bytes, evicted)

    def _remove(self, pane: Pane) -> None:
        del self.panes[pane.start_ms]
        self._filled.pop(pane.start_ms, None)
        self.events -= len(pane.events)
        self.size_bytes -= pane.size_bytes

    def to_plain(self, table: EventTable) -> dict[str, Any]:
        """Return the panes as plain data; their events are added to the table."""
        empty = [pane for pane in self.panes.values() if not pane.events]
        panes = [
            (
                *(pane.start_ms, pane.first_ms, pane.last_ms, pane.evicted),
                table.add_all([event for event, _ in pane.events]),
            )
            for pane in (*self._filled.values(), *empty)  # the order in which `evict` removes events
        ]
        return {"set_back": self.was_set_back, "panes": panes}

    def restore(self, value: Mapping[str, Any], events: Sequence[tuple[Event, int]]) -> None:
        """Continue from what `to_plain` returned, and the table's events with their sizes; the panes need timers."""
        self.was_set_back = value["set_back"]
        for start_ms, first_ms, last_ms, evicted, indices in value["panes"]:
            pane = self._restored(start_ms, first_ms, evicted, list(map(events.__getitem__, indices)))
            pane.last_ms = last_ms

    def restore_encoded(self, value: Mapping[str, Any]) -> None:
        """Continue from the panes of an older walle, each with its own copy of its events, encoded."""
        self.was_set_back = value["set_back"]
        for start_ms, first_ms, evicted, encoded in value["panes"]:
            self._restored(start_ms, first_ms, evicted, decoded_events(encoded))

    def _restored(self, start_ms: int, first_ms: int, evicted: int, events: list[tuple[Event, int]]) -> Pane:
        pane = self.panes[start_ms] = Pane(start_ms, first_ms)
        pane.evicted = evicted
        pane.events.extend(events)
        pane.size_bytes = sum(size_bytes for _, size_bytes in events)
        self.events += len(events)
        self.size_bytes += pane.size_bytes
        if events:
            self._filled[start_ms] = pane
        return pane


def decoded_events(encoded: Sequence[bytes]) -> list[tuple[Event, int]]:
    """Return encoded events, each with its size."""
    return [(Event(*plain.decode(data)), len(data)) for data in encoded]


def _ts_ms(event: Event) -> int:
    return event.ts_ms
