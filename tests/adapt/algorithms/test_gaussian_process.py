"""A Gaussian process against scikit-learn's and a function that it has not seen."""

from __future__ import annotations

import numpy
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]
from sklearn.gaussian_process.kernels import RBF, WhiteKernel  # type: ignore[import-untyped]

from walle.adapt.algorithms.gaussian_process import GaussianProcess


def samples(count: int, seed: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    random = numpy.random.default_rng(seed)
    points = random.uniform(-3, 0, (count, 3))
    return points, numpy.tanh(points @ [0.5, 0.2, 0.1]) + random.normal(size=count) * 0.01


def test_expected_values_follow_a_function_between_its_samples() -> None:
    points, values = samples(32, 1)
    unseen, wanted = samples(200, 2)
    found = numpy.asarray(GaussianProcess(points, values)(unseen))
    assert numpy.sqrt(numpy.mean((found - wanted) ** 2)) < 0.25 * wanted.std()


def test_expected_values_are_those_of_scikit_learn() -> None:
    points, values = samples(24, 3)
    process = GaussianProcess(points, values)
    unseen, _ = samples(20, 4)
    mean, scale = values.mean(), values.std()
    nearest = []
    for noise in (1e-3, 1e-2, 1e-1):
        kernel = RBF(process.length, "fixed") + WhiteKernel(noise, "fixed")
        other = GaussianProcessRegressor(kernel, optimizer=None).fit(points, (values - mean) / scale)
        nearest.append((other.log_marginal_likelihood_value_, other.predict(unseen) * scale + mean))
    likeliest = max(nearest, key=lambda one: one[0])[1]
    assert numpy.asarray(process(unseen)) == pytest.approx(likeliest, abs=1e-8)


def test_equal_values_are_expected_everywhere() -> None:
    points, _ = samples(8, 5)
    assert numpy.asarray(GaussianProcess(points, numpy.full(8, 0.25))(points + 1)) == pytest.approx(0.25)
