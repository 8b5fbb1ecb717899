import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from walle.deploy.gate.rate_test import UNITS, RateTest, _Bet, _bets, cap

RATES = st.floats(0.001, 0.9)
TESTS = st.builds(
    RateTest, floor=st.floats(0.001, 0.2), gap=st.floats(0.005, 0.5), hostile=st.sampled_from([0.0, 0.01])
)


@st.composite
def samples(draw: st.DrawFn) -> dict[tuple[int, int], int]:
    cells = {}
    for n in draw(st.lists(st.integers(1, 20), max_size=4)):
        cells[n, draw(st.integers(0, UNITS * cap(n)))] = draw(st.integers(1, 100))
    return cells


@given(st.integers(1, 100), RATES, st.floats(0.005, 0.5), st.sampled_from([0.0, 0.01]), st.sampled_from(_Bet))
def test_a_wealth_is_never_negative_and_does_not_grow_in_the_mean_at_its_own_rate(
    n: int, rate: float, gap: float, hostile: float, kind: _Bet
) -> None:
    for stake, mean in _bets(n, kind, rate, hostile, gap, (0.9, 0.5)):
        assert 1 + stake * (0 - mean) > 0
        assert 1 + stake * (cap(n) - mean) > 0
        assert (stake >= 0) if kind is _Bet.HIGHER else (stake <= 0)
        if kind is _Bet.HIGHER:  # the most failures that devices of the rate can have, with the hostile ones
            assert mean >= min(cap(n), n * rate)


@given(TESTS, samples(), st.none() | samples(), st.floats(0.0, 20.0))
@settings(max_examples=60, deadline=None)
def test_a_test_that_stops_below_its_boundary_decides_the_same(
    test: RateTest, new: dict[tuple[int, int], int], old: dict[tuple[int, int], int] | None, boundary: float
) -> None:
    for log in (test.reject_log, test.accept_log):
        assert (log(new, old) >= boundary) == (log(new, old, below=boundary) >= boundary)


@given(TESTS)
@settings(deadline=None)
def test_without_devices_there_is_no_evidence(test: RateTest) -> None:
    assert test.reject_log({}, None) == test.reject_log({}, {}) == 0.0
    assert math.isclose(test.accept_log({}, {}), 0.0, abs_tol=1e-9)


def test_equal_versions_are_seldom_rejected_however_often_they_are_checked() -> None:
    test = RateTest(floor=0.005, gap=0.015, hostile=0.0)
    source = random.Random(3)
    rejected = 0
    for _ in range(200):
        new: dict[tuple[int, int], int] = {}
        old: dict[tuple[int, int], int] = {}
        for number in range(150):
            for sample, count in ((new, 1), (old, 2)):
                for _ in range(count):
                    failed = min(2, sum(source.random() < 0.02 for _ in range(10)))
                    sample[10, UNITS * failed] = sample.get((10, UNITS * failed), 0) + 1
            if number % 5 == 0 and test.reject_log(new, old, below=math.log(10)) >= math.log(10):
                rejected += 1
                break
    assert rejected <= 20  # 10 %
