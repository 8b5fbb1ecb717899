"""Reference meaning of `walle.pipeline.stream.Events`: plain Python over lists of events, one at a time."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from walle.pipeline.events import Event
from walle.protocol import ContentsTest

MISSING = object()


def field_of(event: Event, field: str) -> Any:
    """Return the field of an event, MISSING without it."""
    if field in ("event_id", "page_id", "ts_ms", "contents"):
        return getattr(event, field)
    found: Any = event.contents
    for key in field.removeprefix("contents.").split("."):
        if not isinstance(found, Mapping) or key not in found:
            return MISSING
        found = found[key]
    return found


def where(events: Sequence[Event], field: str, comparison: str, value: Any) -> list[Event]:
    test = ContentsTest("f", comparison, value)
    found = [field_of(event, field) for event in events]
    return [event for event, item in zip(events, found, strict=True) if item is not MISSING and test({"f": item})]


def named(events: Sequence[Event], event_id: str | None, page_id: str | None) -> list[Event]:
    return [
        event for event in events if event_id in (None, event.event_id) and page_id in (None, event.page_id)
    ]


def group_key(event: Event, field: str) -> Any:
    """Return the value by which an event is grouped, so that equal keys are one group: a bool is no number."""
    value = field_of(event, field)
    value = None if value is MISSING else value
    return (type(value) is bool, value)


def grouped(events: Sequence[Event], key: Callable[[Event], Any]) -> dict[Any, list[Event]]:
    groups: dict[Any, list[Event]] = {}
    for event in events:
        groups.setdefault(key(event), []).append(event)
    return groups


def tumbling(events: Sequence[Event], size_ms: int, offset_ms: int) -> list[tuple[int, int, list[Event]]]:
    starts = sorted({event.ts_ms - (event.ts_ms - offset_ms) % size_ms for event in events})
    return [window(events, start, start + size_ms) for start in starts]


def sliding(events: Sequence[Event], size_ms: int, every_ms: int, offset_ms: int) -> list[tuple[int, int, list[Event]]]:
    starts = set()
    for event in events:
        start = event.ts_ms - (event.ts_ms - offset_ms) % every_ms
        while start > event.ts_ms - size_ms:
            starts.add(start)
            start -= every_ms
    return [window(events, start, start + size_ms) for start in sorted(starts)]


def window(events: Sequence[Event], start_ms: int, end_ms: int) -> tuple[int, int, list[Event]]:
    return start_ms, end_ms, [event for event in events if start_ms <= event.ts_ms < end_ms]


def sessions(events: Sequence[Event], gap_ms: int) -> list[tuple[int, int, list[Event]]]:
    found: list[tuple[int, int, list[Event]]] = []
    for event in sorted(events, key=lambda event: event.ts_ms):
        if found and event.ts_ms - found[-1][2][-1].ts_ms <= gap_ms:
            found[-1][2].append(event)
        else:
            found.append((event.ts_ms, 0, [event]))
    return [(start, inside[-1].ts_ms + gap_ms, inside) for start, _, inside in found]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def aggregate(events: Sequence[Event], field: str | None, function: str) -> Any:
    """Return one aggregation of some events, by Python's own functions."""
    if field is None:
        return len(events)
    present = [value for event in events if (value := field_of(event, field)) not in (MISSING, None)]
    numbers = [value for value in present if is_number(value)]
    ordered = sorted(numbers)
    match function:
        case "count":
            return len(present)
        case "sum":
            return sum(numbers)
        case "mean":
            return sum(numbers) / len(numbers) if numbers else None
        case "min":
            return min(numbers, default=None)
        case "max":
            return max(numbers, default=None)
        case "span":
            return max(numbers) - min(numbers) if numbers else None
        case "first":
            return present[0] if present else None
        case "last":
            return present[-1] if present else None
        case "distinct":
            return [value for _, value in dict.fromkeys((type(value) is bool, value) for value in present)]
        case "std":
            mean = sum(numbers) / len(numbers) if numbers else 0.0
            squares = [(value - mean) ** 2 for value in numbers]
            return math.sqrt(sum(squares) / len(numbers)) if numbers else None
        case "q1" | "median" | "q3":
            part = ("q1", "median", "q3").index(function) + 1
            return ordered[(len(ordered) - 1) * part // 4] if ordered else None
    raise ValueError(function)


