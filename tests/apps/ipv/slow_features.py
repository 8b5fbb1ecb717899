"""Reference meaning of the IPV feature: plain Python over each event's contents, as the task once computed it."""

import collections
import itertools
import math
from typing import Any

from apps.ipv.training_data import task_module

ACTIONS = ("add_favorite", "add_cart", "purchase")
_fields = task_module("fields")
KINDS, number, text = _fields.KINDS, _fields.number, _fields.text
KEPT_FIELDS = {
    "page_enter": ("item_id", "category", "price_cents", "source"),
    "page_scroll": ("depth", "velocity"),
    "exposure": ("item_id", "slot"),
    "click": ("item_id", "widget_id", "action", "sku_id", "price_cents"),
    "page_exit": ("item_id", "category", "price_cents", "reason"),
}
MAX_ITEMS = 24  # distinct exposed items that are listed
MAX_CLICKS = 12  # clicks that are listed
MAX_WIDGETS = 8


def action_counts(clicks: Any) -> dict[str, int]:
    counts = dict.fromkeys(ACTIONS, 0)
    for click in clicks:
        action = text(click.get("action"))
        if action in counts:
            counts[action] += 1
    return counts


def ipv_feature(events: Any) -> dict[str, Any]:
    """Return the feature of one page visit, plain data; `events` are those of `ctx.events`.

    Times ending in `_ms` are milliseconds; those of events are counted from the first event of the visit.
    """
    groups = events.key_by(lambda event: event.event_id)
    by_kind = {kind: groups[kind].map(_keeper(kind)) for kind in KINDS if kind in groups}
    enter, leave = by_kind.get("page_enter", ()), by_kind.get("page_exit", ())
    times = [event.ts_ms for event in events]
    first_ms = times[0] if times else 0
    contents = [*(event.contents for event in enter[:1]), *(event.contents for event in leave[-1:])]
    clicks = by_kind.get("click", ())
    actions = action_counts([event.contents for event in clicks])
    feature = {
        "version": 2,
        "page_id": events[-1].page_id if times else "",
        "item_id": _first_text(contents, "item_id"),
        "category": _first_text(contents, "category"),
        "price_cents": next(filter(None, (int(number(one.get("price_cents"), 0.0)) for one in contents)), 0),
        "source": text(enter[0].contents.get("source")) if enter else "",
        "exit_reason": text(leave[-1].contents.get("reason")) if leave else "",
        "times": {kind: _span(by_kind[kind], first_ms) for kind in KINDS[1:-1] if kind in by_kind},
        "gaps_ms": _gaps(times),
        "scroll": _scroll(by_kind["page_scroll"]) if "page_scroll" in by_kind else {},
        "exposed": _exposed(by_kind.get("exposure", ()), first_ms),
        "clicks": [_click(event, first_ms) for event in clicks[:MAX_CLICKS]],
        "widgets": dict(_count(clicks, "widget_id").most_common(MAX_WIDGETS)),
        "actions": actions if any(actions.values()) else {},
    }
    exit_ms = leave[-1].ts_ms if leave else max(times, default=0)
    measured = {
        "counts": {kind: len(by_kind[kind]) for kind in KINDS if kind in by_kind},
        "enter_ms": enter[0].ts_ms if enter else first_ms,
        "exit_ms": exit_ms,
        "dwell_ms": max(0, exit_ms - first_ms),
        "events": len(times),
    }
    return {name: value for name, value in feature.items() if value} | measured


def _first_text(contents: Any, name: str) -> str:
    return next(filter(None, (text(one.get(name)) for one in contents)), "")


def _keeper(kind: Any) -> Any:
    kept = KEPT_FIELDS[kind]
    return lambda contents: {name: contents[name] for name in kept if name in contents}


def _span(events: Any, first_ms: Any) -> Any:
    """Return the first and last time of a kind of event, and the mean gap."""
    first, last = events[0].ts_ms, events[-1].ts_ms
    mean = (last - first) / (len(events) - 1) if len(events) > 1 else 0.0
    return {"first_ms": first - first_ms, "last_ms": last - first_ms, "mean_gap_ms": round(mean, 1)}


def _spread(values: Any) -> Any:
    """Return mean, standard deviation, quartiles and maximum; zeros for no numbers."""
    ordered = sorted(values) or [0]
    mean = sum(ordered) / len(ordered)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in ordered) / len(ordered))
    quartiles = [ordered[(len(ordered) - 1) * part // 4] for part in (1, 2, 3)]
    return {"mean": round(mean, 1), "std": round(deviation, 1), "quartiles": quartiles, "max": ordered[-1]}


def _gaps(times: Any) -> Any:
    gaps = [max(0, after - before) for before, after in itertools.pairwise(times)]
    return _spread(gaps) if len(gaps) > 1 else {}


def _scroll(events: Any) -> Any:
    depths = [number(event.contents.get("depth"), 0.0) for event in events]
    moves = [after - before for before, after in itertools.pairwise([0.0, *depths])]
    speeds = [number(event.contents.get("velocity"), 0.0) for event in events]
    return {
        "max": round(max(depths, default=0.0), 3),
        "last": round(depths[-1], 3) if depths else 0.0,
        "down": round(sum(move for move in moves if move > 0), 3),
        "up": round(-sum(move for move in moves if move < 0), 3),
        "turns": sum(before * after < 0 for before, after in itertools.pairwise(moves)),
        "velocity": _spread(speeds),
    }


def _exposed(events: Any, first_ms: Any) -> Any:
    """Return the number of exposed items, and of the first ones the id and the time of their first exposure."""
    seen: dict[str, int] = {}
    for event in events:
        seen.setdefault(text(event.contents.get("item_id")), event.ts_ms - first_ms)
    seen.pop("", None)
    if not seen:
        return {}
    slots = [number(event.contents.get("slot"), 0.0) for event in events]
    items = list(seen)[:MAX_ITEMS]
    return {
        "distinct": len(seen),
        "deepest_slot": int(max(slots, default=0.0)),
        "item_ids": items,
        "seen_ms": [seen[item] for item in items],
    }


def _click(event: Any, first_ms: Any) -> Any:
    names = ("widget_id", "action", "item_id", "sku_id")
    named = {name: text(event.contents.get(name)) for name in names}
    return {"at_ms": event.ts_ms - first_ms, **{name: value for name, value in named.items() if value}}


def _count(events: Any, name: Any) -> Any:
    counts = collections.Counter(text(event.contents.get(name)) for event in events)
    counts.pop("", None)
    return counts
