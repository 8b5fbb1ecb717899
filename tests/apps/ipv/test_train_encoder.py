"""Training of the encoder: exact gradients, true targets, and predictions that beat the baselines."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.ipv import train_encoder
from apps.ipv.gru import backward, forward, softmax_loss
from apps.ipv.logs import generated_visits
from apps.ipv.make_encoder import STATE, WEIGHTS_PATH, WIDTH, random_weights, trained_weights
from apps.ipv.training_data import NEXT_EVENTS, NEXT_VISITS, is_held_out, make_examples
from walle.pipeline.events.event import Event


def small_batch(rng: np.random.Generator) -> Any:
    rows = rng.normal(size=(3, 5, WIDTH))
    rows[:, :, 0] = 1
    rows[1, 3:] = 0  # a shorter visit, padded
    return rows


def test_gradients_are_those_of_finite_differences() -> None:
    rng = np.random.default_rng(1)
    weights = {name: np.asarray(value) for name, value in random_weights().items()}
    rows = small_batch(rng)
    wanted = rng.normal(size=(5, 3, STATE))

    def loss() -> float:
        return float((forward(weights, rows).states[1:] * wanted).sum())

    gradients = backward(weights, rows, forward(weights, rows), wanted)
    for name, value in weights.items():
        for _ in range(4):
            place = tuple(int(rng.integers(size)) for size in value.shape)
            before = value[place]
            value[place] = before + 1e-6
            up = loss()
            value[place] = before - 1e-6
            down = loss()
            value[place] = before
            assert gradients[name][place] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6), name


def test_the_softmax_loss_and_its_gradient_skip_rows_without_a_class() -> None:
    logits = np.array([[1.0, 2.0, 0.5], [3.0, 0.0, 0.0]])
    losses, gradient = softmax_loss(logits, np.array([1, -1]))
    p = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert losses == pytest.approx([-np.log(p[1]), 0])
    np.testing.assert_allclose(gradient, [p - [0, 1, 0], [0, 0, 0]])


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
    scores, others = (train_encoder.evaluate(parameters, "log", test_set) for parameters in (trained, fixed))
    assert sum(scores[name]["loss"] for name in scores) < sum(others[name]["loss"] for name in others) - 0.005
    again = train_encoder.train({"log": train_set}, epochs=15)
    np.testing.assert_array_equal(trained["u_n"], again["u_n"])
    np.testing.assert_array_equal(fixed["w_n"], np.asarray(random_weights()["w_n"], np.float32))


def test_the_weights_of_the_repository_are_whole_and_small(tmp_path: Path) -> None:
    shapes = {name: np.asarray(value).shape for name, value in trained_weights().items()}
    assert shapes == {name: np.asarray(value).shape for name, value in random_weights().items()}
    assert WEIGHTS_PATH.stat().st_size < 60_000
    record = json.loads(WEIGHTS_PATH.read_text("utf-8"))
    assert set(record["trained_on"]) == {
        "generated", "shop_app_events_a", "web_shop_hits_a", "snowplow_ecommerce_events"
    }  # fmt: skip
    parameters = train_encoder.new_parameters(5, ["log"])
    train_encoder.write_weights(parameters, tmp_path / "w.json", trained_on=["log"], seed=5)
    written = trained_weights(tmp_path / "w.json")
    np.testing.assert_allclose(written["u_zr"], parameters["u_zr"], atol=6e-5)
