"""The interval between reports: its size, whom it is not told, and that it changes no verdict."""

import heapq
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from walle.base.clock import ManualClock
from walle.deploy.gate.gate import Gate, Verdict
from walle.deploy.gate.monitor import Monitor
from walle.deploy.gate.step import Step
from walle.deploy.monitor.report_pace import LONGEST_S, ReportPace
from walle.deploy.monitor.service import MonitorService
from walle.deploy.releases.journal import Journal
from walle.protocol import Outcome, OutcomeBatch, OutcomeKind

_TASK = "shop/ipv"
_RUN_S = 6.0  # time between two runs of a device, as in ADR 9
_DEVICES = 400
_OFTEN_S, _SELDOM_S = 10.0, 900.0


def _outcome(kind: OutcomeKind, ok: int = 0, failed: int = 0, version: str = "v2") -> Outcome:
    release = "r1" if version == "v2" else ""
    return Outcome(task=_TASK, version=version, release=release, kind=kind, ok=ok, failed=failed)


@pytest.mark.asyncio
async def test_the_interval_is_that_of_the_devices_that_report() -> None:
    clock = ManualClock()
    pace = ReportPace(2.0, clock)
    assert pace.interval_s == 1
    for _ in range(3):  # each device once, however often it reports
        for number in range(101):
            pace.note(f"d{number}")
    assert pace.interval_s == 1  # the estimate is updated once a second
    await clock.advance(1.0)
    assert pace.interval_s == 51
    await clock.advance(LONGEST_S)
    pace.note("d0")
    await clock.advance(1.0)
    assert pace.interval_s == 51  # those of the time before count until this one is over
    await clock.advance(LONGEST_S)
    pace.note("d0")
    await clock.advance(1.0)
    assert pace.interval_s == 1
    for number in range(20_000):
        pace.note(f"e{number}")
    await clock.advance(1.0)
    assert pace.interval_s == LONGEST_S


@pytest.mark.asyncio
async def test_devices_of_a_beta_or_a_trial_report_as_they_like(tmp_path: Path) -> None:
    async with Journal.in_file(tmp_path / "journal.sqlite") as journal:
        service = MonitorService(journal, ManualClock(), reports_s=1.0)

        def report(device: str, number: int) -> OutcomeBatch:
            return OutcomeBatch(device, f"b{number}", (_outcome(OutcomeKind.RUN, 3),))

        assert await service.take(report("d1", 0)) == 1
        step = Step(release="r1", task=_TASK, version="v2", stage="beta", gate=Gate(), steps=4)
        await service.watch(Step(**{**vars(step), "devices": frozenset({"d1"})}))
        taken = await service.take_reports([report("d1", 1), report("d2", 2)])
        assert [taken.interval_of(number) for number in (0, 1)] == [0, 1]
        await service.watch(
            Step(**{**vars(step), "stage": "gray", "earlier_devices": frozenset({"d1"}), "share_to": 0.1})
        )
        assert await service.take(report("d1", 3)) == 0
        await service.unwatch("r1")
        assert await service.take(report("d1", 4)) == 1
        await service.watch(Step(**{**vars(step), "stage": "gray", "gate": Gate(trial_runs=10)}))
        assert await service.take(report("d2", 5)) == 0
        untold = MonitorService(journal, ManualClock())
        assert await untold.take(report("d1", 6)) is None
        assert (await untold.take_reports([report("d1", 7)])).interval_of(0) is None


class _Phone:
    """A device that runs a version every _RUN_S, and reports at the times that `pause` gives: by its runs so far."""

    def __init__(self, name: str, p_fail: float, version: str, rng: random.Random, *, first_s: float) -> None:
        self.name = name
        self.version = version
        self.at_s = first_s
        self.reported_s = 0.0
        self._p_fail = p_fail
        self._rng = rng
        self._is_new = version == "v2"

    def report(self) -> list[Outcome]:
        count = int((self.at_s - self.reported_s) / _RUN_S)
        self.reported_s += count * _RUN_S
        failed = sum(self._rng.random() < self._p_fail for _ in range(count))
        made = [_outcome(OutcomeKind.INSTALLED)] if self._is_new else []
        self._is_new = False
        return [*made, _outcome(OutcomeKind.RUN, count - failed, failed, self.version)]


