"""View of what the monitor knows of a release: tests, steps and charts. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeIs

from walle.cloud.dashboard.pages import chart
from walle.deploy.gate.evidence_text import decision_text, name_text
from walle.deploy.releases.release import ReleaseState
from walle.deploy.releases.stage_text import stage_text, state_text

_MARKS = 40  # latest marks of a chart that are shown
_COLORS = {
    False: ("bad", "warn", "busy", "dim", "fg", "good"),
    True: ("good", "busy", "fg", "dim", "warn", "bad"),
}  # True: tests that accept
_PURPOSES = {"rejects": "rolls back", "accepts": "accepts", "groups": "pauses", "hindered": "pauses"}


def shown_tests(evidence: Mapping[str, Any], *, is_rejected: bool = False) -> list[dict[str, Any]]:
    """Return all tests of an evidence: name, value, limit, `part` (of the way to the limit), devices and what it does.

    `text` and `decision` are the words for its name, and for its value and limit.

    A version that is rejected has no use for the tests that could have accepted it: they are left out.
    A test is an entry of any list that has a name, a value and a limit, so that tests that a monitor gets later are
    shown too.
    """
    found = []
    for key, entries in evidence.items():
        if isinstance(entries, list | tuple):
            found += [test for entry in entries for test in _test(key, entry)]
    if is_rejected:
        found = [test for test in found if test["does"] != "accepts"]
    return sorted(found, key=lambda test: (test["does"] == "accepts", -test["part"]))


def _test(key: str, entry: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(entry, Mapping):
        return
    name = entry.get("test", entry.get("name"))
    value, limit = entry.get("value"), entry.get("boundary", entry.get("limit"))
    if name is None or not (_is_number(value) and _is_number(limit)):
        return
    does = str(entry.get("does", _PURPOSES.get(key, key)))
    yield {
        "name": str(name),
        "text": name_text(str(name)),
        "decision": decision_text(value, limit, does),
        "value": value,
        "limit": limit,
        "part": max(0.0, min(1.0, value / limit)) if limit > 0 else float(value >= limit),
        "devices": entry.get("devices"),
        "does": does,
        "error": str(entry.get("error", "")),
    }


def _is_number(value: Any) -> TypeIs[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def charts_of(
    course: Mapping[str, Any], history: Sequence[Mapping[str, Any]], gate: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the charts of a release: coverage, failure rate beside the accepted and unacceptable ones, tests."""
    points = course.get("points", [])
    tests = list(_test_charts(course.get("tests", []), history))
    if len(points) < 2:
        return tests
    x = [point["at_s"] for point in points]
    marks = _marks(history, x)
    rates = [100 * p["failed"] / (p["ok"] + p["failed"]) if p["ok"] + p["failed"] else None for p in points]
    has, left = [point["installed"] for point in points], [point["left"] for point in points]
    coverage = [
        {"label": "installed", "values": has, "color": "good"},
        {"label": "back on another version", "values": left, "color": "bad"},
    ]
    failed = [{"label": "failed", "values": rates, "color": "bad"}]
    limits = [
        {"label": f"{what} {100 * gate[key]:.3g} %", "y": 100 * gate[key], "color": color}
        for key, what, color in (("p_good", "accepted", "good"), ("p_bad", "unacceptable", "bad"))
        if key in gate
    ]
    return [
        {
            "title": "Devices over time",
            "summary": f"installed on {has[-1]:,}, back on another version on {left[-1]:,}",
            "data": chart(x, coverage, marks=marks),
        },
        {
            "title": "Failed runs over time",
            "summary": "no runs yet" if rates[-1] is None else f"{rates[-1]:.2f} % of all runs failed so far",
            "data": chart(x, failed, marks=marks, limits=limits, unit=" %"),
        },
        *tests,
    ]


def _marks(history: Sequence[Mapping[str, Any]], x: Sequence[float]) -> list[dict[str, Any]]:
    shown = [one for one in history if x[0] <= one["at_s"] <= x[-1]][-_MARKS:]
    return [{"x": one["at_s"], "label": state_text(one["state"])} for one in shown]


def _test_charts(steps: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the charts of the tests: how far each is on the way to its boundary, at which it decides."""
    points = [(step, point) for step in steps for point in step["points"]]
    if len(points) < 2:
        return
    x = [round(point["at_s"], 1) for _, point in points]
    boundary = {(step["stage"], one["test"]): one["boundary"] for step in steps for one in step["tests"]}
    does = {one["test"]: one["does"] for step in steps for one in step["tests"]}
    is_rejected = bool(history) and history[-1]["state"] == ReleaseState.ROLLED_BACK
    titles = {False: "Evidence against the version over time", True: "Evidence for it over time"}
    for accepts, title in titles.items():
        if accepts and is_rejected:
            continue
        names = [name for name, what in does.items() if (what == "accepts") is accepts]
        values = {
            name: [_way(point["values"].get(name), boundary.get((step["stage"], name))) for step, point in points]
            for name in names
        }
        shown = [name for name in names if any(value is not None for value in values[name])]
        if not shown:
            continue
        colors = _COLORS[accepts]
        lines = [
            {"label": name_text(name), "values": values[name], "color": colors[number % len(colors)]}
            for number, name in enumerate(shown)
        ]
        limit = {"label": "decides" if not accepts else "accepts", "y": 100, "color": "good" if accepts else "bad"}
        marks = _marks(history, x)
        yield {
            "title": title,
            "summary": _nearest(*points[-1], boundary, does, shown),
            "data": chart(x, lines, marks=marks, limits=[limit], unit=" %"),
        }


def _way(value: float | None, boundary: float | None) -> float | None:
    """Return which part of the way to its boundary a test has gone, in percent from 0 to 120."""
    if value is None or boundary is None:
        return None
    return round(100 * max(0.0, min(1.2, value / boundary)), 1) if boundary > 0 else 100.0 * (value >= boundary)


def _nearest(
    step: Mapping[str, Any],
    point: Mapping[str, Any],
    boundary: Mapping[tuple[str, str], float],
    does: Mapping[str, str],
    names: Sequence[str],
) -> str:
    """Return a sentence on the test that decides first at the last point; all that accept have to."""
    known = {name: point["values"][name] for name in names if name in point["values"]}
    if not known:
        return f"no evidence yet at the {stage_text(step['stage'])}"
    choose = min if all(does[one] == "accepts" for one in known) else max
    name = choose(known, key=lambda one: known[one] / boundary[step["stage"], one])
    decision = decision_text(known[name], boundary[step["stage"], name], does[name])
    return f"{stage_text(step['stage'])}, {name_text(name)}: {decision}"
