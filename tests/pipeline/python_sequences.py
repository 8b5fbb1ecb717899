"""The sequences in Python: the meaning of those in C++ (§5.1), both of bounded memory.

Each has the smallest stream position that it still needs. A replay that begins there after a crash restores the
sequence (ARCHITECTURE.md).
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event


class TimeSequence:
    """The latest events in the order they came; the oldest are dropped beyond `max_events` or `max_bytes`."""

    def __init__(self, *, max_events: int = 1000, max_bytes: int = 1 << 20) -> None:
        if max_events < 1 or max_bytes < 1:
            raise ValueError(f"a sequence of {max_events} events and {max_bytes} bytes holds nothing")
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._entries: collections.deque[tuple[int, int, Event]] = collections.deque()  # position, size, event
        self.size_bytes = 0
        self.dropped = 0

    def append(self, position: int, event: Event, size_bytes: int) -> None:
        """Append the event; an event larger than the whole sequence empties it."""
        self._entries.append((position, size_bytes, event))
        self.size_bytes += size_bytes
        while len(self._entries) > self._max_events or self.size_bytes > self._max_bytes:
            self.size_bytes -= self._entries.popleft()[1]
            self.dropped += 1

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Event]:
        return (event for _, _, event in self._entries)

    @property
    def oldest_position(self) -> int | None:
        """The position of the oldest event that is held, None if the sequence is empty."""
        return self._entries[0][0] if self._entries else None


@dataclasses.dataclass(slots=True, eq=False)
class PageVisit:
    """The events of one page between its enter and its exit, both included; of a cut visit the latest event only."""

    page_id: str
    position: int  # position of the enter event; for a cut visit that of its latest event
    is_cut: bool = False
    events: list[Event] = dataclasses.field(default_factory=list)
    size_bytes: int = 0


class PageSequence:
    """The page-level sequence: open visits, each with the events of its page.

    Several pages may be open at once. If one page is open several times, the visit that was entered last gets the
    events and the exit. Bounded: beyond `max_open` visits, `max_bytes` of events, or, since its enter, `max_span`
    positions or `max_span_bytes` of events of all pages, the visit that was entered first is evicted and counted. It is
    cut: its events are dropped, and no later event of its page is kept, but its page is known until its exit. At most
    `max_open` pages are known so.
    """

    def __init__(
        self, *, max_open: int = 64, max_bytes: int = 4 << 20, max_span: int = 10_000, max_span_bytes: int = 16 << 20
    ) -> None:
        if min(max_open, max_bytes, max_span, max_span_bytes) < 1:
            raise ValueError(f"{max_open} visits, {max_bytes} bytes and {max_span} positions hold no visit")
        self._max_open = max_open
        self._max_bytes = max_bytes
        self._max_span = max_span
        self._max_span_bytes = max_span_bytes
        self._fed_bytes = 0
        self._fed_before: dict[int, int] = {}  # bytes of all events before the enter at this position
        self._open: collections.OrderedDict[int, PageVisit] = collections.OrderedDict()  # by enter position
        self._of_page: dict[str, list[PageVisit]] = {}
        self._cut: tuple[str, ...] = ()  # pages, the one that was cut last at the end
        self._restored: tuple[int, tuple[str, ...]] | None = None
        self.size_bytes = 0
        self.evicted = 0
        self.unmatched_exits = 0

    def feed(self, position: int, event: Event, size_bytes: int) -> PageVisit | None:
        """Return the visit that the event belongs to, None if its page is not open; an exit closes the visit.

        Positions must grow from call to call.
        """
        cut = self.cut_before(position)
        self._fed_before[position] = self._fed_bytes
        self._fed_bytes += size_bytes
        if event.event_id == PAGE_ENTER:
            visit = PageVisit(event.page_id, position)
            self._open[position] = visit
            self._of_page.setdefault(event.page_id, []).append(visit)
        elif event.page_id in self._of_page:
            visit = self._of_page[event.page_id][-1]
        elif event.page_id in cut:
            if event.event_id == PAGE_EXIT:
                self._cut = _without(cut, event.page_id)
            self._evict(position)
            return PageVisit(event.page_id, position, is_cut=True, events=[event], size_bytes=size_bytes)
        else:
            self.unmatched_exits += event.event_id == PAGE_EXIT
            self._evict(position)
            return None
        visit.events.append(event)
        visit.size_bytes += size_bytes
        self.size_bytes += size_bytes
        if event.event_id == PAGE_EXIT:
            self._close(visit)
        self._evict(position)
        return visit

    def _close(self, visit: PageVisit) -> None:
        del self._open[visit.position]
        visits = self._of_page[visit.page_id]
        visits.remove(visit)
        if not visits:
            del self._of_page[visit.page_id]
        self.size_bytes -= visit.size_bytes

    def _evict(self, position: int) -> None:
        while self._open:
            oldest = next(iter(self._open.values()))
            within = len(self._open) <= self._max_open and self.size_bytes <= self._max_bytes
            span_bytes = self._fed_bytes - self._fed_before[oldest.position]
            if within and position - oldest.position <= self._max_span and span_bytes <= self._max_span_bytes:
                return
            self._close(oldest)
            self.evicted += 1
            self._cut = (*_without(self._cut, oldest.page_id), oldest.page_id)[-self._max_open :]

    def cut_before(self, position: int) -> tuple[str, ...]:
        """Return the pages whose visit is cut when the event at `position`, the next one, comes."""
        if self._restored is not None and position >= self._restored[0]:
            self._cut, self._restored = self._restored[1], None
        return self._cut

    def restore_cut(self, pages: Sequence[str], position: int) -> None:
        """Let a replay find `cut_before(position)` of an earlier sequence, whatever the replayed events before it cut.

        A replay begins after visits that were entered earlier and ended meanwhile, and so does not cut the same ones.
        """
        self._restored = position, tuple(pages)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def oldest_position(self) -> int | None:
        """The enter position of the visit that has been open longest, None if no page is open."""
        return next(iter(self._open)) if self._open else None


def _without(pages: tuple[str, ...], page_id: str) -> tuple[str, ...]:
    return tuple(page for page in pages if page != page_id)
