"""Evidence on one release: counts of what devices reported of it, its failures, and the tests of the step under way."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from walle.deploy.fleet.device_count import DeviceCount
from walle.deploy.gate.gate import Verdict
from walle.deploy.gate.gate_course import GateCourse, GateTest
from walle.deploy.gate.monitor import Monitor
from walle.deploy.monitor.course import Course, Point
from walle.deploy.monitor.failure_groups import FailureGroups
from walle.deploy.monitor.reported_states import ReportedStates
from walle.protocol import FailureClass, Outcome, OutcomeKind

_DEVICE_KINDS = (OutcomeKind.INSTALLED, OutcomeKind.REJECTED, OutcomeKind.REVERTED, OutcomeKind.REMOVED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """Counts of one release. Numbers of devices are exact up to 1,024, and within about 1 % above.

    `installed`, `reverted`, `rejected` and `removed` are devices that ever reported it; `ok` and `failed` count
    executions, `dropped` triggers that had no room on a device, `uploads_dropped` outputs that are stored there alone,
    `entries_evicted` entries of states. `state_bytes` is the largest state that was reported, beside its bound
    `state_max_bytes`, 0 without one; `states_refused` are reports of a size beyond the bound, which count for nothing.
    `hindered` are devices that could not install it or had to leave it, by what was at fault: `device`, `network`,
    `cloud`; they are not among the others. `stage`, `stage_devices`, `stage_broken`, `control_devices` and
    `verdict` are the evidence of the step that is being judged: devices that count, those of them that are broken, and
    devices with the version before. `guards` are those of the release, as in `Monitor.guards`; `tests` are those of the
    step that is judged, as they were noted last.
    """

    installed: int = 0
    rejected: int = 0
    reverted: int = 0
    removed: int = 0
    hindered: Mapping[str, int] = dataclasses.field(default_factory=dict)
    ok: int = 0
    failed: int = 0
    dropped: int = 0
    uploads_dropped: int = 0
    entries_evicted: int = 0
    state_bytes: int = 0
    state_max_bytes: int = 0
    states_refused: int = 0
    last_error: str = ""
    last_place: str = ""  # place of the last error, "file:line in function" of the task's code
    distinct_failures: int = 0  # see `MonitorService.failures`
    stage: str = ""
    stage_devices: int = 0
    stage_broken: int = 0
    control_devices: int = 0
    verdict: str = ""
    guards: tuple[Mapping[str, Any], ...] = ()
    cause: str = ""  # key of the cause of a pause by the gate
    tests: tuple[GateTest, ...] = ()
    heard_s: float = 0.0  # time at which a further device last counted at the step; 0 where none is judged

    @property
    def failure_rate(self) -> float:
        """Return failed executions over all, 0 where there were none."""
        return self.failed / (self.ok + self.failed) if self.ok + self.failed else 0.0

    def to_plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "failure_rate": self.failure_rate}


class ReleaseEvidence:
    """Counts and evidence of one release."""

    def __init__(self) -> None:
        self.devices: dict[OutcomeKind, DeviceCount] = {kind: DeviceCount() for kind in _DEVICE_KINDS}
        self.hindered: dict[FailureClass, DeviceCount] = {}
        self.ok = 0
        self.failed = 0
        self.dropped = 0
        self.uploads_dropped = 0
        self.entries_evicted = 0
        self.states = ReportedStates()
        self.last_error = self.last_place = ""
        self.failures = FailureGroups()
        self.stage = ""
        self.monitor: Monitor | None = None
        self.delivered: Verdict = Verdict.CONTINUE  # the last verdict that was delivered
        self.ended: dict[str, Any] = {}  # evidence of the last step, once none is judged
        self.course = Course()
        self.gate_course = GateCourse()
        self._has_unnoted = False  # tests have changed since they were noted

    def take(self, device_id: str, outcome: Outcome, now_s: float) -> None:
        at_fault = outcome.failure_class
        if at_fault is not FailureClass.VERSION and outcome.kind in (OutcomeKind.REJECTED, OutcomeKind.REVERTED):
            if self.hindered.setdefault(at_fault, DeviceCount()).add(device_id):
                self.failures.take(device_id, outcome, now_s)
            return
        is_new = outcome.kind is OutcomeKind.RUN or self.devices[outcome.kind].add(device_id)
        if outcome.kind is OutcomeKind.RUN:
            self.ok += outcome.ok
            self.failed += outcome.failed
            self.dropped += outcome.dropped
            self.uploads_dropped += outcome.uploads_dropped
            self.entries_evicted += outcome.entries_evicted
            self.states.take(outcome)
        if outcome.error:
            self.last_error, self.last_place = outcome.error, outcome.place
        if is_new:
            self.failures.take(device_id, outcome, now_s)

    def note(self, now_s: float) -> None:
        """Note the counts of now in the course of the release."""
        devices = self.devices
        left = len(devices[OutcomeKind.REVERTED]) + len(devices[OutcomeKind.REMOVED])
        self.course.note(Point(now_s, len(devices[OutcomeKind.INSTALLED]), left, self.ok, self.failed))
        if self.monitor is not None:
            self._has_unnoted = True
            if self.gate_course.is_due(self.stage, now_s):
                self.note_tests(now_s, self.monitor.evidence())

    def note_tests(self, now_s: float, numbers: Mapping[str, Any]) -> None:
        """Note the tests of the step that is judged, as they are in its evidence."""
        assert self.monitor is not None
        self.gate_course.note(self.stage, now_s, self.monitor.devices, numbers)
        self._has_unnoted = False

    def has_due_tests(self, now_s: float) -> bool:
        """Return whether the tests have changed, and were noted long enough ago."""
        return self._has_unnoted and self.monitor is not None and self.gate_course.is_due(self.stage, now_s)

    def totals(self) -> Totals:
        monitor = self.monitor
        return Totals(
            installed=len(self.devices[OutcomeKind.INSTALLED]),
            rejected=len(self.devices[OutcomeKind.REJECTED]),
            reverted=len(self.devices[OutcomeKind.REVERTED]),
            removed=len(self.devices[OutcomeKind.REMOVED]),
            hindered={what.value: len(count) for what, count in self.hindered.items()},
            ok=self.ok,
            failed=self.failed,
            dropped=self.dropped,
            uploads_dropped=self.uploads_dropped,
            entries_evicted=self.entries_evicted,
            state_bytes=self.states.size_bytes,
            state_max_bytes=self.states.max_bytes,
            states_refused=self.states.refused,
            last_error=self.last_error,
            last_place=self.last_place,
            distinct_failures=len(self.failures),
            stage=self.stage,
            stage_devices=monitor.devices if monitor else 0,
            stage_broken=monitor.broken_devices if monitor else 0,
            control_devices=monitor.control_devices if monitor else 0,
            verdict=monitor.verdict.value if monitor else "",
            guards=tuple(monitor.guards() if monitor else self.ended.get("guards", ())),
            cause=monitor.cause if monitor else "",
            tests=self.gate_course.latest if monitor else (),
            heard_s=monitor.heard_s if monitor else 0.0,
        )

    def reason(self) -> str:
        """Return the reason of a rejection or a pause as a sentence."""
        assert self.monitor is not None
        text = self.monitor.reason
        if not self.last_error or not self.monitor.blames_version:
            return text
        place = f" ({self.last_place})" if self.last_place not in self.last_error else ""
        return f"{text}, the last with: {self.last_error}{place}"

    def to_plain(self) -> dict[str, Any]:
        return {
            "devices": {kind.value: count.to_plain() for kind, count in self.devices.items()},
            "hindered": {what.value: count.to_plain() for what, count in self.hindered.items()},
            "ok": self.ok,
            "failed": self.failed,
            "dropped": self.dropped,
            "uploads_dropped": self.uploads_dropped,
            "entries_evicted": self.entries_evicted,
            **self.states.to_plain(),
            "last_error": self.last_error,
            "last_place": self.last_place,
            "failures": self.failures.to_plain(),
            "stage": self.stage,
            "monitor": self.monitor.to_plain() if self.monitor else None,
            "ended": self.ended,
            "course": self.course.to_plain(),
            "gate_course": self.gate_course.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "ReleaseEvidence":
        evidence = cls()
        evidence.devices = {OutcomeKind(kind): DeviceCount.from_plain(one) for kind, one in plain["devices"].items()}
        hindered = plain.get("hindered", {})  # older evidence lacks it
        evidence.hindered = {FailureClass(what): DeviceCount.from_plain(one) for what, one in hindered.items()}
        evidence.ok, evidence.failed = plain["ok"], plain["failed"]
        evidence.dropped = plain.get("dropped", 0)  # older evidence lacks it
        evidence.uploads_dropped = plain.get("uploads_dropped", 0)
        evidence.entries_evicted = plain.get("entries_evicted", 0)
        evidence.states = ReportedStates.from_plain(plain)
        evidence.last_error, evidence.stage = plain["last_error"], plain["stage"]
        evidence.last_place = plain.get("last_place", "")
        if "failures" in plain:  # older evidence lacks it
            evidence.failures = FailureGroups.from_plain(plain["failures"])
        evidence.ended = plain.get("ended", {})
        if "course" in plain:  # older evidence lacks it
            evidence.course = Course.from_plain(plain["course"])
        if "gate_course" in plain:  # older evidence lacks it
            evidence.gate_course = GateCourse.from_plain(plain["gate_course"])
        evidence.monitor = Monitor.from_plain(plain["monitor"]) if plain["monitor"] else None
        if evidence.monitor is None:
            evidence.stage = ""
        return evidence
