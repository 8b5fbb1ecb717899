"""Distinct failures of a release: grouping, and bounds against devices that flood."""

import json

from walle.deploy.monitor.failure_groups import MAX_GROUPS, FailureGroups
from walle.protocol import Failure, Outcome, OutcomeKind


def outcome(*failures: Failure, kind: OutcomeKind = OutcomeKind.RUN, error: str = "", failed: int = 0) -> Outcome:
    failed = failed or sum(failure.count for failure in failures)
    return Outcome(task="shop/ipv", version="v1", release="r", kind=kind, failed=failed, error=error, failures=failures)


def failure(error: str, place: str = "main.py:3 in execute", count: int = 1, error_type: str = "KeyError") -> Failure:
    return Failure(error_type=error_type, error=error, place=place, traceback=f"of {error}", log="info: x", count=count)


def test_failures_are_grouped_by_type_and_place_whatever_their_text() -> None:
    groups = FailureGroups()
    groups.take("d1", outcome(failure("'a'", count=3)), 10.0)
    groups.take("d2", outcome(failure("'b'"), failure("'c'", place="main.py:9 in helper")), 20.0)
    groups.take("d1", outcome(failure("'d'")), 30.0)
    first, second = groups.all()
    assert (first.example.error, first.device_id, first.count, first.devices) == ("'d'", "d1", 5, 2)
    assert (first.first_s, first.last_s) == (10.0, 30.0)
    assert (second.example.place, second.count, second.devices) == ("main.py:9 in helper", 1, 1)
    plain = first.to_plain()
    assert (plain["error"], plain["traceback"], plain["kind"], plain["count"]) == ("'d'", "of 'd'", "run", 5)


def test_what_has_no_place_is_grouped_by_its_text_without_numbers() -> None:
    groups = FailureGroups()
    for number in range(5):
        error = f"the device's disk: {number} bytes are missing"
        groups.take(f"d{number}", outcome(error=error, kind=OutcomeKind.REJECTED), float(number))
    groups.take("d9", outcome(error="its signature is wrong", kind=OutcomeKind.REJECTED), 9.0)
    assert [(group.kind, group.count, group.devices) for group in groups.all()] == [
        ("rejected", 5, 5),
        ("rejected", 1, 1),
    ]


def test_failures_that_a_report_counts_and_does_not_describe_are_counted() -> None:
    groups = FailureGroups()
    groups.take("d1", outcome(failure("x", count=2), failed=10), 1.0)
    assert (groups.others, groups.all()[0].count) == (8, 2)
    groups.take("d2", outcome(error="an older device", failed=4), 2.0)
    assert (groups.others, [group.count for group in groups.all()]) == (8, [4, 2])
    groups.take("d3", outcome(failure("x", count=10**9), failure("y", place="p", count=10**9), failed=5), 3.0)
    assert (groups.others, sorted(group.count for group in groups.all())) == (8, [1, 4, 7])


def test_one_device_that_floods_displaces_nothing_that_others_report() -> None:
    groups = FailureGroups()
    for device in range(3):
        groups.take(f"good-{device}", outcome(failure("real", place="main.py:1 in execute")), 0.0)
    for number in range(10_000):
        groups.take("hostile", outcome(failure("x" * 2000, place=f"main.py:{number}", error_type="E" * 200)), 1.0)
    shown = groups.all()
    assert len(shown) == MAX_GROUPS
    assert (shown[0].example.error, shown[0].devices) == ("real", 3)
    assert groups.others == 10_000 - (MAX_GROUPS - 1)
    assert len(json.dumps(groups.to_plain())) < 250_000


def test_numbers_of_devices_are_estimated_in_bounded_memory() -> None:
    groups = FailureGroups()
    for number in range(5_000):
        groups.take(f"d{number}", outcome(failure("x")), float(number))
    (group,) = groups.all()
    assert group.count == 5_000
    assert 0.8 * 5_000 < group.devices < 1.2 * 5_000
    assert len(json.dumps(groups.to_plain())) < 2_000


def test_groups_survive_the_journal() -> None:
    groups = FailureGroups()
    for number in range(100):
        groups.take(f"d{number}", outcome(failure("x", count=2), failure("y", place="", error_type="")), float(number))
    again = FailureGroups.from_plain(json.loads(json.dumps(groups.to_plain())))
    assert again.all() == groups.all()
    again.take("d5", outcome(failure("z")), 200.0)
    assert [group.count for group in again.all()] == [201, 100]
