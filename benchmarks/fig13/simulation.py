"""Simulation of a release over a whole fleet, in NumPy, between the decisions of the real cloud (`SimulatedCloud`).

Between two tables of the cloud every device of one kind gets the same answer: kinds are the version that a device has,
and whether the release admits it. So the real table is asked once for each kind, and again for devices drawn at random,
which must get what their kind gets. The time of each device's next request is then computed at once for all, and the
reports of the first devices go to the real gate in order, until its verdict makes the next table.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.fig13.cloud import NEW, OLD, SimulatedCloud
from benchmarks.fig13.fleet import Fleet, Indices, device_id
from walle.deploy.gate.gate import MAX_DEVICES, Gate, Verdict
from walle.deploy.releases.release import ReleaseState

# Devices of a step, and of the control, whose reports go to the gate, the first ones: it keeps MAX_DEVICES of each.
_HEARD = 3 * MAX_DEVICES
_REPORTS = 40  # reports of a device at most, until its first runs are made
_SAMPLE = 300  # devices whose answers are compared with those of their kind, for each table

type Times = NDArray[np.float64]


class DifferentAnswerError(AssertionError):
    """A device is answered otherwise than the others of its kind."""


class UndecidedError(AssertionError):
    """The gate has no verdict after the reports of the devices that were given to it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A release, the version's failures, and delays of the cloud, in simulated seconds."""

    release_id: str = "ipv-v2-2"
    beta: int = 2
    steps: tuple[float, ...] = (0.01, 0.1, 1 / 3, 1.0)
    gate: Gate = dataclasses.field(default_factory=Gate)
    new_rate: float = 0.005  # share of runs that fail
    old_rate: float = 0.005
    simulation_s: float = 5.0  # time from the start of the release to the first table
    publish_s: float = 1.0  # time from a verdict to the table in all gateways
    tick_s: float = 1.0  # interval of the gate
    horizon_s: float = 1200.0


