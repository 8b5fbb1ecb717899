"""Models whose runs take seconds, or never end until they are stopped; for other inputs the same model ends at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from walle.engine_ext.model import GraphBuilder

type Array = np.ndarray[Any, np.dtype[Any]]


class EndlessModel(NamedTuple):
    """A model, inputs with which it runs long, others with which it ends, and the outputs for these."""

    model: bytes
    long: dict[str, Any]
    short: dict[str, Any]
    results: dict[str, Any]


def _ones(*shape: int) -> Array:
    return np.ones(shape, "float32")


def _of_loop(graph: GraphBuilder, result: Array) -> EndlessModel:
    return EndlessModel(graph.to_bytes(), {"go": True, "x": [1.0]}, {"go": False, "x": [1.0]}, {"y": result})


def endless_loop() -> EndlessModel:
    """Return a loop whose body, two operators, repeats while `go` is true."""
    graph = GraphBuilder("endless")
    go, x = graph.input("go", (), "bool"), graph.input("x", (1,))
    body = graph.subgraph("body")
    body.input("round", (), "int64")
    body.input("going", (), "bool")
    state = body.input("state", (1,))
    body.output("again", body.op("Identity", [body.outer(go)]))
    body.output("next", body.op("Neg", [body.op("Exp", [state])]))
    graph.output("y", graph.op("Loop", [None, go, x], body=body))
    return _of_loop(graph, _ones(1))


def empty_loop() -> EndlessModel:
    """Return a loop whose body has no operator."""
    graph = GraphBuilder("empty")
    go, x = graph.input("go", (), "bool"), graph.input("x", (1,))
    body = graph.subgraph("body")
    body.input("round", (), "int64")
    body.output("again", body.input("going", (), "bool"))
    body.output("next", body.input("state", (1,)))
    graph.output("y", graph.op("Loop", [None, go, x], body=body))
    return _of_loop(graph, _ones(1))


def nested_loops() -> EndlessModel:
    """Return an endless loop within the branch of an If within a loop."""
    graph = GraphBuilder("nested")
    go, x = graph.input("go", (), "bool"), graph.input("x", (1,))
    outer = graph.subgraph("body")
    outer.input("round", (), "int64")
    going, state = outer.input("going", (), "bool"), outer.input("state", (1,))
    then, other = outer.subgraph("then"), outer.subgraph("else")
    inner = then.subgraph("inner")
    inner.input("round", (), "int64")
    inner.output("again", inner.input("going", (), "bool"))
    inner.output("next", inner.op("Neg", [inner.input("state", (1,))]))
    then.output("y", then.op("Loop", [None, then.outer(going), then.outer(state)], body=inner))
    other.output("y", other.op("Neg", [other.outer(state)]))
    outer.output("again", outer.op("Not", [going]))
    outer.output("next", outer.op("If", [outer.outer(go)], then_branch=then, else_branch=other))
    once = graph.constant("once", np.array(1, "int64"))
    graph.output("y", graph.op("Loop", [once, graph.constant("true", np.array(True)), x], body=outer))
    return _of_loop(graph, -_ones(1))


def growing_sequence() -> EndlessModel:
    """Return a loop that appends to a sequence while `go` is true; the result is the sequence's length."""
    graph = GraphBuilder("growing")
    go, x = graph.input("go", (), "bool"), graph.input("x", (1,))
    body = graph.subgraph("body")
    body.input("round", (), "int64")
    body.input("going", (), "bool")
    items = body.object_input("items")
    body.output("again", body.op("Identity", [body.outer(go)]))
    body.output("next", body.op("SequenceInsert", [items, body.outer(x)]))
    grown = graph.op("Loop", [None, go, graph.op("SequenceConstruct", [x])], body=body)
    graph.output("y", graph.op("SequenceLength", [grown]))
    return _of_loop(graph, np.array(1, "int64"))


def long_scan() -> EndlessModel:
    """Return a scan that adds up a vector's elements one by one."""
    graph = GraphBuilder("scan")
    x = graph.input("x", (None,))
    body = graph.subgraph("body")
    total, element = body.input("total", ()), body.input("element", ())
    body.output("sum", body.op("Add", [total, element]))
    zero = graph.constant("zero", np.array(0, "float32"))
    graph.output("y", graph.op("Scan", [zero, x], body=body, num_scan_inputs=1))
    return EndlessModel(graph.to_bytes(), {"x": _ones(10_000_000)}, {"x": _ones(3)}, {"y": np.array(3, "float32")})


def product() -> EndlessModel:
    graph = GraphBuilder("product")
    x = graph.input("x", (None, None))
    graph.output("y", graph.op("MatMul", [x, x]))
    return EndlessModel(graph.to_bytes(), {"x": _ones(5000, 5000)}, {"x": _ones(3, 3)}, {"y": 3 * _ones(3, 3)})


def convolution() -> EndlessModel:
    graph = GraphBuilder("convolution")
    x = graph.input("x", (1, 64, None, None))
    graph.output("y", graph.op("Conv", [x, graph.constant("w", _ones(64, 64, 15, 15))], pads=[7] * 4))
    short, result = {"x": _ones(1, 64, 1, 1)}, {"y": 64 * _ones(1, 64, 1, 1)}
    return EndlessModel(graph.to_bytes(), {"x": _ones(1, 64, 400, 400)}, short, result)


def recurrent() -> EndlessModel:
    """Return a GRU of all-zero weights: its states stay zero."""
    size = 512
    constants = [np.zeros((1, 3 * size, 8), "float32"), np.zeros((1, 3 * size, size), "float32")]
    graph = GraphBuilder("GRU")
    x = graph.input("x", (None, 1, 8))
    inputs = [x, *(graph.constant(f"c{i}", one) for i, one in enumerate(constants))]
    _, last = graph.op("GRU", inputs, outputs=2, hidden_size=size)
    graph.output("y", last)
    zeros = np.zeros((1, 1, size), "float32")
    return EndlessModel(graph.to_bytes(), {"x": _ones(60_000, 1, 8)}, {"x": _ones(2, 1, 8)}, {"y": zeros})


def sort() -> EndlessModel:
    graph = GraphBuilder("sort")
    x = graph.input("x", (None,))
    values, _ = graph.op("TopK", [x, graph.op("Shape", [x])], outputs=2)
    graph.output("y", values)
    numbers = np.random.default_rng(3).random(60_000_000, "float32")
    short = np.array([1, 3, 2], "float32")
    return EndlessModel(graph.to_bytes(), {"x": numbers}, {"x": short}, {"y": np.array([3, 2, 1], "float32")})


ENDLESS_MODELS: dict[str, Callable[[], EndlessModel]] = {
    one.__name__: one
    for one in (
        endless_loop, empty_loop, nested_loops, growing_sequence, long_scan, product, convolution, recurrent, sort,
    )
}  # fmt: skip
