"""Conditions for a step of a release to be accepted or rejected, and the decisions on one (§6). Plain values."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Self

from walle.deploy.gate.guard import MAX_GUARDS, Guard, GuardError, parse_guards
from walle.deploy.gate.option import GateError, Range, find_option, gate_option, gate_options

MAX_DEVICES = 4_000  # limit of a step, and of the control: a step that they do not decide is inconclusive
_MONTH_S = 30 * 86_400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """Conditions for a step to be accepted or rejected.

    The fields are the only declaration of the gate's options: `GATE_OPTIONS` has them for the CLI, the API and the
    reference pages.

    A version is good where it fails in at most `p_good` of its runs, or as seldom as the version before it; it is bad
    where it fails in `p_bad - p_good` more. A release of a good version is ever rejected or paused by the tests with
    probability `alpha` or less, over all steps; a step of a bad one is accepted with `beta` or less.

    After a silence of `silence_s` a step is paused: it neither waits without limit nor ships. Where a person resumes
    it, it waits as long again, and then continues with the devices that count, if they are sound. A paused release is
    not silent.

    In the `bake_s` seconds after a release is full each device counts once more, by its first runs after a separate
    time, so that a version that fails after hours is found too. A bad version is then rolled back; for what would pause
    a step, a reason is given.

    A device is silent of which nothing is heard for the last three quarters of `device_silence_s`, which begins with
    its report that it has the version: too many of those pause the release. For the steps to see it before they end,
    `hold_s` must be at least as long; what they do not see is told of the bake.

    A step of a version that is within its `guards` for most devices is rejected for them with a part of `alpha`, and
    one that is not is accepted with `beta` or less.

    A trial (`trial_runs`) is for a few devices, which cannot be judged by devices: each of the first `trial_runs` runs
    of a device at each step counts as a separate device, there is no control, and devices of earlier steps count again.
    One device can then decide.

    Raises:
        GateError: an option is out of its range.
    """

    p_good: float = gate_option(0.005, Range(0, 1, is_open=True), "accepted failure rate of runs")
    p_bad: float = gate_option(0.02, Range(0, 1, is_open=True), "unacceptable failure rate of runs, above p_good")
    alpha: float = gate_option(
        0.01, Range(0, 0.5, is_open=True), "probability of rejecting a version with the accepted failure rate"
    )
    beta: float = gate_option(
        0.01,
        Range(0, 0.5, is_open=True),
        "probability of accepting a version with the unacceptable failure rate at a step",
    )
    min_devices: int = gate_option(1, Range(1, MAX_DEVICES), "devices that must count before a step is accepted")
    device_runs: int = gate_option(10, Range(1, 100), "first runs of a device, by which it counts")
    settle_s: float = gate_option(
        300.0,
        Range(1, _MONTH_S),
        "time after a device's first report at which it counts by fewer runs",
        unit="seconds",
    )
    silence_s: float = gate_option(
        86_400.0, Range(1, _MONTH_S), "time without a further device after which a step is paused", unit="seconds"
    )
    hold_s: float = gate_option(0.0, Range(0, _MONTH_S), "least duration of each step", unit="seconds")
    bake_s: float = gate_option(
        0.0,
        Range(0, _MONTH_S),
        "time after a release is full in which it is still judged, and rolled back if it is bad",
        unit="seconds",
    )
    device_silence_s: float = gate_option(
        86_400.0,
        Range(1, _MONTH_S),
        "time in which a device that installed the version must be heard again",
        unit="seconds",
    )
    guards: tuple[str, ...] = gate_option(
        (),
        Range(0, MAX_GUARDS),
        "bounds on numbers of the runs, such as 'latency_ms < 1.2x' (beside the version before) or 'confidence > 0.6'",
        unit="bounds",
    )
    trial_runs: int = gate_option(
        0,
        Range(0, 10_000),
        "first runs of a device that count in a trial, which is judged by runs, not by devices (0: no trial)",
    )

    def __post_init__(self) -> None:
        for one in GATE_OPTIONS.values():
            object.__setattr__(self, one.key, one.value(getattr(self, one.key)))
        if self.p_good >= self.p_bad:
            raise GateError("p_bad", f"{self.p_bad} is not above p_good, {self.p_good}")
        try:
            object.__setattr__(self, "guards", tuple(str(guard) for guard in self.parsed_guards))
        except GuardError as error:
            raise GateError("guards", str(error)) from error

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the gate with these options (JSON), and the defaults of the others.

        Raises:
            GateError: a key is unknown, or a value is out of its range.
        """
        return cls(**{find_option(GATE_OPTIONS, key).key: value for key, value in plain.items()})

    @property
    def parsed_guards(self) -> tuple[Guard, ...]:
        return parse_guards(self.guards)

    @property
    def gap(self) -> float:
        return self.p_bad - self.p_good

    def to_plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "guards": list(self.guards)}


GATE_OPTIONS = gate_options(Gate)


class Verdict(enum.StrEnum):
    """Decision on the evidence of a step so far."""

    CONTINUE = "continue"
    ACCEPT = "accept"
    REJECT = "reject"
    PAUSE = "pause"  # a person must look; `Monitor.cause` says why
