"""Verdict on the guards of a step: those that reject it, that it waits for, and that cannot be judged (§6). Pure."""

import dataclasses
from typing import Any

from walle.deploy.gate.evidence import TestValue
from walle.deploy.gate.guard_test import HOSTILE, GuardTest, GuardTests
from walle.deploy.gate.step import Step

_ENOUGH = 30  # devices with the version before: if none of them reports a metric, it has none
_FEW = 2 * HOSTILE  # share of these that may report a metric which the version before does not have
_OF_DEVICES = 10  # devices with the new version that count: at least one must report a metric, or else nobody does


@dataclasses.dataclass(frozen=True)
class GuardVerdict:
    """The guards of `tests` at a step, of whose control `control_devices` count, and `new_devices` of the version.

    A guard is judged where a tenth of the latter report its metric: what a few hostile ones alone report, under a name
    that the version does not have, neither passes nor rejects. In a beta of fewer than ten, one is enough.

    A guard rejects at `reject_at`, and a step may be accepted at `accept_at`; both are logarithms of a wealth.
    """

    tests: GuardTests
    step: Step
    control_devices: int
    new_devices: int
    reject_at: float
    accept_at: float

    @property
    def bad(self) -> GuardTest | None:
        """The first guard for which the version is to be rejected."""
        return next(
            (one for one in self.tests.tests if one.is_bad(self.reject_at) and not self.is_unreported(one)), None
        )

    @property
    def open(self) -> GuardTest | None:
        """The first guard that the step waits for."""
        waits = (one for one in self.tests.tests if not self._is_good(one) and not self.why_not_judged(one))
        return next(waits, None)

    @property
    def unreported(self) -> GuardTest | None:
        """The first guard whose metric too few devices with the new version have reported."""
        return next((one for one in self.tests.tests if self.is_unreported(one)), None)

    def is_unreported(self, test: GuardTest) -> bool:
        """Return whether too few devices with the new version report a guard's metric."""
        return test.reported == 0 or _OF_DEVICES * test.reported < self.new_devices

    def unreported_reason(self, test: GuardTest) -> str:
        """Return why the step is paused where too few devices report a guard's metric, as a sentence."""
        count = f"{test.reported} of {self.new_devices} devices have" if test.reported else "no device has"
        text = f"{count} reported {test.guard.metric}, so that the guard {test.guard} cannot be judged"
        return f"{text}: check that the version calls ctx.metric and that its runs succeed"

    def _is_good(self, test: GuardTest) -> bool:
        return test.accept_log >= self.accept_at

    def why_not_judged(self, test: GuardTest) -> str:
        """Return why a guard decides nothing here, "" if it does or may still."""
        step = self.step
        if step.gate.trial_runs:
            return "a trial has too few devices"
        if self.is_unreported(test) and unreported_cause(test) in step.overruled:
            return "too few devices report the metric" if test.reported else "no device has reported the metric"
        if not test.guard.is_relative or self._is_good(test) or test.is_bad(self.reject_at):
            return ""
        if not step.has_control:
            return "there is no version before"
        if self.control_devices >= _ENOUGH and test.reported_before <= _FEW * self.control_devices:
            return "devices with the version before do not report the metric"
        are_left = step.share_to < 1 or self.tests.has_waiting_partners
        return "" if are_left and not step.bakes else "no devices with the version before are left"

    def reason(self, test: GuardTest) -> str:
        """Return why a guard rejects the version, as a sentence."""
        value, before = self.tests.medians(test.guard.metric)
        worse = "below" if test.guard.is_least else "above"
        text = f"guard {test.guard}: it is {worse} that on most of {test.compared} devices; its median is {value:.4g}"
        return f"{text}, with the version before {before:.4g}" if before is not None else text

    def to_plain(self) -> list[dict[str, Any]]:
        """Return each guard with its state, its values and its test, as JSON.

        `state` is good, bad, open or "not judged"; the last one has a reason, `why`.
        """
        return [self._one_to_plain(test) for test in self.tests.tests]

    def _one_to_plain(self, test: GuardTest) -> dict[str, Any]:
        why = self.why_not_judged(test)
        is_bad = test.is_bad(self.reject_at) and not self.is_unreported(test)
        state = "bad" if is_bad else "good" if self._is_good(test) else "open"
        new, old = self.tests.medians(test.guard.metric)
        return {
            "guard": str(test.guard),
            "metric": test.guard.metric,
            "state": "not judged" if why else state,
            "why": why,
            "new": new,
            "control": old,
            "devices": test.reported,
            "control_devices": test.reported_before,
            "compared": test.compared,
            "rejects": TestValue("worse", test.reject_log, self.reject_at).to_plain(),
            "accepts": TestValue("within", test.accept_log, self.accept_at).to_plain(),
        }


def unreported_cause(test: GuardTest) -> str:
    """Return the cause of a pause because too few devices report the guard's metric."""
    return f"unreported guard {test.guard}"
