"""Errors of long sums, against longer floats: they grow with a block of the summed numbers, not with all of them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import walle
import walle.np as arrays
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.session import Session

type Array = np.ndarray[Any, np.dtype[Any]]

AVAILABLE = [one.name for one in walle.backends() if one.available and one.exact]
UNITS = {"float32": 2.0**-24, "float64": 2.0**-53}
BLOCK = 64  # units of rounding: as many as the longest run of numbers that are added one after the other

# Shapes and summed axes; layouts differ in what lies closer in memory, the summed numbers or the results.
SUMS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((300_000,), (0,)),
    ((3, 5000), (1,)),
    ((5000, 3), (0,)),
    ((5000, 64), (0,)),
    ((20_000, 40), (0,)),
    ((4, 5000, 3), (1,)),
    ((4, 3000, 100), (1,)),
    ((60, 60, 100), (0, 1)),
    ((5000, 7, 3), (0, 2)),
    ((60, 3, 60, 50), (0, 2)),
    ((2, 5000, 3, 4), (1, 3)),
    ((3000, 1500), (0,)),
]


def numbers(shape: tuple[int, ...], dtype: str, kind: str) -> Array:
    """Return positive numbers: equal ones, whose roundings all go one way, or random ones."""
    made = np.full(shape, 1.1) if kind == "equal" else np.random.default_rng(5).uniform(0.5, 1.5, shape)
    return made.astype(dtype)


def run(backend: str, x: Array, build: Callable[[GraphBuilder, Value], Value], threads: int = 1) -> Array:
    graph = GraphBuilder("g")
    graph.output("y", build(graph, graph.input("x", x.shape, x.dtype.name)))
    session = Session(graph.to_bytes(), backend=backend, threads=threads)
    return np.asarray(session.run({"x": x})["y"]).astype(np.longdouble)


def reduced(backend: str, op: str, x: Array, axes: tuple[int, ...], threads: int = 1) -> Array:
    return run(backend, x, lambda g, v: g.op(op, [v], axes=list(axes), keepdims=0), threads)


def check(found: Array, exact: Array, unit: float, what: object) -> None:
    assert found.shape == exact.shape
    worst = float(np.max(np.abs(found - exact) / np.abs(exact))) / unit
    assert worst <= BLOCK, (what, f"{worst:.0f} units of rounding")


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("kind", ["equal", "random"])
@pytest.mark.parametrize(("shape", "axes"), SUMS)
@pytest.mark.parametrize("backend", AVAILABLE)
def test_reductions_are_within_their_error_bound(
    backend: str, shape: tuple[int, ...], axes: tuple[int, ...], kind: str, dtype: str
) -> None:
    x = numbers(shape, dtype, kind)
    wide = x.astype(np.longdouble)
    sums, count = wide.sum(axes), math.prod(shape[axis] for axis in axes)
    squares = np.square(wide).sum(axes)
    exact = {
        "ReduceSum": sums,
        "ReduceMean": sums / count,
        "ReduceL1": sums,
        "ReduceL2": np.sqrt(squares),
        "ReduceSumSquare": squares,
        "ReduceLogSum": np.log(sums),
    }
    for op, expected in exact.items():
        check(reduced(backend, op, x, axes), expected, UNITS[dtype], op)
    once, by_threads = (reduced(backend, "ReduceSum", x, axes, threads) for threads in (1, 3))
    assert np.array_equal(once, by_threads)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["equal", "random"])
@pytest.mark.parametrize("backend", AVAILABLE)
def test_pools_of_large_windows(backend: str, kind: str, dtype: str) -> None:
    x = numbers((1, 3, 70, 66), dtype, kind)
    wide = np.lib.stride_tricks.sliding_window_view(x.astype(np.longdouble), (64, 64), axis=(2, 3))[:, :, ::2]
    window: dict[str, Any] = {"kernel_shape": [64, 64], "strides": [2, 1]}
    found = run(backend, x, lambda g, v: g.op("AveragePool", [v], **window))
    check(found, wide.mean((-1, -2)), UNITS[dtype], "AveragePool")
    found = run(backend, x, lambda g, v: g.op("LpPool", [v], p=1, **window))
    check(found, wide.sum((-1, -2)), UNITS[dtype], "LpPool")
    found = run(backend, x, lambda g, v: g.op("GlobalAveragePool", [v]))
    check(found, x.astype(np.longdouble).mean((2, 3), keepdims=True), UNITS[dtype], "GlobalAveragePool")


@pytest.mark.parametrize("kind", ["equal", "random"])
@pytest.mark.parametrize("backend", AVAILABLE)
def test_pools_in_packed_layouts(backend: str, kind: str) -> None:
    x = numbers((1, 5, 64, 64), "float32", kind)
    same = np.eye(5, dtype="float32").reshape(5, 5, 1, 1)  # a convolution that changes only the layout
    exact = x.astype(np.longdouble).mean((2, 3), keepdims=True)

    def behind(op: str, **attributes: Any) -> Array:
        return run(backend, x, lambda g, v: g.op(op, [g.op("Conv", [v, g.constant("w", same)])], **attributes))

    check(behind("GlobalAveragePool"), exact, UNITS["float32"], "GlobalAveragePool")
    check(behind("AveragePool", kernel_shape=[64, 64]), exact, UNITS["float32"], "AveragePool")


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("backend", AVAILABLE)
def test_softmax_of_long_rows_is_within_its_error_bound(backend: str, dtype: str, axis: int) -> None:
    x = np.full((2, 20_000, 3) if axis == 1 else (2, 3, 20_000), 1.1, dtype)
    x[:, 0, 0] = 2
    wide = np.exp(x.astype(np.longdouble) - 2)
    found = run(backend, x, lambda g, v: g.op("Softmax", [v], axis=axis))
    check(found, wide / wide.sum(axis, keepdims=True), UNITS[dtype], "Softmax")


@pytest.mark.parametrize("backend", AVAILABLE)
def test_normalisation_behind_a_convolution(backend: str) -> None:
    """The mean of a channel is exact to a few units, also in a packed layout: all elements move with it."""
    x = np.random.default_rng(1).normal(1.7, 0.15, (1, 5, 40, 40)).astype("float32")
    x[:, :, ::2, :] = np.float32(1.7433849)  # mostly one number, like behind a transposed convolution with strides
    same = np.eye(5, dtype="float32").reshape(5, 5, 1, 1)
    found = run(
        backend,
        x,
        lambda g, v: g.op(
            "InstanceNormalization",
            [
                g.op("Conv", [v, g.constant("w", same)]),
                g.constant("scale", np.ones(5, "float32")),
                g.constant("bias", np.zeros(5, "float32")),
            ],
            epsilon=0.1,
        ),
    )
    wide = x.astype(np.longdouble)
    mean, variance = wide.mean((2, 3), keepdims=True), wide.var((2, 3), keepdims=True)
    factor = 1 / np.sqrt(variance + np.longdouble(np.float32(0.1)))
    exact = (wide - mean) * factor
    # Of the result, and of the mean, which is one of numbers near 1.7.
    bound = UNITS["float32"] * (8 * np.abs(exact) + 4 * np.abs(mean) * factor)
    assert (np.abs(found - exact) <= bound).all(), float((np.abs(found - exact) / bound).max())


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("shape", "axis"), [((20_000,), 0), ((5000, 64), 0), ((4, 3000, 100), 1), ((5000, 3), 0)])
def test_sums_of_arrays_are_within_their_error_bound(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    x = np.full(shape, 1.1).astype(dtype)
    wide = x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble).sum(axis)
    unit = UNITS["float32" if dtype in {"float32", "complex64"} else "float64"]
    check(np.asarray(arrays.sum(arrays.asarray(x), axis=axis)).astype(wide.dtype), wide, unit, "sum")
    check(np.asarray(arrays.mean(arrays.asarray(x), axis=axis)) * wide.dtype.type(shape[axis]), wide, unit, "mean")
