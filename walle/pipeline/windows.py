"""Windows of event time that close by the time of the stream: the events that wait for it (ADR 220).

The windows of a task are `size_ms` long and begin at multiples of `every_ms` since the epoch, which divides the size. A
window closes once the time of the stream has reached its end and the grace time after it. An event is late for a window
that would have closed.

Events are kept in panes, the spans of `every_ms`: an event is in one pane, and costs one append. A window is its panes.
Windows without events do not exist.
"""

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

from walle import plain
from walle.pipeline.events import Event
from walle.protocol import TriggerCondition

MAX_WINDOW_EVENTS = 10_000  # of one task, and bytes of them; beyond it the oldest are evicted
MAX_WINDOW_BYTES = 1 << 20
MAX_PANES = TriggerCondition.MAX_PANES  # of one task


class ClosedWindow(NamedTuple):
    """A window that has closed: its events by their times, and the number of those that were evicted before."""

    start_ms: int
    end_ms: int
    events: tuple[Event, ...]
    size_bytes: int
    evicted: int


class Pane:
    """Events of one span of time with their sizes, in the order they came.

    `first_ms` is the begin of the earliest window with this pane that has not closed, `serial` the number of its timer.
    """

    __slots__ = ("events", "evicted", "first_ms", "serial", "size_bytes", "start_ms")

    def __init__(self, start_ms: int, first_ms: int) -> None:
        self.start_ms = start_ms
        self.first_ms = first_ms
        self.serial = 0
        self.events: collections.deque[tuple[Event, int]] = collections.deque()
        self.size_bytes = 0
        self.evicted = 0


class TaskWindows:
    """The panes of one task by their begin, the one that was opened first at the front."""

    def __init__(self, condition: TriggerCondition) -> None:
        self.panes: dict[int, Pane] = {}
        self.events = 0
        self.size_bytes = 0
        self.was_set_back = False  # the time, since a window closed; there may be panes after it
        self._size_ms = 1000 * condition.window_s
        self._every_ms = 1000 * (condition.window_every_s or condition.window_s)
        self._grace_ms = 1000 * condition.grace_s

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
        pane.events.append((event, size_bytes))
        pane.size_bytes += size_bytes
        self.events += 1
        self.size_bytes += size_bytes
        return None if found is pane else pane, (pane.first_ms - earliest_ms) // every_ms

    def evict(self) -> int:
        """Remove the oldest events beyond the bounds; return their number.

        A window of which events were evicted closes with the others.
        """
        count = 0
        while len(self.panes) > MAX_PANES:
            pane = self.panes[next(iter(self.panes))]
            count += len(pane.events)
            self._remove(pane)
        while self.events > MAX_WINDOW_EVENTS or self.size_bytes > MAX_WINDOW_BYTES:
            pane = next(pane for pane in self.panes.values() if pane.events)
            _, size_bytes = pane.events.popleft()
            pane.size_bytes -= size_bytes
            pane.evicted += 1
            self.events -= 1
            self.size_bytes -= size_bytes
            count += 1
        return count

    def close(self, first_ms: int) -> ClosedWindow:
        """Close the window that begins at this time, and remove the panes that are in no later one."""
        events: list[Event] = []
        size_bytes = evicted = 0
        for start_ms in range(first_ms, first_ms + self._size_ms, self._every_ms):
            pane = self.panes.get(start_ms)
            if pane is None or pane.first_ms != first_ms:
                continue
            events += [event for event, _ in pane.events]
            size_bytes += pane.size_bytes
            evicted += pane.evicted
            pane.first_ms += self._every_ms
            if pane.first_ms > start_ms:
                self._remove(pane)
        events.sort(key=_ts_ms)
        return ClosedWindow(first_ms, first_ms + self._size_ms, tuple(events), size_bytes, evicted)

    def close_after(self, ts_ms: int) -> Iterator[ClosedWindow]:
        """Close all windows that begin after this time: a clock was ahead, and it may be long until it comes."""
        self.was_set_back = False
        while ahead := [pane.first_ms for pane in self.panes.values() if pane.first_ms > ts_ms]:
            yield self.close(min(ahead))

    def _remove(self, pane: Pane) -> None:
        del self.panes[pane.start_ms]
        self.events -= len(pane.events)
        self.size_bytes -= pane.size_bytes

    def to_plain(self) -> dict[str, Any]:
        """Return the panes as plain data."""
        panes = [
            (pane.start_ms, pane.first_ms, pane.evicted, [event.encode() for event, _ in pane.events])
            for pane in self.panes.values()
        ]
        return {"set_back": self.was_set_back, "panes": panes}

    def restore(self, value: dict[str, Any]) -> None:
        """Continue from what `to_plain` returned; the panes need timers."""
        self.was_set_back = value["set_back"]
        for start_ms, first_ms, evicted, encoded in value["panes"]:
            pane = self.panes[start_ms] = Pane(start_ms, first_ms)
            pane.evicted = evicted
            pane.events.extend((Event(*plain.decode(data)), len(data)) for data in encoded)
            pane.size_bytes = sum(map(len, encoded))
            self.events += len(encoded)
            self.size_bytes += pane.size_bytes


def _ts_ms(event: Event) -> int:
    return event.ts_ms