type Pause = Callable[[int], float]
"""`pause(failed)` is the time to a device's next report, after one in which that number of runs failed."""


def _reports(phones: list[_Phone], pause: Pause) -> Iterator[tuple[_Phone, list[Outcome], float]]:
    """Yield the reports of all phones in the order of time."""
    queue = [(phone.at_s, number, phone) for number, phone in enumerate(phones)]
    heapq.heapify(queue)
    while True:
        at_s, number, phone = heapq.heappop(queue)
        phone.at_s = at_s
        outcomes = phone.report()
        yield phone, outcomes, at_s
        heapq.heappush(queue, (at_s + pause(sum(one.failed for one in outcomes)), number, phone))


def _verdict(seed: int, p_new: float, pause: Pause, first: Callable[[random.Random, float], float]) -> tuple[str, int]:
    """Return the verdict on one step, and how many devices of it counted. The version before fails in 0.5 % of runs."""
    rng = random.Random(seed)
    gate = Gate()
    step = Step(
        release="r1", task=_TASK, version="v2", stage="gray", gate=gate, steps=1, share_to=0.5,
        control_versions=frozenset({"v1"}),
    )  # fmt: skip
    monitor = Monitor(step)
    phones = []
    for number in range(_DEVICES):
        name = f"{seed}-{number}"
        version, p_fail = ("v2", p_new) if step.is_new(name) else ("v1", 0.005)
        phones.append(_Phone(name, p_fail, version, rng, first_s=first(rng, p_fail)))
    for phone, outcomes, at_s in _reports(phones, pause):
        monitor.take(phone.name, outcomes, {}, at_s)
        if monitor.verdict is not Verdict.CONTINUE or at_s > 4 * _SELDOM_S:
            return monitor.verdict.value, monitor.devices
    raise AssertionError


def _each(interval_s: float) -> tuple[Pause, Callable[[random.Random, float], float]]:
    return (lambda _: interval_s), (lambda rng, _: rng.uniform(0.0, interval_s))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("p_new", "verdict"), [(0.005, "accept"), (0.1, "reject")])
def test_a_longer_interval_for_all_devices_changes_no_verdict(p_new: float, verdict: str) -> None:
    counts: dict[float, list[int]] = {}
    for interval_s in (_OFTEN_S, _SELDOM_S):
        found = [_verdict(seed, p_new, *_each(interval_s)) for seed in range(8)]
        assert [one for one, _ in found] == [verdict] * 8, found
        counts[interval_s] = [count for _, count in found]
    often, seldom = (statistics.median(counts[one]) for one in (_OFTEN_S, _SELDOM_S))
    assert 0.5 < often / seldom < 2.0


@pytest.mark.timeout(120)
def test_failures_at_once_and_successes_later_would_reject_healthy_versions() -> None:
    """So the interval may not depend on what a device reports: its first reports would be those of failures alone."""
    rejected = 0
    for seed in range(3):
        rng = random.Random(seed)
        monitor = Monitor(
            Step(release="r1", task=_TASK, version="v2", stage="gray", gate=Gate(), steps=1, share_to=1.0)
        )
        for number in range(_DEVICES):
            failed = sum(rng.random() < 0.005 for _ in range(10))
            if failed:  # the others would be heard within _SELDOM_S
                outcomes = [_outcome(OutcomeKind.INSTALLED), _outcome(OutcomeKind.RUN, 10 - failed, failed)]
                monitor.take(f"{seed}-{number}", outcomes, {}, _OFTEN_S)
        rejected += monitor.verdict is Verdict.REJECT
    assert rejected == 3
