"""Federations in this process: seeds, drop-outs, poisons, delays, narrow encodings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.federated.small_models import numbers, weights
from walle import np
from walle.errors import ConfigError
from walle.federated import Encoding, Federation, RoundSettings, RoundState, Trained, Weights
from walle.federated.aggregation import Aggregator, CoordinateMedian, FedAvg, FedBuff
from walle.federated.simulation import Client, flip_sign, scale_by

GOAL = 4.0


def client(place: int) -> Client:
    """Return a client that goes half of the way to the goal, plus a little that depends on its place."""

    def train(model: Weights, number: int) -> Trained:
        step = (GOAL - model.vector) * 0.5 + 0.01 * (place - 4.5)
        return Trained(Weights(model.layout, np.asarray(model.vector + step, "float32")), 10, {"round": float(number)})

    return train


CLIENTS: Mapping[str, Client] = {f"c{place}": client(place) for place in range(10)}


def federation(aggregator: Aggregator | None = None, **arguments: Any) -> Federation:
    return Federation(weights(0), CLIENTS, aggregator or FedAvg(), **arguments)


def test_rounds_lead_to_the_goal() -> None:
    outcomes = federation().run(10)
    assert [one.state for one in outcomes] == [RoundState.DONE] * 10
    assert numbers(outcomes[-1].model) == pytest.approx([GOAL] * 5, abs=0.01)
    assert outcomes[3].report is not None
    assert outcomes[3].report.metrics == {"round": 4.0}


def test_the_same_arguments_give_the_same_models_and_other_seeds_others() -> None:
    config = RoundSettings(target=4, over_selection=1.5)
    identities = [federation(settings=config, seed=seed, drop_outs=0.3).run(5)[-1].model.identity for seed in (1, 1, 2)]
    assert identities[0] == identities[1] != identities[2]


def test_drop_outs_are_counted_and_do_not_stop_rounds() -> None:
    outcomes = federation(drop_outs=0.3, seed=3).run(20)
    dropped = [one.counts["dropped"] for one in outcomes]
    assert all(one.state is RoundState.DONE for one in outcomes)
    assert 0.2 < sum(dropped) / 200 < 0.4
    assert len(set(dropped)) > 1
    assert {one.reason for one in outcomes} <= {"deadline", "target reached"}


def test_too_many_drop_outs_fail_a_round_which_keeps_the_model() -> None:
    outcomes = federation(settings=RoundSettings(target=10, minimum=9), drop_outs=0.5).run(5)
    assert {one.state for one in outcomes} == {RoundState.FAILED}
    assert all("the minimum is 9" in one.reason for one in outcomes)
    assert numbers(outcomes[-1].model) == [0.0] * 5


def test_poisons_move_the_mean_and_not_the_median() -> None:
    for poison in (flip_sign, scale_by(-10.0), scale_by(10.0)):
        poisons = {"c9": poison}
        median = federation(CoordinateMedian(), poisons=poisons).run(10)[-1].model
        mean = federation(poisons=poisons).run(10)[-1].model
        assert numbers(median) == pytest.approx([GOAL] * 5, abs=0.1)
        clean = federation().run(10)[-1].model
        assert abs(numbers(mean)[0] - numbers(clean)[0]) > abs(numbers(median)[0] - GOAL)


def test_a_hostile_update_that_is_not_finite_is_refused_and_the_round_goes_through() -> None:
    for factor in (float("nan"), float("inf"), 1e9):
        (outcome,) = federation(poisons={"c9": scale_by(factor)}).run(1)
        assert outcome.state is RoundState.DONE
        assert set(outcome.refused) == {"c9"}
        assert outcome.refused["c9"].startswith("invalid: array 'a' has a value")
        assert outcome.counts["accepted"] == 9


def test_late_answers_count_in_later_rounds_where_the_settings_allow_it() -> None:
    def delay(name: str, _number: int) -> int:
        return 2 if name in ("c0", "c1") else 0

    config = RoundSettings(target=4, over_selection=2.5, max_staleness=3)
    outcomes = federation(FedBuff(), settings=config, delay=delay).run(12)
    assert all(one.state is RoundState.DONE for one in outcomes)
    assert sum(one.counts["carried"] for one in outcomes) > 0
    assert any("c0" in one.report.counted for one in outcomes[2:] if one.report)
    strict = federation(FedAvg(), settings=RoundSettings(target=8, over_selection=1.25), delay=delay).run(4)
    assert {cause for one in strict for cause in one.refused.values()} == {"other round"}
    assert not any(name in one.report.counted for one in strict for name in ("c0", "c1") if one.report)


@pytest.mark.parametrize("encoding", [Encoding.FLOAT16, Encoding.INT8])
def test_narrow_updates_lead_to_the_goal_too(encoding: Encoding) -> None:
    assert numbers(federation(encoding=encoding).run(12)[-1].model) == pytest.approx([GOAL] * 5, abs=0.03)


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one client"):
        Federation(weights(0), {}, FedAvg())
    with pytest.raises(ConfigError, match="drop_outs is 1"):
        federation(drop_outs=1.0)
    with pytest.raises(ConfigError, match="poisoned client 'x'"):
        federation(poisons={"x": flip_sign})
