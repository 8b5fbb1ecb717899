import random
import statistics

import pytest

from walle.deploy.cloud.monitor import Gate, GateError, Monitor, Verdict, counts
from walle.protocol import Outcome, OutcomeKind


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("p_good", {"p_good": 0.0}),
        ("p_bad", {"p_bad": 1.0}),
        ("p_bad", {"p_good": 0.02, "p_bad": 0.02}),
        ("alpha", {"alpha": 0.5}),
        ("beta", {"beta": 0.0}),
        ("min_devices", {"min_devices": 0}),
    ],
)
def test_a_gate_names_the_parameter_that_is_wrong(field: str, changes: dict[str, float]) -> None:
    with pytest.raises(GateError) as caught:
        Gate(**changes)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert f"gate.{field}" in str(caught.value)


def _first_verdict(rate: float, reports: int, seed: int) -> tuple[Verdict, int]:
    """Return the first verdict on single reports that fail at `rate`, and after how many it came."""
    source = random.Random(seed)
    monitor = Monitor(Gate())
    for number in range(1, reports + 1):
        failed = source.random() < rate
        if monitor.add("d", int(not failed), int(failed)) is not Verdict.CONTINUE:
            return monitor.verdict, number
    return Verdict.CONTINUE, reports


def test_healthy_releases_are_seldom_stopped() -> None:
    verdicts = [_first_verdict(0.005, 2000, seed)[0] for seed in range(1500)]
    rejected = verdicts.count(Verdict.REJECT) / len(verdicts)
    assert rejected <= 0.018  # alpha, 1 %, and three standard errors; a threshold of 1 % stops 26 to 51 %
    assert verdicts.count(Verdict.ACCEPT) / len(verdicts) > 0.95


@pytest.mark.parametrize(("rate", "median_below"), [(0.02, 340), (0.05, 100)])
def test_bad_releases_are_found_soon(rate: float, median_below: int) -> None:
    runs = [_first_verdict(rate, 20_000, seed) for seed in range(1000)]
    assert statistics.median(number for _, number in runs) <= median_below
    assert sum(verdict is Verdict.ACCEPT for verdict, _ in runs) / len(runs) <= 0.02


def test_counts_may_come_in_batches() -> None:
    monitor = Monitor(Gate())
    assert monitor.add("d", 200, 0) is Verdict.CONTINUE
    assert monitor.add("d", 200, 0) is Verdict.ACCEPT
    assert (monitor.ok, monitor.failed) == (400, 0)


def test_acceptance_waits_for_enough_devices() -> None:
    monitor = Monitor(Gate(min_devices=3))
    assert monitor.add("a", 10_000, 0) is Verdict.CONTINUE
    assert monitor.add("a", 10_000, 0) is Verdict.CONTINUE
    assert monitor.add("b", 1, 0) is Verdict.CONTINUE
    assert monitor.add("c", 1, 0) is Verdict.ACCEPT


def test_waiting_for_devices_piles_up_no_credit() -> None:
    monitor = Monitor(Gate(min_devices=2))
    monitor.add("a", 1_000_000, 0)
    assert monitor.add("b", 0, 10) is Verdict.REJECT


def test_a_rejection_needs_no_quorum_and_is_final() -> None:
    monitor = Monitor(Gate(min_devices=50))
    assert monitor.add("a", 0, 4) is Verdict.REJECT
    assert monitor.add("b", 1_000_000, 0) is Verdict.REJECT


def test_an_accepted_step_can_still_be_rejected() -> None:
    monitor = Monitor(Gate())
    assert monitor.add("a", 1000, 0) is Verdict.ACCEPT
    assert monitor.add("a", 10, 1) is Verdict.ACCEPT
    assert monitor.add("a", 0, 4) is Verdict.REJECT


def test_devices_without_executions_do_not_count_as_evidence() -> None:
    monitor = Monitor(Gate())
    assert monitor.add("a", 0, 0) is Verdict.CONTINUE
    assert monitor.to_plain()["devices"] == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (OutcomeKind.RUN, (3, 2)),
        (OutcomeKind.INSTALLED, (0, 0)),
        (OutcomeKind.REMOVED, (0, 0)),
        (OutcomeKind.REJECTED, (0, 1)),
        (OutcomeKind.REVERTED, (0, 1)),
    ],
)
def test_what_an_outcome_is_worth(kind: OutcomeKind, expected: tuple[int, int]) -> None:
    assert counts(Outcome(task="s/t", version="v1", release="r", kind=kind, ok=3, failed=2)) == expected


def test_a_monitor_goes_through_plain_values() -> None:
    monitor = Monitor(Gate(min_devices=2))
    monitor.add("a", 100, 2)
    again = Monitor.from_plain(monitor.to_plain())
    assert again.to_plain() == monitor.to_plain()
    assert again.add("b", 0, 3) is monitor.add("b", 0, 3) is Verdict.REJECT
