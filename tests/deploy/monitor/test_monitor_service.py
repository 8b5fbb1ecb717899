import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from walle.base.clock import ManualClock, SystemClock
from walle.deploy.gate.gate import Gate, Verdict
from walle.deploy.gate.monitor import Monitor
from walle.deploy.gate.step import Step
from walle.deploy.monitor.release_evidence import Totals
from walle.deploy.monitor.service import MonitorService, ReportsTaken
from walle.deploy.releases.journal import Journal
from walle.protocol import Metric, Outcome, OutcomeBatch, OutcomeKind
from walle.store.errors import StateError

TASK = "shop/ipv"


class VerdictRecorder:
    """Keeps the verdicts, and refuses as many deliveries as it is asked to."""

    def __init__(self) -> None:
        self.verdicts: list[tuple[str, str, Verdict, str]] = []
        self.causes: list[str] = []
        self.refuse = 0

    async def __call__(self, release_id: str, stage: str, verdict: Verdict, reason: str, cause: str) -> None:
        if self.refuse:
            self.refuse -= 1
            raise ConnectionError("nobody there")
        self.verdicts.append((release_id, stage, verdict, reason))
        self.causes.append(cause)


@pytest_asyncio.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    async with Journal.in_file(tmp_path / "journal.sqlite") as opened:
        yield opened


def _service(journal: Journal, recorder: VerdictRecorder | None = None) -> MonitorService:
    service = MonitorService(journal, ManualClock())
    service.on_verdict = recorder or VerdictRecorder()
    return service


def _step(stage: str, release: str = "r1", **changes: object) -> Step:
    """Return a step for all devices: in a trial, in which one device is enough."""
    values = {"gate": Gate(trial_runs=10_000), "steps": 4, "share_to": 1.0, "version": "v1", **changes}
    return Step(release=release, task=TASK, stage=stage, **values)  # type: ignore[arg-type]


def _batch(
    batch_id: str, kind: OutcomeKind, ok: int = 0, failed: int = 0, *, device: str = "d1", release: str = "r1"
) -> OutcomeBatch:
    error = "ValueError: x" if failed else ""
    outcome = Outcome(task=TASK, version="v1", release=release, kind=kind, ok=ok, failed=failed, error=error)
    if kind is not OutcomeKind.RUN:
        return OutcomeBatch(device, batch_id, (outcome,))
    installed = Outcome(task=TASK, version="v1", release=release, kind=OutcomeKind.INSTALLED)
    return OutcomeBatch(device, batch_id, (installed, outcome))


@pytest.mark.asyncio
async def test_the_last_failure_is_kept_with_its_place_and_log_over_a_restart(journal: Journal) -> None:
    recorder = VerdictRecorder()
    service = _service(journal, recorder)
    await service.watch(_step("beta", "r1"))
    failure = _outcome(error="E: x", place="main.py:3", log="info: a\nerror: b")
    await service.take(OutcomeBatch("d1", "b1", (failure,)))
    await service.take(_batch("b2", OutcomeKind.RUN, 5, 0))
    await service.flush()
    again = _service(journal, recorder)
    await again.start()
    totals = await again.totals("r1")
    assert (totals.last_error, totals.last_place, totals.distinct_failures) == ("E: x", "main.py:3", 1)
    (group,), others = await again.failures("r1")
    assert (group.example.log, group.count, group.devices, others) == ("info: a\nerror: b", 1, 1, 0)
    await again.take(OutcomeBatch("d1", "b3", (_outcome(failed=90, error="E: y", place="main.py:9"),)))
    groups, _ = await again.failures("r1")
    assert {(group.example.error, group.example.log, group.count) for group in groups} == {
        ("E: x", "info: a\nerror: b", 1),
        ("E: y", "", 90),
    }
    assert recorder.verdicts[-1][3] == "90 of 95 runs failed, on 1 devices, the last with: E: y (main.py:9)"
    await again.close()


def _outcome(*, failed: int = 1, error: str, place: str, log: str = "") -> Outcome:
    return Outcome(
        task=TASK, version="v1", release="r1", kind=OutcomeKind.RUN, failed=failed, error=error, place=place, log=log
    )


