"""RNN, GRU and LSTM: the decomposition against NumPy, the fused steps against the decomposition."""

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle
from walle.engine_ext.model import GraphBuilder, Value

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def sigmoid(x: numpy.ndarray) -> numpy.ndarray:
    return 1 / (1 + numpy.exp(-x))


def operands(
    cell: str, steps: int, batch: int, width: int, hidden: int, directions: int, absent: frozenset[int], seed: int
) -> list[numpy.ndarray | None]:
    """Return X, W, R, B, sequence_lens, initial_h and, for an LSTM, initial_c and P; those in `absent` are None."""
    rng, gates = numpy.random.default_rng(seed), GATES[cell]
    shapes: list[tuple[int, ...]] = [
        (steps, batch, width),
        (directions, gates * hidden, width),
        (directions, gates * hidden, hidden),
    ]
    shapes += [(directions, 2 * gates * hidden), (batch,), (directions, batch, hidden)]
    if cell == "LSTM":
        shapes += [(directions, batch, hidden), (directions, 3 * hidden)]
    values = [rng.normal(size=shape).astype("float32") for shape in shapes]
    values[4] = rng.integers(0, steps + 1, batch).astype("int32")
    return [None if index in absent else value for index, value in enumerate(values)]


def run(cell: str, values: list[numpy.ndarray | None], **attributes: Any) -> tuple[list[numpy.ndarray], set[str]]:
    """Return the outputs and the operators of the plan."""
    graph = GraphBuilder(cell)
    inputs: list[Value | None] = [
        None if value is None else graph.input(f"x{i}", value.shape, value.dtype.name) for i, value in enumerate(values)
    ]
    results = graph.op(cell, inputs, outputs=3 if cell == "LSTM" else 2, **attributes)
    for i, result in enumerate(results):
        graph.output(f"y{i}", result)
    session = walle.Session(graph.to_bytes())
    found = session.run({f"x{i}": value for i, value in enumerate(values) if value is not None})
    plan = session.plan()
    assert plan is not None
    return [numpy.asarray(value) for value in found.values()], {op.op for op in plan.ops}


