"""Formulas of Flower 1.41 (flwr/server/strategy), which has whole weights where walle has differences."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from benchmarks.federated_parts.accuracy import CorrectedFedAdam
from tests.federated.small_models import LAYOUT
from walle import np
from walle.federated import Update, Weights
from walle.federated.aggregation import Aggregator, CoordinateMedian, FedAvg, FedYogi, MultiKrum, TrimmedMean

CLIENTS = 9


@pytest.fixture
def case() -> tuple[Any, Any, Any]:
    """A global model, the clients' weights (clients, values) and their numbers of samples."""
    random = numpy.random.default_rng(5)
    model = random.normal(size=5).astype("float32")
    return model, model + random.normal(size=(CLIENTS, 5)).astype("float32"), random.integers(1, 50, CLIENTS)


def run(aggregator: Aggregator, model: Any, trained: Any, samples: Any, number: int = 1) -> Any:
    base = Weights(LAYOUT, np.asarray(model))
    aggregator.begin(base, number)
    for place, (row, count) in enumerate(zip(trained, samples, strict=True)):
        difference = Weights(LAYOUT, np.asarray(row)).difference(base)
        aggregator.add(f"c{place}", Update(number, int(count), difference))
    return numpy.asarray(aggregator.finish()[0].vector)


def flower_mean(trained: Any, samples: Any) -> Any:
    """`aggregate`: the sum of weights times samples, over the sum of samples."""
    return (trained * samples[:, None]).sum(0) / samples.sum()


def test_the_mean(case: tuple[Any, Any, Any]) -> None:
    model, trained, samples = case
    assert run(FedAvg(), model, trained, samples) == pytest.approx(flower_mean(trained, samples), abs=1e-6)


def test_the_median(case: tuple[Any, Any, Any]) -> None:
    """`aggregate_median`: the median of each weight."""
    model, trained, samples = case
    assert run(CoordinateMedian(), model, trained, samples) == pytest.approx(numpy.median(trained, 0), abs=1e-6)


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_the_trimmed_mean(case: tuple[Any, Any, Any], share: float) -> None:
    """`_trim_mean`: int(share * clients) are cut at each end."""
    model, trained, samples = case
    cut = int(share * CLIENTS)
    expected = numpy.sort(trained, 0)[cut : CLIENTS - cut].mean(0)
    assert run(TrimmedMean(share), model, trained, samples) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("hostile", [0, 1, 3])
def test_multi_krum_with_equal_samples(case: tuple[Any, Any, Any], hostile: int) -> None:
    """`aggregate_krum`: the clients - hostile - 2 nearest others count; the mean of those with the lowest scores."""
    model, trained, _ = case
    distances = ((trained[:, None] - trained[None]) ** 2).sum(2)
    scores = numpy.sort(distances, 1)[:, 1 : CLIENTS - hostile - 1].sum(1)
    best = numpy.argsort(scores)[:4]
    found = run(MultiKrum(hostile, keep=4), model, trained, numpy.full(CLIENTS, 3))
    assert found == pytest.approx(trained[best].mean(0), abs=1e-6)


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi"])
def test_the_adaptive_strategies_over_rounds(case: tuple[Any, Any, Any], name: str) -> None:
    """`FedAdam.aggregate_fit` and `FedYogi.aggregate_fit`: a first variance of 0, and for Adam a corrected rate."""
    model, trained, samples = case
    aggregator: Aggregator = CorrectedFedAdam(0.1) if name == "FedAdam" else FedYogi(server_lr=0.1, first_variance=0.0)
    weights, momentum, variance = model.astype("float64"), numpy.zeros(5), numpy.zeros(5)
    current = model
    for number in range(1, 5):
        change = flower_mean(trained, samples) - weights
        momentum = 0.9 * momentum + 0.1 * change
        if name == "FedAdam":
            variance = 0.99 * variance + 0.01 * change * change
            rate = 0.1 * numpy.sqrt(1 - 0.99 ** (number + 1.0)) / (1 - 0.9 ** (number + 1.0))
        else:
            variance = variance - 0.01 * change * change * numpy.sign(variance - change * change)
            rate = 0.1
        weights = weights + rate * momentum / (numpy.sqrt(variance) + 1e-3)
        current = run(aggregator, current, trained, samples, number)
        assert current == pytest.approx(weights, rel=1e-4, abs=1e-5)