@pytest.mark.asyncio
async def test_reports_are_summed_and_verdicts_delivered_once(journal: Journal) -> None:
    recorder = VerdictRecorder()
    service = _service(journal, recorder)
    await service.watch(_step("beta", "r1"))
    for number in range(4):
        await service.take(_batch(f"b{number}", OutcomeKind.RUN, 200, 0))
    assert recorder.verdicts == [("r1", "beta", Verdict.ACCEPT, "")]
    await service.watch(_step("gray 0.25", "r1"))
    await service.take(_batch("bad", OutcomeKind.RUN, 1, 9))
    assert recorder.verdicts[1:] == [
        ("r1", "gray 0.25", Verdict.REJECT, "9 of 10 runs failed, on 1 devices, the last with: ValueError: x")
    ]
    totals = await service.totals("r1")
    assert (totals.ok, totals.failed, totals.stage_devices) == (801, 9, 1)
    assert totals.failure_rate == pytest.approx(9 / 810)


@pytest.mark.asyncio
async def test_a_batch_that_is_sent_again_counts_once(journal: Journal) -> None:
    service = _service(journal)
    await service.watch(_step("beta", "r1"))
    for _ in range(3):
        await service.take(_batch("same", OutcomeKind.RUN, 5, 1))
    await service.take(_batch("same", OutcomeKind.RUN, 5, 1, device="another"))
    totals = await service.totals("r1")
    assert (totals.ok, totals.failed, service.duplicates) == (10, 2, 2)


@pytest.mark.asyncio
async def test_the_memory_of_batches_is_bounded(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MonitorService, "MAX_BATCH_IDS", 10)
    service = _service(journal)
    for number in range(100):
        await service.take(_batch(str(number), OutcomeKind.RUN, 1))
    assert len(service._batch_ids) == 10


@pytest.mark.asyncio
async def test_installed_is_not_healthy(journal: Journal) -> None:
    recorder = VerdictRecorder()
    service = _service(journal, recorder)
    await service.watch(_step("beta", "r1"))
    for number in range(5):
        await service.take(_batch(f"i{number}", OutcomeKind.INSTALLED, device=f"d{number}"))
    assert recorder.verdicts == []
    for number in range(5):
        await service.take(_batch(f"r{number}", OutcomeKind.REVERTED, device=f"d{number}"))
    assert [verdict for _, _, verdict, _ in recorder.verdicts] == [Verdict.REJECT]
    totals = await service.totals("r1")
    assert (totals.installed, totals.reverted, totals.stage_broken) == (5, 5, 5)


@pytest.mark.asyncio
async def test_a_device_that_says_the_same_after_each_restart_is_one_device(journal: Journal) -> None:
    recorder = VerdictRecorder()
    service = _service(journal, recorder)
    await service.watch(_step("beta", "r1"))
    for number in range(50):
        await service.take(_batch(f"i{number}", OutcomeKind.INSTALLED))
        await service.take(_batch(f"r{number}", OutcomeKind.REJECTED))
    totals = await service.totals("r1")
    assert (totals.installed, totals.rejected, totals.stage_broken) == (1, 1, 1)
    assert recorder.verdicts == []