@dataclasses.dataclass(frozen=True)
class StepTaken:
    """A table of the release: the stage that it began, when, and how many devices were covered at that time."""

    stage: str
    at_s: float
    covered: int
    gate_devices: int  # counted by the gate at the end of the stage before


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The release's end, with each device's times: infinite where it never was."""

    steps: list[StepTaken]
    state: ReleaseState
    reason: str
    installed_s: NDArray[np.float32]
    left_s: NDArray[np.float32]  # time at which it had the version before again


@dataclasses.dataclass(frozen=True)
class _Kinds:
    """The version that a table leaves a device with, by what it has and whether it is admitted."""

    version: dict[tuple[str, bool], str]

    def installs(self, *, admitted: bool) -> bool:
        return self.version.get((OLD, admitted), OLD) == NEW

    @property
    def goes_back(self) -> bool:
        return any(version == OLD for (have, _), version in self.version.items() if have == NEW)


class Simulation:
    """One release over a fleet. `places` may be those of an earlier simulation with the same release id."""

    def __init__(self, fleet: Fleet, plan: Plan, places: NDArray[np.float64] | None = None) -> None:
        self.fleet = fleet
        self.plan = plan
        self.places = fleet.places(plan.release_id) if places is None else places
        self._rng = np.random.default_rng(fleet.seed + 1)
        self.beta = newcomers(fleet, plan.simulation_s, plan.beta)
        beta_ids = [device_id(int(number)) for number in self.beta]
        self.cloud = SimulatedCloud(plan.release_id, beta=beta_ids, steps=plan.steps, gate=plan.gate)
        self._installed_s = np.full(fleet.count, np.inf, np.float32)
        self._left_s = np.full(fleet.count, np.inf, np.float32)
        self._steps: list[StepTaken] = []

    def run(self) -> Outcome:
        """Play the release to its end or to the horizon."""
        plan, at_s, counted = self.plan, self.plan.simulation_s, 0
        self.cloud.simulated(at_s)
        while True:
            release = self.cloud.release
            covered = int(np.count_nonzero(self._installed_s <= at_s))
            self._steps.append(StepTaken(release.stage, at_s, covered, counted))
            kinds = self._kinds(at_s)
            newcomers = self._installing(kinds, at_s)
            if kinds.goes_back:
                self._go_back(at_s)
            verdict_s = (
                self._judge(newcomers, at_s) if release.judged and release.state is not ReleaseState.PAUSED else None
            )
            until_s = plan.horizon_s if verdict_s is None else min(verdict_s + plan.publish_s, plan.horizon_s)
            self._install(newcomers, until_s)
            if verdict_s is None or until_s >= plan.horizon_s:
                break
            assert self.cloud.monitor is not None
            counted = self.cloud.monitor.devices
            self.cloud.judged(verdict_s)
            at_s = until_s
        release = self.cloud.release
        return Outcome(self._steps, release.state, release.reason, self._installed_s, self._left_s)

    # --- answers ---

    def _admitted(self) -> NDArray[np.bool_]:
        """Return whether each device belongs to the release as far as it has come."""
        admission = self.cloud.release.admission
        if admission is None:
            return np.full(self.fleet.count, self.cloud.release.state is ReleaseState.FULL)
        found: NDArray[np.bool_] = self.places < admission.share
        found[self.beta] |= bool(admission.devices)
        return found

    def _kinds(self, at_s: float) -> _Kinds:
        """Ask the real table for a device of each kind, then for others, whose answers must be those of their kind.

        Raises:
            DifferentAnswerError: one of them is not.
        """
        admitted = self._admitted()
        has_new = (self._installed_s <= at_s) & ~(self._left_s <= at_s)
        drawn = self._rng.choice(self.fleet.count, min(_SAMPLE, self.fleet.count), replace=False)
        found: dict[tuple[str, bool], str] = {}
        rare = (np.flatnonzero(kind)[:20] for kind in (admitted, ~admitted, has_new, has_new & ~admitted))
        for number in map(int, itertools.chain(drawn, *rare, self.beta)):
            have, kind = (NEW if has_new[number] else OLD), bool(admitted[number])
            version = self.cloud.version_for(device_id(number), have)
            if found.setdefault((have, kind), version) != version:
                what = f"{device_id(number)} with {have}, admitted: {kind}, gets {version}, others {found[have, kind]}"
                raise DifferentAnswerError(what)
        return _Kinds(found)

    def _installing(self, kinds: _Kinds, at_s: float) -> tuple[Indices, Times, Times]:
        """Return the devices that this table gives the new version, their requests, and their times of installation."""
        open_to = self._admitted()
        if kinds.installs(admitted=False):
            open_to[:] = True
        elif not kinds.installs(admitted=True):
            open_to[:] = False
        open_to &= np.isinf(self._installed_s)
        devices = np.flatnonzero(open_to)
        asked_s = self.fleet.next_request(devices, at_s)
        return devices, asked_s, asked_s + self.fleet.pull_s[devices]

    def _install(self, newcomers: tuple[Indices, Times, Times], until_s: float) -> None:
        devices, asked_s, installed_s = newcomers
        before = asked_s < until_s
        self._installed_s[devices[before]] = installed_s[before]

    def _go_back(self, at_s: float) -> None:
        """Let each device that has the version leave it at its next request."""
        devices = np.flatnonzero(np.isfinite(self._installed_s) & np.isinf(self._left_s))
        self._left_s[devices] = self.fleet.next_request(devices, np.maximum(at_s, self._installed_s[devices]))

    # --- evidence ---

    def _judge(self, newcomers: tuple[Indices, Times, Times], at_s: float) -> float | None:
        """Give the devices' reports to the gate, in order; return when it had a verdict, None if not by the horizon.

        Raises:
            UndecidedError: none of those that were given was left, but the fleet has more.
        """
        monitor, plan = self.cloud.monitor, self.plan
        assert monitor is not None
        devices, _, installed_s = newcomers
        step = monitor.step
        if step.share_to:
            of_step = (self.places[devices] >= step.share_from) & (self.places[devices] < step.share_to)
            devices, installed_s = devices[of_step], installed_s[of_step]
        devices, installed_s, has_all = _first(devices, installed_s, _HEARD)
        reports = self._reports(devices, installed_s, NEW, plan.new_rate)
        if step.has_control:
            others = np.flatnonzero(np.isinf(self._installed_s) & (self.places >= step.share_to))
            others = self._rng.permutation(others)[: 20 * _HEARD]
            others, _, _ = _first(others, self.fleet.next_request(others, at_s), _HEARD)
            reports += self._reports(others, np.full(len(others), at_s), OLD, plan.old_rate)
        reports.sort()
        next_tick_s = at_s + plan.tick_s
        made = functools.cache(self.cloud.outcomes)
        for report_s, number, version, ok, failed, installed in itertools.chain(
            reports, [(math.inf, 0, "", 0, 0, False)]
        ):
            while next_tick_s <= min(report_s, plan.horizon_s):
                monitor.tick(next_tick_s)
                if monitor.verdict is not Verdict.CONTINUE:
                    return next_tick_s
                next_tick_s += plan.tick_s
            if report_s > plan.horizon_s and not math.isinf(report_s):
                break
            if math.isinf(report_s):
                continue
            monitor.take(device_id(number), made(version, ok, failed, installed=installed), {}, report_s)
            if monitor.verdict is not Verdict.CONTINUE:
                return report_s
        else:  # no report is left
            if has_all:
                return None
            raise UndecidedError(f"{release_text(self.cloud)}: undecided after {_HEARD} devices")
        return None

    def _reports(
        self, devices: Indices, since_s: Times, version: str, rate: float
    ) -> list[tuple[float, int, str, int, int, bool]]:
        """Return the reports of devices with this version since these times, until each has made its first runs."""
        found: list[tuple[float, int, str, int, int, bool]] = []
        wanted = self.plan.gate.trial_runs or self.plan.gate.device_runs
        before = self.fleet.runs_until(devices, since_s)
        first, at_s = before, since_s
        for turn in range(_REPORTS):
            at_s = self.fleet.next_request(devices, at_s)
            runs = self.fleet.runs_until(devices, at_s)
            failed = self.fleet.failures(devices, before, runs, rate)
            is_first = turn == 0 and version == NEW
            rows = zip(at_s.tolist(), devices.tolist(), (runs - before - failed).tolist(), failed.tolist(), strict=True)
            found += [
                (time_s, number, version, ok, bad, is_first) for time_s, number, ok, bad in rows if ok + bad or is_first
            ]
            going_on = (runs - first < wanted) & (at_s < self.plan.horizon_s)
            if not going_on.any():
                break
            devices, at_s, before, first = devices[going_on], at_s[going_on], runs[going_on], first[going_on]
        return found


def release_text(cloud: SimulatedCloud) -> str:
    return f"{cloud.release.id} at {cloud.release.stage}"


def newcomers(fleet: Fleet, at_s: float, count: int) -> Indices:
    """Return the devices that came online last: a cloud's beta devices are those that it has heard of lately."""
    since = (at_s + fleet.phase_s) % fleet.period_s
    return np.sort(np.argpartition(since, count)[:count]) if count else np.empty(0, np.int64)


