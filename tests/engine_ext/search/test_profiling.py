"""Profiles of single layers: every candidate of the plan is timed, and others are undefined."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import pytest

from walle.engine_ext import _core
from walle.engine_ext.errors import BackendError
from walle.engine_ext.search import profiling
from walle.engine_ext.search.layers import Layer
from walle.engine_ext.search.profiling import profile_layers

BACKENDS = [name for name, available, exact in _core.backends() if available and exact]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_candidate_and_the_changes_of_layout_are_timed(backend: str) -> None:
    layers = [Layer(32, 32, 14, 1, 3), Layer(32, 32, 14, 2, 3), Layer(32, 1, 14, 1, 3)]
    wide, strided, few = profile_layers(layers, backend, runs=3)
    assert [strided.layer, few.layer] == layers[1:]
    assert wide.layer == (32, 32, 14, 1, 3)
    assert all(0 < us < 1e6 for us in wide.us.values())
    convolutions = wide.us.keys() - {"pack", "unpack"}
    assert {"direct(0)", "winograd(2)", "winograd(4)"} <= convolutions
    assert convolutions == wide.layouts.keys()
    assert {"pack", "unpack"} <= wide.us.keys()
    assert wide.layouts["winograd(2)"] == "packed>packed"
    assert not [name for name in strided.us if name.startswith("winograd")]
    assert few.layouts["direct(0)"] == "plain>packed"


def test_times_grow_with_the_work() -> None:
    small, large = profile_layers([Layer(k, 64, 28, 1, 3) for k in (16, 256)], "auto", runs=9)
    assert large.us["direct(0)"] > 4 * small.us["direct(0)"]
    assert large.us["pack"] < 8 * small.us["pack"]


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(BackendError):
        profile_layers([Layer(8, 8, 7, 1, 1)], "abacus")


class FixedSession:
    """A session whose profiles are given; counts its runs."""

    def __init__(self, rows: Sequence[list[float]]) -> None:
        self.rows = list(rows)
        self.at = 0

    def run(self, inputs: dict[str, Any]) -> None:
        assert inputs == {}

    def profile(self, inputs: dict[str, Any]) -> list[float]:
        assert inputs == {}
        self.at += 1
        return self.rows[(self.at - 1) % len(self.rows)]


def test_medians_are_of_all_runs_and_short_runs_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time_ns", iter(range(0, 1 << 62, 1 << 40)).__next__)
    slow = FixedSession([[9.0, 100.0], *([float(turn), 50.0] for turn in range(25))])
    short = FixedSession([[1.0]])
    timed: Any = [(slow, {}, {"conv": 0, "pack": 1}), (short, {}, {"conv": 0})]
    first, second = profiling._measure([profiling._Timed(*one) for one in timed], 25)
    assert first == {"conv": statistics.median(range(25)), "pack": 50.0}
    assert second == {"conv": 1.0}
    assert slow.at == 26
    assert short.at == 1 + 25 * 16


def test_runs_that_others_interrupted_do_not_count_or_in_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 60_000, 70_000, 190_000])  # 60 µs of CPU in 120 µs of wall time, then 120 in 121
    monkeypatch.setattr(time, "thread_time_ns", clock.__next__)
    session: Any = FixedSession([[20.0, 100.0], [21.0, 100.0]])
    interrupted, whole = (profiling._run(session, {}, 1) for _ in range(2))
    assert interrupted == ([20.0, 100.0], 0.5)
    assert profiling._undisturbed([interrupted] * 20 + [whole] * 5) == [[21.0, 100.0]] * 5
    assert profiling._undisturbed([whole]) == [[21.0, 100.0]]
    assert profiling._undisturbed([interrupted] * 25) == [[10.0, 50.0]] * 25


def test_an_interruption_is_taken_off_the_step_that_it_was_in() -> None:
    long, short = profiling._Run([30.0, 400.0], 0.5), profiling._Run([180.0, 70.0], 0.4)
    assert profiling._undisturbed([long, short]) == [[30.0, 185.0], [30.0, 70.0]]
    mostly = profiling._Run([300.0, 280.0, 20.0], 0.01)
    assert profiling._undisturbed([mostly]) == [[pytest.approx(us) for us in (3.0, 2.8, 0.2)]]


def test_a_slow_primitive_has_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time_ns", iter(range(0, 1 << 62, 1 << 40)).__next__)
    session: Any = FixedSession([[1e6]])
    profiling._measure([profiling._Timed(session, {}, {"conv": 0})], 25)
    assert session.at == 1 + 5