@pytest.mark.asyncio
async def test_a_verdict_that_was_not_accepted_is_delivered_again(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = VerdictRecorder()
    recorder.refuse = 2
    service = _service(journal, recorder)
    await service.watch(_step("beta", "r1"))
    for number in range(3):
        await service.take(_batch(f"b{number}", OutcomeKind.RUN, 0, 10))
    assert [verdict for _, _, verdict, _ in recorder.verdicts] == [Verdict.REJECT]
    assert "was not delivered" in caplog.text


@pytest.mark.asyncio
async def test_watching_the_same_stage_again_keeps_the_evidence_and_repeats_the_verdict(journal: Journal) -> None:
    recorder = VerdictRecorder()
    service = _service(journal, recorder)
    await service.watch(_step("beta", "r1"))
    await service.take(_batch("b", OutcomeKind.RUN, 1000))
    await service.watch(_step("beta", "r1"))
    assert [verdict for _, _, verdict, _ in recorder.verdicts] == [Verdict.ACCEPT] * 2
    await service.watch(_step("gray 0.25", "r1"))
    assert (await service.totals("r1")).stage_devices == 0
    assert (await service.totals("r1")).ok == 1000


@pytest.mark.asyncio
async def test_what_is_no_longer_watched_is_still_counted(journal: Journal) -> None:
    recorder = VerdictRecorder()
    service = _service(journal, recorder)
    await service.watch(_step("beta", "r1"))
    await service.unwatch("r1")
    await service.take(_batch("b", OutcomeKind.RUN, 0, 100))
    assert recorder.verdicts == []
    assert (await service.totals("r1")).failed == 100


@pytest.mark.asyncio
async def test_strangers_are_counted_and_cost_nothing(journal: Journal) -> None:
    service = _service(journal)
    await service.take(_batch("b1", OutcomeKind.RUN, 1, release="nobody"))
    await service.take(_batch("b2", OutcomeKind.RUN, 1, release=""))
    assert (service.strangers, service._evidence) == (2, {})  # installation and runs
    assert await service.totals("nobody") == Totals()


@pytest.mark.asyncio
async def test_evidence_outlives_a_restart(journal: Journal) -> None:
    clock = ManualClock()
    first = MonitorService(journal, clock)
    await first.watch(_step("gray 0.5", "r1"))
    await first.take(_batch("b", OutcomeKind.RUN, 200, 1))
    await first.take(_batch("c", OutcomeKind.INSTALLED))
    await first.flush()
    recorder = VerdictRecorder()
    second = _service(journal, recorder)
    await second.start()
    assert await second.totals("r1") == await first.totals("r1")
    await second.watch(_step("gray 0.5", "r1"))
    await second.take(_batch("d", OutcomeKind.RUN, 250, 0))
    assert [verdict for _, _, verdict, _ in recorder.verdicts] == [Verdict.ACCEPT]
    await second.close()


@pytest.mark.asyncio
async def test_the_largest_state_and_what_was_evicted_outlive_a_restart(journal: Journal) -> None:
    first = MonitorService(journal, ManualClock())
    await first.watch(_step("gray 0.5", "r1"))
    for number, (size_bytes, evicted) in enumerate([(500, 0), (900, 3), (700, 4), (0, 0)]):
        await first.take(_state_batch(number, size_bytes, 1024 if size_bytes else 0, evicted))
    await first.flush()
    second = _service(journal, VerdictRecorder())
    await second.start()
    for totals in (await first.totals("r1"), await second.totals("r1")):
        assert (totals.state_bytes, totals.state_max_bytes, totals.entries_evicted) == (900, 1024, 7)
    await second.close()


def _state_batch(number: int, size_bytes: int, max_bytes: int, evicted: int = 0) -> OutcomeBatch:
    outcome = Outcome(
        task=TASK, version="v1", release="r1", kind=OutcomeKind.RUN, ok=1,
        state_bytes=size_bytes, state_max_bytes=max_bytes, entries_evicted=evicted,
    )  # fmt: skip
    return OutcomeBatch("d1", f"b{number}", (outcome,))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("limit", "honest", "lies", "shown"),
    [
        (1024, (900, 1024), [(1025, 1024), (10**9, 10**9), (5_000, 8_192), (2_000, 0)], (900, 1024)),
        (1024, (900, 8_192), [(1025, 8_192)], (900, 1024)),  # the bound is the manifest's
        (0, (0, 0), [(10, 1024), (10**9, 10**9)], (0, 0)),
        (None, (900, 1024), [(10**9, 10**9), (2_000, 1024)], (900, 1024)),  # a release of before
    ],
)
async def test_a_size_beyond_the_bound_is_counted_and_not_shown(
    journal: Journal,
    limit: int | None,
    honest: tuple[int, int],
    lies: list[tuple[int, int]],
    shown: tuple[int, int],
) -> None:
    first = MonitorService(journal, ManualClock())
    await first.watch(_step("gray 0.5", "r1", state_max_bytes=limit))
    await first.unwatch("r1")  # reports of a release that is full count, too
    for number, (size_bytes, max_bytes) in enumerate([*lies, honest]):
        await first.take(_state_batch(number, size_bytes, max_bytes))
    await first.flush()
    second = _service(journal, VerdictRecorder())
    await second.start()
    await second.take(_state_batch(99, *lies[0]))
    for totals, refused in (await first.totals("r1"), len(lies)), (await second.totals("r1"), len(lies) + 1):
        assert (totals.state_bytes, totals.state_max_bytes, totals.states_refused) == (*shown, refused)
    await second.close()