def _first(devices: Indices, at_s: Times, count: int) -> tuple[Indices, Times, bool]:
    """Return the `count` devices with the earliest times, and whether these are all."""
    if len(devices) <= count:
        return devices, at_s, True
    earliest = np.argpartition(at_s, count)[:count]
    return devices[earliest], at_s[earliest], False


def requests_each_s(fleet: Fleet, horizon_s: float, sample: int = 200_000) -> NDArray[np.float64]:
    """Return the fleet's requests in each second, from those of `sample` devices, evenly chosen."""
    devices = np.linspace(0, fleet.count - 1, min(sample, fleet.count)).astype(np.int64)
    counts = np.zeros(math.ceil(horizon_s))
    scale, at_s = fleet.count / len(devices), np.zeros(len(devices))
    while len(devices):
        at_s = fleet.next_request(devices, at_s)
        left = at_s < horizon_s
        devices, at_s = devices[left], at_s[left]
        counts += np.bincount(at_s.astype(np.int64), minlength=len(counts))[: len(counts)]
    return counts * scale


def each_second(times_s: NDArray[np.float32], horizon_s: float) -> NDArray[np.int64]:
    """Return how many of the times are in each second before the horizon."""
    before = times_s[times_s < horizon_s]
    return np.bincount(before.astype(np.int64), minlength=math.ceil(horizon_s))
