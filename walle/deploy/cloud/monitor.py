"""Sequential test that decides whether a release may continue, on completed reports (§6, exception handling). Pure.

A fixed threshold on the failure rate stops many healthy releases, because it looks again after every report. Wald's
sequential probability ratio test is made for looking after every report: it weighs "fails as seldom as a good version"
against "fails as often as a bad one", and stops at the first report that settles it.
"""

import dataclasses
import enum
import math
from typing import Any, Self

from walle.errors import DeployError
from walle.protocol import Outcome, OutcomeKind


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

    A version that fails in at most `p_good` of its reports is rejected with probability `alpha` or less, one that fails
    in `p_bad` or more is accepted with `beta` or less (both nearly: Wald's bounds). `min_devices` devices must have
    reported before a step is accepted; a rejection waits for no quorum, since a false one costs a delay and a missed
    one costs devices.

    There is no limit on waiting: a step without reports stands still, which harms no device and is seen by a person.

    Raises:
        GateError: a parameter is out of its range.
    """

    p_good: float = 0.005
    p_bad: float = 0.02
    alpha: float = 0.01
    beta: float = 0.01
    min_devices: int = 1

    def __post_init__(self) -> None:
        for field in ("p_good", "p_bad"):
            if not 0 < getattr(self, field) < 1:
                raise GateError(field, f"{getattr(self, field)} is not a rate between 0 and 1")
        if self.p_good >= self.p_bad:
            raise GateError("p_bad", f"{self.p_bad} must be above p_good, {self.p_good}")
        for field in ("alpha", "beta"):
            if not 0 < getattr(self, field) < 0.5:
                raise GateError(field, f"{getattr(self, field)} is not a probability of error between 0 and 0.5")
        if self.min_devices < 1:
            raise GateError("min_devices", f"{self.min_devices} is less than 1")

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Verdict(enum.StrEnum):
    """Decision on the evidence of a step so far."""

    CONTINUE = "continue"
    ACCEPT = "accept"
    REJECT = "reject"


def counts(outcome: Outcome) -> tuple[int, int]:
    """Return how many (ok, failed) reports an outcome counts for.

    A bundle refused or left by a device counts as one failure, beside the executions that were reported: installed is
    not healthy, and a version that never runs must not look like one that never fails. An installation counts
    for nothing.
    """
    match outcome.kind:
        case OutcomeKind.RUN:
            return outcome.ok, outcome.failed
        case OutcomeKind.REJECTED | OutcomeKind.REVERTED:
            return 0, 1
        case _:
            return 0, 0


class Monitor:
    """Evidence of one step of one release, and the verdict on it.

    Evidence restarts at each step, so that a step is judged by reports that were made during it. The evidence of the
    steps before could only weaken a rejection: each of them ended below the acceptance threshold, so the sum of all
    log-likelihood ratios is always below that of the step alone. After acceptance the test starts again from zero,
    because reports keep coming while a person has paused the release; a rejection outweighs an earlier acceptance and
    is final.
    """

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.ok = 0
        self.failed = 0
        self.verdict = Verdict.CONTINUE
        self._devices: set[str] = set()  # never more than min_devices
        self._ratio = 0.0
        self._per_ok = math.log((1 - gate.p_bad) / (1 - gate.p_good))
        self._per_failed = math.log(gate.p_bad / gate.p_good)
        self._accept_at = math.log(gate.beta / (1 - gate.alpha))
        self._reject_at = math.log((1 - gate.beta) / gate.alpha)

    def add(self, device_id: str, ok: int, failed: int) -> Verdict:
        """Return the verdict after `ok` and `failed` further reports of a device, in constant time."""
        if ok == failed == 0:
            return self.verdict
        self.ok += ok
        self.failed += failed
        if len(self._devices) < self.gate.min_devices:
            self._devices.add(device_id)
        self._ratio += ok * self._per_ok + failed * self._per_failed
        if self.verdict is Verdict.REJECT or self._ratio >= self._reject_at:
            self.verdict = Verdict.REJECT
        elif self._ratio <= self._accept_at:
            if len(self._devices) >= self.gate.min_devices:
                self.verdict = Verdict.ACCEPT
                self._ratio = 0.0
            else:  # good evidence of too few devices is kept, but capped: it must not outweigh later failures
                self._ratio = self._accept_at
        return self.verdict

    def evidence(self) -> dict[str, Any]:
        """Return the numbers behind the verdict: counts, and the log-likelihood ratio with its two thresholds.

        After an acceptance the ratio is 0: the test has begun again.
        """
        thresholds = {"accept_at": round(self._accept_at, 6), "reject_at": round(self._reject_at, 6)}
        counted = {"ok": self.ok, "failed": self.failed, "devices": len(self._devices)}
        return {"gate": self.gate.to_plain(), **counted, "ratio": round(self._ratio, 6), **thresholds}

    def to_plain(self) -> dict[str, Any]:
        return {
            "gate": self.gate.to_plain(),
            "ok": self.ok,
            "failed": self.failed,
            "verdict": self.verdict.value,
            "devices": sorted(self._devices),
            "ratio": self._ratio,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        monitor = cls(Gate(**plain["gate"]))
        monitor.ok, monitor.failed = plain["ok"], plain["failed"]
        monitor.verdict = Verdict(plain["verdict"])
        monitor._devices = set(plain["devices"])
        monitor._ratio = plain["ratio"]
        return monitor