@pytest.mark.asyncio
async def test_a_size_that_was_taken_before_the_bound_was_known_is_forgotten(journal: Journal) -> None:
    service = _service(journal)
    await service.watch(_step("beta", "r1"))
    await service.take(_state_batch(1, 200_000, 10**9))
    assert (await service.totals("r1")).state_bytes == 200_000
    await service.watch(_step("gray 0.5", "r1", state_max_bytes=1024))
    assert (await service.totals("r1")).state_bytes == 0
    await service.take(_state_batch(2, 1024, 1024))
    assert (await service.totals("r1")).state_bytes == 1024


@pytest.mark.asyncio
async def test_what_could_not_be_saved_is_saved_later(tmp_path: Path) -> None:
    journal = Journal.in_file(tmp_path / "journal.sqlite")
    service = _service(journal)
    await service.watch(_step("beta", "r1"))
    with pytest.raises(Exception, match="is not open"):
        await service.flush()
    async with journal:
        await service.flush()
        assert list(await journal.evidence()) == ["r1"]


@pytest.mark.asyncio
async def test_the_course_of_the_tests_outlives_a_restart_and_has_what_is_now(journal: Journal) -> None:
    clock = ManualClock()
    first = MonitorService(journal, clock)
    step = _step("gray 0.5", "r1", gate=Gate())
    await first.watch(step)
    for number in range(3):
        for device in range(5):
            await first.take(_batch(f"b{number}", OutcomeKind.RUN, 200, 0, device=f"d{number}-{device}"))
        await first.flush()
        await clock.advance(10.0)
    (shown,) = (await first.course("r1"))["tests"]
    assert [point["devices"] for point in shown["points"]] == [5, 10, 15]
    limits = {one["test"]: (one["does"], one["boundary"]) for one in shown["tests"]}
    values = {one["test"]: one for key in ("rejects", "accepts") for one in (await first.evidence("r1"))[key]}
    assert {name: values[name]["value"] for name in values} == {
        name: shown["points"][-1]["values"][name] for name in values
    }
    assert limits["failed runs"] == ("rolls back", values["failed runs"]["boundary"])
    assert limits["runs are good"] == ("accepts", values["runs are good"]["boundary"])
    assert [one.name for one in (await first.totals("r1")).tests] == list(limits)
    async with MonitorService(journal, clock) as second:
        assert await second.course("r1") == await first.course("r1")
        # What was too early to be noted is noted later, also where no further report comes.
        await second.take(_batch("x", OutcomeKind.RUN, 200, 0, device="last"))
        await second.flush()
        async with asyncio.timeout(20):
            while (await second.course("r1"))["tests"][0]["points"][-1]["devices"] != 16:
                await clock.advance(1.0)
                await asyncio.sleep(0)
        await second.unwatch("r1")
        assert (await second.totals("r1")).tests == ()


@pytest.mark.asyncio
async def test_evidence_is_saved_from_time_to_time(journal: Journal) -> None:
    clock = ManualClock()
    service = MonitorService(journal, clock, flush_s=2.0)
    async with service:
        await service.watch(_step("beta", "r1"))
        await clock.advance(1.9)
        assert await journal.evidence() == {}
        await clock.advance(0.2)
        async with asyncio.timeout(10):
            while list(await journal.evidence()) != ["r1"]:  # noqa: ASYNC110 - the service sets no event
                await asyncio.sleep(0.001)
        await service.watch(_step("beta", "r2"))
    assert list(await journal.evidence()) == ["r1", "r2"]  # the last of it when the service closes
    await service.close()


@pytest.mark.asyncio
async def test_a_batch_that_is_sent_again_after_a_crash_counts_once(journal: Journal) -> None:
    first = _service(journal)
    await first.watch(_step("beta"))
    await first.take(_batch("same", OutcomeKind.RUN, 5, 1))
    await first.flush()
    second = _service(journal)
    await second.start()
    await second.take(_batch("same", OutcomeKind.RUN, 5, 1))
    totals = await second.totals("r1")
    assert (totals.ok, totals.failed, second.duplicates) == (5, 1, 1)
    await second.close()


@pytest.mark.asyncio
async def test_the_journal_keeps_the_latest_batches_only(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MonitorService, "MAX_BATCH_IDS", 3)
    service = _service(journal)
    await service.watch(_step("beta"))
    for number in range(10):
        await service.take(_batch(str(number), OutcomeKind.RUN, 1))
        await service.flush()
    assert await journal.batches() == [("d1", "7"), ("d1", "8"), ("d1", "9")]


