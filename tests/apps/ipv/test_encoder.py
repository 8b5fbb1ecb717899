from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.ipv.gru import forward
from apps.ipv.logs import generated_visits
from apps.ipv.make_encoder import (
    CHUNK,
    STATE,
    WIDTH,
    Weights,
    build_encoder,
    random_weights,
    trained_weights,
    write_encoder,
)
from apps.ipv.training_data import make_examples

WEIGHTS = trained_weights()


def encode(numpy_graph: Any, rows: Any, weights: Weights = WEIGHTS) -> tuple[Any, dict[str, Any]]:
    state = np.zeros((1, STATE), dtype="float32")
    constants: dict[str, Any] = {}
    for start in range(0, len(rows), CHUNK):
        graph = numpy_graph({"x": rows[start : start + CHUNK], "state": state})
        build_encoder(graph, weights)
        state, constants = graph.outputs["next_state"], graph.constants
    return state, constants


def some_rows(seed: int, events: int, padding: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    rows = np.zeros((events + padding, WIDTH), dtype="float32")
    rows[:events, 0] = 1
    rows[np.arange(events), rng.integers(1, 6, events)] = 1
    rows[:events, 6:11] = rng.random((events, 5))
    rows[:events, 14:] = rng.uniform(-1, 1, (events, 2))
    return rows


def test_chunks_make_the_gru_of_the_docstring(numpy_graph: Any) -> None:
    rows = some_rows(1, 40)
    state, w = encode(numpy_graph, rows)
    h = np.zeros(STATE)
    for x in rows.astype("float64"):
        gates = 1 / (1 + np.exp(-(x @ w["w_zr"] + w["b_zr"][0] + h @ w["u_zr"])))
        z, r = gates[:STATE], gates[STATE:]
        n = np.tanh(x @ w["w_n"] + w["b_n"][0] + r * (h @ w["u_n"]))
        h = h + z * (n - h)
    np.testing.assert_allclose(state[0], h, atol=1e-5)


def test_padding_leaves_the_state_as_it_is(numpy_graph: Any) -> None:
    rows = some_rows(2, 13, padding=3)
    state, _ = encode(numpy_graph, rows)
    padded, _ = encode(numpy_graph, np.concatenate([rows, np.zeros((16, WIDTH), dtype="float32")]))
    np.testing.assert_array_equal(state, padded)


@pytest.mark.parametrize("events", [2, 16, 64, 256])
def test_random_states_neither_die_nor_saturate(numpy_graph: Any, events: int) -> None:
    rows = [some_rows(seed, events, -events % CHUNK) for seed in range(20)]
    states = np.stack([encode(numpy_graph, each, random_weights())[0][0] for each in rows])
    assert 0.15 < np.abs(states).mean() < 0.7
    assert (np.abs(states) > 0.98).mean() < 0.02
    assert states.std(axis=0).mean() > 0.08  # different visits, different encodings


def test_trained_states_differ_between_visits_and_do_not_saturate() -> None:
    weights = {name: np.asarray(value) for name, value in trained_weights().items()}
    examples = make_examples(generated_visits(9, 10, 10))
    states = np.stack([forward(weights, example.rows[None].astype("float64"))[-1][0] for example in examples])
    assert (np.abs(states) > 0.98).mean() < 0.1
    assert np.abs(states).mean() > 0.1
    assert states.std(axis=0).mean() > 0.08
    assert len({state.tobytes() for state in states}) == len(states)


def test_another_seed_is_another_encoder(numpy_graph: Any) -> None:
    rows = some_rows(3, 16)
    assert not np.allclose(encode(numpy_graph, rows, random_weights(1))[0], encode(numpy_graph, rows)[0])


def test_the_file_is_the_same_each_time_and_small(tmp_path: Path) -> None:
    one, two = (write_encoder(tmp_path / name / "encoder.walle") for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size < 64_000
    assert write_encoder(tmp_path / "c.walle", random_weights(1)).read_bytes() != one.read_bytes()
