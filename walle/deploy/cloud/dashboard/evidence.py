"""View of what the monitor knows of a release: tests, steps and charts. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from walle.deploy.cloud.dashboard.pages import chart

_MARKS = 40  # of a chart, the latest
_PURPOSES = {"rejects": "rolls back", "accepts": "accepts", "groups": "pauses", "hindered": "pauses"}


def shown_tests(evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all tests of an evidence: name, value, limit, `part` (of the way to the limit), devices and what it does.

    A test is an entry of any list that has a name, a value and a limit, so that tests that a monitor gets later are
    shown too.
    """
    found = []
    for key, entries in evidence.items():
        if isinstance(entries, list | tuple):
            found += [test for entry in entries for test in _test(key, entry)]
    return sorted(found, key=lambda test: (test["does"] == "accepts", -test["part"]))


def _test(key: str, entry: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(entry, Mapping):
        return
    name = entry.get("test", entry.get("name"))
    value, limit = entry.get("value"), entry.get("boundary", entry.get("limit"))
    if name is None or not _is_number(value) or not _is_number(limit):
        return
    yield {
        "name": str(name),
        "value": value,
        "limit": limit,
        "part": max(0.0, min(1.0, value / limit)) if limit > 0 else float(value >= limit),
        "devices": entry.get("devices"),
        "does": str(entry.get("does", _PURPOSES.get(key, key))),
        "error": str(entry.get("error", "")),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def charts_of(
    course: Mapping[str, Any], history: Sequence[Mapping[str, Any]], gate: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the charts of a release: its coverage, and its failure rate beside that of a good and of a bad version."""
    points = course.get("points", [])
    if len(points) < 2:
        return []
    x = [point["at_s"] for point in points]
    marks = [{"x": one["at_s"], "label": one["state"]} for one in history if x[0] <= one["at_s"] <= x[-1]][-_MARKS:]
    rates = [100 * p["failed"] / (p["ok"] + p["failed"]) if p["ok"] + p["failed"] else None for p in points]
    has, left = [point["installed"] for point in points], [point["left"] for point in points]
    coverage = [
        {"label": "installed", "values": has, "color": "good"},
        {"label": "left", "values": left, "color": "bad"},
    ]
    limits = [
        {"label": f"{what} {100 * gate[key]:.3g} %", "y": 100 * gate[key], "color": color}
        for key, what, color in (("p_good", "good", "good"), ("p_bad", "bad", "bad"))
        if key in gate
    ]
    return [
        {
            "title": "Devices over time",
            "summary": f"installed on {has[-1]:,}, left by {left[-1]:,}",
            "data": chart(x, coverage, marks=marks),
        },
        {
            "title": "Failed runs over time",
            "summary": "no runs yet" if rates[-1] is None else f"{rates[-1]:.2f} % of all runs failed so far",
            "data": chart(x, [{"label": "failed %", "values": rates, "color": "bad"}], marks=marks, limits=limits),
        },
    ]
