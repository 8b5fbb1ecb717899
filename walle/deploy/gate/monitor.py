"""Sequential gate of a release, on the evidence of devices (§6, exception handling). Pure.

The unit of evidence is a device. A device of a step counts once, by its first `device_runs` runs, after it has
confirmed the installation, and only if this step was the first to admit it. The control are devices that the release is
for and that it has not admitted yet, with the versions that the release takes the place of. Three tests look at the
devices so far, after each of them:

- failed runs: their rate, with few failures of any one device, against that of the control (`RateTest`);
- broken devices, where half of the runs or more failed, or that refused or left the version: their share, the same way;
- broken devices within a group, of equal app version or of an equal attribute: a version may fail on one model only.

A device that refuses or leaves the version for a fault of the device, the network or the cloud shows nothing about the
version. It does not count, and waits; but where a share of the devices cannot install the version, the step is paused.
So a class that is stated falsely shields a version from its rejection, and not from a pause.

Two more look at what no run that fails shows: the guards of a release, on its latency and on numbers that the task
reports (`guard_test.py`), which reject, and the silence of single devices (`silent_devices.py`), which pauses.

A step is not accepted while a group or silence is suspect, until MAX_HELD devices count: the evidence is then a few
devices old, and most often the next ones show that there is nothing. That costs devices, and no part of α.

Each test is evaluated on the devices since each step began, and the wealths are averaged over the steps. α is so spent
once over the whole release: a quarter on each of the first two tests, half on the groups, on all else that pauses and
on the guards, in equal parts.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from walle.deploy.gate.device_sample import DeviceSample, Observation
from walle.deploy.gate.evidence import TestValue
from walle.deploy.gate.gate import MAX_DEVICES, Gate, Verdict
from walle.deploy.gate.guard import MAX_GUARDS
from walle.deploy.gate.guard_test import GuardTests
from walle.deploy.gate.guard_verdict import GuardVerdict, unreported_cause
from walle.deploy.gate.rate_test import UNITS, RateTest, Sample
from walle.deploy.gate.silent_devices import SilentDevices
from walle.deploy.gate.step import Join, Step, as_reported
from walle.deploy.policies.policy import Policy
from walle.protocol import FailureClass, Outcome, OutcomeKind
from walle.trust.audience import share

MAX_GROUPS = 50
MAX_GROUPS_OF_KEY = 30
MAX_HELD = 1_000  # devices of a step that count, until which it is held for a suspicion
_PAUSING_TESTS = MAX_GROUPS + MAX_GUARDS + 4  # three classes of failure, and silent devices, add four
_SUSPICION = math.log(5)  # evidence at which a step is not accepted
_P_BROKEN = 0.05  # share of broken devices of a bad version
_HOSTILE = 0.01  # share of devices whose failures are disregarded
_ORDER = (
    OutcomeKind.INSTALLED,
    OutcomeKind.REJECTED,
    OutcomeKind.REVERTED,
    OutcomeKind.RUN,
    OutcomeKind.REMOVED,
)
_TRIAL_ORDER = tuple(sorted(_ORDER, key=lambda kind: (kind is not OutcomeKind.INSTALLED, kind is not OutcomeKind.RUN)))
_SETS = ("devices", "earlier_devices", "control_versions")
_GROUPS = RateTest(floor=0.05, gap=0.9, hostile=0.0, higher=(1.0,), lower=(0.5, 1.0))
_HINDERED = {  # shares of hindered devices that are borne, by what hinders them: phones lose links and have full disks
    FailureClass.DEVICE: RateTest(floor=0.1, gap=0.4, hostile=0.0),
    FailureClass.NETWORK: RateTest(floor=0.1, gap=0.4, hostile=0.0),
    FailureClass.CLOUD: RateTest(floor=0.02, gap=0.2, hostile=0.0),
}
_AT_FAULT = {
    FailureClass.DEVICE: "the devices themselves (disk, clock or memory)",
    FailureClass.NETWORK: "the network",
    FailureClass.CLOUD: "this cloud: its store has no or a wrong copy of a file of the version",
}
_MAX_ERROR_CHARS = 200


def _place(outcome: Outcome, order: Sequence[OutcomeKind]) -> int:
    """Return the place of an outcome among those of a report, in which equal ones keep their order, that of time.

    A device that left the version for a device fault and installed it again has it; the other way round it has not.
    """
    left = outcome.kind is OutcomeKind.REVERTED and outcome.failure_class is not FailureClass.VERSION
    return order.index(OutcomeKind.INSTALLED if left else outcome.kind)


class Monitor:
    """Evidence of one release, and the verdict on its present step. `join` adds what was uploaded of a device.

    A rejection is final. After a pause for a cause that a person overrules, the same cause does not pause again.
    """

    def __init__(self, step: Step) -> None:
        self.join: Join = as_reported
        self.step = step
        self.verdict = Verdict.CONTINUE
        self.reason = ""  # sentence for a rejection or a pause
        self.cause = ""  # key of the cause of a pause
        self._new = [DeviceSample()]  # samples of each step so far
        self._old = DeviceSample()
        self._heard_s: float | None = None  # time of the last tick at which devices were added
        self._counted = 0  # devices at that tick
        self._groups: list[tuple[str, str]] = []  # sorted by the time when they were first seen; bounded
        self._began_s: float | None = None  # time at which the step was first looked at
        self._now_s = 0.0
        self._is_held = False  # accepted, but for the time that the step lasts
        self._hindrances: dict[str, str] = {}  # class of failure → the last error of a device
        self._guards = GuardTests(step.gate.parsed_guards)
        self._silent = SilentDevices()
        self._set_tests()

    def _set_tests(self) -> None:
        gate = self.step.gate
        hostile = min(_HOSTILE, gate.gap * 2 / 3)
        self._runs = RateTest(gate.p_good, gate.gap, hostile)
        self._broken = RateTest(gate.p_good, max(_P_BROKEN - gate.p_good, gate.gap), hostile)
        spread = math.log(self.step.steps / gate.alpha)
        self._reject_at = spread + math.log(4)
        self._pause_at = spread + math.log(2 * _PAUSING_TESTS)
        self._accept_at = math.log(1 / gate.beta)
        self._pause_once_at = math.log(2 * _PAUSING_TESTS / gate.alpha)  # bound of a test with one bet over all steps
        self._silent.wait_s = gate.device_silence_s
        for sample in (self._new[-1], self._old):
            sample.metrics = self._guards.names

    # --- evidence ---

    def begin(self, step: Step) -> None:
        """Judge `step` from now on; if it is the present one, continue, with what a person has overruled since."""
        before = self.step
        if step.bakes:  # no device has the version before any more: the control of the steps stands
            step = dataclasses.replace(step, control_versions=before.control_versions)
        same = before == dataclasses.replace(
            step,
            overruled=before.overruled,
            control_versions=before.control_versions,
            policy=before.policy,
            is_paused=before.is_paused,
        )
        overruled = step.overruled != before.overruled
        self.step = step
        if step.control_versions != before.control_versions:
            self._old = DeviceSample()  # what was before may have been rolled back, and does not count any more
            self._guards.forget_control()
            self._silent.forget_control()
        if step.is_paused != before.is_paused:
            self._heard_s = None
        if step.gate.guards != before.gate.guards:
            self._guards = GuardTests(step.gate.parsed_guards)
        if not same:
            earlier = self._new[-1].end()
            self._began_s = None
            self._new.append(DeviceSample())
            self._silent.drop_partners(lambda device_id: share(step.release, device_id) < step.share_to)
        self._set_tests()
        if not same:
            if step.gate.trial_runs:
                for device_id in earlier:  # earlier devices count again, and confirm no installation again
                    self._new[-1].admit(device_id, MAX_DEVICES)
            self._reset_verdict()
        elif overruled and self.verdict is Verdict.PAUSE:
            self._reset_verdict()
        self._judge(forced=True)

    def _reset_verdict(self) -> None:
        self.verdict, self.reason, self.cause = Verdict.CONTINUE, "", ""
        self._heard_s = None
        self._is_held = False

    def take(self, device_id: str, outcomes: Collection[Outcome], groups: Mapping[str, str], now_s: float) -> bool:
        """Take a report: the outcomes of the task, whatever their version or order. Return whether it was evidence."""
        self._look_at(now_s)
        runs = self._block_runs
        # Within a report, a refusal outweighs runs; in a trial the runs before it count as well.
        order = _TRIAL_ORDER if self.step.gate.trial_runs else _ORDER
        for outcome in sorted(outcomes, key=lambda one: _place(one, order)):
            if outcome.release == self.step.release:
                if self._bakes_now(device_id) if self.step.bakes else self.step.is_new(device_id):
                    self._take_new(device_id, outcome, groups, now_s)
            elif (
                not self.step.gate.trial_runs
                and outcome.kind is OutcomeKind.RUN
                and outcome.version != self.step.version
                and self.step.is_control(device_id, outcome.version, groups, self.join)
            ):
                self._old.admit(device_id, MAX_DEVICES)
                self._silent.partner(device_id, now_s)
                for one in self._old.run(device_id, outcome, groups, now_s, runs=runs):
                    self._note(self._old, one, groups)
        return self._judge()

    def _look_at(self, now_s: float) -> None:
        self._now_s = now_s
        if self._began_s is None:
            self._began_s = now_s

    @property
    def heard_s(self) -> float:
        """Return the time at which further devices last counted at the step, in seconds since the epoch; 0 for none."""
        return self._heard_s or 0.0

    @property
    def lasts_until_s(self) -> float:
        """Return the time before which the step does not end, in seconds since the epoch; 0 if it was never looked at.

        Of a bake, it is the time at which it ends.
        """
        gate = self.step.gate
        return self._began_s + (gate.bake_s if self.step.bakes else gate.hold_s) if self._began_s is not None else 0.0

    def _baked(self) -> float:
        """Return which part of the bake has passed."""
        assert self._began_s is not None
        return min(1.0, (self._now_s - self._began_s) / self.step.gate.bake_s) if self.step.gate.bake_s else 1.0

    def _bakes_now(self, device_id: str) -> bool:
        """Return whether the time of a device has come, by its place: so the whole of the bake is looked at."""
        return share(self.step.release, device_id) < self._baked()

    @property
    def _block_runs(self) -> int:
        return 1 if self.step.gate.trial_runs else self.step.gate.device_runs

    def _take_new(self, device_id: str, outcome: Outcome, groups: Mapping[str, str], now_s: float) -> None:
        sample, runs = self._new[-1], self._block_runs
        if self.step.bakes and outcome.kind is OutcomeKind.RUN:  # the installation was confirmed in a step before
            sample.admit(device_id, int(MAX_DEVICES * self._baked()))
        match outcome.kind:
            case OutcomeKind.INSTALLED:
                sample.admit(device_id, MAX_DEVICES)
                if not self.step.gate.trial_runs:
                    self._silent.install(device_id, now_s)
            case OutcomeKind.REJECTED | OutcomeKind.REVERTED if outcome.failure_class is not FailureClass.VERSION:
                left = outcome.kind is OutcomeKind.REVERTED
                sample.hinder(device_id, outcome.failure_class, MAX_DEVICES, left=left)
                self._hindrances[outcome.failure_class.value] = outcome.error[:_MAX_ERROR_CHARS]
            case OutcomeKind.REJECTED | OutcomeKind.REVERTED:
                for one in sample.break_off(device_id, runs, MAX_DEVICES):
                    self._note(sample, one, groups)
            case OutcomeKind.RUN:
                limit = self.step.gate.trial_runs
                each = sample.run_each(device_id, outcome, limit) if limit else None
                for one in each or sample.run(device_id, outcome, groups, now_s, runs=runs):
                    self._note(sample, one, groups)

    def _note(self, sample: DeviceSample, observation: Observation, groups: Mapping[str, str]) -> None:
        known = []
        for group in groups.items():
            if group not in self._groups:
                of_key = sum(key == group[0] for key, _ in self._groups)
                if len(self._groups) >= MAX_GROUPS or of_key >= MAX_GROUPS_OF_KEY:
                    continue
                self._groups.append(group)
            known.append(group)
        sample.note(observation, known)
        if observation.metrics and not self.step.gate.trial_runs:
            has_control = self.step.has_control and not self.step.bakes
            is_new = sample is not self._old
            self._guards.take(observation.metrics, groups, is_new=is_new, has_partners=has_control)

    def hear(self, device_ids: Mapping[str, object], now_s: float) -> bool:
        """Take note that something was heard of these devices. Return whether it may become evidence."""
        return self._silent.heard_of(device_ids, now_s)

    def tick(self, now_s: float) -> bool:
        """Count the devices that reported fewer runs `settle_s` ago with those. Return whether there were any."""
        self._look_at(now_s)
        gate = self.step.gate
        for sample in (self._new[-1], self._old):
            for one, groups in sample.settle(now_s - gate.settle_s):
                self._note(sample, one, groups)
        is_over = self._is_held and now_s >= self.lasts_until_s
        touched = self._judge(forced=self._silent.look(now_s) or self._old.changed or is_over)
        if self._heard_s is None or self._counted != self.devices:
            self._heard_s, self._counted = now_s, self.devices
            return True
        is_silent = now_s - self._heard_s >= gate.silence_s and not (self._is_held or self.step.bakes)
        if is_silent and self.verdict is Verdict.CONTINUE and not self.step.is_paused:
            cause = f"silence at {self.step.stage}"
            if cause in self.step.overruled and self.devices >= gate.min_devices and self._is_sound:
                self._accept()
                return True
            hours = f"{gate.silence_s / 3600:.3g} h"
            what = f"no further device has reported for {hours}; {self.devices} devices count, too few for a verdict."
            what += f" Resume to wait {hours} more, and then continue with the devices that count, if they are sound"
            self._pause(cause, what)
            return True
        return touched

    # --- verdict ---

    @property
    def devices(self) -> int:
        """Return how many devices of the present step count."""
        return self._new[-1].members

    @property
    def broken_devices(self) -> int:
        return self._new[-1].broken

    @property
    def control_devices(self) -> int:
        return self._old.devices

    def _judge(self, *, forced: bool = False) -> bool:
        """Update the verdict; return whether the evidence was touched since the last call."""
        new, old = self._new[-1], self._old
        touched = new.touched or old.touched
        new.touched = old.touched = False
        if self.verdict is Verdict.REJECT or not (new.changed or forced):
            return touched  # the control alone is looked at by the next `tick`
        new.changed = old.changed = False
        for test in self._rejections(exact=False):
            if test.value >= test.boundary:
                self.verdict, self.reason, self.cause = Verdict.REJECT, self._because(test), ""
                return True
        if (bad := self._guard_verdict.bad) is not None:
            self.verdict, self.reason = Verdict.REJECT, self._guard_verdict.reason(bad)
            self.cause = f"guard {bad.guard}"
            return True
        if self.verdict is Verdict.CONTINUE:
            self._pause_or_accept()
        return True

    def _pause(self, cause: str, reason: str) -> None:
        self.verdict, self.reason, self.cause = Verdict.PAUSE, reason, cause

    def _accept(self) -> None:
        """Accept the step, once it has lasted as long as it must."""
        lasts_s = self.step.gate.bake_s if self.step.bakes else self.step.gate.hold_s
        self._is_held = lasts_s > 0 and (self._began_s is None or self._now_s < self._began_s + lasts_s)
        if not self._is_held:
            self.verdict = Verdict.ACCEPT

    def _pause_or_accept(self) -> None:
        self._is_held = False  # later devices may have changed what was found before; `_accept` sets it
        for what in _HINDERED if self._new[-1].hindered else ():
            cause = f"{what} at {self.step.stage}"
            if cause not in self.step.overruled and self._is_hindered(what):
                self._pause(cause, self._because_hindered(what))
                return
        for test in self._group_tests(exact=False):
            if test.value >= test.boundary and test.name not in self.step.overruled:
                self._pause(test.name, self._because(test))
                return
        silent = f"silent devices at {self.step.stage}"
        if self._silent.log >= self._pause_once_at and silent not in self.step.overruled:
            self._pause(silent, self._silent.words)
            return
        if self.step.bakes:
            self._accept()
            return
        guards = self._guard_verdict
        waits = f"guard {guards.open.guard}" if guards.open and not self.step.is_census else ""
        if not waits and not self.step.is_census and self._floor_log >= self._accept_at:
            waits = self._suspicion()
        if not (waits and guards.unreported is None) and self._accepts():  # `_accepts` takes longer
            if not waits:
                self._accept()
                return
            missing = guards.unreported
            if missing is not None and unreported_cause(missing) not in self.step.overruled:
                self._pause(unreported_cause(missing), guards.unreported_reason(missing))
                return
        cause = f"inconclusive {self.step.stage}"
        full = self._new[-1].members >= MAX_DEVICES
        if full or (self.step.is_census and self._census_done):
            if cause in self.step.overruled:
                self._accept()
                return
            sample = self._new[-1]
            decides = f"{sample.broken} of {sample.devices} devices are broken, which decides nothing"
            self._pause(cause, f"{decides}; it waits for {waits}" if waits else decides)

    def _suspicion(self) -> str:
        """Return of what a step waits for more devices, whose runs are good, "" if of nothing."""
        if self._new[-1].members >= MAX_HELD:
            return ""
        over = math.log(self.step.steps)
        for test in self._group_tests(exact=False, at=_SUSPICION + over):
            if test.value >= _SUSPICION + over and test.name not in self.step.overruled:
                return f"more devices of {test.name}, of which some are broken"
        if self._silent.log >= _SUSPICION and f"silent devices at {self.step.stage}" not in self.step.overruled:
            return "more devices, since some of those that installed it are silent"
        return ""

    def _is_hindered(self, what: FailureClass) -> bool:
        """Return whether too many devices cannot have the version, or all that the step waits for."""
        sample, step = self._new[-1], self.step
        hindered = sample.by_hindered(what).get((1, UNITS), 0)
        if hindered and step.gate.trial_runs:
            return not (sample.waiting or sample.members)
        if hindered and step.is_census and not sample.waiting and sample.hindered + sample.members >= len(step.devices):
            return True
        test = self._hindrance_test(what)
        return test.value >= test.boundary

    def _hindrance_test(self, what: FailureClass) -> TestValue:
        value = _HINDERED[what].reject_log(self._new[-1].by_hindered(what), None)
        return TestValue(f"hindered by {what}", value, self._pause_at)

    def _because_hindered(self, what: FailureClass) -> str:
        counts = self._new[-1].by_hindered(what)
        text = f"{counts[1, UNITS]} of {sum(counts.values())} devices cannot install it; at fault is {_AT_FAULT[what]}."
        return f"{text} The last reported: {self._hindrances.get(what, '')}"

    @property
    def blames_version(self) -> bool:
        """Return whether the reason is of failures of the version, not of what hinders devices, silence or a guard."""
        others = ("silence at ", "silent devices at ", "guard ", "unreported guard ")
        return not self.cause.startswith((*(f"{what} at " for what in _HINDERED), *others))

    @property
    def _census_done(self) -> bool:
        return self._new[-1].members >= len(self.step.devices)

    def _accepts(self) -> bool:
        sample, gate = self._new[-1], self.step.gate
        if not self.step.is_census and sample.members < gate.min_devices:
            return False
        if self.step.is_census and self._census_done and self._is_sound:
            return True
        if self.step.is_census and (self.step.share_to == 0 or sample.members < gate.min_devices):
            return False
        return all(test.value >= test.boundary for test in self._acceptances(exact=False))

    @property
    def _is_sound(self) -> bool:
        """Return whether the devices that count look good, where they are too few for a test."""
        sample, gate = self._new[-1], self.step.gate
        if self.step.share_to == 0:  # a beta is a first look
            return 2 * sample.broken <= sample.devices - (sample.devices == 1)
        return sample.failed <= gate.p_bad * sample.executions and sample.broken <= _P_BROKEN * sample.devices

    @property
    def _floor_log(self) -> float:
        """The evidence that the version is good, without the control: no more than with it, and fast."""
        new = self._new[-1]
        return min(self._runs.accept_log(new.runs, None), self._broken.accept_log(new.by_broken, None))

    def _acceptances(self, *, exact: bool) -> list[TestValue]:
        at = self._accept_at
        below = -math.inf if exact else at
        new, old = self._new[-1], self._old
        if not exact:  # most often the floor alone decides, and is looked at fast
            floor = self._floor_log
            if floor < at:
                return [TestValue("floor", floor, at)]
        runs = self._runs.accept_log(new.runs, old.runs, below=below)
        if not exact and runs < at:
            return [TestValue("runs are good", runs, at)]
        broken = self._broken.accept_log(new.by_broken, old.by_broken, below=below)
        return [TestValue("runs are good", runs, at), TestValue("few devices are broken", broken, at)]

    def _rejections(self, *, exact: bool) -> list[TestValue]:
        at = self._reject_at
        has_control = self.step.has_control and not self.step.gate.trial_runs
        old = self._old if has_control else None
        runs = self._over_steps(self._runs, [one.runs for one in self._new], old.runs if old else None, at, exact=exact)
        broken = self._over_steps(
            self._broken, [one.by_broken for one in self._new], old.by_broken if old else None, at, exact=exact
        )
        return [TestValue("failed runs", runs, at), TestValue("broken devices", broken, at)]

    def _group_tests(self, *, exact: bool, at: float | None = None) -> list[TestValue]:
        """Return the tests of the groups; unless `exact`, those whose value can be `at` or above, their boundary."""
        at = self._pause_at if at is None else at
        if self.step.gate.trial_runs or not any(one.broken for one in self._new):
            return []
        tests = []
        for group in self._groups:
            broken = sum(one.groups.get(group, (0, 0))[1] for one in self._new)
            most = math.log(self.step.steps) - broken * math.log(_GROUPS.floor)  # most that any bets on them can win
            if not broken or (not exact and most < at):
                continue
            new = [one.by_group(group) for one in self._new]
            old = self._old.by_group(group) if self.step.has_control else None
            value = self._over_steps(_GROUPS, new, old, at, exact=exact)
            tests.append(TestValue(f"group {group[0]}={group[1]}", value, self._pause_at))
        return tests

    def _over_steps(
        self,
        test: RateTest,
        new: list[Sample],
        old: Sample | None,
        boundary: float,
        *,
        exact: bool,
    ) -> float:
        """Return the logarithm of the sum of the wealths of bets that began with each step."""
        below = boundary - math.log(self.step.steps)  # the sum stays under the boundary if every bet is under this
        values: list[float] = []
        steps = new
        if self.step.bakes:  # the devices have counted before: the step is judged apart from the others
            values.append(test.reject_log(new[-1], old, below=-math.inf if exact else below))
            steps = new[:-1]
        since: dict[tuple[int, int], int] = {}
        for sample in reversed(steps):
            if not sample and values:
                continue
            since = dict(since)
            for cell, count in sample.items():
                since[cell] = since.get(cell, 0) + count
            values.append(test.reject_log(since, old, below=-math.inf if exact else below))
        top = max(values)
        if not exact and top >= below:
            return self._over_steps(test, new, old, boundary, exact=True)
        return top + math.log(sum(math.exp(value - top) for value in values))

    def _because(self, test: TestValue) -> str:
        sample, old = self._new[-1], self._old
        if test.name.startswith("group "):
            group = test.name.removeprefix("group ")
            key, _, value = group.partition("=")
            counts = [one.by_group((key, value)) for one in self._new]
            broken = sum(one.get((1, UNITS), 0) for one in counts)
            total = sum(sum(one.values()) for one in counts)
            before = old.by_group((key, value))
            text = f"it fails on devices of one group, {group}: {broken} of its {total} devices are broken"
            control = f"{before.get((1, UNITS), 0)} of {sum(before.values())}"
        elif test.name == "failed runs":
            text = f"{sample.failed:.4g} of {sample.executions:g} runs failed, on {sample.members} devices"
            control = f"{old.failed:.4g} of {old.executions:g}"
        else:
            text = f"{sample.broken} of {sample.devices} devices are broken"
            control = f"{old.broken} of {old.devices}"
        return f"{text}; with the version before, {control}" if old.devices else text

    def guards(self) -> list[dict[str, Any]]:
        """Return each guard with its state, values and test."""
        return self._guard_verdict.to_plain()

    @property
    def _guard_verdict(self) -> GuardVerdict:
        new = sum(one.members for one in self._new)
        return GuardVerdict(self._guards, self.step, self._old.devices, new, self._pause_once_at, self._accept_at)

    def evidence(self) -> dict[str, Any]:
        """Return the numbers behind the verdict: devices of the step and of the control, and each test's value."""
        return {
            "gate": self.step.gate.to_plain(),
            "stage": self.step.stage,
            "new": self._new[-1].counts(),
            "control": self._old.counts() if self.step.has_control and not self.step.gate.trial_runs else None,
            "rejects": [test.to_plain() for test in self._rejections(exact=True)],
            "accepts": [] if self.step.is_census else [test.to_plain() for test in self._acceptances(exact=True)],
            "groups": [test.to_plain() for test in self._group_tests(exact=True)],
            "hindered": [
                {**self._hindrance_test(what).to_plain(), "error": self._hindrances.get(what, "")}
                for what in _HINDERED
                if (1, UNITS) in self._new[-1].by_hindered(what)
            ],
            "guards": self.guards(),
            "metrics": self._guards.values(),
            "silent": {
                **TestValue("silent devices", self._silent.log, self._pause_once_at).to_plain(),
                **self._silent.counts(),
            },
            "cause": self.cause,
            "lasts_until_s": self.lasts_until_s,
            "is_held": self._is_held,
            "bakes": self.step.bakes,
        }

    # --- plain values ---

    def to_plain(self) -> dict[str, Any]:
        step = dataclasses.asdict(self.step) | {"policy": self.step.policy.to_plain()}
        for field in _SETS:
            step[field] = sorted(step[field])
        return {
            "format": 2,
            "step": step,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "cause": self.cause,
            "heard_s": self._heard_s,
            "counted": self._counted,
            "new": [one.to_plain() for one in self._new],
            "old": self._old.to_plain(),
            "groups": [list(group) for group in self._groups],
            "hindrances": self._hindrances,
            "began_s": self._began_s,
            "is_held": self._is_held,
            "guards": self._guards.to_plain(),
            "silent_devices": self._silent.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self | None:
        """Return the monitor; None for evidence of before format 2, which counted runs: its step begins again."""
        if plain.get("format") != 2:
            return None
        step = dict(plain["step"])
        step["gate"] = Gate.from_plain(step["gate"])
        step["overruled"] = tuple(step["overruled"])
        step["policy"] = Policy.from_plain(step.get("policy", {}))
        step.pop("has_control", None)  # evidence from before there were control versions has it
        for field in _SETS:
            step[field] = frozenset(step.get(field, ()))
        monitor = cls(Step(**step))
        monitor.verdict = Verdict(plain["verdict"])
        monitor.reason, monitor.cause = plain["reason"], plain["cause"]
        monitor._heard_s, monitor._counted = plain["heard_s"], plain["counted"]
        monitor._new = [DeviceSample.from_plain(one) for one in plain["new"]]
        monitor._old = DeviceSample.from_plain(plain["old"])
        monitor._groups = [(key, value) for key, value in plain["groups"]]
        monitor._hindrances = dict(plain.get("hindrances", {}))
        monitor._began_s, monitor._is_held = plain.get("began_s"), plain.get("is_held", False)
        if "guards" in plain:  # older evidence lacks it, and the fields below
            monitor._guards.restore(plain["guards"])
        if "silent_devices" in plain:
            monitor._silent.restore(plain["silent_devices"])
        monitor._set_tests()
        return monitor
