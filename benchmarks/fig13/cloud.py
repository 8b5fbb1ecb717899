"""The cloud of the simulation: the product's own release state machine, gate and release table, without I/O."""

import functools
from collections.abc import Sequence

from walle.deploy.gate.gate import Gate, Verdict
from walle.deploy.gate.monitor import Monitor
from walle.deploy.releases.release import (
    GateAccepted,
    GatePaused,
    GateRejected,
    Release,
    ReleaseEvent,
    ReleaseState,
    SimulationPassed,
    Start,
    advance,
)
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.table import ReleaseTable, plan_row, versions_behind
from walle.protocol import Outcome, OutcomeKind, Profile
from walle.trust.signing import Signer

SCENARIO, TASK = "load", "ipv"  # the scenario of `loadtest.cloud_process`
NAME = f"{SCENARIO}/{TASK}"
OLD, NEW = "v1", "v2"
APP_VERSION = "10.1"
_FLEET_ID = "fig13"
_SIZE_BYTES = 1_000  # size of a manifest


class SimulatedCloud:
    """A fleet's task: version v1 on every device, and a release of v2 that `event`s move, judged by the real gate."""

    def __init__(self, release_id: str, *, beta: Sequence[str], steps: Sequence[float], gate: Gate) -> None:
        request = functools.partial(ReleaseRequest, scenario=SCENARIO, task=TASK)
        full = Release(
            id="r-old",
            number=1,
            request=request(version=OLD),
            created_s=0.0,
            updated_s=0.0,
            state=ReleaseState.FULL,
            manifest="1" * 64,
            size_bytes=_SIZE_BYTES,
        )
        asked = request(version=NEW, beta=tuple(beta) or 0, steps=tuple(steps), gate=gate)
        self._before = full
        self.release = Release(id=release_id, number=2, request=asked, created_s=0.0, updated_s=0.0)
        self.monitor: Monitor | None = None
        self.table = ReleaseTable()
        self._signer = Signer.generate()
        self._serial = 1
        self.event(Start(0.0))

    def event(self, event: ReleaseEvent) -> None:
        """Move the release, and run the effects: the gate's step first, then the table, as the release service does."""
        self.release, _ = advance(self.release, event)
        releases = [self._before, self.release]
        if self.release.judged:
            step = self.release.judged_step(versions_behind(self.release, releases))
            if self.monitor is None:
                self.monitor = Monitor(step)
            else:
                self.monitor.begin(step)
        plan = plan_row(NAME, releases, "/cdn")
        row = plan.sign(functools.partial(self._signer.sign_directive, fleet=_FLEET_ID), self._serial, 2_000_000_000)
        self._serial += plan.serials
        self.table = ReleaseTable(self.table.generation + 1, [row])

    def simulated(self, at_s: float) -> None:
        """The version has passed its simulation."""
        self.event(SimulationPassed(at_s, "2" * 64, _SIZE_BYTES))

    def judged(self, at_s: float) -> None:
        """Move the release by the gate's verdict, as the release service does."""
        assert self.monitor is not None
        match self.monitor.verdict:
            case Verdict.ACCEPT:
                self.event(GateAccepted(at_s))
            case Verdict.REJECT:
                self.event(GateRejected(at_s, self.monitor.reason))
            case Verdict.PAUSE:
                self.event(GatePaused(at_s, self.monitor.cause, self.monitor.reason))

    def version_for(self, device_id: str, have: str) -> str:
        """Return the version that the table's answer leaves a device with."""
        directives = self.table.answer(Profile(device_id, APP_VERSION, {"os": "15"}, {NAME: have}))
        return directives[0].version if directives else have

    def outcomes(self, version: str, ok: int, failed: int, *, installed: bool) -> tuple[Outcome, ...]:
        """Return a report of a device: runs of a version, and whether it was installed since the report before."""
        release = self.release.id if version == NEW else ""
        made = functools.partial(Outcome, task=NAME, version=version, release=release)
        confirmed = (made(kind=OutcomeKind.INSTALLED),) if installed else ()
        ran = (made(kind=OutcomeKind.RUN, ok=ok, failed=failed),) if ok + failed else ()
        return confirmed + ran
