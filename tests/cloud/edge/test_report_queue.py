"""Reports on their way from an edge gateway to the monitor."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from tests.sim.shop_cloud import LIMIT_S, until
from walle.base.clock import SystemClock
from walle.cloud.edge import report_queue
from walle.cloud.edge.report_queue import ReportQueue, ReportsWaitError
from walle.deploy.gate.gate import Gate
from walle.deploy.gate.step import Step
from walle.deploy.monitor.service import MonitorService, ReportsTaken
from walle.deploy.releases.journal import Journal
from walle.errors import DeployError
from walle.protocol import Outcome, OutcomeBatch, OutcomeKind


def _report(number: int) -> OutcomeBatch:
    outcome = Outcome(task="shop/ipv", version="v1", release="r1", kind=OutcomeKind.RUN, ok=1)
    return OutcomeBatch(f"d{number}", f"b{number}", (outcome,))


class _Monitor:
    """The real service, whose answers can be held back, and which may be away."""

    def __init__(self, service: MonitorService) -> None:
        self.calls: list[int] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.away = ""
        self._service = service

    async def take_reports(self, batches: Sequence[OutcomeBatch]) -> ReportsTaken:
        self.calls.append(len(batches))
        await self.may_answer.wait()
        if self.away:
            raise DeployError(self.away)
        return await self._service.take_reports(batches)

    async def take(self, batch: OutcomeBatch) -> int | None:
        return await self._service.take(batch)

    async def counted(self) -> int:
        return (await self._service.totals("r1")).ok


@pytest_asyncio.fixture
async def monitor(tmp_path: Path) -> AsyncIterator[_Monitor]:
    async with (
        Journal.in_file(tmp_path / "journal.db") as journal,
        MonitorService(journal, SystemClock(), group_s=0.001) as service,
    ):
        gate = Gate(trial_runs=10_000)
        step = Step(release="r1", task="shop/ipv", stage="gray", version="v1", gate=gate, steps=1, share_to=1.0)
        await service.watch(step)
        yield _Monitor(service)


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_reports_that_come_together_go_in_one_call(monitor: _Monitor) -> None:
    queue = ReportQueue(monitor, SystemClock())
    async with queue.passing_on():
        await asyncio.gather(*(queue.take(_report(number), 300) for number in range(100)))
    assert monitor.calls == [100]
    assert await monitor.counted() == 100
    assert queue.health() == {"ok": True, "waiting": 0, "calls": 1, "taken": 100}


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_a_busy_monitor_gets_larger_batches_within_bounds(
    monitor: _Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "MAX_CALL", 16)
    monkeypatch.setattr(report_queue, "MAX_CALL_BYTES", 10_000)
    queue = ReportQueue(monitor, SystemClock())
    monitor.may_answer.clear()
    async with queue.passing_on():
        first = [asyncio.ensure_future(queue.take(_report(number), 300)) for number in range(report_queue.CALLS)]
        later = []
        for number in range(100, 140):
            later.append(asyncio.ensure_future(queue.take(_report(number), 300)))
            await asyncio.sleep(0)
        await until(lambda: len(monitor.calls) == report_queue.CALLS)
        large = asyncio.ensure_future(queue.take(_report(999), 9_000))
        monitor.may_answer.set()
        await asyncio.gather(*first, *later, large)
    assert max(monitor.calls) == 16
    assert monitor.calls[-1] == 1  # the large one would not fit beside another
    assert await monitor.counted() == len(first) + len(later) + 1


@pytest.mark.asyncio
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("bound", "value"), [("MAX_WAITING", 10), ("MAX_WAITING_BYTES", 3_000)])
async def test_waiting_reports_are_bounded_and_others_are_asked_to_retry(
    monitor: _Monitor, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(report_queue, bound, value)
    queue = ReportQueue(monitor, SystemClock())
    monitor.may_answer.clear()
    async with queue.passing_on():
        waiting = [asyncio.ensure_future(queue.take(_report(number), 300)) for number in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(ReportsWaitError, match="10 reports of 3000 bytes wait") as refused:
            await queue.take(_report(10), 300)
        assert (refused.value.status, refused.value.retry_after_s) == (503, 5)
        waiting[0].cancel()  # a client that leaves counts all the same, and its place is free afterwards
        monitor.may_answer.set()
        await asyncio.gather(*waiting[1:])
        await queue.take(_report(10), 300)
    assert await monitor.counted() == 11
    assert queue.health()["refused"] == 1


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_a_monitor_that_is_away_fails_each_report_of_the_call(monitor: _Monitor) -> None:
    queue = ReportQueue(monitor, SystemClock())
    monitor.away = "it is being started"
    async with queue.passing_on():
        failed = await asyncio.gather(
            *(queue.take(_report(number), 300) for number in range(3)), return_exceptions=True
        )
        assert [str(one) for one in failed] == ["it is being started"] * 3
        assert queue.health()["why"] == "it is being started"
        monitor.away = ""
        await asyncio.gather(*(queue.take(_report(number), 300) for number in range(3)))
        assert "why" not in queue.health()
    assert await monitor.counted() == 3


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_reports_that_wait_at_the_end_of_an_edge_are_refused(monitor: _Monitor) -> None:
    queue = ReportQueue(monitor, SystemClock())
    monitor.may_answer.clear()
    async with queue.passing_on():
        called = asyncio.ensure_future(queue.take(_report(0), 300))
        await until(lambda: bool(monitor.calls))
        queued = asyncio.ensure_future(queue.take(_report(1), 300))
        await asyncio.sleep(0)
    for one in (called, queued):
        with pytest.raises(ReportsWaitError, match="this edge gateway is stopping"):
            await asyncio.wait_for(one, LIMIT_S)
    assert queue.health()["waiting"] == 0


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_a_monitor_from_before_takes_reports_one_by_one(monitor: _Monitor) -> None:
    class Older:
        take = monitor.take

    queue = ReportQueue(Older(), SystemClock())  # type: ignore[arg-type]
    async with queue.passing_on():
        await asyncio.gather(*(queue.take(_report(number), 300) for number in range(5)))
    assert await monitor.counted() == 5
