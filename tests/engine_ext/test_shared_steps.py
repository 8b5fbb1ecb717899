"""Operators on a team of threads: results equal those of one thread."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.session import Session, backends

BACKENDS = [one.name for one in backends() if one.available and one.exact]

type Array = np.ndarray[Any, np.dtype[Any]]
type Build = Callable[[GraphBuilder, Value, Value], Value]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def op(name: str, *, constants: tuple[Array, ...] = (), **attributes: Any) -> Build:
    """Return the operator of x and the constants, or of x and y without constants."""

    def build(graph: GraphBuilder, x: Value, y: Value) -> Value:
        more = [graph.constant(f"c{i}", constant) for i, constant in enumerate(constants)]
        result: Value = graph.op(name, [x, *(more or [y])], **attributes)
        return result

    return build


def reduced(name: str, axes: list[int]) -> Build:
    return op(name, constants=(np.array(axes),), keepdims=0)


def shuffled(graph: GraphBuilder, x: Value, _: Value) -> Value:
    """Add a channel shuffle between two packed convolutions."""
    weights = graph.constant("w", normal(3, 60, 60, 1, 1) / 8)
    first = graph.op("Conv", [x, weights])
    split = graph.op("Reshape", [first, graph.constant("s", np.array([1, 2, 30, 80, 90]))])
    whole = graph.op("Transpose", [split], perm=[0, 2, 1, 3, 4])
    result: Value = graph.op(
        "Conv", [graph.op("Reshape", [whole, graph.constant("t", np.array([1, 60, 80, 90]))]), weights]
    )
    return result


def selected(graph: GraphBuilder, x: Value, y: Value) -> Value:
    result: Value = graph.op("Where", [graph.op("Less", [x, y]), x, y])
    return result


IMAGE = (1, 60, 80, 90)
# Shapes of x and y, and the graph of them.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Build]] = {
    "1x1 of computed weights": (IMAGE, (30, 60, 1, 1), op("Conv")),
    "columns of computed weights": (IMAGE, (30, 60, 3, 3), op("Conv", pads=[1, 1, 1, 1])),
    "depthwise of computed weights": (IMAGE, (60, 1, 3, 3), op("Conv", group=60)),
    "direct of computed weights": (IMAGE, (4, 30, 2, 2), op("Conv", group=2, algorithm="plain direct")),
    "groups of computed weights": ((2, 60, 80, 90), (32, 30, 3, 3), op("Conv", group=2)),
    "maxima of windows": (
        IMAGE,
        (1,),
        lambda graph, x, _: graph.op("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    ),
    "means of planes": (IMAGE, IMAGE, reduced("ReduceMean", [2, 3])),
    "one product": ((300, 500), (500, 200), op("MatMul")),
    "prelu": (IMAGE, (60, 1, 1), op("PRelu")),
    "shuffle": (IMAGE, (1,), shuffled),
    "sums of columns": ((900, 700), (1,), reduced("ReduceSum", [0])),
    "sums of short rows": ((8, 9000, 12), (1,), reduced("ReduceSum", [1])),
    "sums of short rows alone": ((90000, 12), (1,), reduced("ReduceSum", [0])),
    "transpose": (IMAGE, (1,), lambda graph, x, _: graph.op("Transpose", [x], perm=[0, 2, 3, 1])),
    "where": (IMAGE, IMAGE, selected),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_a_team_gives_what_one_thread_gives(name: str, backend: str) -> None:
    x_shape, y_shape, build = CASES[name]
    graph = GraphBuilder("g")
    graph.output("z", build(graph, graph.input("x", x_shape), graph.input("y", y_shape)))
    feeds = {"x": normal(1, *x_shape), "y": normal(2, *y_shape)}
    alone, together = (
        np.asarray(Session(graph.to_bytes(), backend=backend, threads=threads).run(feeds)["z"]) for threads in (1, 3)
    )
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-5 * float(np.abs(alone).max()))
