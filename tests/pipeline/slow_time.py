"""The meaning of time conditions: each one against every entry of the whole history, by quadratic search.

Time that passes is counted in `elapsed`: a clock that is set back by more than an hour passes none. A timer is due at
the first entry at which its seconds have elapsed since the entry that started it, if nothing has ended it before.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.pipeline.slow_matcher import Occurrence, Watch, matches
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.events.ticks import Tick
from walle.protocol import TriggerCondition

HOUR_MS = 3_600_000

type Entry = Event | Tick


class Firing(NamedTuple):
    """A trigger: the number of its entry, and its event's fields."""

    entry: int
    event_id: str
    page_id: str
    ts_ms: int
    contents: dict[str, Any]


def firings(condition: TriggerCondition, entries: Sequence[Entry]) -> list[Firing]:
    """Return the triggers of a condition, in the order of their runs."""
    found: list[tuple[tuple[Any, ...], Firing]] = []
    times, elapsed = _times(entries)

    def due(start: int, seconds: int) -> tuple[int, int] | None:
        """Return the entry at which the time has passed since an entry, and the time of the stream then."""
        for entry in range(start + 1, len(entries)):
            over_ms = elapsed[entry] - elapsed[start] - 1000 * seconds
            if over_ms >= 0:
                return entry, times[entry] - over_ms
        return None

    def is_open(page_id: str, upto: int) -> bool:
        """Return whether the page has an open visit after these entries."""
        count = 0
        for event in entries[:upto]:
            if isinstance(event, Event) and event.page_id == page_id:
                count += event.event_id == PAGE_ENTER
                count -= event.event_id == PAGE_EXIT and count > 0
        return count > 0

    def has_visit(number: int) -> bool:
        event = _event(entries[number])
        return event.event_id == PAGE_ENTER or is_open(event.page_id, number)

    events = [(number, entry) for number, entry in enumerate(entries) if isinstance(entry, Event)]
    for at, (number, event) in enumerate(events):
        page, following, key = event.page_id, events[at + 1 :], ""
        if condition.idle == "page":
            following, key = [one for one in following if one[1].page_id == page], page
            if not page or not (has_visit(number) or condition.without_visit):
                continue
            if event.event_id == PAGE_EXIT and not is_open(page, number + 1):
                continue
        when = due(number, condition.idle_s) if condition.idle_s else None
        if when and not (following and following[0][0] < when[0]):
            found.append(((when[0], when[1], "@idle", key), Firing(when[0], "@idle", key, when[1], {})))
    if condition.every_s:
        period_ms = 1000 * condition.every_s
        for number in range(1, len(entries)):
            start_ms, end_ms = (times[one] // period_ms * period_ms for one in (number - 1, number))
            if start_ms < end_ms:
                span = {"start_ms": start_ms, "end_ms": end_ms}
                order = (number, start_ms + period_ms, "@every", "")
                found.append((order, Firing(number, "@every", "", end_ms, span)))
    for number in _sequence_ends(condition, entries):
        event = _event(entries[number])
        if event.page_id and not has_visit(number) and not condition.without_visit:
            continue
        if not condition.absent:
            firing = Firing(number, event.event_id, event.page_id, event.ts_ms, dict(event.contents))
            found.append(((number, float("inf")), firing))
            continue
        value = _key(condition, event)
        when = due(number, condition.absent_s)
        came = [
            later
            for later, other in events
            if later > number and matches(condition.absent, _occurrence(other)) and _key(condition, other) == value
        ]
        if when and not (came and came[0] < when[0]) and (value is not None or not condition.key):
            place = (when[0], when[1], "@absent", "" if value is None else repr(value[1]), number)
            contents = {"event": event.to_dict()}
            found.append((place, Firing(when[0], "@absent", event.page_id, when[1], contents)))
    if condition.window_s:
        for window in windows(condition, entries):
            fields = {"start_ms": window.start_ms, "end_ms": window.end_ms, "evicted": 0}
            firing = Firing(window.entry, "@window", "", window.due_ms, fields)
            found.append(((window.entry, window.due_ms, "@window", "", window.place), firing))
    return [firing for _, firing in sorted(found, key=lambda one: one[0])]


@dataclasses.dataclass
class Window:
    """A window that closes before the entry with this number, the one at `place` of those that do."""

    start_ms: int
    end_ms: int
    events: list[Event] = dataclasses.field(default_factory=list)
    entry: int = 0
    due_ms: int = 0
    place: int = 0


def windows(condition: TriggerCondition, entries: Sequence[Entry]) -> list[Window]:
    """Return the windows that close, in the order in which they do.

    Those of sliding windows are right where no clock is set back.
    """
    size_ms, grace_ms = 1000 * condition.window_s, 1000 * condition.grace_s
    every_ms = 1000 * condition.window_every_s or size_ms
    ids = condition.window_of or ("*",)
    times, _ = _times(entries)
    closed: list[Window] = []
    opened: list[Window] = []
    was_set_back = False
    for number, entry in enumerate(entries):
        if number and times[number] < times[number - 1] and opened:
            was_set_back = True
        while due := [one for one in opened if one.end_ms + grace_ms <= times[number]]:
            first = min(due, key=lambda one: one.start_ms)
            closing = [first]
            if was_set_back:
                ahead = [one for one in opened if one.start_ms > times[number] + HOUR_MS]
                closing += sorted(ahead, key=lambda one: one.start_ms)
                was_set_back = False
            for one in closing:
                opened.remove(one)
                one.entry, one.due_ms, one.place = number, first.end_ms + grace_ms, len(closed)
                one.events.sort(key=lambda event: event.ts_ms)
                closed.append(one)
        if isinstance(entry, Event) and any(matches(one, _occurrence(entry)) for one in ids):
            start_ms = entry.ts_ms // every_ms * every_ms
            while start_ms > entry.ts_ms - size_ms:
                if start_ms + size_ms + grace_ms > times[number]:
                    known = [one for one in opened if one.start_ms == start_ms]
                    window = known[0] if known else Window(start_ms, start_ms + size_ms)
                    window.events.append(entry)
                    opened += [] if known else [window]
                start_ms -= every_ms
    return closed


def _times(entries: Sequence[Entry]) -> tuple[list[int], list[int]]:
    """Return the time of the stream at each entry, and the time that has passed."""
    times: list[int] = []
    elapsed: list[int] = []
    for entry in entries:
        before, passed = (times[-1], elapsed[-1]) if times else (entry.ts_ms, 0)
        is_set_back = entry.ts_ms < before - HOUR_MS
        times.append(entry.ts_ms if is_set_back else max(before, entry.ts_ms))
        elapsed.append(passed if is_set_back else passed + times[-1] - before)
    return times, elapsed


def _sequence_ends(condition: TriggerCondition, entries: Sequence[Entry]) -> Iterator[int]:
    """Yield the entries at which the sequence is matched, by events that agree on the key."""
    if not condition.trigger_ids:
        return
    watches: dict[Any, Watch] = collections.defaultdict(lambda: Watch(condition))
    for number, event in enumerate(entries):
        if not isinstance(event, Event):
            continue
        value = _key(condition, event)
        if condition.key and condition.skip_till_next:
            if value is not None and watches[value].feed(_occurrence(event)):
                yield number
        elif watches[None].feed(_occurrence(event)):
            events = [one for one in entries[: number + 1] if isinstance(one, Event)]
            values = {_key(condition, one) for one in events[-len(condition.trigger_ids) :]}
            if not condition.key or (len(values) == 1 and None not in values):
                yield number


def _event(entry: Entry) -> Event:
    assert isinstance(entry, Event)
    return entry


def _key(condition: TriggerCondition, event: Event) -> Any:
    """Return the event's value of the key with its kind, None without one."""
    value = event.contents.get(condition.key) if condition.key else None
    return None if value is None else (type(value).__name__, value)


def _occurrence(event: Event) -> Occurrence:
    return Occurrence(event.event_id, event.page_id, event.ts_ms, event.contents)
