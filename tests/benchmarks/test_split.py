"""Traces and replays of the figure of cut models."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.links.shape import LinkShape
from benchmarks.split_parts import report, traces
from benchmarks.split_parts.networks import Network, TimedCut
from benchmarks.split_parts.replay import replay
from walle.split.cut import Cut

THERE = TimedCut(Cut(0, "", (0,), 600_000, 150_000, 4_000, 0.0, 20_000.0), 0.0, 20.0)
EARLY = TimedCut(Cut(3, "pool", (5,), 100_000, 25_000, 4_000, 2_000.0, 18_000.0), 2.0, 18.0)
HERE = TimedCut(Cut(9, "logits", (), 0, 0, 0, 20_000.0, 0.0), 20.0, 0.0)
NETWORK = Network("small", "no", 3, (THERE, EARLY, HERE), {})


def steady(mbit_per_s: float, seconds: int = 60) -> list[LinkShape]:
    return [LinkShape(delay_ms=10.0, jitter_ms=0.0, loss=0.0, bits_per_s=1e6 * mbit_per_s)] * seconds


def test_a_seeded_trace_has_its_median_and_repeats() -> None:
    kind = traces.KINDS["4g"]
    found = traces.seeded(kind, 5_000, "a")
    assert found == traces.seeded(kind, 5_000, "a")
    assert found != traces.seeded(kind, 5_000, "b")
    rates = sorted(one.bits_per_s for one in found)
    assert rates[2_500] == pytest.approx(1e6 * kind.mbit_per_s, rel=0.2)
    assert rates[0] == 8e3  # an outage
    assert rates[250] > 1e6


def test_recorded_traces_are_read(tmp_path: Path) -> None:
    (tmp_path / "bus.log").write_text("0.0\t1.5\n1.0\t0.0\n")
    assert [one.bits_per_s for one in traces.recorded(tmp_path)["bus.log"]] == [1.5e6, 8e3]


@pytest.mark.parametrize(
    ("mbit_per_s", "slower", "expected"), [(1_000.0, 16.0, "there"), (20.0, 16.0, "cut"), (0.1, 16.0, "here")]
)
def test_a_steady_link_leads_to_the_best_choice(mbit_per_s: float, slower: float, expected: str) -> None:
    found = replay(NETWORK, steady(mbit_per_s), slower)
    assert found.choices[expected] >= 55  # the link is not known at first
    assert found.chosen[5:] == found.oracle[5:]
    assert found.share >= 55 / 60


def test_latency_is_of_the_seconds_own_link() -> None:
    found = replay(NETWORK, steady(8.0), 16.0)
    assert found.here == [320.0] * 60
    assert found.there == [pytest.approx(20.0 + 604.0 + 20.0)] * 60
    assert found.oracle == [pytest.approx(32.0 + 20.0 + 104.0 + 18.0)] * 60


def test_an_outage_costs_one_late_run_and_the_model_then_runs_here() -> None:
    links = [*steady(100.0, 20), *steady(0.008, 10), *steady(100.0, 60)]
    found = replay(NETWORK, links, 16.0)
    assert found.late == 1
    assert found.chosen[20] < 2 * 320.0 + 200.0
    assert found.chosen[21:30] == [320.0] * 9
    assert found.chosen[-30:] == found.oracle[-30:]
    assert found.share < 1.0
    assert [at for at in range(90) if found.informed[at] > found.oracle[at]] == [20, 30]  # begin and end
    assert report.summary([report.Cell("small", 16.0, "steady", found)])[0] == found.share