@pytest.mark.asyncio
async def test_a_device_with_few_runs_counts_once_they_have_settled(journal: Journal) -> None:
    clock = ManualClock()
    recorder = VerdictRecorder()
    service = MonitorService(journal, clock, flush_s=1.0)
    service.on_verdict = recorder
    async with service:
        await service.watch(_step("beta", gate=Gate(settle_s=60.0), share_to=0.0, devices=frozenset({"d1"})))
        await service.take(_batch("b", OutcomeKind.RUN, 3))
        assert recorder.verdicts == []
        for _ in range(70):
            await clock.advance(1.0)
        async with asyncio.timeout(10):
            while not recorder.verdicts:
                await clock.advance(1.0)
                await asyncio.sleep(0.001)
    assert recorder.verdicts == [("r1", "beta", Verdict.ACCEPT, "")]


@pytest.mark.asyncio
async def test_a_pause_is_delivered_with_its_cause(journal: Journal) -> None:
    recorder = VerdictRecorder()
    service = _service(journal, recorder)
    await service.watch(_step("beta", gate=Gate(), share_to=0.0, devices=frozenset({"d1"})))
    await service.take(_batch("b", OutcomeKind.REVERTED))
    assert [(verdict, reason) for _, _, verdict, reason in recorder.verdicts] == [
        (Verdict.PAUSE, "1 of 1 devices are broken, which decides nothing")
    ]
    assert recorder.causes == ["inconclusive beta"]
    evidence = await service.evidence("r1")
    assert (evidence["new"]["broken"], evidence["cause"]) == (1, "inconclusive beta")
    assert await service.evidence("unknown") == {}


@pytest.mark.asyncio
async def test_a_verdict_is_delivered_once_while_its_release_is_paused_and_again_when_it_continues(
    journal: Journal,
) -> None:
    recorder = VerdictRecorder()
    service = _service(journal, recorder)
    step = _step("gray 0.5")
    await service.watch(step)
    await service.take(_batch("b1", OutcomeKind.RUN, 1_000))
    assert len(recorder.verdicts) == 1
    for _ in range(2):
        await service.watch(dataclasses.replace(step, is_paused=True))
    assert len(recorder.verdicts) == 1
    await service.watch(step)
    assert [verdict for _, _, verdict, _ in recorder.verdicts] == [Verdict.ACCEPT] * 2
    await service.watch(dataclasses.replace(step, is_paused=True))
    await service.take(_batch("b2", OutcomeKind.RUN, 0, 100))
    assert recorder.verdicts[-1][2] is Verdict.REJECT


@pytest.mark.asyncio
async def test_reports_of_the_version_before_are_the_control(journal: Journal) -> None:
    service = _service(journal)
    before = frozenset({"v1"})
    await service.watch(
        _step("gray 0.5", release="r2", gate=Gate(), version="v2", share_to=0.0, control_versions=before)
    )
    await service.take(_batch("b", OutcomeKind.RUN, 10, release="r1"))
    assert (await service.totals("r2")).control_devices == 1


@pytest.mark.asyncio
async def test_older_evidence_begins_its_step_again(journal: Journal) -> None:
    first = _service(journal)
    await first.watch(_step("beta"))
    await first.take(_batch("b", OutcomeKind.RUN, 5, 1))
    await first.flush()
    (plain,) = (await journal.evidence()).values()
    plain["monitor"] = {"gate": {"p_good": 0.005}, "ok": 5, "failed": 1, "verdict": "continue", "devices": ["d1"]}
    await journal.save_evidence({"r1": plain})
    second = _service(journal)
    await second.start()
    await second.watch(_step("beta"))
    totals = await second.totals("r1")
    assert (totals.ok, totals.failed, totals.stage_devices) == (5, 1, 0)
    await second.close()


