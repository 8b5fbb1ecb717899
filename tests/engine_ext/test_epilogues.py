"""Epilogues of convolutions and matrix products on every backend, compared with scalar."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.session import Session, backends
from walle.errors import EngineError

AVAILABLE = [one.name for one in backends() if one.available and one.exact]
VECTORS = [name for name in AVAILABLE if name != "scalar"]

type Array = np.ndarray[Any, np.dtype[Any]]

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Elu": {"alpha": 0.75},
    "Gelu": {"approximate": "tanh"},
    "HardSigmoid": {"alpha": 0.25, "beta": 0.4},
    "LeakyRelu": {"alpha": 0.1},
}
PLAIN = ["Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Sigmoid", "Softplus", "Swish", "Tanh"]
# As graphs write HardSwish, Swish, Mish and HardSigmoid.
WRITTEN = [
    "x * HardSigmoid",
    "x * Sigmoid",
    "x * Tanh(Softplus)",
    "x * steps / 6",
    "x * (steps / 6)",
    "steps * (1 / 6)",
]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def activated(graph: GraphBuilder, x: Value, name: str) -> Value:
    """Append an activation in one of the forms in which graphs write it."""
    y: Value
    if name == "x * HardSigmoid":
        gate = graph.op("HardSigmoid", [x], alpha=float(np.float32(1 / 6)), beta=0.5)
        y = graph.op("Mul", [gate, x])
    elif name == "x * Sigmoid":
        y = graph.op("Mul", [x, graph.op("Sigmoid", [x])])
    elif name == "x * Tanh(Softplus)":
        y = graph.op("Mul", [x, graph.op("Tanh", [graph.op("Softplus", [x])])])
    elif "steps" in name:  # min(max(x + 3, 0), 6)
        numbers = {n: graph.constant(f"number{n}", np.float32(n)) for n in (0, 3, 6, 1 / 6)}
        steps = graph.op("Clip", [graph.op("Add", [x, numbers[3]]), numbers[0], numbers[6]])
        if name == "steps * (1 / 6)":
            y = graph.op("Mul", [numbers[1 / 6], steps])
        elif name == "x * (steps / 6)":
            y = graph.op("Mul", [x, graph.op("Div", [steps, numbers[6]])])
        else:
            y = graph.op("Div", [graph.op("Mul", [steps, x]), numbers[6]])
    else:
        y = graph.op(name, [x], **ATTRIBUTES.get(name, {}))
    return y


def check(graph: GraphBuilder, feeds: dict[str, Array], ran: list[str], threads: int = 1) -> None:
    """Compare every algorithm of every backend with scalar, and the operators besides rasters with `ran`."""
    model = graph.to_bytes()
    wanted = np.asarray(Session(model, backend="scalar").run(feeds)["y"])
    for backend in VECTORS:
        plan = Session(model, backend=backend).plan()
        assert plan is not None
        assert [op.op for op in plan.ops if op.op != "Raster"] == ran, backend
        choices = [{op.name: (c.algorithm, c.parameter)} for op in plan.ops for c in op.candidates] or [{}]
        for choice in choices:
            session = _core.Session(model, backend, threads=threads, algorithms=choice)
            found = np.asarray(session.run(feeds)["y"])
            bound = 1e-4 * max(1.0, float(np.abs(wanted).max()))
            assert np.abs(found - wanted).max() <= bound, (backend, choice, float(np.abs(found - wanted).max()))


# Shapes of x and w, attributes: each takes another algorithm.
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((2, 20, 5, 7), (37, 20, 1, 1), {}),
    "a channel to three": ((2, 10, 9, 9), (30, 1, 3, 3), {"group": 10}),
    "depthwise": ((1, 24, 13, 11), (24, 1, 3, 3), {"group": 24, "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    "direct": ((1, 3, 17, 9), (21, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 0, 0]}),
    "groups": ((1, 64, 6, 6), (64, 32, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "merged groups": ((1, 32, 9, 9), (32, 4, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
    "one axis": ((2, 24, 40), (40, 24, 5), {"pads": [2, 2]}),
    "three axes": ((1, 8, 4, 5, 6), (16, 8, 2, 2, 2), {}),
    "winograd": ((2, 32, 15, 14), (40, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
    "winograd down": ((1, 32, 15, 14), (33, 32, 5, 1), {"pads": [2, 0, 2, 0]}),
}


def convolution(graph: GraphBuilder, case: str) -> Value:
    x_shape, w_shape, attributes = CONVOLUTIONS[case]
    w = normal(2, *w_shape) / np.float32(np.sqrt(np.prod(w_shape[1:])))
    inputs = [graph.input("x", x_shape), graph.constant("w", w), graph.constant("b", normal(3, w_shape[0]))]
    y: Value = graph.op("Conv", inputs, **attributes)
    return y


def shape_of(case: str) -> tuple[int, ...]:
    graph = GraphBuilder("g")
    graph.output("y", convolution(graph, case))
    return tuple(Session(graph.to_bytes()).run({"x": normal(1, *CONVOLUTIONS[case][0])})["y"].shape)


@settings(max_examples=80, deadline=None)
@given(
    case=st.sampled_from(sorted(CONVOLUTIONS)),
    name=st.sampled_from([*PLAIN, *WRITTEN, "PRelu"]),
    bounded=st.booleans(),
    residual=st.sampled_from(["none", "first", "last"]),
    threads=st.sampled_from([1, 3]),
)
def test_activations_are_part_of_convolutions(case: str, name: str, bounded: bool, residual: str, threads: int) -> None:
    graph, shape = GraphBuilder("g"), shape_of(case)
    feeds = {"x": normal(1, *CONVOLUTIONS[case][0])}
    y = convolution(graph, case)
    if residual != "none":
        feeds["r"] = normal(5, *shape)
        more = graph.input("r", shape)
    if residual == "first":
        y = graph.op("Add", [more, y])
    if bounded:
        y = graph.op("Clip", [y, graph.constant("lo", np.float32(-1)), graph.constant("hi", np.float32(1.5))])
    if name == "PRelu":
        y = graph.op("PRelu", [y, graph.constant("slope", normal(4, shape[1], *[1] * (len(shape) - 2)))])
    else:
        y = activated(graph, y, name)
    if residual == "last":
        y = graph.op("Add", [y, more])
    graph.output("y", y)
    check(graph, feeds, ["Conv"], threads)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from([*PLAIN, *WRITTEN, "PRelu"]),
    rows=st.sampled_from([1, 3, 70]),
    columns=st.sampled_from([5, 32, 45]),
    last=st.booleans(),
    threads=st.sampled_from([1, 3]),
)
def test_activations_are_part_of_matrix_products(name: str, rows: int, columns: int, last: bool, threads: int) -> None:
    graph = GraphBuilder("g")
    feeds = {"x": normal(1, 2, rows, 600), "r": normal(5, 2, rows, columns)}
    product = graph.op(
        "MatMul",
        [graph.input("x", feeds["x"].shape), graph.constant("w", normal(2, 600, columns) / np.float32(25))],
    )
    y = graph.op("Add", [product, graph.constant("b", normal(3, columns))])
    if name == "PRelu":
        y = graph.op("PRelu", [y, graph.constant("slope", normal(4, columns))])
    else:
        y = activated(graph, y, name)
    if last:
        y = graph.op("Add", [graph.input("r", feeds["r"].shape), y])
    else:
        del feeds["r"]
    graph.output("y", y)
    check(graph, feeds, ["Linear"], threads)


@pytest.mark.parametrize("name", [*PLAIN, *WRITTEN, "Relu"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_activations_are_part_of_transposed_convolutions(name: str, strides: list[int]) -> None:
    graph = GraphBuilder("g")
    inputs = [
        graph.input("x", (1, 16, 7, 5)),
        graph.constant("w", normal(2, 16, 9, 4, 4) / 16),
        graph.constant("b", normal(3, 9)),
    ]
    y = graph.op("ConvTranspose", inputs, strides=strides, pads=[1, 1, 1, 1])
    graph.output("y", activated(graph, y, name))
    check(graph, {"x": normal(1, 1, 16, 7, 5)}, ["Conv"])


def test_a_slope_that_is_one_number_is_part_of_a_convolution() -> None:
    graph = GraphBuilder("g")
    slope = graph.constant("slope", np.array([0.2], np.float32))
    graph.output("y", graph.op("PRelu", [convolution(graph, "1x1"), slope]))
    check(graph, {"x": normal(1, *CONVOLUTIONS["1x1"][0])}, ["Conv"])


def test_sums_with_other_readers_are_not_fused() -> None:
    graph = GraphBuilder("g")
    sums = convolution(graph, "1x1")
    both = graph.op("Sub", [graph.op("Tanh", [sums]), sums])
    graph.output("y", both)
    check(graph, {"x": normal(1, *CONVOLUTIONS["1x1"][0])}, ["Conv", "Tanh", "Sub"])


def test_gates_with_other_numbers_are_unchanged() -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", (3, 50))
    graph.output("y", graph.op("Mul", [x, graph.op("HardSigmoid", [x], alpha=0.2, beta=0.5)]))
    check(graph, {"x": normal(1, 3, 50)}, ["HardSigmoid", "Mul"])


@pytest.mark.parametrize("attributes", [{"activation": "PRelu"}, {"activation": "Swish", "activation_map": 99}])
def test_a_model_may_name_only_elementwise_operators(attributes: dict[str, Any]) -> None:
    graph = GraphBuilder("g")
    inputs = [graph.input("x", (1, 4, 5, 5)), graph.constant("w", normal(1, 4, 4, 1, 1))]
    graph.output("y", graph.op("Conv", inputs, **attributes))
    with pytest.raises(EngineError, match="activation"):
        Session(graph.to_bytes())


@pytest.mark.parametrize("backend", AVAILABLE)
def test_epilogues_of_convolutions_by_computed_weights(backend: str) -> None:
    x, w = normal(1, 2, 6, 9, 8), normal(2, 10, 3, 3, 3)
    slope, residual = normal(3, 10, 1, 1), normal(4, 2, 10, 7, 6)
    graph = GraphBuilder("g")
    sums = graph.op("Conv", [graph.input("x", x.shape), graph.input("w", w.shape)], group=2)
    ended = graph.op("PRelu", [sums, graph.constant("slope", slope)])
    graph.output("y", graph.op("Add", [ended, graph.input("r", residual.shape)]))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), (3, 3), axis=(2, 3)).reshape(
        2, 2, 3, 7, 6, 3, 3
    )
    exact = np.einsum("ngchwij,gmcij->ngmhw", windows, w.reshape(2, 5, 3, 3, 3)).reshape(2, 10, 7, 6)
    exact = np.where(exact < 0, exact * slope, exact) + residual
    for threads in (1, 2):
        session = Session(graph.to_bytes(), backend=backend, threads=threads)
        found = np.asarray(session.run({"x": x, "w": w, "r": residual})["y"])
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
