"""Course of a release: bounded, in the order of time, first and last point kept, the same after a restart."""

import json

from hypothesis import given
from hypothesis import strategies as st

from walle.deploy.monitor.course import MAX_POINTS, MAX_VERDICTS, Course, Point


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=700), st.booleans())
def test_points_are_bounded_and_span_the_whole_release(gaps: list[float], restarts: bool) -> None:
    course, at_s = Course(), 1e9
    for count, gap in enumerate(gaps):
        at_s += gap
        course.note(Point(at_s, count, 0, count, 0))
        if restarts and count % 100 == 99:
            course = Course.from_plain(json.loads(json.dumps(course.to_plain())))
    points = course.points
    assert len(points) <= MAX_POINTS
    assert [point.at_s for point in points] == sorted(point.at_s for point in points)
    assert points[-1].installed == len(gaps) - 1  # what is now is always there
    assert points[0].at_s == 1e9 + gaps[0]


def test_a_long_release_keeps_half_of_the_points_or_more() -> None:
    course = Course()
    for count in range(100_000):
        course.note(Point(1e9 + count, count, 0, count, 0))
    assert MAX_POINTS / 2 <= len(course.points) <= MAX_POINTS
    assert course.points[0].at_s == 1e9
    gaps = [after.at_s - before.at_s for before, after in zip(course.points, course.points[1:-1], strict=False)]
    assert max(gaps) <= 2 * min(gaps)


def test_verdicts_are_bounded_and_what_is_delivered_again_is_one() -> None:
    course = Course()
    for number in range(100):
        for _ in range(2):
            course.end_step(f"gray {number}", "accept", "", 1e9 + number, {"rejects": []})
    assert len(course.verdicts) == MAX_VERDICTS
    assert course.verdicts[-1]["stage"] == "gray 99"
    assert len({one["stage"] for one in course.verdicts}) == MAX_VERDICTS
