"""The bets are valid: their wealth does not grow in the mean where the mean is as small as is allowed."""

import itertools
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.deploy.gate.mean_bets import MeanBets, best_stakes

stakes = st.lists(st.floats(min_value=0, max_value=50), min_size=1, max_size=3)


def _wealth(mean: float, bets: list[float], values: tuple[float, ...]) -> float:
    test = MeanBets(mean, bets)
    for value in values:
        test.take(value)
    return math.exp(test.log)


@given(mean=st.floats(min_value=0.01, max_value=0.99), bets=stakes, length=st.integers(1, 6))
def test_the_expected_wealth_of_coins_at_the_mean_is_one(mean: float, bets: list[float], length: int) -> None:
    """Summed over every sequence of coins."""
    expected = 0.0
    for coins in itertools.product((0.0, 1.0), repeat=length):
        probability = math.prod(mean if coin else 1 - mean for coin in coins)
        expected += probability * _wealth(mean, bets, coins)
    assert expected == pytest.approx(1.0, rel=1e-6)


@given(
    values=st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=8),
    shares=st.lists(st.integers(1, 9), min_size=8, max_size=8),
    bets=stakes,
)
def test_one_observation_of_any_distribution_grows_nothing_in_the_mean(
    values: list[float], shares: list[int], bets: list[float]
) -> None:
    total = sum(shares[: len(values)])
    mean = sum(value * part for value, part in zip(values, shares, strict=False)) / total
    if 0.001 < mean < 0.999:
        pairs = zip(values, shares, strict=False)
        expected = sum(_wealth(mean, bets, (value,)) * part for value, part in pairs) / total
        assert expected == pytest.approx(1.0, rel=1e-6)


@given(values=st.lists(st.floats(min_value=0, max_value=1), max_size=30), more=st.floats(min_value=0, max_value=1))
def test_greater_observations_are_never_less_evidence_and_order_does_not_matter(
    values: list[float], more: float
) -> None:
    bets = best_stakes(0.51, (0.6, 0.9))
    greater = [max(value, more) for value in values]
    assert _wealth(0.51, bets, tuple(greater)) >= _wealth(0.51, bets, tuple(values)) * (1 - 1e-9)
    shuffled = random.Random(0).sample(values, len(values))
    assert _wealth(0.51, bets, tuple(shuffled)) == pytest.approx(_wealth(0.51, bets, tuple(values)), rel=1e-6)


def test_the_evidence_goes_through_json() -> None:
    bets = MeanBets(0.5, (0.5, 1.5))
    for value in (1.0, 0.25, 1.0):
        bets.take(value)
    again = MeanBets(0.5, (0.5, 1.5))
    again.restore(json.loads(json.dumps(bets.to_plain())))
    assert again.log == bets.log
    other = MeanBets(0.5, (0.5,))  # a walle with other stakes begins again
    other.restore(bets.to_plain())
    assert other.log == 0
