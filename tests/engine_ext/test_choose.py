"""What search makes of convolutions: packed layouts and every algorithm, held to the plain scalar ones."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.session import Session, backends

type Build = Callable[[GraphBuilder, Value, dict[str, Any]], Value]
type Array = numpy.ndarray[Any, numpy.dtype[Any]]

RANDOM = numpy.random.default_rng(20261120)
AVAILABLE = [backend.name for backend in backends() if backend.available and backend.exact]


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype("float32")


def run(graph: GraphBuilder, x: Array, backend: str, threads: int = 1) -> Array:
    return numpy.asarray(Session(graph.to_bytes(), backend=backend, threads=threads).run({"x": x})["y"])


def network(x: Array, build: Build, plain: bool) -> GraphBuilder:
    global RANDOM
    RANDOM = numpy.random.default_rng(1)  # the same weights each time
    graph = GraphBuilder("net")
    graph.output("y", build(graph, graph.input("x", x.shape), {"algorithm": "direct"} if plain else {}))
    return graph


def check(x: Array, build: Build, threads: int = 1) -> None:
    wanted = run(network(x, build, plain=True), x, "scalar")
    scale = numpy.abs(wanted).max() if wanted.size else 1
    for backend in AVAILABLE:
        found = run(network(x, build, plain=False), x, backend, threads)
        assert found.shape == wanted.shape
        numpy.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4 * max(scale, 1), err_msg=backend)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the shapes of x and w and the attributes; arrays would make reports unreadable."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 1, 2, 32]))
    in_channels = draw(st.sampled_from([1, 3, 8, 16, 20, 37] if groups == 1 else [1, 16]))
    out_channels = draw(st.sampled_from([1, 5, 16, 24, 48] if groups == 1 else [1, 16]))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    if draw(st.booleans()):
        kernel = [draw(st.sampled_from([1, 3, 5]))] * rank
    strides = [draw(st.integers(1, 2)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    size = [(k - 1) * d + 1 + draw(st.integers(0, 9)) for k, d in zip(kernel, dilations, strict=True)]
    return {
        "x": (draw(st.integers(1, 2)), groups * in_channels, *size),
        "w": (groups * out_channels, in_channels, *kernel),
        "attributes": {"strides": strides, "dilations": dilations, "pads": pads, "group": groups},
        "bias": draw(st.booleans()),
        "bounded": draw(st.booleans()),
    }


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_packed_convolutions_agree_with_plain_ones(case: dict[str, Any]) -> None:
    def build(graph: GraphBuilder, value: Value, plain: dict[str, Any]) -> Value:
        size = numpy.float32(numpy.sqrt(numpy.prod(case["w"][1:])))
        inputs = [value, graph.constant("w", normal(*case["w"]) / size)]
        if case["bias"]:
            inputs.append(graph.constant("b", normal(case["w"][0])))
        y: Value = graph.op("Conv", inputs, **case["attributes"], **plain)
        if case["bounded"]:
            y = graph.op("Clip", [y, graph.constant("lo", numpy.float32(0)), graph.constant("hi", numpy.float32(1.5))])
        return y

    check(normal(*case["x"]), build)


def conv(
    graph: GraphBuilder, x: Value, shape: tuple[int, ...], name: str, plain: dict[str, Any], **attributes: Any
) -> Value:
    scale = numpy.float32(1 / numpy.sqrt(numpy.prod(shape[1:])))
    weights = graph.constant(name, normal(*shape) * scale)
    y: Value = graph.op("Conv", [x, weights], **{**attributes, **plain})
    return y


def branches(graph: GraphBuilder, x: Value, plain: dict[str, Any], channels: int) -> tuple[Value, Value]:
    left = conv(graph, x, (channels, 16, 1, 1), "left", plain)
    right = conv(graph, x, (channels, 16, 3, 3), "right", plain, pads=[1, 1, 1, 1])
    return left, right


def concat(channels: int) -> Build:
    def build(graph: GraphBuilder, x: Value, plain: dict[str, Any]) -> Value:
        both = graph.op("Concat", list(branches(graph, x, plain, channels)), axis=1)
        return conv(graph, both, (20, 2 * channels, 1, 1), "last", plain)

    return build


def shuffle(graph: GraphBuilder, x: Value, plain: dict[str, Any]) -> Value:
    both = graph.op("Concat", list(branches(graph, x, plain, 29)), axis=1)
    split = graph.op("Reshape", [both, graph.constant("s", numpy.array([2, 2, 29, 9, 7]))])
    turned = graph.op("Transpose", [split], perm=[0, 2, 1, 3, 4])
    whole = graph.op("Reshape", [turned, graph.constant("t", numpy.array([2, 58, 9, 7]))])
    starts, ends, axes = (graph.constant(n, numpy.array([v])) for n, v in [("i", 29), ("j", 58), ("k", 1)])
    half = graph.op("Slice", [whole, starts, ends, axes])
    return conv(graph, half, (16, 29, 3, 3), "last", plain)


def squeeze(graph: GraphBuilder, x: Value, plain: dict[str, Any]) -> Value:
    first = graph.op("Sigmoid", [conv(graph, x, (40, 16, 3, 3), "first", plain)])
    pooled = graph.op("GlobalAveragePool", [first])
    gate = graph.op("HardSigmoid", [conv(graph, pooled, (40, 40, 1, 1), "gate", plain)])
    first = graph.op("HardSwish", [graph.op("LeakyRelu", [first], alpha=0.25)])
    scaled = graph.op("Mul", [first, gate])
    scaled = graph.op("Mul", [scaled, graph.constant("per", normal(40, 1, 1))])
    y: Value = graph.op("Add", [scaled, graph.constant("one", numpy.float32(0.5))])
    return y


def pyramid(graph: GraphBuilder, x: Value, plain: dict[str, Any]) -> Value:
    top = conv(graph, x, (24, 16, 3, 3), "top", plain, strides=[2, 2], pads=[1, 1, 1, 1])
    sizes = graph.constant("sizes", numpy.array([2, 24, 10, 8]))
    up = graph.op(
        "Resize",
        [top, None, None, sizes],
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    padded = graph.op("Pad", [up, graph.constant("pads", numpy.array([0, 0, 1, 0, 0, 0, 0, 2]))])
    pooled = graph.op("MaxPool", [padded], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1], ceil_mode=1)
    mean = graph.op("AveragePool", [pooled], kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)
    y: Value = graph.op("Transpose", [graph.op("Tanh", [mean])], perm=[0, 2, 3, 1])
    return y


NETWORKS: dict[str, Build] = {
    "concat of whole blocks": concat(16),
    "concat of cut blocks": concat(13),
    "shuffle": shuffle,
    "squeeze and excite": squeeze,
    "pyramid": pyramid,
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_follows_a_packed_convolution_stays_right(name: str, threads: int) -> None:
    check(normal(2, 16, 9, 7), NETWORKS[name], threads)


def test_plans_show_what_was_weighed_and_the_backends_that_could_be_taken() -> None:
    graph = GraphBuilder("g")
    graph.output("y", conv(graph, graph.input("x", (1, 32, 28, 28)), (32, 32, 3, 3), "w", {}, pads=[1, 1, 1, 1]))
    plan = walle.Session(graph.to_bytes()).plan()
    assert plan is not None
    step = next(op for op in plan.ops if op.op == "Conv")
    assert {candidate.algorithm for candidate in step.candidates} == {"direct", "winograd"}
    assert step.predicted_us == min(candidate.predicted_us for candidate in step.candidates) > 0
    assert plan.backend in plan.costs
    assert plan.costs[plan.backend] == min(plan.costs.values())
    assert plan.search_ms <= plan.plan_ms
    assert "winograd" in str(plan)


def test_packed_weights_are_shared_by_plans_of_several_shapes() -> None:
    graph = GraphBuilder("g")
    graph.output("y", conv(graph, graph.input("x", (1, 512, None, None)), (512, 512, 1, 1), "w", {}))
    session = Session(graph.to_bytes())
    live = []
    for size in (2, 3, 4):
        session.run({"x": normal(1, 512, size, size)})
        live.append(walle.engine_ext._core.live_storage_bytes())
    weights = 512 * 512 * 4
    assert live[2] - live[0] < weights  # two more plans have their own memory, but no weights of their own
