"""The IPV feature: a visitor's behaviour on a page from entering to leaving it, about 1.2 KB as JSON (§7.1: 1.3 KB).

Statistics are computed over columns of the fields that describe the visit; device status, network, screen, ids of user
and session and the like are not read. Every list has
a limit. No field of an event is required: a missing one counts as 0, "" or an empty list.

A part of the feature about events that the visit does not have is absent: `scroll` without scrolls, `exposed` without
exposed items, `clicks`, `widgets` and `actions` without clicks, `gaps_ms` with a single gap (it is `dwell_ms`), counts
of 0, texts that are "". Visits of real logs have 2 to 6 events on average; more than half of their features was zeros.
"""

import actions
from fields import KINDS, MAX_NUMBER, TEXT_CHARS

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Events, Plan

MAX_ITEMS = 24  # distinct exposed items that are listed
MAX_CLICKS = 12  # clicks that are listed
MAX_WIDGETS = 8
_TEXT = {"max_chars": TEXT_CHARS}
_NUMBER = {"default": 0.0, "limit": MAX_NUMBER}
_NOT_EMPTY = {"omit_empty": True}
_CLICK = {
    "at_ms": "since_ms",
    "widget_id": "widget_id",
    "action": "action",
    "item_id": "item_id",
    "sku_id": "sku_id",
}


def _depth(function: str, **options: object) -> "tuple[Any, ...]":
    return ("depth", function, {**_NUMBER, "digits": 3, **options})


def _about(field: str, options: "dict[str, Any]") -> "tuple[Any, ...]":
    """Return a field of the enter, or else of the exit, that tells what the visit is about."""
    leave = ("page_exit", (field, "of_last", options))
    return ("page_enter", (field, "of_first", options), {"otherwise": leave})


# First and last time of a kind of event, and the mean gap.
_SPAN = {
    "first_ms": ("since_ms", "first"),
    "last_ms": ("since_ms", "last"),
    "mean_gap_ms": ("ts_ms", "mean_step", {"digits": 1}),
}
_FIRST_MS = ("ts_ms", "of_first", {"otherwise": 0})
_LATEST_MS = ("ts_ms", "max", {"omit_empty": True, "otherwise": 0})
_LONGEST_MS = ("since_ms", "max", {"least": 0, "omit_empty": True, "otherwise": 0})
_FEATURE = {
    "version": 2,
    "page_id": ("page_id", "last", _NOT_EMPTY),
    "item_id": _about("item_id", _TEXT),
    "category": _about("category", _TEXT),
    "price_cents": _about("price_cents", {"limit": MAX_NUMBER, "whole": True, "omit_empty": True}),
    "source": ("page_enter", ("source", "of_first", _TEXT)),
    "exit_reason": ("page_exit", ("reason", "of_last", _TEXT)),
    "times": (None, {kind: (kind, _SPAN) for kind in KINDS[1:-1]}, _NOT_EMPTY),
    "gaps_ms": (None, ("gap_ms", "spread", {"digits": 1}), {"min_events": 3}),
    "scroll": (
        "page_scroll",
        {
            "max": _depth("max"),
            "last": _depth("last"),
            "down": _depth("rise", start=0.0),
            "up": _depth("fall", start=0.0),
            "turns": _depth("turns", start=0.0),
            "velocity": ("velocity", "spread", {**_NUMBER, "digits": 1}),
        },
    ),
    "exposed": (
        "exposure",
        {
            "distinct": ("item_id", "distinct_count", {**_TEXT, "omit_empty": True, "required": True}),
            "deepest_slot": ("slot", "max", {**_NUMBER, "whole": True}),
            "item_ids": ("item_id", "distinct", {**_TEXT, "items": MAX_ITEMS}),
            "seen_ms": ("item_id", "first_seen", {**_TEXT, "items": MAX_ITEMS}),
        },
    ),
    "clicks": ("click", (_CLICK, "records", {**_TEXT, "items": MAX_CLICKS})),
    "widgets": ("click", ("widget_id", "most_common", {**_TEXT, "items": MAX_WIDGETS, "omit_empty": True})),
    "actions": actions.PART,
    "counts": {kind: (kind, ("event_id", "count")) for kind in KINDS},
    "enter_ms": ("page_enter", ("ts_ms", "of_first"), {"otherwise": _FIRST_MS}),
    "exit_ms": ("page_exit", ("ts_ms", "of_last"), {"otherwise": _LATEST_MS}),
    "dwell_ms": ("page_exit", ("since_ms", "of_last", {"least": 0}), {"otherwise": _LONGEST_MS}),
    "events": "count",
}
_KEYS = {name: _FEATURE[name] for name in ("page_id", "item_id", "enter_ms")}
_plans: "dict[str, Plan]" = {}  # plans of _FEATURE and of _KEYS, each compiled at the first visit


def _plan(events: "Events", name: str, template: "dict[str, Any]") -> "Plan":
    if name not in _plans:
        _plans[name] = events.result_plan(template)
    return _plans[name]


def encoded_feature(events: "Events") -> object:
    """Return the feature of one page visit, encoded as plain data; `events` are those of `ctx.events`.

    Times ending in `_ms` are milliseconds; those of events are counted from the first event of the visit.
    """
    return _plan(events, "feature", _FEATURE).encode(events, **actions.values(events))


def ipv_feature(events: "Events") -> "dict[str, Any]":
    """Return the same as a dict."""
    feature: dict[str, Any] = _plan(events, "feature", _FEATURE).run(events, **actions.values(events))
    return feature


def visit_keys(events: "Events") -> "dict[str, Any]":
    """Return the fields of the feature that name the visit: `page_id` and `item_id` unless empty, and `enter_ms`."""
    keys: dict[str, Any] = _plan(events, "keys", _KEYS).run(events)
    return keys
