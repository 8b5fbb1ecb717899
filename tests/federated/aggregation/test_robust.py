"""Norm bound, coordinate median, trimmed mean and multi-Krum on cases that are computed by hand."""

from __future__ import annotations

import pytest

from tests.federated.small_models import numbers, update, weights
from walle.errors import ConfigError
from walle.federated import AggregationError, Layout, Update
from walle.federated.aggregation import (
    AggregationReport,
    Aggregator,
    CoordinateMedian,
    FedAvg,
    MultiKrum,
    NormBound,
    TrimmedMean,
)

PAIR = Layout(("a",), ((2,),))


def run(aggregator: Aggregator, *rows: tuple[float, float]) -> tuple[list[float], AggregationReport]:
    """Return the model and the report after updates of clients c0, c1, ..., from zeros."""
    aggregator.begin(weights(0, layout=PAIR), 1)
    for place, row in enumerate(rows):
        aggregator.add(f"c{place}", update(*row, layout=PAIR))
    model, report = aggregator.finish()
    return numbers(model), report


def test_a_fixed_norm_bound_excludes_by_name_or_shortens() -> None:
    rows = ((3.0, 4.0), (30.0, 40.0), (0.0, 1.0))
    model, report = run(NormBound(6.0), *rows)
    assert model == [1.5, 2.5]
    assert report.excluded == {"c1": "norm 50 is above the bound 6"}
    assert report.counted == ["c0", "c2"]
    model, report = run(NormBound(6.0, clip=True), *rows)
    assert model == pytest.approx([(3 + 3.6) / 3, (4 + 4.8 + 1) / 3])
    assert report.counted == ["c0", "c1", "c2"]
    assert report.limited == {"c1": "norm 50 is above the bound 6; shortened to it"}


def test_a_norm_bound_of_the_round_is_a_multiple_of_its_median() -> None:
    rows = ((1.0, 0.0), (0.0, 2.0), (0.0, 3.0), (9.0, 0.0))
    model, report = run(NormBound(times=3), *rows)
    assert report.excluded == {"c3": "norm 9 is above the bound 7.5"}
    assert model == pytest.approx([1 / 3, 5 / 3])


def test_a_norm_bound_that_excludes_all_fails_with_the_reasons() -> None:
    with pytest.raises(AggregationError, match="no update that counts: c0: norm 5 is above the bound 1"):
        run(NormBound(1.0), (3.0, 4.0))
    with pytest.raises(AggregationError, match="c1: norm 5"):
        run(NormBound(times=0.1), (3.0, 4.0), (3.0, 4.0))


def test_the_median_is_that_of_each_value() -> None:
    assert run(CoordinateMedian(), (1, 9), (2, -50), (1000, 8))[0] == [2, 8]
    assert run(CoordinateMedian(), (1, 1), (2, 5), (4, 7), (100, 9))[0] == [3, 6]


def test_the_trimmed_mean_cuts_both_ends_and_names_who_was_cut() -> None:
    rows = ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 3.5), (900.0, -900.0))
    model, report = run(TrimmedMean(0.2), *rows)
    assert model == [3, 2]
    assert report.limited == {"c4": "cut in 100% of the values"}
    assert run(TrimmedMean(0.39), *rows)[0] == [3, 2]  # 1.95 is rounded down
    assert run(TrimmedMean(0), *rows)[0] == pytest.approx([182, -178.1])
    with pytest.raises(AggregationError, match=r"4 updates, of which a share of 0\.2 is none; 6 are needed"):
        run(TrimmedMean(0.2), *rows[:4])


def test_multi_krum_excludes_the_distant_by_name() -> None:
    rows = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (50.0, 50.0))
    model, report = run(MultiKrum(1), *rows)
    assert model == [0.5, 0.5]
    # Each near update has two neighbours at a distance of 1; the far one has 49² · 2 and 49² + 50².
    assert report.excluded == {"c4": "score 9703 is number 5 of 5; 4 are kept, up to 2"}
    assert report.counted == ["c0", "c1", "c2", "c3"]
    assert report.samples == 4


def test_krum_keeps_one() -> None:
    rows = ((0.0, 0.0), (2.0, 0.0), (3.0, 0.0), (5.0, 0.0), (50.0, 50.0))
    model, report = run(MultiKrum(1, keep=1), *rows)
    assert model == [2, 0]  # 1 + 4; the third has 1 + 4 too, and the first of equals is kept
    assert set(report.excluded) == {"c0", "c2", "c3", "c4"}


def test_multi_krum_needs_enough_updates() -> None:
    with pytest.raises(AggregationError, match="4 updates; multi-Krum needs 5 against 1"):
        run(MultiKrum(1), (0, 0), (0, 0), (0, 0), (0, 0))


@pytest.mark.parametrize("make", [CoordinateMedian, lambda: TrimmedMean(0.2), lambda: MultiKrum(1), NormBound])
def test_one_of_five_cannot_move_the_model_far(make: type[Aggregator]) -> None:
    rows = ((1.0, 1.0), (1.1, 1.0), (1.0, 1.1), (0.9, 1.0))
    for hostile in ((1e6, -1e6), (-10.0, -10.0)):
        model, _ = run(make(), *rows, hostile)
        assert model == pytest.approx([1, 1], abs=0.2)
        assert run(FedAvg(), *rows, hostile)[0] != pytest.approx([1, 1], abs=0.2)


@pytest.mark.parametrize("make", [CoordinateMedian, lambda: TrimmedMean(0.2), lambda: MultiKrum(1)])
def test_a_client_that_claims_many_samples_has_no_more_weight(make: type[Aggregator]) -> None:
    results = []
    for samples in (1, 1_000_000):
        aggregator = make()
        aggregator.begin(weights(0, layout=PAIR), 1)
        for place in range(5):
            aggregator.add(f"c{place}", Update(1, samples if place == 2 else 1, weights(place, layout=PAIR)))
        results.append(numbers(aggregator.finish()[0]))
    assert results[0] == results[1]


def test_the_result_does_not_depend_on_the_order_of_arrival() -> None:
    rows = [(0.1 * place, 1 / (place + 1)) for place in range(7)]
    for make in (CoordinateMedian, lambda: TrimmedMean(0.2), lambda: MultiKrum(1)):
        found = []
        for order in (range(7), reversed(range(7))):
            aggregator = make()
            aggregator.begin(weights(0, layout=PAIR), 1)
            for place in order:
                aggregator.add(f"c{place}", update(*rows[place], layout=PAIR))
            found.append(numbers(aggregator.finish()[0]))
        assert found[0] == found[1]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"share is 0\.5"):
        TrimmedMean(0.5)
    with pytest.raises(ConfigError, match="hostile is -1"):
        MultiKrum(-1)
    with pytest.raises(ConfigError, match="bound is 0"):
        NormBound(0)
