"""The IPV feature: a visitor's behaviour on a page from entering to leaving it, about 1.2 KB as JSON (§7.1: 1.3 KB).

Statistics are computed over columns of the fields that describe the visit; device status, network, screen, ids of user
and session and the like are not read. Every list has
a limit. No field of an event is required: a missing one counts as 0, "" or an empty list.

A part of the feature about events that the visit does not have is absent: `scroll` without scrolls, `exposed` without
exposed items, `clicks`, `widgets` and `actions` without clicks, `gaps_ms` with a single gap (it is `dwell_ms`), counts
of 0, texts that are "". Visits of real logs have 2 to 6 events on average; more than half of their features was zeros.
"""

from actions import action_counts
from fields import KINDS, MAX_NUMBER, TEXT_CHARS, number, text

MAX_ITEMS = 24  # distinct exposed items that are listed
MAX_CLICKS = 12  # clicks that are listed
MAX_WIDGETS = 8
_TEXT = {"max_chars": TEXT_CHARS}
_NUMBER = {"default": 0.0, "limit": MAX_NUMBER}
# Fields of the enter and the exit that tell what the visit is about, and their names in the feature.
_ABOUT = {
    "item_id": "item_id",
    "category": "category",
    "price_cents": "price_cents",
    "source": "source",
    "reason": "exit_reason",
}
_CLICK = {
    "at_ms": "since_ms",
    "widget_id": "widget_id",
    "action": "action",
    "item_id": "item_id",
    "sku_id": "sku_id",
}


def _depth(function, **options):
    return ("depth", function, {**_NUMBER, "digits": 3, **options})


def _at(place, *fields):
    return {name: (name, place) for name in fields}


# First and last time of a kind of event, and the mean gap.
_SPAN = {
    "first_ms": ("since_ms", "first"),
    "last_ms": ("since_ms", "last"),
    "mean_gap_ms": ("ts_ms", "mean_step", {"digits": 1}),
}
_RESULTS = {
    None: {
        "events": "count",
        "page_id": ("page_id", "last"),
        "first_ms": ("ts_ms", "first"),
        "latest_ms": ("ts_ms", "max"),
        "gaps_ms": ("gap_ms", "spread", {"digits": 1}),
    },
    "page_enter": {
        "events": "count",
        "enter_ms": ("ts_ms", "first"),
        "about": _at("of_first", "item_id", "category", "price_cents", "source"),
    },
    "page_scroll": {
        "events": "count",
        "times": _SPAN,
        "scroll": {
            "max": _depth("max"),
            "last": _depth("last"),
            "down": _depth("rise", start=0.0),
            "up": _depth("fall", start=0.0),
            "turns": _depth("turns", start=0.0),
            "velocity": ("velocity", "spread", {**_NUMBER, "digits": 1}),
        },
    },
    "exposure": {
        "events": "count",
        "times": _SPAN,
        "exposed": {
            "distinct": ("item_id", "distinct_count", _TEXT),
            "deepest_slot": ("slot", "max", _NUMBER),
            "item_ids": ("item_id", "distinct", {**_TEXT, "items": MAX_ITEMS}),
            "seen_ms": ("item_id", "first_seen", {**_TEXT, "items": MAX_ITEMS}),
        },
    },
    "click": {
        "events": "count",
        "times": _SPAN,
        "actions": ("action", "column", _TEXT),
        "clicks": (_CLICK, "records", {**_TEXT, "items": MAX_CLICKS}),
        "widgets": ("widget_id", "most_common", {**_TEXT, "items": MAX_WIDGETS}),
    },
    "page_exit": {
        "events": "count",
        "exit_ms": ("ts_ms", "last"),
        "about": _at("of_last", "item_id", "category", "price_cents", "reason"),
    },
}
_NO_EVENTS = {"events": 0, "page_id": "", "first_ms": 0, "latest_ms": 0, "gaps_ms": None}
_plan = None  # of _RESULTS, compiled at the first visit


def ipv_feature(events):
    """Return the feature of one page visit, plain data; `events` are those of `ctx.events`.

    Times ending in `_ms` are milliseconds; those of events are counted from the first event of the visit.
    """
    global _plan  # noqa: PLW0603 -- a task has `events` in a run only
    if _plan is None:
        _plan = events.plan(_RESULTS)
    found = _plan.run(events)
    visit = found.pop(None, _NO_EVENTS)
    enter, scroll, exposure, click, leave = map(found.get, KINDS)
    feature = {"version": 2}
    if visit["page_id"]:
        feature["page_id"] = visit["page_id"]
    about = leave["about"] if leave else {}
    if enter:
        about |= enter["about"]
    for field, name in _ABOUT.items():
        if field in about:
            value = int(number(about[field], 0.0)) if field == "price_cents" else text(about[field])
            if value:
                feature[name] = value
    times, counts = {}, {}
    for kind, kept in found.items():
        counts[kind] = kept["events"]
        if "times" in kept:
            times[kind] = kept["times"]
    if times:
        feature["times"] = times
    if visit["events"] > 2:
        feature["gaps_ms"] = visit["gaps_ms"]
    if scroll:
        feature["scroll"] = scroll["scroll"]
    if exposure and (exposed := exposure["exposed"])["distinct"]:
        exposed["deepest_slot"] = int(exposed["deepest_slot"])
        feature["exposed"] = exposed
    actions = action_counts(click["actions"] if click else [])
    if click:
        feature["clicks"] = click["clicks"]
        if click["widgets"]:
            feature["widgets"] = click["widgets"]
        if any(actions.values()):
            feature["actions"] = actions
    first_ms = visit["first_ms"]
    feature["counts"] = counts
    feature["enter_ms"] = enter["enter_ms"] if enter else first_ms
    exit_ms = feature["exit_ms"] = leave["exit_ms"] if leave else visit["latest_ms"]
    feature["dwell_ms"] = exit_ms - first_ms if exit_ms > first_ms else 0
    feature["events"] = visit["events"]
    return feature
