"""Conditions for a step of a release to be accepted or rejected, and the decisions on one (§6). Plain values."""

import dataclasses
import enum
from typing import Any

from walle.deploy.gate.guard import Guard, GuardError, parse_guards
from walle.errors import DeployError

MAX_DEVICES = 4_000  # limit of a step, and of the control: a step that they do not decide is inconclusive
MAX_DEVICE_RUNS = 100
MAX_TRIAL_RUNS = 10_000


class GateError(DeployError):
    """A gate parameter out of its range."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(field, what)
        self.field = field
        self.what = what

    def __str__(self) -> str:
        return f"gate.{self.field}: {self.what}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """Conditions for a step to be accepted or rejected.

    A version is good where it fails in at most `p_good` of its runs, or as seldom as the version before it; it is bad
    where it fails in `p_bad - p_good` more. A release of a good version is ever rejected or paused by the tests with
    probability `alpha` or less, over all steps; a step of a bad one is accepted with `beta` or less. `min_devices`
    devices must have counted before a step is accepted.

    A step that no device has been added to for `silence_s` seconds is paused: it neither waits without limit nor ships.
    Where a person resumes it, it waits as long again, and then continues with the devices that count, if they are
    sound. A paused release is not silent.

    A device counts by its first `device_runs` runs, or by those it made within `settle_s` seconds of its first report.

    A step is accepted no earlier than `hold_s` seconds after it began. For `bake_s` seconds after it is full, a release
    is judged on: each device counts once more, by its first runs after a separate time, so that a version that fails
    after hours is found too. A bad version is then rolled back; for what would pause a step, a reason is given.

    A device is silent of which nothing is heard for the last three quarters of `device_silence_s`, which begins with
    its report that it has the version: too many of those pause the release. For the steps to see it before they end,
    `hold_s` must be at least as long; what they do not see is told of the bake.

    `guards` are bounds on the latency and on numbers that the task reports, such as `latency_ms < 1.2x` beside the
    version before or `confidence > 0.6`: a step of a version that is within them for most devices is rejected for them
    with a part of `alpha`, and one that is not is accepted with `beta` or less.

    `trial_runs` is for a trial with a few devices, which cannot be judged by devices: each of the first `trial_runs`
    runs of a device at each step then counts as a separate device, there is no control, and devices of earlier steps
    count again. One device can then decide. The default is 0: the release is not a trial.

    Raises:
        GateError: a parameter is out of its range.
    """

    p_good: float = 0.005
    p_bad: float = 0.02
    alpha: float = 0.01
    beta: float = 0.01
    min_devices: int = 1
    device_runs: int = 10
    settle_s: float = 300.0
    silence_s: float = 86_400.0
    hold_s: float = 0.0
    bake_s: float = 0.0
    device_silence_s: float = 86_400.0
    guards: tuple[str, ...] = ()
    trial_runs: int = 0

    def __post_init__(self) -> None:
        for field in ("p_good", "p_bad"):
            if not 0 < getattr(self, field) < 1:
                raise GateError(field, f"{getattr(self, field)} is not a rate between 0 and 1")
        if self.p_good >= self.p_bad:
            raise GateError("p_bad", f"{self.p_bad} must be above p_good, {self.p_good}")
        for field in ("alpha", "beta"):
            if not 0 < getattr(self, field) < 0.5:
                raise GateError(field, f"{getattr(self, field)} is not a probability of error between 0 and 0.5")
        if not 1 <= self.min_devices <= MAX_DEVICES:
            raise GateError("min_devices", f"{self.min_devices} is not between 1 and {MAX_DEVICES}")
        if not 1 <= self.device_runs <= MAX_DEVICE_RUNS:
            raise GateError("device_runs", f"{self.device_runs} is not between 1 and {MAX_DEVICE_RUNS}")
        for field in ("settle_s", "silence_s", "device_silence_s"):
            if not 1 <= getattr(self, field) <= 30 * 86_400:
                raise GateError(field, f"{getattr(self, field)} is not between 1 second and 30 days")
        for field in ("hold_s", "bake_s"):
            if not 0 <= getattr(self, field) <= 30 * 86_400:
                raise GateError(field, f"{getattr(self, field)} is not between 0 seconds and 30 days")
        if not 0 <= self.trial_runs <= MAX_TRIAL_RUNS:
            raise GateError("trial_runs", f"{self.trial_runs} is not between 0 and {MAX_TRIAL_RUNS}")

        object.__setattr__(self, "guards", tuple(self.guards))  # a list, in JSON
        try:
            object.__setattr__(self, "guards", tuple(str(guard) for guard in self.parsed_guards))
        except GuardError as error:
            raise GateError("guards", str(error)) from error

    @property
    def parsed_guards(self) -> tuple[Guard, ...]:
        return parse_guards(self.guards)

    @property
    def gap(self) -> float:
        return self.p_bad - self.p_good

    def to_plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "guards": list(self.guards)}


class Verdict(enum.StrEnum):
    """Decision on the evidence of a step so far."""

    CONTINUE = "continue"
    ACCEPT = "accept"
    REJECT = "reject"
    PAUSE = "pause"  # a person must look; `Monitor.cause` says why
