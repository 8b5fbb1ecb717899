"""Search over programs: packed layouts and every algorithm, compared with the plain scalar ones."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.session import Session, backends
from walle.errors import EngineError

type Build = Callable[[GraphBuilder, Value, dict[str, Any]], Value]
type Array = numpy.ndarray[Any, numpy.dtype[Any]]

RANDOM = numpy.random.default_rng(20261120)
AVAILABLE = [backend.name for backend in backends() if backend.available and backend.exact]


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype("float32")


PACKED = {"direct", "winograd", "depthwise", "merged groups"}  # search would take others for inputs as small as these


def run(graph: GraphBuilder, x: Array, backend: str, threads: int = 1, *, packed: bool = False) -> Array:
    """Run the network as search chooses, or with every convolution in a packed layout that has such a candidate."""
    session = Session(graph.to_bytes(), backend=backend, threads=threads)
    if not packed:
        return numpy.asarray(session.run({"x": x})["y"])
    plan = session.plan()
    assert plan is not None
    chosen = {
        op.name: next(((c.algorithm, c.parameter) for c in op.candidates if c.algorithm in PACKED), None)
        for op in plan.ops
        if op.op == "Conv"
    }
    algorithms = {name: choice for name, choice in chosen.items() if choice is not None}
    native = _core.Session(graph.to_bytes(), backend, threads=threads, algorithms=algorithms)
    return numpy.asarray(native.run({"x": x})["y"])


def network(x: Array, build: Build, plain: bool) -> GraphBuilder:
    global RANDOM
    RANDOM = numpy.random.default_rng(1)  # the same weights each time
    graph = GraphBuilder("net")
    graph.output("y", build(graph, graph.input("x", x.shape), {"algorithm": "plain direct"} if plain else {}))
    return graph


def check(x: Array, build: Build, threads: int = 1) -> None:
    wanted = run(network(x, build, plain=True), x, "scalar")
    scale = numpy.abs(wanted).max() if wanted.size else 1
    for backend, packed in itertools.product(AVAILABLE, [False, True]):
        found = run(network(x, build, plain=False), x, backend, threads, packed=packed)
        assert found.shape == wanted.shape
        numpy.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4 * max(scale, 1), err_msg=backend)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the shapes of x and w and the attributes; arrays would make reports unreadable."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 1, 2, 32]))
    in_channels = draw(st.sampled_from([1, 3, 8, 16, 20, 37] if groups == 1 else [1, 3, 4, 8, 16]))
    out_channels = draw(st.sampled_from([1, 5, 16, 24, 48] if groups == 1 else [1, 2, 4, 6, 16]))
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
def test_operators_after_a_packed_convolution_agree_with_plain_ones(name: str, threads: int) -> None:
    check(normal(2, 16, 9, 7), NETWORKS[name], threads)


def test_plans_show_the_candidates_and_the_costs_of_backends() -> None:
    graph = GraphBuilder("g")
    graph.output("y", conv(graph, graph.input("x", (1, 32, 28, 28)), (32, 32, 3, 3), "w", {}, pads=[1, 1, 1, 1]))
    plan = walle.Session(graph.to_bytes()).plan()
    assert plan is not None
    step = next(op for op in plan.ops if op.op == "Conv")
    algorithms = {candidate.algorithm for candidate in step.candidates}
    assert algorithms >= {"direct", "winograd", "im2col GEMM", "plain direct"}
    assert step.predicted_us == min(candidate.predicted_us for candidate in step.candidates) > 0
    assert plan.backend in plan.costs
    assert "scalar" not in plan.costs or AVAILABLE == ["scalar"]
    assert plan.costs[plan.backend] <= 1.03 * min(plan.costs.values())
    assert plan.search_ms <= plan.plan_ms
    assert "winograd" in str(plan)


@pytest.fixture
def equal_rates() -> Iterator[None]:
    """Give every backend the same rates, so that costs depend on the counted work alone, and restore them."""
    names = [backend.name for backend in backends() if backend.available]
    before = {name: _core.rates(name) for name in names}
    for name in names:
        _core.set_rates(name, {"panel": 1e5, "pairs": 1e5, "lanes": 5e4, "streamed": 1e4, "moved": 2e4})
    yield
    for name in names:
        _core.set_rates(name, before[name])


@pytest.mark.usefixtures("equal_rates")
def test_computed_weights_cost_more_than_constant_ones() -> None:
    x, w = normal(1, 64, 28, 28), normal(64, 64, 3, 3)

    def costs(constant: bool) -> dict[str, float]:
        graph = GraphBuilder("g")
        weights = graph.constant("w", w) if constant else graph.input("w", w.shape)
        graph.output("y", graph.op("Conv", [graph.input("x", x.shape), weights], pads=[1, 1, 1, 1]))
        plan = walle.Session(graph.to_bytes()).plan()
        assert plan is not None
        return plan.costs

    packed, plain = costs(True), costs(False)
    for backend in set(packed) - {"scalar"}:
        assert plain[backend] > packed[backend]  # no Winograd, and columns on the way


@pytest.mark.parametrize(("panel", "lanes", "cheapest"), [(1e9, 1.0, "im2col GEMM"), (1.0, 1e9, "plain direct")])
@pytest.mark.usefixtures("equal_rates")
def test_convolutions_by_computed_weights_are_searched_by_the_same_rates(
    panel: float, lanes: float, cheapest: str
) -> None:
    _core.set_rates("scalar", _core.rates("scalar") | {"panel": panel, "lanes": lanes, "moved": 1e12})
    x, w = normal(1, 3, 9, 9), normal(4, 3, 3, 3)
    graph = GraphBuilder("g")
    graph.output("y", graph.op("Conv", [graph.input("x", x.shape), graph.input("w", w.shape)]))
    plan = Session(graph.to_bytes(), backend="scalar").plan()
    assert plan is not None
    (step,) = (op for op in plan.ops if op.op == "Conv")
    assert {candidate.algorithm for candidate in step.candidates} == {"im2col GEMM", "plain direct"}
    assert step.algorithm == step.candidates[0].algorithm == cheapest
    assert step.predicted_us == min(candidate.predicted_us for candidate in step.candidates) == plan.costs["scalar"]
    first, second = (
        numpy.asarray(forced(graph, "scalar", candidate.algorithm, 0).run({"x": x, "w": w})["y"])
        for candidate in step.candidates
    )
    numpy.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


def test_an_algorithm_that_does_not_apply_is_refused_by_name() -> None:
    graph = GraphBuilder("g")
    inputs = [graph.input("x", (1, 3, 9, 9)), graph.constant("w", normal(4, 3, 3, 3))]
    graph.output("y", graph.op("Conv", inputs, algorithm="1x1 GEMM"))
    with pytest.raises(EngineError, match="algorithm '1x1 GEMM' of Conv"):
        Session(graph.to_bytes())


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


def test_groups_that_fill_no_blocks_are_merged() -> None:
    graph = GraphBuilder("g")
    w = graph.constant("w", normal(128, 4, 3, 3))
    graph.output("y", graph.op("Conv", [graph.input("x", (1, 128, 14, 14)), w], pads=[1, 1, 1, 1], group=32))
    plan = walle.Session(graph.to_bytes()).plan()
    assert plan is not None
    step = next(op for op in plan.ops if op.op == "Conv")
    names = {candidate.algorithm for candidate in step.candidates}
    assert names == {"lane groups", "merged groups", "im2col GEMM", "plain direct"}


@pytest.mark.parametrize("backend", [name for name in AVAILABLE if name != "scalar"])
@pytest.mark.parametrize(
    ("x", "w", "group"),
    [((1, 64, 14, 14), (96, 64, 1, 1), 1), ((1, 32, 28, 28), (32, 1, 3, 3), 32), ((1, 48, 14, 14), (48, 12, 3, 3), 4)],
    ids=["1x1", "depthwise", "grouped"],
)
def test_each_kind_of_convolution_has_a_choice(
    backend: str, x: tuple[int, ...], w: tuple[int, ...], group: int
) -> None:
    graph = GraphBuilder("g")
    pads = [w[2] // 2] * 4
    graph.output("y", conv(graph, graph.input("x", x), w, "w", {}, pads=pads, group=group))
    plan = Session(graph.to_bytes(), backend=backend).plan()
    assert plan is not None
    (step,) = (op for op in plan.ops if op.op == "Conv")
    assert len({candidate.algorithm for candidate in step.candidates}) >= 2


def joined(graph: GraphBuilder) -> None:
    """Add a network of four convolutions whose layouts depend on each other: one value has three readers."""
    x = graph.input("x", (1, 24, 12, 12))
    first = conv(graph, x, (20, 24, 1, 1), "first", {})
    left = graph.op("Relu", [conv(graph, first, (20, 20, 3, 3), "left", {}, pads=[1, 1, 1, 1])])
    right = conv(graph, first, (20, 1, 3, 3), "right", {}, pads=[1, 1, 1, 1], group=20)
    both = graph.op("Concat", [graph.op("Add", [left, first]), right], axis=1)
    graph.output("y", conv(graph, both, (3, 40, 1, 1), "last", {}))


@pytest.mark.parametrize("backend", AVAILABLE)
def test_the_algorithms_of_a_network_are_the_best_of_all_combinations(backend: str) -> None:
    graph = GraphBuilder("g")
    joined(graph)
    model = graph.to_bytes()
    plan = Session(model, backend=backend).plan()
    assert plan is not None
    named = [[(op.name, (c.algorithm, c.parameter)) for c in op.candidates] for op in plan.ops if op.op == "Conv"]
    assert len(named) == 4
    assert all(len(candidates) > 1 for candidates in named)
    found = []
    for combination in itertools.product(*named):
        native = _core.Session(model, backend, algorithms=dict(combination)).plan()
        assert native is not None
        found.append(native["costs"][backend])
    assert plan.costs[backend] == min(found) < max(found)


def forced(graph: GraphBuilder, backend: str, algorithm: str, parameter: int, threads: int = 1) -> Any:
    """Return a native session in which the one convolution or product has this algorithm."""
    plan = Session(graph.to_bytes(), backend=backend).plan()
    assert plan is not None
    (node,) = (op.name for op in plan.ops if op.candidates)
    return _core.Session(graph.to_bytes(), backend, threads, algorithms={node: (algorithm, parameter)})


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("bad", [numpy.inf, numpy.nan])
@pytest.mark.parametrize("choice", [("merged groups", 0), ("merged groups", 4), ("lane groups", 0)])
def test_a_group_that_is_not_finite_affects_no_other(backend: str, bad: float, choice: tuple[str, int]) -> None:
    x = normal(2, 32, 9, 8)
    x[1, 5, 4, 3] = bad  # an element of the second group
    residual = normal(2, 32, 9, 8)
    graph = GraphBuilder("g")
    inputs = [graph.input("x", x.shape), graph.constant("w", normal(32, 4, 3, 3) / 6), graph.constant("b", normal(32))]
    y = graph.op("Conv", inputs, pads=[1, 1, 1, 1], group=8)
    y = graph.op("PRelu", [y, graph.constant("slope", normal(32, 1, 1))])
    graph.output("y", graph.op("Add", [y, graph.input("r", residual.shape)]))
    feeds = {"x": x, "r": residual}
    wanted = numpy.asarray(Session(graph.to_bytes(), backend="scalar").run(feeds)["y"])
    plan = Session(graph.to_bytes(), backend=backend).plan()
    assert plan is not None
    # Groups of 4 fill the blocks of some backends.
    merged = any(candidate.algorithm == "merged groups" for op in plan.ops for candidate in op.candidates)
    assert merged == (backend in {"avx2", "avx512"})
    session = forced(graph, backend, *(choice if merged else ("direct", 0)))
    found = numpy.asarray(session.run(feeds)["y"])
    assert numpy.isfinite(wanted).sum() == wanted.size - 4 * 9
    assert (numpy.isfinite(found) == numpy.isfinite(wanted)).all()
    whole = numpy.isfinite(wanted)
    numpy.testing.assert_allclose(found[whole], wanted[whole], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("multiplier", [2, 3, 20])
@pytest.mark.parametrize("backend", AVAILABLE)
def test_depth_multipliers_are_convolved_lane_by_lane(backend: str, multiplier: int) -> None:
    x, residual = normal(2, 19, 9, 8), normal(2, 19 * multiplier, 5, 8)
    w, bias = normal(19 * multiplier, 1, 3, 3), normal(19 * multiplier)
    graph = GraphBuilder("g")
    inputs = [
        graph.input("x", x.shape),
        graph.constant("w", w),
        graph.constant("b", bias),
        graph.input("r", residual.shape),
    ]
    graph.output("y", graph.op("Conv", inputs, pads=[1, 1, 1, 1], strides=[2, 1], group=19))
    windows = numpy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype("float64")
    windows = numpy.lib.stride_tricks.sliding_window_view(windows, (3, 3), axis=(2, 3))[:, :, ::2]
    exact = numpy.einsum("nchwij,cmij->ncmhw", windows, w.reshape(19, multiplier, 3, 3)).reshape(residual.shape)
    session = forced(graph, backend, "depthwise", 0)
    found = numpy.asarray(session.run({"x": x, "r": residual})["y"])
    numpy.testing.assert_allclose(found, exact + bias[:, None, None] + residual, rtol=1e-4, atol=1e-4)


# x, w, attributes and candidates, of which AVX sets have all: their blocks are of 8 and of 16 channels.
CANDIDATES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], set[tuple[str, int]]]] = {
    "1x1 of several images": ((4, 40, 2, 2), (24, 40, 1, 1), {}, {("direct", 0), ("direct", 2)}),
    "1x1 with a stride": ((2, 40, 9, 7), (24, 40, 1, 1), {"strides": [2, 2]}, {("direct", 0), ("direct", 1)}),
    "1x1 of deep sums": ((2, 2048, 7, 7), (20, 2048, 1, 1), {}, {("direct", 0), ("direct", 2), ("direct", 3)}),
    "1x1 of few outputs": ((2, 72, 9, 13), (2, 72, 1, 1), {}, {("direct", 0), ("direct", 2), ("1x1 lane sums", 0)}),
    "depthwise": ((2, 40, 9, 13), (40, 1, 5, 5), {"group": 40}, {("depthwise", 0), ("depthwise rows", 0)}),
    "groups of 12": ((2, 60, 9, 13), (60, 12, 3, 3), {"group": 5}, {("lane groups", 0), ("merged groups", 0)}),
    "groups of 20 in bands": (
        (2, 60, 13, 64),
        (60, 20, 3, 3),
        {"group": 3, "strides": [2, 2]},
        {("lane groups", 0), ("merged groups", 0)},
    ),
    "groups of 20": ((2, 60, 9, 13), (60, 20, 1, 1), {"group": 3}, {("lane groups", 0), ("merged groups", 0)}),
}


@pytest.mark.parametrize("case", CANDIDATES)
def test_forced_candidates_agree_with_plain_ones(case: str) -> None:
    shape, weights, attributes, wanted = CANDIDATES[case]
    kernel = weights[2]
    pads = [kernel // 2] * 4

    def build(plain: dict[str, Any]) -> GraphBuilder:
        random = numpy.random.default_rng(3)
        w = random.standard_normal(weights).astype("float32") / numpy.float32(numpy.sqrt(numpy.prod(weights[1:])))
        bias = random.standard_normal(weights[0]).astype("float32")
        graph = GraphBuilder("g")
        inputs = [graph.input("x", shape), graph.constant("w", w), graph.constant("b", bias)]
        graph.output("y", graph.op("Relu", [graph.op("Conv", inputs, pads=pads, **attributes, **plain)]))
        return graph

    x = normal(*shape)
    exact = run(build({"algorithm": "plain direct"}), x, "scalar")
    for backend in AVAILABLE:
        plan = Session(build({}).to_bytes(), backend=backend).plan()
        assert plan is not None
        (candidates,) = (op.candidates for op in plan.ops if op.candidates)
        found = {(candidate.algorithm, candidate.parameter) for candidate in candidates}
        assert wanted <= found or not backend.startswith("avx")
        for algorithm, parameter in found:
            for threads in (1, 3):
                y = numpy.asarray(forced(build({}), backend, algorithm, parameter, threads).run({"x": x})["y"])
                numpy.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4, err_msg=f"{backend} {algorithm}")


def test_an_algorithm_for_a_node_without_any_is_refused() -> None:
    graph = GraphBuilder("g")
    graph.output("y", conv(graph, graph.input("x", (1, 32, 9, 9)), (32, 32, 3, 3), "w", {}))
    plan = walle.Session(graph.to_bytes()).plan()
    assert plan is not None
    (node,) = (op.name for op in plan.ops if op.candidates)
    with pytest.raises(EngineError, match=f"direct for node 'absent'.*nodes that have: '{node}'"):
        _core.Session(graph.to_bytes(), "auto", algorithms={"absent": ("direct", 0)})
    with pytest.raises(EngineError, match=r"sideways\(0\) is .* candidate"):
        _core.Session(graph.to_bytes(), "auto", algorithms={node: ("sideways", 0)})


@st.composite
def transposed(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the shapes of x and w and the attributes of a transposed convolution."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    strides = [draw(st.integers(1, 4)) for _ in range(rank)]
    kernel = [draw(st.integers(1, 5)) for _ in range(rank)]
    dilations = [draw(st.sampled_from([1, 1, 2, 3])) for _ in range(rank)]
    more = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    size = [draw(st.integers(1, 5)) for _ in range(rank)]
    pads = [draw(st.integers(0, min(2, (k - 1) * d))) for k, d in zip(kernel * 2, dilations * 2, strict=True)]
    for i in range(rank):  # something is left
        if (size[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + more[i] - pads[i] - pads[i + rank] < 1:
            pads[i] = pads[i + rank] = 0
    return {
        "x": (draw(st.integers(1, 2)), groups * draw(st.integers(1, 9)), *size),
        "out": draw(st.integers(1, 9)),
        "kernel": kernel,
        "attributes": {
            "strides": strides,
            "dilations": dilations,
            "pads": pads,
            "output_padding": more,
            "group": groups,
        },
    }


def spread(x: Array, w: Array, attributes: dict[str, Any]) -> Array:
    """Return the transposed convolution by its definition, in float64."""
    rank, groups = x.ndim - 2, attributes["group"]
    strides, dilations, pads = attributes["strides"], attributes["dilations"], attributes["pads"]
    out, kernel = w.shape[1], w.shape[2:]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + m
        for n, s, k, d, m in zip(x.shape[2:], strides, kernel, dilations, attributes["output_padding"], strict=True)
    ]
    y = numpy.zeros((x.shape[0], groups * out, *full))
    each = x.shape[1] // groups
    for group in range(groups):
        xs, ws = (
            a.astype("float64")[part]  # type: ignore[call-overload]
            for a, part in [
                (x, (slice(None), slice(group * each, (group + 1) * each))),
                (w, slice(group * each, (group + 1) * each)),
            ]
        )
        for place in numpy.ndindex(*kernel):
            to = tuple(
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(place, dilations, x.shape[2:], strides, strict=True)
            )
            y[(slice(None), slice(group * out, (group + 1) * out), *to)] += numpy.einsum(
                "nc...,cm->nm...", xs, ws[(slice(None), slice(None), *place)]
            )
    return y[(slice(None), slice(None), *(slice(pads[i], full[i] - pads[i + rank]) for i in range(rank)))]


@settings(max_examples=60, deadline=None)
@given(transposed(), st.booleans())
def test_transposed_convolutions_agree_with_their_definition(case: dict[str, Any], constant: bool) -> None:
    x, w = normal(*case["x"]), normal(case["x"][1], case["out"], *case["kernel"])
    bias = normal(case["out"] * case["attributes"]["group"])
    graph = GraphBuilder("g")
    weights = graph.constant("w", w) if constant else graph.input("w", w.shape)
    inputs = [graph.input("x", x.shape), weights, graph.constant("b", bias)]
    graph.output("y", graph.op("ConvTranspose", inputs, **case["attributes"]))
    wanted = spread(x, w, case["attributes"]) + bias.reshape(-1, *[1] * (x.ndim - 2))
    feeds = {"x": x} if constant else {"x": x, "w": w}
    for backend in AVAILABLE:
        found = numpy.asarray(Session(graph.to_bytes(), backend=backend).run(feeds)["y"])
        numpy.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * abs(wanted).max(), err_msg=backend)


@pytest.mark.parametrize("dilations", [[1, 1], [2, 2], [3, 2]])
def test_transposed_convolutions_run_on_the_packed_kernels(dilations: list[int]) -> None:
    graph = GraphBuilder("g")
    inputs = [graph.input("x", (1, 32, 14, 14)), graph.constant("w", normal(32, 16, 4, 4))]
    graph.output("y", graph.op("ConvTranspose", inputs, strides=[2, 2], pads=[1, 1, 1, 1], dilations=dilations))
    plan = walle.Session(graph.to_bytes()).plan()
    assert plan is not None
    assert [op.op for op in plan.ops if op.op != "Raster"] == ["Conv"]


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_products_by_constant_weights_show_their_candidates(rows: int) -> None:
    x, w, bias = normal(rows, 128), normal(128, 256), normal(256)
    graph = GraphBuilder("g")
    product = graph.op("MatMul", [graph.input("x", x.shape), graph.constant("w", w)])
    graph.output("y", graph.op("Relu", [graph.op("Add", [product, graph.constant("b", bias)])]))
    exact = numpy.maximum(x.astype("float64") @ w + bias, 0)
    for backend in AVAILABLE:
        session = Session(graph.to_bytes(), backend=backend)
        plan = session.plan()
        assert plan is not None
        (step,) = (op for op in plan.ops if op.op == "Linear")
        names = {candidate.algorithm for candidate in step.candidates}
        assert names == ({"packed", "strassen"} if rows == 64 else {"gemv"})
        assert step.algorithm == step.candidates[0].algorithm
        found = numpy.asarray(session.run({"x": x})["y"])
        numpy.testing.assert_allclose(found, exact, atol=2e-3, err_msg=backend)


def test_a_value_of_one_element_is_not_read_as_a_block() -> None:
    x, one = normal(1, 16, 4, 4), normal(1, 1, 1, 1)

    def model(plain: dict[str, Any]) -> GraphBuilder:
        graph = GraphBuilder("g")
        first = conv(graph, graph.input("x", x.shape), (16, 16, 1, 1), "first", plain)
        wide = graph.op("Expand", [graph.input("s", one.shape), graph.constant("shape", numpy.array([1, 17, 1, 1]))])
        both = graph.op("Concat", [graph.op("GlobalAveragePool", [first]), wide], axis=1)
        graph.output("y", conv(graph, both, (32, 33, 1, 1), "last", plain))
        return graph

    global RANDOM
    results = []
    for backend, plain in [("scalar", {"algorithm": "plain direct"}), *((name, {}) for name in AVAILABLE)]:
        RANDOM = numpy.random.default_rng(1)
        session = Session(model(plain).to_bytes(), backend=backend)
        results.append(numpy.asarray(session.run({"x": x, "s": one})["y"]))
    for found in results[1:]:
        numpy.testing.assert_allclose(found, results[0], rtol=1e-4, atol=1e-4)


def test_strassen_is_taken_by_name_alone() -> None:
    """Its error is bounded by the greatest row: one large token makes the others inexact."""
    x = normal(512, 512)
    x[:256] *= 1e6
    w = normal(512, 512)
    graph = GraphBuilder("g")
    graph.output("y", graph.op("MatMul", [graph.input("x", x.shape), graph.constant("w", w)]))
    found = numpy.asarray(Session(graph.to_bytes()).run({"x": x})["y"])
    wanted = x.astype("float64") @ w.astype("float64")
    assert numpy.abs(found - wanted)[256:].max() < 1e-4 * numpy.abs(wanted)[256:].max()


def test_a_session_of_several_threads_runs_in_a_forked_process() -> None:
    code = """
import os, sys, numpy
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session
graph = GraphBuilder("g")
graph.output("y", graph.op("MatMul", [graph.input("x", (512, 512)), graph.constant("w", numpy.ones((512, 512), "f"))]))
session = Session(graph.to_bytes(), threads=2)
session.run({"x": numpy.ones((512, 512), "f")})
child = os.fork()
if child == 0:
    right = numpy.asarray(session.run({"x": numpy.ones((512, 512), "f")})["y"])[0, 0] == 512
    os._exit(0 if right else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
