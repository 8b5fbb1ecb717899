"""Laplacian noise: its scale by epsilon and the declared range, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle import np
from walle.adapt.tuning.noise import LaplaceNoise
from walle.errors import ConfigError


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 5.0, math.inf, math.nan])
def test_an_epsilon_out_of_bounds_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="give a number above 0 and below 5"):
        LaplaceNoise(epsilon, 0, 1)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0)])
def test_a_range_out_of_bounds_is_refused(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="two finite numbers"):
        LaplaceNoise(1.0, low, high)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_values_outside_the_declared_range_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="input 1 has values outside"):
        LaplaceNoise(1.0, 0, 1).add([np.zeros((2,), "float32"), np.asarray([0.5, value], "float32")])


def test_whole_numbers_get_no_noise() -> None:
    with pytest.raises(ConfigError, match="floats only"):
        LaplaceNoise(1.0, 0, 1).add([np.zeros((2,), "int64")])


@given(st.floats(0.2, 4.9), st.floats(-5, 5), st.floats(0.5, 8))
def test_noise_is_laplacian_of_the_range_over_epsilon(epsilon: float, low: float, width: float) -> None:
    noise = LaplaceNoise(epsilon, low, low + width, seed=4)
    given_values = np.full((4000,), low, "float64")
    (found,) = noise.add([given_values])
    sizes = sorted(abs(float(one)) for one in (found - given_values).tolist())
    scale = width / epsilon
    assert noise.scale == pytest.approx(scale)
    for share in (0.25, 0.5, 0.9):  # quantiles of the exponential distribution of sizes
        assert sizes[int(share * 4000)] == pytest.approx(-math.log(1 - share) * scale, rel=0.15)
    assert abs(float(np.mean(found - given_values))) < 0.15 * scale


def test_noise_without_a_seed_differs_and_keeps_the_dtype() -> None:
    images = np.full((8,), 0.5, "float32")
    first, second = (LaplaceNoise(1.0, 0, 1).add([images])[0] for _ in range(2))
    assert str(first.dtype) == "float32"
    assert not bool(np.any(first == second))
