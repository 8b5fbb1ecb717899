"""FedAvg, FedAdam, FedYogi and FedBuff on cases that are computed by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federated.small_models import numbers, update, weights
from walle import np
from walle.errors import ConfigError
from walle.federated import AggregationError, Layout, Update, Weights
from walle.federated.aggregation import Aggregator, FedAdam, FedAvg, FedBuff, FedYogi


def aggregate(aggregator: Aggregator, model: Weights, *updates: Update, number: int = 1) -> list[float]:
    aggregator.begin(model, number)
    for place, one in enumerate(updates):
        aggregator.add(f"c{place}", one)
    return numbers(aggregator.finish()[0])


def test_fedavg_weights_by_samples() -> None:
    first, second = update(1, 2, 3, 4, 5, samples=1), update(5, 4, 3, 2, 1, samples=3)
    assert aggregate(FedAvg(), weights(10), first, second) == [14, 13.5, 13, 12.5, 12]
    assert aggregate(FedAvg(weight_by_samples=False), weights(10), first, second) == [13, 13, 13, 13, 13]
    assert aggregate(FedAvg(server_lr=0.5), weights(10), first, second) == [12, 11.75, 11.5, 11.25, 11]


def test_the_report_has_clients_samples_and_mean_metrics() -> None:
    aggregator = FedAvg()
    aggregator.begin(weights(0), 4)
    aggregator.add("x", Update(4, 1, weights(1), {"loss": 1.0, "only": 3.0}))
    aggregator.add("y", Update(4, 3, weights(1), {"loss": 2.0}))
    assert aggregator.finish()[1].to_plain() == {
        "counted": ["x", "y"],
        "excluded": {},
        "limited": {},
        "samples": 4,
        "metrics": {"loss": 1.75, "only": 3.0},
    }


def test_a_round_without_updates_and_one_that_ends_beyond_float32_fail() -> None:
    aggregator = FedAvg()
    aggregator.begin(weights(0), 4)
    with pytest.raises(AggregationError, match="round 4 has no update that counts"):
        aggregator.finish()
    aggregator.begin(weights(3e38), 5)
    aggregator.add("x", update(3e38, round_number=5))
    with pytest.raises(AggregationError, match="after round 5 has values that are not finite"):
        aggregator.finish()


def test_a_second_begin_drops_what_was_added() -> None:
    aggregator = FedAvg()
    aggregator.begin(weights(0))
    aggregator.add("x", update(8))
    assert aggregate(aggregator, weights(0), update(2)) == [2, 2, 2, 2, 2]


@given(
    st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(1, 1000)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_mean_depends_on_the_order_of_arrival_by_rounding_only(
    given_updates: list[tuple[float, int]], draw: random.Random
) -> None:
    updates = [update(value, samples=samples) for value, samples in given_updates]
    total = sum(samples for _, samples in given_updates)
    mean = sum(value * samples for value, samples in given_updates) / total
    found = aggregate(FedAvg(), weights(0), *updates)
    draw.shuffle(updates)
    assert aggregate(FedAvg(), weights(0), *updates) == pytest.approx(found, rel=1e-5, abs=1e-4)
    assert found == pytest.approx([mean] * 5, rel=1e-5, abs=1e-4)


def test_fedavg_holds_one_vector() -> None:
    layout = Layout(("a",), ((1000,),))
    aggregator = FedAvg()
    aggregator.begin(weights(0, layout=layout))
    for place in range(50):
        aggregator.add(f"c{place}", update(1, layout=layout))
    held = [one for one in vars(aggregator).values() if getattr(one, "shape", None) == (1000,)]
    assert len(held) == 1


def test_fedadam_of_the_paper_over_two_rounds() -> None:
    aggregator = FedAdam(server_lr=0.1, tau=0.01)
    model, momentum, variance, expected = weights(1), 0.0, 0.01**2, 1.0
    for number, change in ((1, 0.5), (2, -0.2)):
        momentum = 0.9 * momentum + 0.1 * change
        variance = 0.99 * variance + 0.01 * change**2
        expected += 0.1 * momentum / (math.sqrt(variance) + 0.01)
        model = weights(*aggregate(aggregator, model, update(change), number=number))
        assert numbers(model) == pytest.approx([expected] * 5, rel=1e-6)


def test_fedyogi_of_the_paper_over_two_rounds() -> None:
    aggregator = FedYogi(server_lr=0.1, tau=0.5)
    model, momentum, variance, expected = weights(1), 0.0, 0.25, 1.0
    for number, change in ((1, 0.9), (2, -0.2)):  # squares above the variance, then below
        momentum = 0.9 * momentum + 0.1 * change
        variance -= 0.01 * change**2 * math.copysign(1, variance - change**2)
        expected += 0.1 * momentum / (math.sqrt(variance) + 0.5)
        model = weights(*aggregate(aggregator, model, update(change), number=number))
        assert numbers(model) == pytest.approx([expected] * 5, rel=1e-6)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_an_adaptive_aggregator_continues_from_its_state(kind: type[FedAdam | FedYogi]) -> None:
    first = kind()
    model = weights(*aggregate(first, weights(0), update(1, 2, 3, 4, 5)))
    later = kind()
    later.load_state(first.state())
    expected = aggregate(first, model, update(1), number=2)
    assert aggregate(later, model, update(1), number=2) == expected
    assert aggregate(kind(), model, update(1), number=2) != expected
    later.load_state({})
    assert later.state() == {}
    with pytest.raises(AggregationError, match="momentum and variance"):
        later.load_state({"other": np.zeros(5)})
    with pytest.raises(AggregationError, match="FedAvg has no state"):
        FedAvg().load_state(first.state())


def test_fedbuff_weights_by_staleness_over_the_count() -> None:
    fresh, stale = update(6, round_number=9), update(6, round_number=6)  # three models later: half
    assert aggregate(FedBuff(), weights(1), fresh, stale, number=9) == [5.5] * 5
    assert aggregate(FedBuff(server_lr=2), weights(1), stale, number=9) == [7] * 5


def test_settings_out_of_range_are_refused() -> None:
    for bad in ({"server_lr": 0}, {"beta_1": 1}, {"beta_2": -0.1}, {"tau": 0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            FedYogi(**bad)
