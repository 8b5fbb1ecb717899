"""Fused composites against their decompositions, and against float64.

A session takes the fused kernel; evaluating the operator at once takes it apart, on the same backend's kernels, and the
scalar backend's session has no fused kernels.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session, backends
from walle.errors import EngineError

VECTORS = [one.name for one in backends() if one.available and one.name != "scalar"]
ERF = np.vectorize(math.erf)


def numbers(shape: tuple[int, ...], seed: int, scale: float = 3.0) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def run(op: str, arrays: list[Any], backend: str, **attributes: Any) -> tuple[Any, list[str]]:
    """Return the result of a session and the operators that it ran."""
    graph = GraphBuilder("g")
    inputs = [graph.input(f"x{i}", array.shape) for i, array in enumerate(arrays)]
    graph.output("y", graph.op(op, inputs, **attributes))
    session = Session(graph.to_bytes(), backend=backend)
    found = np.asarray(session.run({f"x{i}": array for i, array in enumerate(arrays)})["y"])
    plan = session.plan()
    assert plan is not None
    return found, [one.op for one in plan.ops]


def check(op: str, arrays: list[Any], exact: Any, bound: Any, **attributes: Any) -> None:
    apart = np.asarray(_core.evaluate(op, arrays, attributes)[0])
    for backend in VECTORS:
        found, ran = run(op, arrays, backend, **attributes)
        assert ran == [op]
        for other in (apart.astype(np.float64), exact):
            assert (np.abs(found - other) <= 2 * bound).all(), (backend, float(np.abs(found - other).max()))
    plain, ran = run(op, arrays, "scalar", **attributes)
    assert op not in ran
    assert (np.abs(plain - exact) <= 2 * bound).all()


shapes = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 1000)


@settings(max_examples=40, deadline=None)
@given(shape=shapes, seed=seeds, axis=st.integers(0, 2), log=st.booleans())
def test_softmax_is_within_its_error_bound(shape: tuple[int, ...], seed: int, axis: int, log: bool) -> None:
    axis %= len(shape)
    x = numbers(shape, seed, 10)
    apart = x.astype(np.float64) - x.max(axis=axis, keepdims=True)
    total = np.exp(apart).sum(axis=axis, keepdims=True)
    exact = apart - np.log(total) if log else np.exp(apart) / total
    check("LogSoftmax" if log else "Softmax", [x], exact, 1e-6 * np.maximum(1, np.abs(exact)), axis=axis)


@pytest.mark.parametrize("columns", [1, 5])
def test_softmax_at_its_ends(columns: int) -> None:
    row = [
        [np.inf, 0, 1],
        [-np.inf, -np.inf, -np.inf],
        [np.nan, 0, 1],
        [0, 1, np.nan],
        [-np.inf, 0, 0],
        [3e38, -3e38, 0],
    ]
    x = np.repeat(np.array(row, np.float32)[:, :, None], columns, axis=2)
    for op in ("Softmax", "LogSoftmax"):
        apart = np.asarray(_core.evaluate(op, [x], {"axis": 1})[0])
        for backend in VECTORS:
            np.testing.assert_allclose(run(op, [x], backend, axis=1)[0], apart, rtol=1e-6, atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(shape=shapes, seed=seeds, axis=st.integers(0, 2), shifted=st.booleans(), rms=st.booleans())
def test_normalization_is_within_its_error_bound(
    shape: tuple[int, ...], seed: int, axis: int, shifted: bool, rms: bool
) -> None:
    axis %= len(shape)
    x, scale, shift = numbers(shape, seed) + 2, numbers(shape[axis:], seed + 1), numbers(shape[axis:], seed + 2)
    axes = tuple(range(axis, len(shape)))
    wide = x.astype(np.float64)
    apart = wide if rms else wide - wide.mean(axis=axes, keepdims=True)
    normal = apart / np.sqrt((apart**2).mean(axis=axes, keepdims=True) + 1e-2)
    exact, arrays = normal * scale, [x, scale]
    if shifted and not rms:
        exact, arrays = exact + shift, [x, scale, shift]
    # Centring loses what the mean is above the deviation.
    bound = 2e-6 * (np.abs(scale) * (np.abs(normal) + 1 + np.abs(wide).max()) + np.abs(shift) + 1)
    check("RMSNormalization" if rms else "LayerNormalization", arrays, exact, bound, axis=axis, epsilon=1e-2)


def test_a_normalisation_of_a_large_mean() -> None:
    x = (numbers((3, 1000), 1, 1.0) + 1000).astype(np.float32)
    row = np.ones(1000, np.float32)
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(axis=1, keepdims=True)) / wide.std(axis=1, keepdims=True)
    for backend in VECTORS:
        found, _ = run("LayerNormalization", [x, row], backend, epsilon=0.0)
        assert np.abs(found - exact).max() < 1e-3


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


MAPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Elu": (lambda x: np.where(x < 0, 0.75 * np.expm1(x), x), {"alpha": 0.75}),
    "Gelu": (lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2))), {}),
    "HardSigmoid": (lambda x: np.clip(np.float32(0.3) * x + np.float32(0.4), 0, 1), {"alpha": 0.3, "beta": 0.4}),
    "HardSwish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), {}),
    "LeakyRelu": (lambda x: np.where(x < 0, np.float32(0.2) * x, x), {"alpha": 0.2}),
    "Mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), {}),
    "Swish": (lambda x: x * sigmoid(1.5 * x), {"alpha": 1.5}),
}


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(sorted(MAPS)), shape=shapes, seed=seeds)
def test_activations_are_within_their_error_bound(name: str, shape: tuple[int, ...], seed: int) -> None:
    exact, attributes = MAPS[name]
    x = numbers(shape, seed)
    check(name, [x], exact(x.astype(np.float64)), 1e-6 * (np.abs(x) + 1), **attributes)


def test_gelu_by_tanh_is_within_its_error_bound() -> None:
    x = numbers((1000,), 3)
    wide = x.astype(np.float64)
    exact = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    check("Gelu", [x], exact, 1e-6 * (np.abs(x) + 1), approximate="tanh")


@pytest.mark.parametrize("name", sorted(MAPS))
def test_activations_at_their_ends(name: str) -> None:
    x = np.array([np.nan, np.inf, 0.0, -0.0, 1e30, -80], np.float32)
    attributes = MAPS[name][1]
    apart = np.asarray(_core.evaluate(name, [x], attributes)[0])
    for backend in VECTORS:
        np.testing.assert_allclose(run(name, [x], backend, **attributes)[0], apart, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("slope", [(), (1,), (7,), (5, 1), (5, 7), (3, 1, 1), (1, 1, 7)])
def test_prelu_is_within_its_error_bound(slope: tuple[int, ...]) -> None:
    x, factor = numbers((3, 5, 7), 4), numbers(slope, 5)
    check("PRelu", [x, factor], np.where(x < 0, x.astype(np.float64) * factor, x), 1e-7 * (np.abs(x * factor) + 1))


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("PRelu", [numbers((2, 3), 0), numbers((4,), 0)], {}),
        ("Softmax", [numbers((2, 3), 0)], {"axis": 2}),
        ("LayerNormalization", [numbers((2, 3), 0), numbers((3,), 0)], {"axis": 5}),
        ("Gelu", [numbers((2, 3), 0)], {"approximate": "none of these"}),
    ],
)
def test_operands_that_do_not_fit_are_refused_as_by_the_decomposition(
    op: str, arrays: list[Any], attributes: dict[str, Any]
) -> None:
    with pytest.raises(EngineError) as apart:
        _core.evaluate(op, arrays, attributes)
    with pytest.raises(EngineError) as planned:
        run(op, arrays, VECTORS[-1] if VECTORS else "scalar", **attributes)
    assert str(apart.value) in str(planned.value)


def test_a_scale_that_broadcasts_is_decomposed() -> None:
    x, scale = numbers((2, 3, 8), 1), numbers((1,), 2)
    found, ran = run("LayerNormalization", [x, scale], "auto", axis=-1)
    assert "LayerNormalization" not in ran
    np.testing.assert_allclose(found, np.asarray(_core.evaluate("LayerNormalization", [x, scale], {"axis": -1})[0]))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 300), columns=st.integers(1, 40), planes=st.integers(1, 3), seed=seeds)
def test_sums_over_rows_are_within_their_error_bound(rows: int, columns: int, planes: int, seed: int) -> None:
    x = numbers((planes, rows, columns), seed)
    for op, exact in (("ReduceSum", x.sum(1, np.float64)), ("ReduceMean", x.mean(1, np.float64))):
        bound = 1e-6 * np.abs(x).sum(1, np.float64)
        for backend in VECTORS:
            found, _ = run(op, [x], backend, axes=[1], keepdims=0)
            assert (np.abs(found - exact) <= bound).all()


def attention_scores(
    shape: tuple[int, ...], mask: tuple[int, ...] | None, scale: str | None, *, swapped: bool = False, axis: int = -1
) -> tuple[GraphBuilder, dict[str, Any]]:
    graph, arrays = GraphBuilder("g"), {"x": numbers(shape, 1)}
    value = graph.input("x", shape)
    number = graph.constant("c", np.array(3.0, np.float32))
    if scale is not None:
        value = graph.op(scale.removesuffix("ed"), [number, value] if scale.endswith("ed") else [value, number])
    if mask is not None:
        arrays["mask"] = numbers(mask, 2)
        other = graph.input("mask", mask)
        value = graph.op("Add", [other, value] if swapped else [value, other])
    graph.output("y", graph.op("Softmax", [value], axis=axis))
    return graph, arrays


@pytest.mark.parametrize("scale", [None, "Mul", "Muled", "Div"])
@pytest.mark.parametrize("mask", [None, (), (1,), (5,), (4, 5), (4, 1), (2, 1, 1, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("swapped", [False, True])
def test_scores_are_scaled_and_masked_in_softmax(mask: Any, scale: str | None, swapped: bool) -> None:
    graph, arrays = attention_scores((2, 3, 4, 5), mask, scale, swapped=swapped)
    apart = Session(graph.to_bytes(), backend="scalar").run(arrays)["y"]
    for backend in VECTORS:
        session = Session(graph.to_bytes(), backend=backend)
        found, plan = session.run(arrays)["y"], session.plan()
        assert plan is not None
        assert [op.op for op in plan.ops] == ["Softmax"]
        np.testing.assert_allclose(np.asarray(found), np.asarray(apart), rtol=1e-5, atol=1e-7)


def test_scores_with_other_readers_or_that_grow_are_not_fused() -> None:
    for shape, mask, axis in (((2, 4, 5), None, 1), ((1, 1, 5), (3, 4, 5), -1)):
        graph, arrays = attention_scores(shape, mask, "Div", axis=axis)
        apart = Session(graph.to_bytes(), backend="scalar").run(arrays)["y"]
        np.testing.assert_allclose(np.asarray(Session(graph.to_bytes()).run(arrays)["y"]), np.asarray(apart), rtol=1e-5)
    graph = GraphBuilder("g")
    x = graph.op("Mul", [graph.input("x", (4, 5)), graph.constant("c", np.array(3.0, np.float32))])
    graph.output("y", graph.op("Softmax", [x], axis=-1))
    graph.output("scaled", x)
    session = Session(graph.to_bytes())
    found = session.run({"x": numbers((4, 5), 1)})
    np.testing.assert_allclose(np.asarray(found["scaled"]), numbers((4, 5), 1) * np.float32(3))
    np.testing.assert_allclose(np.asarray(found["y"]).sum(axis=1), 1, rtol=1e-5)
