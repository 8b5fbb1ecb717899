"""Training of the encoder: exact gradients, true targets, and predictions that beat the baselines."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walle.nn as nn
from apps.ipv import train_encoder
from apps.ipv.gru import forward
from apps.ipv.logs import generated_visits
from apps.ipv.make_encoder import WEIGHTS_PATH, WIDTH, random_weights, trained_weights
from apps.ipv.network import LazyAdamW, Predictor
from apps.ipv.training_data import NEXT_EVENTS, NEXT_VISITS, is_held_out, make_examples
from walle.pipeline.events.event import Event


def test_the_network_computes_the_formula_of_the_encoder() -> None:
    rng = np.random.default_rng(1)
    network = Predictor(3, ["log"])
    rows = rng.normal(size=(2, 5, WIDTH)).astype(np.float32)
    rows[:, :, 0] = 1
    weights = network.encoder_weights()
    for name, value in random_weights(3).items():
        np.testing.assert_array_equal(weights[name], np.asarray(value, np.float32))
    states = np.asarray(network.encoder(rows)[0])
    np.testing.assert_allclose(states.swapaxes(0, 1), forward(weights, rows)[1:], atol=1e-6)


def test_a_step_leaves_the_read_outs_of_other_logs_unchanged() -> None:
    network = Predictor(3, ["one", "two"])
    step = nn.TrainStep(network, train_encoder.mean_loss, LazyAdamW(lr=0.1, weight_decay=0.1))
    rng = np.random.default_rng(1)
    rows, events = rng.normal(size=(2, 4, WIDTH)).astype(np.float32), rng.integers(0, 8, (2, 4))
    visits = np.array([[-1, -1, -1, 2], [-1, -1, -1, 3]])
    step(rows, np.array([0]), events, visits)
    before = network.state_dict()
    step(rows, np.array([1]), events, visits)
    after = network.state_dict()
    for name in ("event.weight", "visit.weight"):
        same = (np.asarray(before[name]) == np.asarray(after[name])).all(1)
        assert same.tolist() == [True, False]
    assert not np.asarray(after["encoder.bias_hh_l0"]).any()


def test_targets_are_the_next_actions() -> None:
    def event(kind: str, page: str, ts_ms: int, **contents: Any) -> Event:
        return Event(kind, page, ts_ms, contents)

    first = [
        event("page_enter", "home", 0),
        event("click", "home", 10, action="add_cart"),
        event("own_kind", "home", 11),
        event("click", "home", 12, widget_id="x"),
        event("page_exit", "home", 20),
    ]
    item = [event("page_enter", "item", 30, item_id="7"), event("page_exit", "item", 40)]
    late = [event("page_enter", "home", 10_000_000), event("page_exit", "home", 10_000_001)]
    one, other, two, three = make_examples([("ann", first), ("bob", item), ("ann", item), ("ann", late)])
    assert [NEXT_EVENTS[number] for number in one.next_events[:-1]] == ["add_cart", "other", "click", "page_exit"]
    assert one.next_events[-1] == -1
    assert NEXT_VISITS[one.next_visit] == "a page of an item"
    assert NEXT_VISITS[two.next_visit] == "none"
    assert (other.next_visit, three.next_visit) == (-1, -1)
    assert one.rows.shape == (5, WIDTH)


def test_users_are_held_out_whole_and_a_fifth_of_them() -> None:
    held_out = sum(is_held_out(f"user-{number}") for number in range(1000))
    assert 150 < held_out < 250


@pytest.mark.night
def test_training_beats_a_random_encoder_with_a_trained_read_out() -> None:
    examples = make_examples(generated_visits(3, 60, 12))
    train_set = [example for example in examples if not is_held_out(example.user)]
    test_set = [example for example in examples if is_held_out(example.user)]
    assert len(test_set) > 50
    trained, fixed = (train_encoder.train({"log": train_set}, epochs=15, encoder=encoder) for encoder in (True, False))
    scores, others = (train_encoder.evaluate(network, "log", test_set) for network in (trained, fixed))
    assert sum(scores[name]["loss"] for name in scores) < sum(others[name]["loss"] for name in others) - 0.005
    again = train_encoder.train({"log": train_set}, epochs=15)
    np.testing.assert_array_equal(trained.encoder_weights()["u_n"], again.encoder_weights()["u_n"])
    np.testing.assert_array_equal(fixed.encoder_weights()["w_n"], np.asarray(random_weights()["w_n"], np.float32))


def test_the_weights_of_the_repository_are_whole_and_small(tmp_path: Path) -> None:
    shapes = {name: np.asarray(value).shape for name, value in trained_weights().items()}
    assert shapes == {name: np.asarray(value).shape for name, value in random_weights().items()}
    assert WEIGHTS_PATH.stat().st_size < 60_000
    record = json.loads(WEIGHTS_PATH.read_text("utf-8"))
    assert set(record["trained_on"]) == {
        "generated", "shop_app_events_a", "web_shop_hits_a", "snowplow_ecommerce_events"
    }  # fmt: skip
    network = Predictor(5, ["log"])
    train_encoder.write_weights(network, tmp_path / "w.json", trained_on=["log"], seed=5)
    written = trained_weights(tmp_path / "w.json")
    np.testing.assert_allclose(written["u_zr"], network.encoder_weights()["u_zr"], atol=6e-5)
