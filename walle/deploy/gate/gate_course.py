"""Course of a gate's tests over time: the value of each at a bounded number of times, by step. Pure.

The values are noted at most every `interval_s`, and the latest ones at most every LATEST_S seconds, since exact values
take milliseconds. Where there are more than MAX_TEST_POINTS, every second one is removed, and the interval is doubled;
the last point of each step stays.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Self

from walle.metrics.table import TEST_NAMES

MAX_TEST_POINTS = 160
MAX_STEPS = 20  # the latest
LATEST_S = 10.0
_FIRST_INTERVAL_S = 1.0
_SINGLE = {"rejects": "rolls back", "accepts": "accepts"}
_SUMMARIES = {"groups": ("groups of devices", "pauses"), "hindered": ("hindered devices", "pauses")}


@dataclasses.dataclass(frozen=True)
class GateTest:
    """A test of a gate, or of several of one kind that which is nearest to its limit. It `does` that at the limit.

    `value` and `limit` are logarithms of a wealth.
    """

    name: str
    does: str
    value: float
    limit: float


def gate_tests(evidence: Mapping[str, Any]) -> list[GateTest]:
    """Return the tests of an evidence (`Monitor.evidence`), one for each of TEST_NAMES that it has."""
    found = [test for test in _tests(evidence) if math.isfinite(test.value)]
    return sorted(found, key=lambda test: TEST_NAMES.index(test.name))


def _tests(evidence: Mapping[str, Any]) -> Iterator[GateTest]:
    for key, does in _SINGLE.items():
        for one in evidence.get(key, ()):
            if one["test"] in TEST_NAMES:
                yield GateTest(one["test"], does, one["value"], one["boundary"])
    for key, (name, does) in _SUMMARIES.items():
        nearest = max(evidence.get(key, ()), key=lambda one: one["value"], default=None)
        if nearest is not None:
            yield GateTest(name, does, nearest["value"], nearest["boundary"])
    silent = evidence.get("silent", {})
    if "value" in silent:
        yield GateTest("silent devices", "pauses", silent["value"], silent["boundary"])
    guards = [one for one in evidence.get("guards", ()) if one["state"] != "not judged"]
    if guards:
        worst = max((one["rejects"] for one in guards), key=lambda one: one["value"])
        least = min((one["accepts"] for one in guards), key=lambda one: one["value"])
        yield GateTest("guards are broken", "rolls back", worst["value"], worst["boundary"])
        yield GateTest("guards hold", "accepts", least["value"], least["boundary"])


@dataclasses.dataclass(frozen=True)
class TestPoint:
    """Values of tests at a time in seconds since the epoch, when `devices` of the step counted."""

    __test__ = False
    at_s: float
    devices: int
    values: Mapping[str, float]

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class StepTests:
    """The tests while one step was judged. `tests` has what each does and its limit, by name."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.tests: dict[str, tuple[str, float]] = {}
        self.points: list[TestPoint] = []


class GateCourse:
    """Course of the tests of one release."""

    def __init__(self) -> None:
        self.steps: list[StepTests] = []
        self._interval_s = _FIRST_INTERVAL_S

    def is_due(self, stage: str, at_s: float) -> bool:
        """Return whether values of now are to be noted; a new step is due at once."""
        if not self.steps or self.steps[-1].stage != stage:
            return True
        since_s = at_s - self.steps[-1].points[-1].at_s
        return since_s < 0 or since_s >= min(self._interval_s, LATEST_S)

    def note(self, stage: str, at_s: float, devices: int, evidence: Mapping[str, Any]) -> None:
        """Note the tests of an evidence; the last point is replaced where it is younger than the interval."""
        tests = gate_tests(evidence)
        if not tests:
            return
        if not self.steps or self.steps[-1].stage != stage:
            self.steps = [*self.steps, StepTests(stage)][-MAX_STEPS:]
        step = self.steps[-1]
        points = step.points
        if points and at_s < points[-1].at_s:
            return  # the clock was set back
        step.tests |= {test.name: (test.does, test.limit) for test in tests}
        point = TestPoint(at_s, devices, {test.name: round(test.value, 3) for test in tests})
        if len(points) > 1 and points[-1].at_s - points[-2].at_s < self._interval_s:
            points[-1] = point
        else:
            points.append(point)
        if sum(len(one.points) for one in self.steps) > MAX_TEST_POINTS:
            self._interval_s *= 2
            for one in self.steps:
                one.points = one.points[:-1:2] + one.points[-1:]

    @property
    def latest(self) -> tuple[GateTest, ...]:
        """The tests as they were noted last, none before the first."""
        if not self.steps:
            return ()
        step = self.steps[-1]
        values = step.points[-1].values
        return tuple(GateTest(name, step.tests[name][0], value, step.tests[name][1]) for name, value in values.items())

    def shown(self) -> list[dict[str, Any]]:
        """Return each step as JSON for people and programs: `tests` with their limits, and `points` in time."""
        return [
            {
                "stage": step.stage,
                "tests": [
                    {"test": name, "does": does, "boundary": limit} for name, (does, limit) in step.tests.items()
                ],
                "points": [point.to_plain() for point in step.points],
            }
            for step in self.steps
        ]

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON to be kept; points as lists, which are short."""
        return {
            "interval_s": self._interval_s,
            "steps": [
                {
                    "stage": step.stage,
                    "tests": [[name, *one] for name, one in step.tests.items()],
                    "points": [
                        [point.at_s, point.devices, *(point.values.get(name) for name in step.tests)]
                        for point in step.points
                    ],
                }
                for step in self.steps
            ],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        course = cls()
        course._interval_s = float(plain["interval_s"])
        for one in plain["steps"]:
            step = StepTests(one["stage"])
            step.tests = {name: (does, limit) for name, does, limit in one["tests"]}
            for at_s, devices, *values in one["points"]:
                known = {name: value for name, value in zip(step.tests, values, strict=True) if value is not None}
                step.points.append(TestPoint(at_s, devices, known))
            course.steps.append(step)
        return course
