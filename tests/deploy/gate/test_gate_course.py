"""Course of a gate's tests: bounded, in the order of time, ends at what is now, the same after a restart."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from walle.deploy.gate.gate_course import LATEST_S, MAX_STEPS, MAX_TEST_POINTS, GateCourse, gate_tests
from walle.metrics.table import TEST_NAMES


def _one(name: str, value: float, boundary: float = 5.0) -> dict[str, Any]:
    return {"test": name, "value": value, "boundary": boundary}


def _evidence(value: float) -> dict[str, Any]:
    return {"rejects": [_one("failed runs", value), _one("broken devices", -1.0)], "accepts": []}


def test_tests_of_one_kind_are_shown_by_the_nearest() -> None:
    guard = {"state": "open", "rejects": _one("worse", 1.0, 9.0), "accepts": _one("within", 2.0, 3.0)}
    far = {"state": "bad", "rejects": _one("worse", 9.5, 9.0), "accepts": _one("within", -2.0, 3.0)}
    asleep = {"state": "not judged", "rejects": _one("worse", 99.0, 9.0), "accepts": _one("within", -99.0, 3.0)}
    evidence = {
        **_evidence(2.0),
        "accepts": [_one("runs are good", 1.0), _one("few devices are broken", float("-inf"))],
        "groups": [_one("group os=a", 1.0, 8.0), _one("group os=b", 4.0, 8.0)],
        "hindered": [_one("hindered by device", 3.0, 8.0)],
        "silent": {**_one("silent devices", 0.5, 7.0), "watched": 3},
        "guards": [guard, far, asleep],
    }
    found = {one.name: (one.does, one.value, one.limit) for one in gate_tests(evidence)}
    assert found == {
        "failed runs": ("rolls back", 2.0, 5.0),
        "broken devices": ("rolls back", -1.0, 5.0),
        "guards are broken": ("rolls back", 9.5, 9.0),
        "groups of devices": ("pauses", 4.0, 8.0),
        "hindered devices": ("pauses", 3.0, 8.0),
        "silent devices": ("pauses", 0.5, 7.0),
        "runs are good": ("accepts", 1.0, 5.0),
        "guards hold": ("accepts", -2.0, 3.0),
    }
    assert set(found) <= set(TEST_NAMES)
    assert gate_tests({}) == []


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 30)), min_size=1, max_size=400), st.booleans())
def test_points_are_bounded_and_end_at_what_is_now(gaps: list[tuple[float, int]], restarts: bool) -> None:
    course, at_s, stage = GateCourse(), 1e9, 0
    for count, (gap, jump) in enumerate(gaps):
        at_s += gap
        stage += jump == 0
        course.note(f"gray {stage}", at_s, count, _evidence(count))
        if restarts and count % 50 == 49:
            course = GateCourse.from_plain(json.loads(json.dumps(course.to_plain())))
    shown = course.shown()
    assert len(shown) <= MAX_STEPS
    points = [point for step in shown for point in step["points"]]
    assert all(step["points"] for step in shown)
    assert len(points) <= MAX_TEST_POINTS + MAX_STEPS
    assert [point["at_s"] for point in points] == sorted(point["at_s"] for point in points)
    assert points[-1]["values"]["failed runs"] == len(gaps) - 1
    assert (course.latest[0].name, course.latest[0].value) == ("failed runs", len(gaps) - 1)


def test_values_are_due_at_a_new_step_and_within_ten_seconds() -> None:
    course = GateCourse()
    for count in range(20_000):
        course.note("gray 1", 1e9 + count, count, _evidence(count))
    assert MAX_TEST_POINTS / 2 <= len(course.steps[0].points) <= MAX_TEST_POINTS + 1
    now_s = 1e9 + 19_999
    assert not course.is_due("gray 1", now_s + LATEST_S - 1)
    assert course.is_due("gray 1", now_s + LATEST_S)
    assert course.is_due("gray 2", now_s)
