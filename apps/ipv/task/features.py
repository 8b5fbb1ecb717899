"""The IPV feature: a visitor's behaviour on a page from entering to leaving it, about 1.2 KB as JSON (§7.1: 1.3 KB).

Statistics are computed over columns of the fields that describe the visit; device status, network, screen, ids of user
and session and the like are not read. Every list has
a limit. No field of an event is required: a missing one counts as 0, "" or an empty list.

A part of the feature about events that the visit does not have is absent: `scroll` without scrolls, `exposed` without
exposed items, `clicks`, `widgets` and `actions` without clicks, `gaps_ms` with a single gap (it is `dwell_ms`), counts
of 0, texts that are "". Visits of real logs have 2 to 6 events on average; more than half of their features was zeros.
"""

import itertools
import math

from actions import action_counts
from fields import KINDS, MAX_NUMBER, TEXT_CHARS, number, text

MAX_ITEMS = 24  # distinct exposed items that are listed
MAX_CLICKS = 12  # clicks that are listed
MAX_WIDGETS = 8
_CLICK_FIELDS = ("widget_id", "action", "item_id", "sku_id")


def ipv_feature(events):
    """Return the feature of one page visit, plain data; `events` are those of `ctx.events`.

    Times ending in `_ms` are milliseconds; those of events are counted from the first event of the visit.
    """
    by_kind = {kind: found for kind in KINDS if (found := events.named(kind))}
    kind_times = {kind: found.column("ts_ms") for kind, found in by_kind.items()}
    times = events.column("ts_ms")
    first_ms = times[0] if times else 0
    enter_times, exit_times = kind_times.get("page_enter"), kind_times.get("page_exit")
    item_id, category, price_cents, source, reason = _about(by_kind.get("page_enter"), by_kind.get("page_exit"))
    clicks = by_kind.get("click")
    named = [clicks.texts(name, TEXT_CHARS) for name in _CLICK_FIELDS] if clicks else ([], [], [], [])
    actions = action_counts(named[1])
    feature = {
        "version": 2,
        "page_id": events.pick(-1, "page_id")[0] if times else "",
        "item_id": text(item_id),
        "category": text(category),
        "price_cents": int(number(price_cents, 0.0)),
        "source": text(source),
        "exit_reason": text(reason),
        "times": {kind: _span(kind_times[kind], first_ms) for kind in KINDS[1:-1] if kind in by_kind},
        "gaps_ms": _gaps(times),
        "scroll": _scroll(by_kind["page_scroll"]) if "page_scroll" in by_kind else {},
        "exposed": _exposed(by_kind["exposure"], kind_times["exposure"], first_ms) if "exposure" in by_kind else {},
        "clicks": _clicks(kind_times["click"], named, first_ms) if clicks else [],
        "widgets": _most_common(named[0]),
        "actions": actions if any(actions.values()) else {},
    }
    exit_ms = exit_times[-1] if exit_times else max(times, default=0)
    measured = {
        "counts": {kind: len(found) for kind, found in kind_times.items()},
        "enter_ms": enter_times[0] if enter_times else first_ms,
        "exit_ms": exit_ms,
        "dwell_ms": max(0, exit_ms - first_ms),
        "events": len(times),
    }
    return {name: value for name, value in feature.items() if value} | measured


def _about(enter, leave):
    """Return item, category, price and source of the first enter, else of the last exit, and the exit's reason."""
    found = [None] * 5
    if leave:
        found[:3], found[4] = leave.pick(-1, "item_id", "category", "price_cents"), leave.pick(-1, "reason")[0]
    if enter:
        entered = enter.pick(0, "item_id", "category", "price_cents", "source", default=_MISSING)
        found[:4] = [old if new is _MISSING else new for old, new in zip(found, entered)]  # noqa: B905 -- 5 and 4
    return found


_MISSING = object()


def _span(times, first_ms):
    """Return the first and last time of a kind of event, and the mean gap."""
    first, last = times[0], times[-1]
    mean = (last - first) / (len(times) - 1) if len(times) > 1 else 0.0
    return {"first_ms": first - first_ms, "last_ms": last - first_ms, "mean_gap_ms": round(mean, 1)}


def _spread(values):
    """Return mean, standard deviation, quartiles and maximum; zeros for no numbers."""
    ordered = sorted(values) or [0]
    count = len(ordered)
    mean = sum(ordered) / count
    deviation = math.sqrt(sum([(value - mean) ** 2 for value in ordered]) / count)
    quartiles = [ordered[(count - 1) * part // 4] for part in (1, 2, 3)]
    return {"mean": round(mean, 1), "std": round(deviation, 1), "quartiles": quartiles, "max": ordered[-1]}


def _gaps(times):
    gaps = [after - before if after > before else 0 for before, after in itertools.pairwise(times)]
    return _spread(gaps) if len(gaps) > 1 else {}


def _scroll(events):
    depths = events.numbers("depth", 0.0, MAX_NUMBER)
    moves = [after - before for before, after in itertools.pairwise([0.0, *depths])]
    return {
        "max": round(max(depths), 3),
        "last": round(depths[-1], 3),
        "down": round(sum([move for move in moves if move > 0]), 3),
        "up": round(-sum([move for move in moves if move < 0]), 3),
        "turns": sum([before * after < 0 for before, after in itertools.pairwise(moves)]),
        "velocity": _spread(events.numbers("velocity", 0.0, MAX_NUMBER)),
    }


def _exposed(events, times, first_ms):
    """Return the number of exposed items, and of the first ones the id and the time of their first exposure."""
    seen = {}
    for item, ts_ms in zip(events.texts("item_id", TEXT_CHARS), times):  # noqa: B905 -- columns of the same events
        if item not in seen:
            seen[item] = ts_ms - first_ms
    seen.pop("", None)
    if not seen:
        return {}
    items = list(seen)[:MAX_ITEMS]
    return {
        "distinct": len(seen),
        "deepest_slot": int(max(events.numbers("slot", 0.0, MAX_NUMBER))),
        "item_ids": items,
        "seen_ms": [seen[item] for item in items],
    }


def _clicks(times, named, first_ms):
    """Return time and named fields of the first clicks; `named` are the columns of _CLICK_FIELDS."""
    clicks = []
    for index, ts_ms in enumerate(times[:MAX_CLICKS]):
        click = {"at_ms": ts_ms - first_ms}
        for name, column in zip(_CLICK_FIELDS, named):  # noqa: B905 -- a column each
            if column[index]:
                click[name] = column[index]
        clicks.append(click)
    return clicks


def _most_common(names):
    """Return how often each of the most common names occurs, "" apart; of equal ones the first come first."""
    counts = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    counts.pop("", None)
    return dict(sorted(counts.items(), key=lambda count: -count[1])[:MAX_WIDGETS])
