"""Reference meaning of `walle.pipeline.stream.events.Events`: plain Python over lists of events, one at a time."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from walle.pipeline.events.event import Event
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
    return [event for event in events if event_id in (None, event.event_id) and page_id in (None, event.page_id)]


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
            squares = [(value - mean) * (value - mean) for value in numbers]
            return math.sqrt(sum(squares) / len(numbers)) if numbers else None
        case "q1" | "median" | "q3":
            part = ("q1", "median", "q3").index(function) + 1
            return ordered[(len(ordered) - 1) * part // 4] if ordered else None
    raise ValueError(function)


def run_plan(events: Sequence[Event], selections: Mapping[Any, Mapping[str, Any]]) -> dict[Any, Any]:
    """Return what `Plan.run` of a plan by selections returns, a step at a time."""
    found: dict[Any, Any] = {}
    for event_id, steps in selections.items():
        selected = [event for event in events if event_id in (None, event.event_id)]
        if selected:
            found[event_id] = run_steps(selected, steps, events[0].ts_ms)
    return found


def run_part(
    all_events: Sequence[Event], part: Any, values: Mapping[str, Any], events: Sequence[Event] | None = None
) -> Any:
    """Return the result of a part of a template, of the selected events; MISSING where it is left out."""
    events = all_events if events is None else events
    if isinstance(part, dict):
        found = {name: run_part(all_events, inner, values, events) for name, inner in part.items()}
        if any(found[name] is MISSING and is_required(inner) for name, inner in part.items()):
            return MISSING
        return {name: value for name, value in found.items() if value is not MISSING}
    if isinstance(part, list):
        items = [run_part(all_events, inner, values, events) for inner in part]
        if any(item is MISSING and is_required(inner) for item, inner in zip(items, part, strict=True)):
            return MISSING
        return [None if item is MISSING else item for item in items]
    if part == "count":
        return len(events)
    if not isinstance(part, tuple):
        return part
    if len(part) == 1:
        return values.get(part[0], MISSING)
    options = part[2] if len(part) == 3 else {}
    if isinstance(part[1], str):
        result = run_steps(events, part, all_events[0].ts_ms if all_events else 0)
        if isinstance(result, float) and options.get("whole") and abs(result) < 2**63:
            result = int(result)
        if is_number(result) and "least" in options and result < options["least"]:
            result = options["least"]
    else:
        selected = [event for event in all_events if part[0] in (None, event.event_id)]
        enough = len(selected) >= options.get("min_events", 1)
        result = run_part(all_events, part[1], values, selected) if enough else MISSING
    if result is not MISSING and not result and options.get("omit_empty"):
        result = MISSING
    if result is MISSING and "otherwise" in options:
        return run_part(all_events, options["otherwise"], values, events)
    return result


def is_required(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 3 and bool(part[2].get("required"))


def run_steps(events: Sequence[Event], steps: Any, first_ms: int) -> Any:
    """Return the results of a dict or list of steps, or of one step; MISSING if its field is missing."""
    if isinstance(steps, dict):
        results = {name: run_steps(events, step, first_ms) for name, step in steps.items()}
        return {name: result for name, result in results.items() if result is not MISSING}
    if isinstance(steps, list):
        return [None if (result := run_steps(events, step, first_ms)) is MISSING else result for step in steps]
    if steps == "count":
        return len(events)
    field, function, options = (*steps, {})[:3]
    result = run_step(events, field, function, options, first_ms)
    digits = options.get("digits")
    if isinstance(result, float) and digits is not None:
        return round(result, digits)
    if isinstance(result, list) and function == "column" and digits is not None:
        return [round(value, digits) if isinstance(value, float) else value for value in result]
    return result


def values_of(events: Sequence[Event], field: str, options: Mapping[str, Any], first_ms: int) -> list[Any]:
    """Return the field of each event as the options read it, MISSING without it."""
    if field == "gap_ms":
        values: list[Any] = [max(0, after.ts_ms - before.ts_ms) for before, after in itertools.pairwise(events)]
    elif field == "since_ms":
        values = [event.ts_ms - first_ms for event in events]
    else:
        values = [field_of(event, field) for event in events]
    if "max_chars" in options:
        return [as_text(value, options["max_chars"]) for value in values]
    if "default" in options or "limit" in options:
        limit, default = options.get("limit", math.inf), options.get("default", MISSING)
        return [float(value) if is_number(value) and -limit <= value <= limit else default for value in values]
    return values


def as_text(value: Any, max_chars: int) -> str:
    if isinstance(value, str):
        return value[:max_chars]
    return str(value) if is_number(value) and isinstance(value, int) and -(2**53) <= value <= 2**53 else ""


def run_step(events: Sequence[Event], field: Any, function: str, options: Mapping[str, Any], first_ms: int) -> Any:
    items = options.get("items")
    if function == "records":
        columns = {
            name: values_of(events, key, {} if key in ("ts_ms", "since_ms") else options, first_ms)
            for name, key in field.items()
        }
        records = [{name: column[index] for name, column in columns.items()} for index in range(len(events))]
        absent = (MISSING, "") if "max_chars" in options else (MISSING,)
        return [{name: value for name, value in one.items() if value not in absent} for one in records][:items]
    values = values_of(events, field, options, first_ms)
    numbers = [value for value in values if is_number(value)]
    moves = [after - before for before, after in itertools.pairwise([*start_of(options), *map(float, numbers)])]
    counts: dict[str, int] = {}
    for value in values if "max_chars" in options else ():
        if value != "":
            counts[value] = counts.get(value, 0) + 1
    match function:
        case "column":
            return [None if value is MISSING else value for value in values][:items]
        case "of_first" | "of_last":
            value = (values or [MISSING])[0 if function == "of_first" else -1]
            return MISSING if value == "" and "max_chars" in options else value
        case "rise":
            return sum([move for move in moves if move > 0])
        case "fall":
            return sum([-move for move in moves if move < 0])
        case "turns":
            return sum(before * after < 0 for before, after in itertools.pairwise(moves))
        case "mean_step":
            steps = [*start_of(options), *map(float, numbers)]
            return (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else 0.0
        case "spread":
            ordered = sorted(numbers if field == "gap_ms" else map(float, numbers))
            if not ordered:
                return None
            as_events = [Event("x", "", 0, {"n": value}) for value in ordered]
            mean, std, *rest = [aggregate(as_events, "n", how) for how in ("mean", "std", "q1", "median", "q3", "max")]
            digits = options.get("digits", 300)
            return {"mean": round(mean, digits), "std": round(std, digits), "quartiles": rest[:3], "max": rest[3]}
        case "distinct" if "max_chars" in options:
            return list(counts)[:items]
        case "distinct_count":
            return len(counts)
        case "first_seen":
            return [events[values.index(value)].ts_ms - first_ms for value in list(counts)[:items]]
        case "tally":
            tally = {text: counts.get(text, 0) for text in options["texts"]}
            return tally if any(tally.values()) else MISSING
        case "most_common":
            return dict(sorted(counts.items(), key=lambda count: -count[1])[:items])
    as_events = [Event("x", "", 0, {} if value is MISSING else {"n": value}) for value in values]
    return aggregate(as_events, "n", function)


def start_of(options: Mapping[str, Any]) -> list[float]:
    return [options["start"]] if "start" in options else []
