"""Choice of a cut: the least latency, changes that are worth it, and a cloud that is late or away."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.split.chooser import Chooser, ChooserSettings, choose, latencies, latency
from walle.split.conditions import Conditions, Record
from walle.split.cut import Cut

THERE = Cut(0, "", (0,), 600_000, 150_000, 4_000, 0.0, 10_000.0)
EARLY = Cut(3, "pool", (5,), 200_000, 50_000, 4_000, 2_000.0, 8_000.0)
LATE = Cut(9, "mean", (9,), 5_000, 1_500, 4_000, 9_000.0, 1_000.0)
HERE = Cut(12, "logits", (), 0, 0, 0, 10_000.0, 0.0)
CUTS = (THERE, EARLY, LATE, HERE)
FAST = Conditions(10.0, 1e6, device_slower=20.0)


def test_latency_is_the_sum_of_device_transfer_and_cloud() -> None:
    conditions = Conditions(30.0, 1_000.0, device_slower=4.0, cloud_slower=0.5, cloud_wait_ms=7.0)
    found = latency(EARLY, conditions, is_here=False)
    assert (found.device_ms, found.transfer_ms, found.cloud_ms) == (8.0, 30.0 + 204.0, 7.0 + 4.0)
    assert latency(EARLY, conditions, is_here=False, is_quantised=True).transfer_ms == 30.0 + 54.0
    assert latency(THERE, conditions, is_here=False, is_quantised=True).transfer_ms == 30.0 + 604.0
    assert latency(HERE, conditions, is_here=True).total_ms == 40.0


@pytest.mark.parametrize(
    ("bytes_per_ms", "slower", "expected"),
    [(1e6, 20.0, THERE), (2_500.0, 20.0, EARLY), (10.0, 20.0, HERE), (1e6, 0.5, HERE)],
)
def test_the_fastest_cut_depends_on_link_and_device(bytes_per_ms: float, slower: float, expected: Cut) -> None:
    found = choose(CUTS, Conditions(10.0, bytes_per_ms, device_slower=slower))
    assert found.cut is expected
    assert f"{found.latency.total_ms:.1f} ms" in found.why


@given(st.floats(0.0, 500.0), st.floats(0.1, 1e6), st.floats(0.1, 50.0), st.floats(0.1, 10.0), st.floats(0.0, 500.0))
def test_no_cut_is_faster_than_the_chosen(rtt: float, rate: float, device: float, cloud: float, wait: float) -> None:
    conditions = Conditions(rtt, rate, device, cloud, wait)
    assert choose(CUTS, conditions).latency.total_ms == min(one.total_ms for one in latencies(CUTS, conditions))


def test_with_an_unknown_link_the_model_runs_here() -> None:
    found = choose(CUTS, Conditions(None, None, device_slower=1e6))
    assert found.cut is HERE
    assert "not measured" in found.why
    with pytest.raises(ValueError, match="link is not known"):
        latency(THERE, Conditions(10.0, None), is_here=False)


def test_a_change_must_gain_enough() -> None:
    conditions = Conditions(10.0, 2_500.0, device_slower=20.0)
    best, own = latencies(CUTS, conditions)[1].total_ms, latencies(CUTS, conditions)[3].total_ms
    gain = 1 - best / own
    kept = choose(CUTS, conditions, current=HERE, least_gain=gain + 0.01)
    assert kept.cut is HERE
    assert "kept, as a cut after pool would gain only" in kept.why
    assert choose(CUTS, conditions, current=HERE, least_gain=gain - 0.01).cut is EARLY


def chooser(**settings: float) -> Chooser:
    return Chooser(CUTS, random.Random(1), replace(ChooserSettings(), **settings))


def test_after_a_failure_the_model_runs_here_until_a_probe_is_answered() -> None:
    made = chooser(first_wait_s=5.0)
    assert made.choose(FAST, 0.0, 100.0).cut is THERE
    made.failed(100.0)
    away = made.choose(FAST, 0.0, 101.0)
    assert away.cut is HERE
    assert not away.is_probe_due
    assert "late or away" in away.why
    later = made.choose(FAST, 0.0, 106.1)
    assert later.cut is HERE
    assert later.is_probe_due
    made.answered()
    assert made.choose(FAST, 0.0, 107.0).cut is THERE


def test_waits_double_up_to_the_longest() -> None:
    made = chooser(first_wait_s=5.0, longest_wait_s=40.0)
    now_s, waits = 0.0, []
    for _ in range(6):
        made.failed(now_s)
        begin_s = now_s
        while not made.choose(FAST, 0.0, now_s).is_probe_due:
            now_s += 0.1
        waits.append(now_s - begin_s)
    for wait, expected in zip(waits, [5, 10, 20, 40, 40, 40], strict=True):
        assert 0.8 * expected - 0.11 <= wait <= 1.2 * expected + 0.11
    made.answered()
    made.failed(now_s)
    assert not made.choose(FAST, 0.0, now_s + 3.9).is_probe_due
    assert made.choose(FAST, 0.0, now_s + 6.1).is_probe_due


def test_a_device_that_computes_alone_probes_the_later_the_slower_the_cloud_would_be() -> None:
    made = chooser(probe_s=10.0, least_probe_s=2.0)
    slow = replace(FAST, bytes_per_ms=1.0)
    times_slower = min(one.total_ms for one in latencies(CUTS, slow)[:-1]) / latencies(CUTS, slow)[-1].total_ms
    age_s = 10.0 * math.log2(times_slower)
    assert age_s > 10.0
    assert not made.choose(slow, age_s - 0.1, 0.0).is_probe_due
    assert made.choose(slow, age_s + 0.1, 0.0).is_probe_due
    assert not made.choose(FAST, 1e9, 0.0).is_probe_due  # the run itself measures the link


def test_no_probe_is_sent_where_no_bandwidth_would_help() -> None:
    made = chooser()
    assert not made.choose(Conditions(10.0, 1.0, device_slower=0.5), math.inf, 0.0).is_probe_due
    assert made.choose(Conditions(None, None, device_slower=20.0), math.inf, 0.0).is_probe_due
    assert not made.choose(Conditions(None, None, device_slower=0.5), math.inf, 0.0).is_probe_due


def test_a_late_answer_is_one_much_later_than_predicted() -> None:
    found = choose(CUTS, FAST)
    assert found.late_after_ms > found.latency.total_ms + 50.0


def test_a_record_gives_medians_of_recent_measurements() -> None:
    record = Record(half_life_s=2.0)
    assert record.conditions() == Conditions(None, None)
    for at, took_ms in enumerate([40.0, 50.0, 60.0]):
        record.saw_round_trip(took_ms, at / 10)
    assert record.conditions().round_trip_ms == 50.0
    record.saw_transfer(100_000, 150.0, 1.0)
    assert record.conditions().bytes_per_ms == pytest.approx(1_000.0)
    record.saw_device(40.0, 10_000.0, 1.0)
    record.saw_cloud(5.0, 3.0, 10_000.0, 1.0)
    found = record.conditions()
    assert (found.device_slower, found.cloud_slower, found.cloud_wait_ms) == (4.0, 0.5, 3.0)
    assert record.link_age_s(8.0) == 7.0


def test_a_transfer_beyond_the_spread_of_round_trips_is_no_faster_than_they_differ() -> None:
    record = Record()
    for at, took_ms in enumerate([40.0, 50.0, 60.0, 70.0]):
        record.saw_round_trip(took_ms, at / 10)
    record.saw_transfer(10_000, 45.0, 1.0)  # faster than a round trip
    assert record.conditions().bytes_per_ms == pytest.approx(10_000 / 10.0)


def test_a_large_transfer_outweighs_small_ones() -> None:
    record = Record()
    for at in range(3):
        record.saw_transfer(10_000, 100.0, at / 10)
    record.saw_transfer(200_000, 200.0, 0.5)
    assert record.conditions().bytes_per_ms == pytest.approx(1_000.0)


def test_a_small_transfer_tells_the_round_trip_only() -> None:
    record = Record()
    record.saw_transfer(100, 80.0, 0.0)
    assert record.conditions() == Conditions(80.0, None)


def test_new_measurements_outweigh_old_ones() -> None:
    record = Record(half_life_s=1.0)
    for at in range(20):
        record.saw_transfer(100_000, 100.0, float(at) / 10)
    for at in range(3):
        record.saw_transfer(100_000, 1_000.0, 10.0 + at / 10)
    assert record.conditions().bytes_per_ms == pytest.approx(100.0)


def test_one_outlier_does_not_move_the_median() -> None:
    record = Record()
    for at, took_ms in enumerate([100.0, 100.0, 9_000.0, 100.0]):
        record.saw_transfer(100_000, took_ms, at / 10)
    assert record.conditions().bytes_per_ms == pytest.approx(1_000.0)


def test_a_run_without_time_on_the_device_says_nothing_of_its_speed() -> None:
    record = Record()
    record.saw_device(30.0, 10_000.0, 0.0)
    for second in range(50):
        record.saw_device(0.0, 20.0, second)
    assert record.conditions().device_slower == pytest.approx(3.0)
