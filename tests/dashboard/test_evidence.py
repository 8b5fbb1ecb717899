"""Tests of a release as they are shown: any entry of the evidence with a name, a value and a limit."""

import json

from walle.cloud.api.releases import safe
from walle.cloud.dashboard.evidence import charts_of, shown_tests
from walle.deploy.gate.gate_course import MAX_TEST_POINTS
from walle.metrics.table import TEST_NAMES

EVIDENCE = {
    "gate": {"p_good": 0.01},
    "new": {"devices": 10},
    "control": None,
    "rejects": [{"test": "failed runs", "value": -1.5, "boundary": 5.0}],
    "accepts": [{"test": "runs are good", "value": 3.5, "boundary": 3.0}],
    "later": [{"name": "a guard", "value": 2.0, "limit": 4.0, "devices": 7, "does": "pauses"}],
    "numbers": [1, 2, {"value": float("nan"), "limit": 1.0, "name": "broken"}, {"name": "none"}],
}


def test_shown_tests_any_kind_are_shown_with_those_that_accept_last() -> None:
    found = shown_tests(EVIDENCE)
    assert [(one["name"], one["part"], one["does"], one["devices"]) for one in found] == [
        ("a guard", 0.5, "pauses", 7),
        ("failed runs", 0.0, "rolls back", None),
        ("runs are good", 1.0, "accepts", None),
    ]
    assert (found[1]["text"], found[1]["decision"]) == ("evidence that it fails too often", "-1.5 (rolled back at 5)")
    assert [one["does"] for one in shown_tests(EVIDENCE, is_rejected=True)] == ["pauses", "rolls back"]
    assert shown_tests({}) == []


def test_charts_have_rates_where_there_were_runs() -> None:
    points = [
        {"at_s": 1.0, "installed": 1, "left": 0, "ok": 0, "failed": 0},
        {"at_s": 2.0, "installed": 4, "left": 1, "ok": 30, "failed": 10},
    ]
    history = [{"at_s": 1.5, "state": "rolled_back"}, {"at_s": 9.0, "state": "full"}]
    coverage, rate = charts_of({"points": points}, history, {"p_good": 0.01, "p_bad": 0.5})
    assert json.loads(rate["data"])["series"][0]["values"] == [None, 25.0]
    assert [one["y"] for one in json.loads(rate["data"])["limits"]] == [1.0, 50.0]
    assert json.loads(coverage["data"])["marks"] == [{"x": 1.5, "label": "rolled back"}]
    assert "25.00 %" in rate["summary"]
    assert charts_of({"points": points[:1]}, [], {}) == []


def test_charts_of_a_release_that_was_paused_often_are_whole_in_the_page() -> None:
    points = [
        {"at_s": 1795467000.123456 + 7 * n, "installed": 100_000 + n, "left": 10_000 + n, "ok": 3 * n, "failed": n + 1}
        for n in range(240)
    ]
    history = [{"at_s": 1795467000.123456 + n, "state": ("gray", "paused")[n % 2]} for n in range(1000)]
    charts = charts_of({"points": points}, history, {"p_good": 0.01, "p_bad": 0.5})
    assert [safe(one["data"]) for one in charts] == [one["data"] for one in charts]  # a page cuts longer texts
    assert json.loads(charts[0]["data"])["marks"][-1]["x"] == history[999]["at_s"]


def test_tests_over_time_are_drawn_by_how_far_they_are_on_the_way_to_their_boundary() -> None:
    steps = [
        {
            "stage": stage,
            "tests": [
                {"test": "failed runs", "does": "rolls back", "boundary": 5.0},
                {"test": "runs are good", "does": "accepts", "boundary": 4.0},
            ],
            "points": [
                {"at_s": at_s, "devices": 3, "values": {"failed runs": value, "runs are good": 2.0}},
                {"at_s": at_s + 1, "devices": 4, "values": {"failed runs": 10 * value}},
            ],
        }
        for stage, at_s, value in (("beta", 1.0, -1.0), ("gray 0.5", 5.0, 0.5))
    ]
    against, good = charts_of({"points": [], "tests": steps}, [{"at_s": 5.0, "state": "gray"}], {})
    data = json.loads(against["data"])
    assert data["x"] == [1.0, 2.0, 5.0, 6.0]
    assert [(one["label"], one["values"]) for one in data["series"]] == [
        ("evidence that it fails too often", [0.0, 0.0, 10.0, 100.0])
    ]
    assert [(one["label"], one["y"]) for one in data["limits"]] == [("decides", 100)]
    assert data["unit"] == " %"
    assert data["marks"] == [{"x": 5.0, "label": "percentage rollout"}]
    assert against["summary"] == "50 % step, evidence that it fails too often: 5 (rolled back at 5)"
    assert json.loads(good["data"])["series"][0]["values"] == [50.0, None, 50.0, None]
    assert good["summary"] == "no evidence yet at the 50 % step"
    over = [{"at_s": 6.0, "state": "rolled_back"}]
    assert [one["title"] for one in charts_of({"points": [], "tests": steps}, over, {})] == [against["title"]]
    assert charts_of({"points": []}, [], {}) == []


def test_charts_of_all_tests_are_whole_in_the_page() -> None:
    tests = [{"test": name, "does": "rolls back", "boundary": 7.378} for name in TEST_NAMES]
    points = [
        {"at_s": 1795467000.123 + n, "devices": n, "values": dict.fromkeys(TEST_NAMES, n / 33)}
        for n in range(MAX_TEST_POINTS + 20)
    ]
    steps = [{"stage": "gray 0.5", "tests": tests, "points": points}]
    history = [{"at_s": 1795467000.123456 + n / 3, "state": "rolled_back"} for n in range(600)]
    (chart,) = charts_of({"points": [], "tests": steps}, history, {})
    assert safe(chart["data"]) == chart["data"]
