"""Timers of trigger conditions: quiet pages and streams, periods, events that do not come, windows (ADR 19).

The time of the stream is the largest time of an entry so far. Timers are due by it alone, so that a replay of the same
entries decides as the first run did. A timer starts at the time of the stream when its event is taken. An entry more
than JUMP_MS before that time shows that a clock was set back: the stream continues from there, and running timers keep
the time that they had left.

Timers are in one heap, by deadline. A removed timer stays in it until its deadline, or until half of the heap is of
such timers: adding, moving and removing cost O(log n). An event of a page that has timers costs O(1): it moves the
page's time, and a timer that comes to its deadline earlier goes back into the heap. A window's timer does the same from
one of its windows to the next. Windows are spans of the time itself, so that a clock that is set back moves none.
"""

import collections
import heapq
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Self

from walle.base import plain
from walle.base.clock import JUMP_MS
from walle.pipeline.events.event import Event
from walle.pipeline.trigger.windows import ClosedWindow, EventTable, TaskWindows, decoded_events
from walle.protocol import TriggerCondition

MAX_TIMERS = 1_000  # timers of one task, and pages of all; above, the oldest is evicted
MAX_TIMER_BYTES = 1 << 20  # limit for the events that the timers of one task keep
_MAX_ORDER_CHARS = 64

IDLE = "@idle"
EVERY = "@every"
ABSENT = "@absent"
WINDOW = "@window"

type Key = tuple[str, Any]  # kind and value; kinds never compare equal


class DueTimer(NamedTuple):
    """A timer of `task` whose time has come: the fields of the event that triggers the task, and its window if any."""

    task: str
    event_id: str
    page_id: str
    ts_ms: int
    contents: dict[str, Any]
    window: ClosedWindow | None = None

    def to_event(self) -> Event:
        return Event(self.event_id, self.page_id, self.ts_ms, self.contents)


class _Entry(NamedTuple):
    """A place in the heap. Timers that are due together come by deadline, task, kind and key."""

    deadline_ms: int
    task: str
    kind: str
    key: str
    serial: int


class _Page:
    """An active page: the time of its latest event, and the serial number of each task's timer."""

    __slots__ = ("latest_ms", "running")

    def __init__(self, latest_ms: int) -> None:
        self.latest_ms = latest_ms
        self.running: dict[str, int] = {}


class _Pending(NamedTuple):
    """A match that waits for an event which must not come."""

    deadline_ms: int
    key: Key | None
    event: Event
    size_bytes: int


class _Absences:
    """The pending matches of one task, oldest first, by serial number and by key."""

    __slots__ = ("of_key", "pending", "size_bytes")

    def __init__(self) -> None:
        self.pending: dict[int, _Pending] = {}
        self.of_key: dict[Key | None, dict[int, None]] = {}
        self.size_bytes = 0

    def add(self, serial: int, pending: _Pending) -> None:
        self.pending[serial] = pending
        self.of_key.setdefault(pending.key, {})[serial] = None
        self.size_bytes += pending.size_bytes

    def remove(self, serial: int) -> _Pending:
        pending = self.pending.pop(serial)
        serials = self.of_key[pending.key]
        del serials[serial]
        if not serials:
            del self.of_key[pending.key]
        self.size_bytes -= pending.size_bytes
        return pending


def key_of(field: str, contents: Mapping[str, Any]) -> Key | None:
    """Return the value of a field of the contents; None if it is missing, or neither text, a number nor a bool."""
    found: Any = contents
    for name in field.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    if isinstance(found, bool):
        return "bool", found
    if isinstance(found, str):
        return "text", found
    if isinstance(found, int) or (isinstance(found, float) and not math.isnan(found)):
        return "number", found
    return None


