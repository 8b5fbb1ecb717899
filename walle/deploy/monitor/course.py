"""Course of a release over time: counts at a bounded number of times, and the evidence on which its steps ended. Pure.

The counts are noted at most every `interval_s`. Where there are MAX_POINTS of them, every second one is removed and the
interval is doubled, so that a release of any length has between half of them and all.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

MAX_POINTS = 240
MAX_VERDICTS = 40  # the latest: of steps, pauses and the bake
_FIRST_INTERVAL_S = 1.0


@dataclasses.dataclass(frozen=True)
class Point:
    """Counts of a release at a time, in seconds since the epoch: devices that installed and that left, and runs."""

    at_s: float
    installed: int
    left: int
    ok: int
    failed: int

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Course:
    """Course of one release. `verdicts` has the stage, the time, the verdict and the evidence behind each."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.verdicts: list[dict[str, Any]] = []
        self._interval_s = _FIRST_INTERVAL_S

    def note(self, point: Point) -> None:
        """Note the counts of now; the last point is replaced where it is younger than the interval."""
        points = self.points
        if points and point.at_s < points[-1].at_s:
            return  # the clock was set back
        if len(points) > 1 and points[-1].at_s - points[-2].at_s < self._interval_s:
            points[-1] = point
        else:
            points.append(point)
        if len(points) > MAX_POINTS:
            self._interval_s *= 2
            self.points = points[:-1:2] + points[-1:]

    def end_step(self, stage: str, verdict: str, reason: str, at_s: float, evidence: Mapping[str, Any]) -> None:
        """Keep the evidence on which a step ended, or was paused. What is delivered again replaces itself."""
        if self.verdicts and (self.verdicts[-1]["stage"], self.verdicts[-1]["verdict"]) == (stage, verdict):
            self.verdicts = self.verdicts[:-1]
        entry = {"stage": stage, "verdict": verdict, "reason": reason, "at_s": at_s, "evidence": dict(evidence)}
        self.verdicts = [*self.verdicts, entry][-MAX_VERDICTS:]

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON; points as lists, which are short."""
        return {
            "interval_s": self._interval_s,
            "points": [list(dataclasses.astuple(point)) for point in self.points],
            "verdicts": self.verdicts,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        course = cls()
        course._interval_s = float(plain["interval_s"])
        course.points = [Point(*values) for values in plain["points"]]
        course.verdicts = list(plain["verdicts"])
        return course