def reference(
    cell: str, values: list[numpy.ndarray | None], direction: str, before_reset: int, coupled: int
) -> list[numpy.ndarray]:
    """Evaluate the equations of ONNX's documentation, one row and one step at a time."""
    x, w, r, b, lens, h0, c0, p = [*values, None, None][:8]
    assert x is not None
    assert w is not None
    assert r is not None
    (steps, batch, _), hidden, directions = x.shape, r.shape[2], w.shape[0]
    every = numpy.zeros((steps, directions, batch, hidden))
    last_h, last_c = numpy.zeros((directions, batch, hidden)), numpy.zeros((directions, batch, hidden))
    for d in range(directions):
        bias = numpy.zeros(2 * w.shape[1]) if b is None else b[d].astype("float64")
        of_input, of_state = numpy.split(bias, 2)
        peep = numpy.zeros(3 * hidden) if p is None else p[d].astype("float64")
        peep_in, peep_out, peep_forget = numpy.split(peep, 3)
        for row in range(batch):
            h = numpy.zeros(hidden) if h0 is None else h0[d, row].astype("float64")
            c = numpy.zeros(hidden) if c0 is None else c0[d, row].astype("float64")
            length = steps if lens is None else int(lens[row])
            backward = direction == "reverse" or d == 1
            for step in reversed(range(length)) if backward else range(length):
                given_part = w[d].astype("float64") @ x[step, row] + of_input
                if cell == "GRU":
                    state_part = r[d].astype("float64") @ h + of_state
                    update = sigmoid(given_part[:hidden] + state_part[:hidden])
                    reset = sigmoid(given_part[hidden : 2 * hidden] + state_part[hidden : 2 * hidden])
                    new_r, new_b = r[d][2 * hidden :].astype("float64"), of_state[2 * hidden :]
                    rest = reset * (new_r @ h + new_b) if before_reset else new_r @ (reset * h) + new_b
                    h = (1 - update) * numpy.tanh(given_part[2 * hidden :] + rest) + update * h
                else:
                    total = given_part + r[d].astype("float64") @ h + of_state
                    if cell == "RNN":
                        h = numpy.tanh(total)
                    else:
                        i, o, f, g = numpy.split(total, 4)
                        i = sigmoid(i + peep_in * c)
                        f = 1 - i if coupled else sigmoid(f + peep_forget * c)
                        c = f * c + i * numpy.tanh(g)
                        h = sigmoid(o + peep_out * c) * numpy.tanh(c)
                every[step, d, row] = h
            last_h[d, row], last_c[d, row] = h, c
    return [every, last_h, last_c] if cell == "LSTM" else [every, last_h]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_both_forms_agree_with_the_equations(data: st.DataObject) -> None:
    cell = data.draw(st.sampled_from(sorted(GATES)))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    steps, batch, width = (data.draw(st.integers(1, 4)) for _ in range(3))
    hidden = data.draw(st.integers(1, 9))
    absent = frozenset(data.draw(st.sets(st.sampled_from([3, 4, 5, 6, 7]))))
    before_reset, coupled = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    directions, seed = 2 if direction == "bidirectional" else 1, data.draw(st.integers(0, 99))
    values = operands(cell, steps, batch, width, hidden, directions, absent, seed)
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    attributes |= {"linear_before_reset": before_reset} if cell == "GRU" else {}
    attributes |= {"input_forget": coupled} if cell == "LSTM" else {}
    wanted = reference(cell, values, direction, before_reset, coupled)
    fused, fused_ops = run(cell, values, **attributes)
    plain, plain_ops = run(cell, values, algorithm="decomposed", **attributes)
    assert "RecurrentSteps" in fused_ops
    assert "RecurrentSteps" not in plain_ops
    for ours, meaning, exact in zip(fused, plain, wanted, strict=True):
        numpy.testing.assert_allclose(meaning, exact, rtol=1e-4, atol=1e-5)
        numpy.testing.assert_allclose(ours, meaning, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", sorted(GATES))
def test_layout_1_has_the_batch_in_front(cell: str) -> None:
    values = operands(cell, 3, 2, 4, 5, 2, frozenset({4}), 5)
    swapped = [
        value if value is None or i not in {0, 5, 6} else numpy.ascontiguousarray(value.swapaxes(0, 1))
        for i, value in enumerate(values)
    ]
    plain, _ = run(cell, values, direction="bidirectional")
    other, _ = run(cell, swapped, direction="bidirectional", layout=1)
    numpy.testing.assert_allclose(other[0], plain[0].transpose(2, 0, 1, 3), rtol=1e-6)
    for ours, theirs in zip(other[1:], plain[1:], strict=True):
        numpy.testing.assert_allclose(ours, theirs.swapaxes(0, 1), rtol=1e-6)


def test_a_clip_bounds_what_goes_into_the_activations() -> None:
    values = operands("RNN", 4, 2, 3, 5, 1, frozenset({4}), 3)
    found, ops = run("RNN", values, clip=0.25)
    assert "RecurrentSteps" not in ops
    assert numpy.abs(found[0]).max() <= numpy.tanh(0.25) + 1e-6
    assert numpy.abs(run("RNN", values)[0][0]).max() > numpy.tanh(0.25)


def test_other_activations_take_their_numbers_in_order() -> None:
    values = operands("RNN", 1, 2, 3, 4, 2, frozenset({3, 4, 5}), 3)
    found, _ = run(
        "RNN", values, direction="bidirectional", activations=["Affine", "ScaledTanh"], activation_alpha=[2.0, 3.0],
        activation_beta=[0.5, 0.25],
    )  # fmt: skip
    x, w = values[0], values[1]
    assert x is not None
    assert w is not None
    first, second = x[0] @ w[0].T, x[0] @ w[1].T
    numpy.testing.assert_allclose(found[0][0, 0], 2 * first + 0.5, rtol=1e-4, atol=1e-5)
    numpy.testing.assert_allclose(found[0][0, 1], 3 * numpy.tanh(0.25 * second), rtol=1e-4, atol=1e-5)