class Timers:
    """The running timers of all tasks, and the time of the stream, None before the first entry.

    By task, `evicted` counts timers that were removed at a bound, `evicted_events` events of windows that were, and
    `late` how often an event came too late for a window.
    """

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self.evicted: collections.Counter[str] = collections.Counter()
        self.evicted_events: collections.Counter[str] = collections.Counter()
        self.late: collections.Counter[str] = collections.Counter()
        self._conditions: dict[str, TriggerCondition] = {}
        self._heap: list[_Entry] = []
        self._serial = 0
        self._live = 0  # entries of the heap whose timer runs
        self._pages: collections.OrderedDict[str, _Page] = collections.OrderedDict()
        self._page_tasks: list[str] = []  # tasks with `idle_s` of a page
        self._without_visit: list[str] = []  # tasks with `idle_s` of a page that take events without a visit
        self._latest_ms: int | None = None  # the time of the stream at its latest event
        self._stream_tasks: dict[str, int] = {}  # `idle_s` of the stream: the serial of a task's timer, 0 if none runs
        self._periods: dict[str, tuple[int, int]] = {}  # serial, and the begin of the span that has not been named
        self._absences: dict[str, _Absences] = {}
        self._absent_ids: dict[str, list[str]] = {}  # tasks by the id that must not come
        self._windows: dict[str, TaskWindows] = {}
        self._window_ids: dict[str, list[str]] = {}  # tasks by an id of the events in their windows
        self._crowded: set[str] = set()  # tasks with too many panes, until the next entry

    def __len__(self) -> int:
        return self._live

    @property
    def kept_events(self) -> int:
        """The number of events that wait for their windows to close."""
        return sum(windows.events for windows in self._windows.values())

    def kinds(self) -> dict[str, int]:
        """Return the number of running timers by the id of the event that they would make; O(n)."""
        running = (entry.kind for entry in self._heap if self._deadline_ms(entry) is not None)
        return dict(sorted(collections.Counter(running).items()))

    # --- tasks --------------------------------------------------------------------------------------------------------

    def add_task(self, task: str, condition: TriggerCondition) -> None:
        """Start timers by this condition from the next entry on; the task has none."""
        self._conditions[task] = condition
        if condition.idle_s and condition.idle == "stream":
            self._stream_tasks[task] = 0
        elif condition.idle_s:
            self._page_tasks.append(task)
            if condition.without_visit:
                self._without_visit.append(task)
        if condition.absent:
            self._absences[task] = _Absences()
            self._absent_ids.setdefault(condition.absent, []).append(task)
        if condition.window_s:
            self._windows[task] = TaskWindows(condition)
            for trigger_id in set(condition.window_of or (TriggerCondition.WILDCARD,)):
                self._window_ids.setdefault(trigger_id, []).append(task)
        if condition.every_s and self.now_ms is not None:
            self._start_period(task, _floor(self.now_ms, condition))

    def remove_task(self, task: str) -> None:
        """Remove the task's timers; an unknown task is not an error."""
        condition = self._conditions.pop(task, None)
        if condition is None:
            return
        self._live -= bool(self._stream_tasks.pop(task, 0)) + (self._periods.pop(task, None) is not None)
        for tasks in (self._page_tasks, self._without_visit, self._absent_ids.get(condition.absent, [])):
            if task in tasks:
                tasks.remove(task)
        if condition.absent:
            self._live -= len(self._absences.pop(task).pending)
            if not self._absent_ids[condition.absent]:
                del self._absent_ids[condition.absent]
        if condition.window_s:
            self._live -= len(self._windows.pop(task).panes)
            self._crowded.discard(task)
            self._window_ids = {
                trigger_id: others
                for trigger_id, tasks in self._window_ids.items()
                if (others := [one for one in tasks if one != task])
            }
        for page_id, page in list(self._pages.items()):
            self._live -= page.running.pop(task, None) is not None
            if not page.running:
                del self._pages[page_id]
        self._compact()

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def next_due_ms(self) -> int | None:
        """The time of the stream at which the next timer is due, None without timers."""
        heap = self._heap
        while heap:
            entry = heap[0]
            deadline_ms = self._deadline_ms(entry)
            if deadline_ms is None:
                heapq.heappop(heap)
            elif deadline_ms > entry.deadline_ms:
                heapq.heapreplace(heap, entry._replace(deadline_ms=deadline_ms))
            else:
                return deadline_ms
        return None

    def advance(self, ts_ms: int) -> list[DueTimer]:
        """Move the time of the stream to that of an entry; return the timers that are due, which end.

        They are in the order of deadline, task, kind and key, after windows that close early at a bound.
        """
        early = self._close_crowded() if self._crowded else []
        return early + self._advance(ts_ms)

    def _advance(self, ts_ms: int) -> list[DueTimer]:
        now_ms = self.now_ms
        if now_ms is None:
            self.now_ms = ts_ms
            self._start_periods()
        elif ts_ms < now_ms - JUMP_MS:
            self._set_back(ts_ms - now_ms)
        elif ts_ms > now_ms:
            self.now_ms = ts_ms
            return list(self._fire_upto(ts_ms))
        return []

    def _fire_upto(self, now_ms: int) -> Iterator[DueTimer]:
        while (next_ms := self.next_due_ms) is not None and next_ms <= now_ms:
            if self._heap[0].kind == WINDOW:
                yield from self._close_window(self._heap[0], now_ms)
                continue
            entry = heapq.heappop(self._heap)
            self._live -= 1
            if entry.kind == ABSENT:
                pending = self._absences[entry.task].remove(entry.serial)
                contents: dict[str, Any] = {"event": pending.event.to_dict()}
                yield DueTimer(entry.task, ABSENT, pending.event.page_id, next_ms, contents)
            elif entry.kind == EVERY:
                start_ms = self._periods.pop(entry.task)[1]
                end_ms = _floor(now_ms, self._conditions[entry.task])
                self._start_period(entry.task, end_ms)
                yield DueTimer(entry.task, EVERY, "", end_ms, {"start_ms": start_ms, "end_ms": end_ms})
            else:
                self._end_idle(entry)
                yield DueTimer(entry.task, IDLE, entry.key, next_ms, {})

    def _close_window(self, entry: _Entry, now_ms: int) -> Iterator[DueTimer]:
        """Close the next window of the entry's pane; the entry stays in the heap for the pane's later windows."""
        windows = self._windows[entry.task]
        before, due_ms = len(windows.panes), entry.deadline_ms
        closed = [windows.close(windows.panes[int(entry.key)].first_ms)]
        if windows.was_set_back:
            closed += windows.close_after(now_ms + JUMP_MS)
        self._live -= before - len(windows.panes)
        for window in closed:
            yield _due_window(entry.task, due_ms, window)

    def _close_crowded(self) -> list[DueTimer]:
        """Close the windows that begin after the time of the stream, of tasks with too many panes.

        Without a clock that was set back there are none.
        """
        assert self.now_ms is not None
        found: list[DueTimer] = []
        for task in sorted(self._crowded):
            windows = self._windows[task]
            before = len(windows.panes)
            found += [_due_window(task, self.now_ms, window) for window in windows.close_after(self.now_ms)]
            self._live -= before - len(windows.panes)
        self._crowded.clear()
        return found

    def _end_idle(self, entry: _Entry) -> None:
        if entry.task in self._stream_tasks:
            self._stream_tasks[entry.task] = 0
            return
        page = self._pages[entry.key]
        del page.running[entry.task]
        if not page.running:
            del self._pages[entry.key]

    def _deadline_ms(self, entry: _Entry) -> int | None:
        """Return when the timer of a heap entry is due; None if it was removed."""
        task = entry.task
        if entry.kind == ABSENT:
            return (
                entry.deadline_ms if task in self._absences and entry.serial in self._absences[task].pending else None
            )
        if entry.kind == WINDOW:
            windows = self._windows.get(task)
            pane = None if windows is None else windows.panes.get(int(entry.key))
            return None if windows is None or pane is None or pane.serial != entry.serial else windows.deadline_ms(pane)
        if entry.kind == EVERY:
            return entry.deadline_ms if self._periods.get(task, (0, 0))[0] == entry.serial else None
        if self._stream_tasks.get(task) == entry.serial:
            return (self._latest_ms or 0) + 1000 * self._conditions[task].idle_s
        page = self._pages.get(entry.key)
        if page is None or page.running.get(task) != entry.serial:
            return None
        return page.latest_ms + 1000 * self._conditions[task].idle_s

    def _set_back(self, step_ms: int) -> None:
        """Move the time and all deadlines but those of windows back; periods are those of the new time."""
        assert self.now_ms is not None
        self.now_ms += step_ms
        if self._latest_ms is not None:
            self._latest_ms += step_ms
        for page in self._pages.values():
            page.latest_ms += step_ms
        for absences in self._absences.values():
            moved = [(n, one._replace(deadline_ms=one.deadline_ms + step_ms)) for n, one in absences.pending.items()]
            absences.pending.update(moved)
        for windows in self._windows.values():
            windows.was_set_back = bool(windows.panes)
        self._live -= len(self._periods)
        self._periods.clear()
        self._heap = [
            one if one.kind == WINDOW else one._replace(deadline_ms=one.deadline_ms + step_ms) for one in self._heap
        ]
        heapq.heapify(self._heap)
        self._start_periods()

    # --- events -------------------------------------------------------------------------------------------------------

    def feed(self, event: Event, *, has_visit: bool, is_open: bool, size_bytes: int = 0) -> None:
        """Take an event whose time `advance` has had: end and start the timers of quiet, and those of its absence.

        `has_visit`: its page had an open visit, or one that was cut. `is_open`: the page is not left by this event.
        `size_bytes`: of the event, for the windows that keep it.
        """
        assert self.now_ms is not None
        self._latest_ms = self.now_ms
        for task, serial in self._stream_tasks.items():
            if not serial:
                self._start_stream_timer(task, self._latest_ms)
        if self._page_tasks and event.page_id:
            self._feed_page(event.page_id, self._page_tasks if has_visit else self._without_visit, is_open=is_open)
        if self._absent_ids:
            for trigger_id in {event.event_id, event.page_id, TriggerCondition.WILDCARD} & self._absent_ids.keys():
                for task in self._absent_ids[trigger_id]:
                    self._end_absences(task, event)
        if self._window_ids:
            ids = {event.event_id, event.page_id, TriggerCondition.WILDCARD} & self._window_ids.keys()
            for task in {task for trigger_id in ids for task in self._window_ids[trigger_id]}:
                self._add_to_windows(task, event, size_bytes)

    def _feed_page(self, page_id: str, tasks: list[str], *, is_open: bool) -> None:
        assert self.now_ms is not None
        page = self._pages.get(page_id)
        if not is_open:
            if page is not None:
                self._live -= len(self._pages.pop(page_id).running)
            return
        if page is not None:
            page.latest_ms = self.now_ms
        elif tasks:
            page = self._pages[page_id] = _Page(self.now_ms)
        else:
            return
        if len(page.running) < len(self._page_tasks):
            for task in tasks:
                if task not in page.running:
                    self._start_page_timer(page_id, page, task)
        if len(self._pages) > MAX_TIMERS:
            _, oldest = self._pages.popitem(last=False)
            self.evicted.update(oldest.running.keys())
            self._live -= len(oldest.running)

    def _start_page_timer(self, page_id: str, page: _Page, task: str) -> None:
        deadline_ms = page.latest_ms + 1000 * self._conditions[task].idle_s
        page.running[task] = self._push(deadline_ms, task, IDLE, page_id)

    def _start_stream_timer(self, task: str, latest_ms: int) -> None:
        deadline_ms = latest_ms + 1000 * self._conditions[task].idle_s
        self._stream_tasks[task] = self._push(deadline_ms, task, IDLE, "")

    def start_absence(self, task: str, event: Event) -> None:
        """Start the wait for the event that must not come, after a match of the task's sequence that ends here.

        An event without the condition's key starts none.
        """
        condition, absences = self._conditions[task], self._absences[task]
        key = key_of(condition.key, event.contents) if condition.key else None
        if condition.key and key is None:
            return
        assert self.now_ms is not None
        deadline_ms = self.now_ms + 1000 * condition.absent_s
        self._add_absence(task, _Pending(deadline_ms, key, event, event.size_bytes()))
        while len(absences.pending) > MAX_TIMERS or absences.size_bytes > MAX_TIMER_BYTES:
            absences.remove(next(iter(absences.pending)))
            self.evicted[task] += 1
            self._live -= 1

    def _add_absence(self, task: str, pending: _Pending) -> None:
        order = "" if pending.key is None else repr(pending.key[1])[:_MAX_ORDER_CHARS]
        self._absences[task].add(self._push(pending.deadline_ms, task, ABSENT, order), pending)

    def _end_absences(self, task: str, event: Event) -> None:
        absences, field = self._absences[task], self._conditions[task].key
        key = key_of(field, event.contents) if field and absences.pending else None
        if field and key is None:
            return
        for serial in list(absences.of_key.get(key, ())):
            absences.remove(serial)
            self._live -= 1

    def _add_to_windows(self, task: str, event: Event, size_bytes: int) -> None:
        assert self.now_ms is not None
        windows = self._windows[task]
        pane, late = windows.add(event, size_bytes, self.now_ms)
        if late:
            self.late[task] += late
        if pane is not None:
            pane.serial = self._push(windows.deadline_ms(pane), task, WINDOW, str(pane.start_ms))
            if windows.is_crowded:
                self._crowded.add(task)
        if evicted := windows.evict():
            self.evicted_events[task] += evicted

    # --- the heap -----------------------------------------------------------------------------------------------------

    def _push(self, deadline_ms: int, task: str, kind: str, key: str) -> int:
        """Add a timer and return its serial number, by which the caller notes that it runs."""
        self._compact()
        self._serial += 1
        heapq.heappush(self._heap, _Entry(deadline_ms, task, kind, key, self._serial))
        self._live += 1
        return self._serial

    def _compact(self) -> None:
        if len(self._heap) > 64 + 2 * self._live:
            self._heap = [entry for entry in self._heap if self._deadline_ms(entry) is not None]
            heapq.heapify(self._heap)

    def _start_periods(self) -> None:
        assert self.now_ms is not None
        for task, condition in self._conditions.items():
            if condition.every_s:
                self._start_period(task, _floor(self.now_ms, condition))

    def _start_period(self, task: str, start_ms: int) -> None:
        deadline_ms = start_ms + 1000 * self._conditions[task].every_s
        self._periods[task] = self._push(deadline_ms, task, EVERY, ""), start_ms

    # --- snapshot -----------------------------------------------------------------------------------------------------

    def to_plain(self) -> dict[str, Any]:
        """Return the running timers and the time of the stream as plain data."""
        pages = [(page_id, page.latest_ms, list(page.running)) for page_id, page in self._pages.items()]
        absences = {
            task: [(one.deadline_ms, one.key, one.event.encode()) for one in absences.pending.values()]
            for task, absences in self._absences.items()
            if absences.pending
        }
        table = EventTable()
        windows = {task: windows.to_plain(table) for task, windows in self._windows.items() if windows.panes}
        return {
            "now_ms": self.now_ms,
            "latest_ms": self._latest_ms,
            "pages": pages,
            "quiet": [task for task, serial in self._stream_tasks.items() if serial],
            "periods": {task: start_ms for task, (_, start_ms) in self._periods.items()},
            "absences": absences,
            "panes": windows,
            "events": table.encoded,
        }

    @classmethod
    def restored(
        cls, value: Mapping[str, Any], conditions: Mapping[str, TriggerCondition], tasks: Collection[str]
    ) -> Self:
        """Return the timers that `to_plain` described, those of `tasks`; tasks with other conditions have none."""
        timers = cls()
        timers.now_ms, timers._latest_ms = value["now_ms"], value["latest_ms"]
        for task, condition in conditions.items():
            timers.add_task(task, condition)
        for task, start_ms in value["periods"].items():
            if task in tasks:
                timers._live -= 1
                timers._start_period(task, start_ms)
        for page_id, latest_ms, running in value["pages"]:
            page = timers._pages[page_id] = _Page(latest_ms)
            for task in running:
                if task in tasks:
                    timers._start_page_timer(page_id, page, task)
            if not page.running:
                del timers._pages[page_id]
        for task in value["quiet"]:
            if task in tasks:
                timers._start_stream_timer(task, value["latest_ms"])
        for task, absences in value["absences"].items():
            for deadline_ms, key, data in absences if task in tasks else ():
                event = Event(*plain.decode(data))
                pending = _Pending(deadline_ms, None if key is None else tuple(key), event, len(data))
                timers._add_absence(task, pending)
        timers._restore_windows(value, tasks)
        return timers

    def _restore_windows(self, value: Mapping[str, Any], tasks: Collection[str]) -> None:
        """Continue the windows of `tasks`; an older walle wrote them as "windows", or not at all."""
        events = decoded_events(value.get("events", ()))
        for task, windows in self._windows.items():
            if task not in tasks:
                continue
            if kept := value.get("panes", {}).get(task):
                windows.restore(kept, events)
            elif kept := value.get("windows", {}).get(task):
                windows.restore_encoded(kept)
            for pane in windows.panes.values():
                pane.serial = self._push(windows.deadline_ms(pane), task, WINDOW, str(pane.start_ms))
            if windows.is_crowded:
                self._crowded.add(task)


def _due_window(task: str, due_ms: int, window: ClosedWindow) -> DueTimer:
    contents = {"start_ms": window.start_ms, "end_ms": window.end_ms, "evicted": window.evicted}
    return DueTimer(task, WINDOW, "", due_ms, contents, window)


def _floor(ts_ms: int, condition: TriggerCondition) -> int:
    period_ms = 1000 * condition.every_s
    return ts_ms // period_ms * period_ms