@pytest.mark.asyncio
async def test_an_error_on_one_release_stops_neither_the_others_nor_the_saving(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, recorder = ManualClock(), VerdictRecorder()
    gate = Gate(settle_s=10.0, p_good=0.3, p_bad=0.9, alpha=0.4, beta=0.4)
    async with MonitorService(journal, clock, flush_s=1.0) as service:
        service.on_verdict = recorder
        for release in ("r1", "r2"):
            await service.watch(_step("gray 1.0", release, gate=gate))
            await service.take(_batch(f"b {release}", OutcomeKind.RUN, 3, 0, release=release))
        tick = Monitor.tick

        def fail_for_the_first(monitor: Monitor, now_s: float) -> bool:
            if monitor.step.release == "r1":
                raise ZeroDivisionError("a fault of the monitor")
            return tick(monitor, now_s)

        monkeypatch.setattr(Monitor, "tick", fail_for_the_first)
        while (await service.totals("r2")).stage_devices == 0:
            await clock.advance(5.0)
        assert "the evidence on release r1 could not be judged" in caplog.text
        while "r2" not in await journal.evidence():
            await clock.advance(5.0)


@pytest.mark.asyncio
async def test_profiles_and_reports_of_other_tasks_say_that_a_device_lives(journal: Journal) -> None:
    service = _service(journal)
    clock = ManualClock()
    service._clock = clock
    gate = Gate(device_silence_s=100.0, hold_s=10_000.0)
    await service.watch(_step("gray 1.0", gate=gate))
    for device in ("by profile", "by report", "silent"):
        await service.take(_batch(f"b {device}", OutcomeKind.RUN, 10, 0, device=device))
    await clock.advance(50.0)
    await service.note_profiles({"by profile": b"{}"})
    other = Outcome(task="shop/other", version="v1", release="", kind=OutcomeKind.RUN, ok=1)
    await service.take(OutcomeBatch("by report", "b", (other,)))
    await service.flush()
    again = _service(journal)
    await again.start()
    for one in (service, again):
        one._clock = clock
    await clock.advance(60.0)
    for one in (service, again):
        await one._tick()
        silent = (await one.evidence("r1"))["silent"]
        assert (silent["alone"], silent["silent_alone"]) == (3, 1)
    await again.close()


@pytest.mark.asyncio
async def test_totals_have_the_guards_also_after_the_release(journal: Journal) -> None:
    service = _service(journal)
    await service.watch(_step("gray 1.0", gate=Gate(guards=("latency_ms < 5",))))
    ran = dataclasses.replace(_batch("b", OutcomeKind.RUN, 10).outcomes[1], metrics=(Metric("latency_ms", 10, 4.0),))
    await service.take(OutcomeBatch("d1", "b1", (_batch("b", OutcomeKind.INSTALLED).outcomes[0], ran)))
    for _ in range(2):
        (guard,) = (await service.totals("r1")).guards
        assert (guard["guard"], guard["state"], guard["new"], guard["devices"]) == ("latency_ms < 5", "open", 4.0, 1)
        await service.unwatch("r1")


class _HeldJournal(Journal):
    """A journal whose writes of evidence wait for `may_write`."""

    saves = 0

    def hold(self) -> None:
        self.may_write = asyncio.Event()

    async def save_evidence(self, *arguments: Any, **options: Any) -> None:
        self.saves += 1
        await self.may_write.wait()
        await super().save_evidence(*arguments, **options)


@contextlib.asynccontextmanager
async def _held_service(folder: Path) -> AsyncIterator[tuple[_HeldJournal, MonitorService]]:
    """Give a service that answers a report once it is journalled, and a journal that was not written yet."""
    async with _HeldJournal.in_file(folder / "journal.sqlite") as journal:
        journal.hold()
        service = MonitorService(journal, SystemClock(), group_s=0.001, flush_s=3600.0)
        service.on_verdict = VerdictRecorder()
        async with service:
            await service.watch(_step("beta", "r1"))
            try:
                yield journal, service
            finally:
                journal.may_write.set()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110 - it is of a journal, which has no event for it
            await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_a_report_that_is_sent_again_before_it_is_journalled_is_not_answered_before(tmp_path: Path) -> None:
    """Else a monitor that is killed then has lost it, and its device, which was answered, sends it no more."""
    async with _held_service(tmp_path) as (journal, service):
        first = asyncio.ensure_future(service.take(_batch("b1", OutcomeKind.RUN, 5, 0)))
        await _until(lambda: journal.saves == 1)
        again = asyncio.ensure_future(service.take(_batch("b1", OutcomeKind.RUN, 5, 0)))
        also = asyncio.ensure_future(service.take_reports([_batch("b1", OutcomeKind.RUN, 5, 0)]))
        await _until(lambda: service.duplicates == 2)
        await asyncio.sleep(0.02)
        assert not any(one.done() for one in (first, again, also))
        journal.may_write.set()
        await asyncio.gather(first, again, also)
        assert (await service.totals("r1")).ok == 5
        await service.take(_batch("b1", OutcomeKind.RUN, 5, 0))  # a report that is journalled has nothing to wait for
        assert journal.saves == 1


@pytest.mark.asyncio
async def test_a_report_is_not_answered_while_another_write_that_has_it_is_under_way(tmp_path: Path) -> None:
    """As of the evidence that is saved each second."""
    async with _held_service(tmp_path) as (journal, service):
        taken = asyncio.ensure_future(service.take(_batch("b1", OutcomeKind.RUN, 5, 0)))
        await asyncio.sleep(0)
        saving = asyncio.ensure_future(service.flush())
        await _until(lambda: journal.saves == 1)
        await asyncio.sleep(0.05)  # the report's own group has come to its write
        assert not taken.done()
        journal.may_write.set()
        await asyncio.gather(taken, saving)
        assert journal.saves == 1


@pytest.mark.asyncio
async def test_reports_in_one_call_count_as_alone_and_are_journalled_by_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Monitor.hear

    def hear(self: Monitor, device_ids: Mapping[str, object], now_s: float) -> bool:
        if "broken" in device_ids:
            raise ArithmeticError("made up")
        return heard(self, device_ids, now_s)

    monkeypatch.setattr(Monitor, "hear", hear)
    async with _held_service(tmp_path) as (journal, service):
        journal.may_write.set()
        reports = [_batch(f"b{n}", OutcomeKind.RUN, 5, 0, device=f"d{n}") for n in range(50)]
        broken = _batch("b", OutcomeKind.RUN, 5, 0, device="broken")
        taken = await service.take_reports([*reports[:25], broken, *reports[25:], reports[0]])
        assert taken == ReportsTaken(failed=frozenset({25}))
        assert "a report of device broken could not be counted" in caplog.text
        totals = await service.totals("r1")
        assert (totals.installed, totals.ok, service.duplicates, journal.saves) == (51, 255, 1, 1)
        # What counts is known after a crash.
        again = MonitorService(journal, SystemClock(), flush_s=3600.0)
        await again.start()
        assert await again.take_reports(reports) == ReportsTaken()
        assert again.duplicates == 50
        await again.close()


class AwayJournal(Journal):
    """A journal whose database is away at times."""

    is_away = False

    async def save_evidence(self, *args: Any, **options: Any) -> None:
        if self.is_away:
            error = StateError("there", "does not answer")
            error.may_pass = True
            raise error
        await super().save_evidence(*args, **options)


@pytest.mark.asyncio
async def test_a_report_that_cannot_be_journalled_is_not_answered_and_counts_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "away.sqlite"
    async with AwayJournal.in_file(path) as journal:
        service = await MonitorService(journal, SystemClock(), group_s=0.0).start()
        await service.watch(_step("beta"))
        report = _batch("b1", OutcomeKind.RUN, ok=3)
        journal.is_away = True
        for _ in range(2):  # the device sends it again
            with pytest.raises(StateError, match="does not answer"):
                await service.take(report)
        assert caplog.text == ""  # the database has reported it
        journal.is_away = False
        await service.take(report)
        await service.take(report)
        assert (await service.totals("r1")).ok == 3
        async with AwayJournal.in_file(path) as other, MonitorService(other, SystemClock()) as successor:
            assert (await successor.totals("r1")).ok == 3
            await successor.take(report)
            assert (await successor.totals("r1")).ok == 3
        await service.close()


@pytest.mark.asyncio
async def test_reports_that_come_while_the_journal_is_away_do_not_crowd_out_the_id_of_one_that_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MonitorService, "MAX_BATCH_IDS", 4)
    async with AwayJournal.in_file(tmp_path / "away.sqlite") as journal:
        service = await MonitorService(journal, SystemClock(), group_s=0.0, flush_s=3600.0).start()
        await service.watch(_step("beta"))
        first = _batch("b0", OutcomeKind.RUN, ok=3)
        others = [_batch(f"b{number}", OutcomeKind.RUN, ok=1, device=f"d{number}") for number in range(1, 10)]
        journal.is_away = True
        with pytest.raises(StateError, match="does not answer"):
            await service.take(first)
        for other in others:
            with pytest.raises(StateError, match="does not answer"):
                await service.take(other)
        with pytest.raises(StateError, match="does not answer"):
            await service.take_reports(others)
        journal.is_away = False
        await service.take(first)
        assert (await service.totals("r1")).ok == 3
        await service.take_reports(others[:2])
        assert (await service.totals("r1")).ok == 5
        await service.close()
