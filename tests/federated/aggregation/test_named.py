"""Aggregators by name, and a user's own one in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.federated.small_models import numbers, update, weights
from walle.errors import ConfigError
from walle.federated import Federation, RoundState, Trained, Weights
from walle.federated.aggregation import AGGREGATORS, FedAvg, TrimmedMean, make_aggregator

OWN = '''
"""The mean of the updates whose loss is below a limit."""

from typing import Any

from walle import np
from walle.federated import Update
from walle.federated.aggregation import Aggregator


class LossBelow(Aggregator):
    def __init__(self, limit: float) -> None:
        self.limit = limit

    def clear(self) -> None:
        self.total = np.zeros(self.model.layout.size, "float32")
        self.count = 0

    def collect(self, client: str, update: Update) -> None:
        if (loss := update.metrics["loss"]) >= self.limit:
            self.exclude(client, f"loss {loss} is not below {self.limit}")
        else:
            self.total += update.difference.vector
            self.count += 1

    def combine(self) -> Any:
        return self.total / self.count
'''


def test_an_aggregator_of_a_user_has_thirty_lines_and_names_who_is_excluded(tmp_path: Path) -> None:
    assert len(OWN.strip().splitlines()) <= 30
    (tmp_path / "own.py").write_text(OWN)
    aggregator = make_aggregator("own.py:LossBelow", {"limit": 2.5}, tmp_path)

    def client(place: int) -> Trained:
        return Trained(weights(place), 1, {"loss": float(place)})

    clients = {f"c{place}": lambda _model, _number, place=place: client(place) for place in range(4)}
    federation = Federation(weights(0), clients, aggregator)
    outcome = federation.run_round()
    assert outcome.state is RoundState.DONE
    assert outcome.report is not None
    assert outcome.report.excluded == {"c3": "loss 3.0 is not below 2.5"}
    assert sorted(outcome.report.counted) == ["c0", "c1", "c2"]
    assert numbers(federation.model) == [1.0] * 5


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_each_named_aggregator_aggregates_equal_updates(name: str) -> None:
    aggregator = make_aggregator(name, {"hostile": 1} if name == "multi-krum" else None)
    aggregator.begin(weights(0), 1)
    for place in range(10):
        aggregator.add(f"c{place}", update(0.5))
    model: Weights = aggregator.finish()[0]
    if name not in ("fedadam", "fedyogi"):
        assert numbers(model) == pytest.approx([0.5] * 5)
    assert min(numbers(model)) > 0


def test_options_reach_the_class_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    assert isinstance(make_aggregator("trimmed-mean", {"share": 0.3}), TrimmedMean)
    assert type(make_aggregator("fedavg")) is FedAvg
    with pytest.raises(ConfigError, match="'fedsum' is unknown; known are fedavg"):
        make_aggregator("fedsum")
    with pytest.raises(ConfigError, match="unexpected keyword argument 'rate'"):
        make_aggregator("fedavg", {"rate": 1})
    with pytest.raises(ConfigError, match="No such file"):
        make_aggregator("none.py:Own", folder=tmp_path)
    (tmp_path / "other.py").write_text("class Own: pass\n")
    with pytest.raises(ConfigError, match="has no class 'Own' that is a"):
        make_aggregator("other.py:Own", folder=tmp_path)
