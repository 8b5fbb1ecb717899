"""Plans of training steps: operators that are joined, their order, and values that are computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from walle.engine_ext import _core, np
from walle.engine_ext.nn.tracing import Trace
from walle.engine_ext.session_info import plan_of

if TYPE_CHECKING:
    from walle.engine_ext.session_info import Plan

_LAYERS = 12
_SIZE = 64


def _step(threads: int = 1) -> tuple[dict[str, bytes], Plan]:
    """Return the updated weights and the plan of one step of a deep network, by gradient descent with momentum."""
    rng = np.random.default_rng(1)
    x = np.asarray(rng.standard_normal((_SIZE, _SIZE)), "float32")
    given = {"x": x} | {f"w{i}": np.asarray(rng.standard_normal((_SIZE, _SIZE)) / 8, "float32") for i in range(_LAYERS)}
    states = {f"m{i}": np.zeros((_SIZE, _SIZE), "float32") for i in range(_LAYERS)}
    with Trace("step") as trace:
        value: Any = trace.input("x", x)
        weights: list[Any] = [trace.input(f"w{i}", given[f"w{i}"]) for i in range(_LAYERS)]
        for weight in weights:
            value = np.tanh(np.matmul(value, weight))
        gradients = trace.gradient(np.sum(value * value), weights)
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            momentum = trace.input(f"m{i}", states[f"m{i}"]) * 0.9 + gradient
            trace.output(f"m{i}", momentum)
            trace.output(f"w{i}", weight - momentum * 0.1)
    session = _core.Session(trace.graph(), "auto", threads)
    results = session.run(given | states)
    plan = session.plan()
    assert plan is not None
    return {name: array.tobytes() for name, array in results.items()}, plan_of(plan)


def test_updates_are_joined_and_run_early() -> None:
    _, plan = _step()
    algorithms = [op.algorithm for op in plan.ops if op.op == "Elementwise"]
    assert algorithms.count("Mul+Add") == _LAYERS
    assert algorithms.count("Mul+Sub") == _LAYERS
    # Forward values live until their gradients: about one for each layer; all gradients at once would be as much again.
    assert plan.arena_bytes < 1.6 * _LAYERS * _SIZE * _SIZE * 4


def test_threads_compute_the_same_bits() -> None:
    assert _step(1)[0] == _step(2)[0]


def _gradients(layers: int, size: int, layer: Any) -> tuple[list[Any], dict[str, Any], Plan]:
    """Return the gradients of the sum of the result by the weights of equal layers, the inputs, and the plan."""
    rng = np.random.default_rng(2)
    given = {
        name: np.asarray(rng.standard_normal((size, size)) / size, "float32")
        for name in ("x", *(f"w{i}" for i in range(layers)))
    }
    with Trace("gradients") as trace:
        value: Any = trace.input("x", given["x"])
        weights: list[Any] = [trace.input(f"w{i}", given[f"w{i}"]) for i in range(layers)]
        for weight in weights:
            value = layer(value, weight)
        for i, gradient in enumerate(trace.gradient(np.sum(value), weights)):
            trace.output(f"w{i}", gradient)
    session = _core.Session(trace.graph(), "auto")
    results = session.run(given)
    plan = session.plan()
    assert plan is not None
    return [results[f"w{i}"] for i in range(layers)], given, plan_of(plan)


def test_cheap_values_are_computed_again_where_most_memory_is_in_use() -> None:
    layers, size = 8, 160
    found, given, plan = _gradients(layers, size, lambda x, w: np.square(np.matmul(x, w) + 1.0))
    assert len([op for op in plan.ops if "Square" in op.op or "Square" in op.algorithm]) > layers
    # Products and squares of all layers would be 2 * layers values.
    assert plan.arena_bytes < (2 * layers - 1) * size * size * 4
    values, sums = [numpy.asarray(given["x"], "float64")], []
    for i in range(layers):
        sums.append(values[-1] @ numpy.asarray(given[f"w{i}"], "float64") + 1.0)
        values.append(sums[-1] ** 2)
    gradient = numpy.ones((size, size))
    for i in reversed(range(layers)):
        gradient = gradient * 2 * sums[i]
        expected = values[i].T @ gradient
        numpy.testing.assert_allclose(numpy.asarray(found[i]), expected, rtol=1e-3, atol=1e-5 * abs(expected).max())
        gradient = gradient @ numpy.asarray(given[f"w{i}"], "float64").T


def test_weights_that_are_stored_transposed_get_their_gradient_without_a_raster_of_their_size() -> None:
    rng = np.random.default_rng(3)
    x, w = (np.asarray(rng.standard_normal(shape), "float32") for shape in ((4, 64), (96, 64)))
    with Trace("gradient") as trace:
        rows: Any = trace.input("x", x)
        weight: Any = trace.input("w", w)
        product = np.matmul(rows, weight.T)
        trace.output("w", trace.gradient(np.sum(product * product), [weight])[0])
    session = _core.Session(trace.graph(), "auto")
    found = numpy.asarray(session.run({"x": x, "w": w})["w"])
    exact_x, exact_w = numpy.asarray(x, "float64"), numpy.asarray(w, "float64")
    numpy.testing.assert_allclose(found, 2 * (exact_x @ exact_w.T).T @ exact_x, rtol=1e-4, atol=1e-3)
    plan = session.plan()
    assert plan is not None
    assert [op.op for op in plan_of(plan).ops][-1] == "MatMul"
