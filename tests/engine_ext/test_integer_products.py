"""Quantised convolutions, products, sums and means on every backend against integer arithmetic in NumPy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle
from tests.sim.onnx_models import make_node
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError
from walle.engine_ext.onnx_import.graph import Graph, TypeInfo
from walle.engine_ext.onnx_import.write import write
from walle.engine_ext.operators import operators

KNOWN = {one.name for one in operators()}
BACKENDS = [one.name for one in walle.backends() if one.available]
BYTES = st.sampled_from(["uint8", "int8"])


def run(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    variable: Sequence[int] = (0,),
    backend: str = "auto",
) -> tuple[Any, set[str]]:
    """Return the result and the plan's operators; all inputs except `variable` are constants."""
    names = [f"i{at}" for at in range(len(inputs))]
    feeds = {names[at]: inputs[at] for at in variable}
    constants = {name: value for name, value in zip(names, inputs, strict=True) if name not in feeds}
    types = {name: TypeInfo(str(value.dtype), value.shape) for name, value in feeds.items()}
    graph = Graph(
        name="g",
        nodes=(make_node(op, tuple(names), ("y",), attributes or {}, "n"),),
        inputs=types,
        outputs=("y",),
        constants=constants,
    )
    session = walle.Session(write(graph, KNOWN), backend=backend)
    return np.asarray(session.run(feeds)["y"]), set(steps(session))


def steps(session: Any) -> list[str]:
    plan = session.plan()
    assert plan is not None
    return [one.op for one in plan.ops]


def conv(x: Any, w: Any, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], group: int) -> Any:
    """Return the sums of x [n, c, h, w] times w [m, c / group, kh, kw] in int64."""
    top, left, bottom, right = pads
    x = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))[
        :, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]
    ]
    parts = [
        np.einsum("nchwij,mcij->nmhw", one, part.astype(np.int64))
        for one, part in zip(np.split(windows, group, axis=1), np.split(w, group), strict=True)
    ]
    return np.concatenate(parts, axis=1)


def requantised(sums: Any, scale: Any, zero: Any, *, relu: bool = False) -> Any:
    """Return the sums requantised as documented: multiplied in float32, ties to even, saturated."""
    info = np.iinfo(zero.dtype)
    value = np.rint(sums.astype(np.float32) * scale).astype(np.float64) + float(zero)
    return np.clip(value, max(info.min, int(zero)) if relu else info.min, info.max).astype(zero.dtype)


def some_bytes(rng: Any, dtype: str, shape: Sequence[int] = ()) -> Any:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@st.composite
def convolutions(draw: Any) -> dict[str, Any]:
    group = draw(st.sampled_from([1, 1, 2, 5]))
    depthwise = draw(st.booleans()) and group > 1
    channels = group * (1 if depthwise else draw(st.integers(1, 9)))
    kernel = [draw(st.integers(1, 3)), draw(st.integers(1, 3))]
    return {
        "group": group,
        "x": (draw(st.integers(1, 2)), channels, draw(st.integers(5, 9)), draw(st.integers(5, 12))),
        "w": (group * (1 if depthwise else draw(st.integers(1, 20))), channels // group, *kernel),
        "strides": [draw(st.integers(1, 2)), draw(st.integers(1, 3))],
        "dilations": [draw(st.integers(1, 2)), draw(st.integers(1, 2))],
        "pads": [draw(st.integers(0, 2)) for _ in range(4)],
        "types": (draw(BYTES), draw(BYTES), draw(BYTES)),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "relu": draw(st.booleans()),
        "backend": draw(st.sampled_from(BACKENDS)),
        "per_channel": draw(st.booleans()),
    }


@settings(max_examples=80, deadline=None)
@given(convolutions())
def test_convolutions_are_exact(case: Mapping[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    window: dict[str, Any] = {key: case[key] for key in ("strides", "pads", "dilations", "group")}
    kinds = case["types"]
    x, x_zero, y_zero = some_bytes(rng, kinds[0], case["x"]), some_bytes(rng, kinds[0]), some_bytes(rng, kinds[2])
    columns = case["w"][0]
    w_zero = np.full((columns,) if case["per_channel"] else (), 0 if kinds[1] == "int8" else 128).astype(kinds[1])
    w = some_bytes(rng, kinds[1], case["w"])
    bias = rng.integers(-3000, 3000, columns).astype(np.int32)
    w_scale = rng.uniform(0.001, 0.01, (columns,) if case["per_channel"] else ()).astype(np.float32)
    x_scale, y_scale = np.float32(0.3), np.float32(0.7)
    sums = conv(x.astype(int) - int(x_zero), w.astype(int) - w_zero.reshape(-1, 1, 1, 1).astype(int), **window)
    found, ops = run("ConvInteger", [x, w, x_zero, w_zero], window, backend=case["backend"])
    assert "IntegerConv" in ops
    np.testing.assert_array_equal(found, sums)

    scale = (x_scale * w_scale / y_scale).astype(np.float32)
    inputs = [x, np.array(x_scale), x_zero, w, w_scale, w_zero, np.array(y_scale), y_zero, bias]
    attributes = {**window, "activation": "Relu"} if case["relu"] else window
    found, ops = run("QLinearConv", inputs, attributes, backend=case["backend"])
    assert "IntegerConv" in ops
    wide = scale.reshape(-1, 1, 1) if case["per_channel"] else scale
    expected = requantised(sums + bias.reshape(-1, 1, 1), wide, y_zero, relu=case["relu"])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_depthwise_convolutions_and_means_of_any_channels(backend: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    one, zero = np.ones(1, np.float32), some_bytes(rng, dtype)
    for channels in range(1, 34):
        x, w = some_bytes(rng, dtype, (2, channels, 5, 6)), some_bytes(rng, "int8", (channels, 1, 3, 3))
        centred = x.astype(int) - int(zero)
        found, _ = run("ConvInteger", [x, w, zero], {"group": channels, "pads": [1] * 4}, backend=backend)
        sums = conv(centred, w, [1, 1], [1] * 4, [1, 1], channels)
        np.testing.assert_array_equal(found, sums, str(channels))
        found, _ = run("QLinearGlobalAveragePool", [x, one, zero, one, zero], backend=backend)
        expected = requantised(centred.sum(axis=(2, 3), keepdims=True), np.float32(1) / np.float32(30), zero)
        np.testing.assert_array_equal(found, expected, str(channels))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 6), max_size=2), st.integers(1, 70), st.integers(1, 40), BYTES, BYTES, BYTES,
    st.sampled_from(BACKENDS), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_products_are_exact(
    outer: list[int], depth: int, columns: int, a_type: str, b_type: str, y_type: str, backend: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, a_zero, y_zero = some_bytes(rng, a_type, (*outer, depth)), some_bytes(rng, a_type), some_bytes(rng, y_type)
    b, b_zero = some_bytes(rng, b_type, (depth, columns)), np.array(0 if b_type == "int8" else 128, dtype=b_type)
    sums = (a.astype(int) - int(a_zero)) @ (b.astype(int) - int(b_zero))
    found, ops = run("MatMulInteger", [a, b, a_zero, b_zero], variable=(0, 2), backend=backend)
    assert "IntegerLinear" in ops
    np.testing.assert_array_equal(found, sums)
    a_scale, b_scale, y_scale = np.array([0.02, 0.5, 0.9], dtype=np.float32)
    scales = [np.array(one) for one in (a_scale, b_scale, y_scale)]
    inputs = [a, scales[0], a_zero, b, scales[1], b_zero, scales[2], y_zero]
    found, _ = run("QLinearMatMul", inputs, backend=backend)
    np.testing.assert_array_equal(found, requantised(sums, a_scale * b_scale / y_scale, y_zero))


@pytest.mark.parametrize("w_zero", [3, 100])
def test_weights_that_do_not_fit_int8_are_multiplied_wider(w_zero: int) -> None:
    rng = np.random.default_rng(0)
    x, w = some_bytes(rng, "uint8", (1, 3, 6, 6)), some_bytes(rng, "uint8", (4, 3, 3, 3))
    zero = some_bytes(rng, "uint8")
    found, ops = run("ConvInteger", [x, w, zero, np.array(w_zero, dtype=np.uint8)])
    assert "IntegerConv" not in ops
    sums = conv(x.astype(int) - int(zero), w.astype(int) - w_zero, [1, 1], [0] * 4, [1, 1], 1)
    np.testing.assert_array_equal(found, sums)


def test_computed_weights_give_what_constant_ones_give() -> None:
    rng = np.random.default_rng(1)
    x, w = some_bytes(rng, "int8", (1, 6, 7, 8)), some_bytes(rng, "int8", (5, 6, 3, 3))
    scales = [np.array(one, dtype=np.float32) for one in (0.1, 0.2, 2)]
    zeros = [some_bytes(rng, "int8"), np.array(0, dtype=np.int8), some_bytes(rng, "int8")]
    inputs = [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2]]
    constant, ops = run("QLinearConv", inputs)
    computed, others = run("QLinearConv", inputs, variable=(0, 3))
    assert "IntegerConv" in ops
    assert "IntegerConv" not in others
    np.testing.assert_array_equal(constant, computed)


@settings(max_examples=40, deadline=None)
@given(BYTES, BYTES, BYTES, st.sampled_from(BACKENDS), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_sums_are_those_of_the_numbers(
    a_type: str, b_type: str, y_type: str, backend: str, relu: bool, broadcast: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = some_bytes(rng, a_type, (2, 3, 5, 7)), some_bytes(rng, b_type, (3, 1, 1) if broadcast else (2, 3, 5, 7))
    zeros = [some_bytes(rng, one) for one in (a_type, b_type, y_type)]
    scales = rng.uniform(0.01, 1, 3).astype(np.float32)
    inputs = [a, scales[0:1], zeros[0], b, scales[1:2], zeros[1], scales[2:3], zeros[2]]
    found, ops = run("QLinearAdd", inputs, {"activation": "Relu"} if relu else {}, backend=backend)
    assert "IntegerSum" in ops
    total = (a - float(zeros[0])) * float(scales[0]) + (b - float(zeros[1])) * float(scales[1])
    info, exact = np.iinfo(y_type), total / scales[2] + float(zeros[2])
    expected = np.clip(exact, max(info.min, int(zeros[2])) if relu else info.min, info.max)
    assert np.abs(found.astype(float) - expected).max() <= 0.5 + 1e-3  # the nearest step, up to float32's rounding


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [1, 5, 40])
def test_means_over_pixels_are_exact(backend: str, channels: int) -> None:
    rng = np.random.default_rng(channels)
    x, zero = some_bytes(rng, "uint8", (2, channels, 7, 5)), np.array(100, dtype=np.uint8)
    scales = np.array([0.25, 0.125], dtype=np.float32)
    found, _ = run("QLinearGlobalAveragePool", [x, scales[:1], zero, scales[1:], zero], backend=backend)
    sums = (x.astype(int) - 100).sum(axis=(2, 3), keepdims=True)
    np.testing.assert_array_equal(found, requantised(sums, np.float32(2) / np.float32(35), zero))


@pytest.mark.parametrize("shape", [(1, 2, 2, 2, 3, 2), (2, 0, 4, 4), (1, 1, 2901, 2903)])
def test_means_that_no_integer_convolution_gives_are_those_of_floats(shape: Sequence[int]) -> None:
    x, zero = np.full(shape, 255, np.uint8), np.array(10, dtype=np.uint8)
    x[..., 0] = 0
    scales, axes = np.array([0.25, 0.5], dtype=np.float32), tuple(range(2, len(shape)))
    found, ops = run("QLinearGlobalAveragePool", [x, scales[:1], zero, scales[1:], zero])
    assert "IntegerConv" not in ops
    expected = requantised((x.astype(int) - 10).mean(axis=axes, keepdims=True), np.float32(0.5), zero)
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=40, deadline=None)
@given(
    BYTES,
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 1),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_greatest_of_bytes_is_that_of_wider_numbers(
    dtype: str, channels: int, kernel: int, stride: int, pad: int, ceil: bool, seed: int
) -> None:
    x = some_bytes(np.random.default_rng(seed), dtype, (2, channels, 7, 9))
    window: dict[str, Any] = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "ceil_mode": int(ceil)}
    window["pads"] = [min(pad, kernel - 1)] * 4
    found, ops = run("MaxPool", [x], window)
    wide, _ = run("MaxPool", [x.astype(np.int32)], window)
    assert "IntegerPoolMax" in ops
    np.testing.assert_array_equal(found, wide)


def test_layouts_do_not_change_between_operators_on_bytes() -> None:
    rng = np.random.default_rng(2)
    one, zero = np.array(0.05, dtype=np.float32), np.array(3, dtype=np.uint8)
    nodes = [
        make_node("QLinearConv", ("x", "s", "z", "w", "s", "wz", "s", "z"), ("a",), {"pads": [1, 1, 1, 1]}, "first"),
        make_node("QLinearConv", ("a", "s", "z", "w", "s", "wz", "s", "z"), ("b",), {"pads": [1, 1, 1, 1]}, "second"),
        make_node("QLinearAdd", ("a", "s", "z", "b", "s", "z", "s", "z"), ("c",), {}, "sum"),
        make_node("MaxPool", ("c",), ("y",), {"kernel_shape": [2, 2]}, "pool"),
    ]
    x = some_bytes(rng, "uint8", (1, 8, 6, 6))
    constants = {"s": one, "z": zero, "w": some_bytes(rng, "int8", (8, 8, 3, 3)), "wz": np.array(0, dtype=np.int8)}
    graph = Graph(
        name="g", nodes=tuple(nodes), inputs={"x": TypeInfo("uint8", x.shape)}, outputs=("y",), constants=constants
    )
    session = walle.Session(write(graph, KNOWN))
    session.run({"x": x})
    assert steps(session) == ["Raster", "IntegerConv", "IntegerConv", "IntegerSum", "IntegerPoolMax", "Raster"]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({0: np.zeros((2, 3), np.float32)}, DTypeError, "x is uint8 or int8"),
        ({1: np.zeros((3, 4), np.uint8)}, DTypeError, "the weights are int8"),
        ({2: np.zeros(2, np.uint8)}, ShapeError, "zero point of x"),
        ({3: np.zeros(3, np.int32)}, ShapeError, r"bias must be int32 \(4,\)"),
        ({4: np.ones(3, np.float32)}, ShapeError, "scale must be one float32"),
        ({5: np.zeros(4, np.uint8)}, ShapeError, "result's zero point"),
    ],
)
def test_operands_that_do_not_fit_are_named(change: Mapping[int, Any], error: type[Exception], said: str) -> None:
    operands: dict[int, Any] = {
        0: np.zeros((2, 3), np.uint8), 1: np.zeros((3, 4), np.int8), 2: np.zeros((), np.uint8),
        3: np.zeros(4, np.int32), 4: np.ones(4, np.float32), 5: np.zeros((), np.uint8),
    }  # fmt: skip
    run("IntegerLinear", list(operands.values()))
    with pytest.raises(error, match=said):
        run("IntegerLinear", list((operands | dict(change)).values()))


def test_weights_are_constant_and_an_activation_is_of_bytes() -> None:
    x, w = np.zeros((2, 3), np.uint8), np.zeros((3, 4), np.int8)
    with pytest.raises(UnsupportedError, match="weights must be constant"):
        run("IntegerLinear", [x, w], variable=(0, 1))
    with pytest.raises(UnsupportedError, match="Relu, with a scale"):
        run("IntegerLinear", [x, w], {"activation": "Relu"})


@pytest.mark.parametrize("threads", [1, 2])
def test_sessions_of_one_graph_give_the_same(threads: int) -> None:
    rng = np.random.default_rng(3)
    x, w = some_bytes(rng, "int8", (1, 40, 21, 20)), some_bytes(rng, "int8", (70, 40, 3, 3))
    node = make_node("ConvInteger", ("x", "w"), ("y",), {"pads": [1, 1, 1, 1]}, "n")
    data = write(
        Graph(name="g", nodes=(node,), inputs={"x": TypeInfo("int8", x.shape)}, outputs=("y",), constants={"w": w}),
        KNOWN,
    )
    for backend in BACKENDS:
        found = walle.Session(data, backend=backend, threads=threads).run({"x": x})["y"]
        np.testing.assert_array_equal(np.asarray(found), conv(x, w, [1, 1], [1] * 4, [1, 1], 1))


@pytest.mark.parametrize("far", [2**31 - 1, 2**24])
def test_borders_beyond_all_memory_are_refused(far: int) -> None:
    window = {"pads": [far] * 4, "strides": [far] * 2, "dilations": [far] * 2}
    with pytest.raises(ShapeError):
        run("ConvInteger", [np.zeros((1, 4, 2, 2), np.uint8), np.zeros((4, 4, 2, 2), np.int8)], window)


@pytest.mark.parametrize(
    ("op", "attributes", "said"),
    [
        ("ConvInteger", {"activation": "Relu"}, "activation"),
        ("ConvInteger", {"bogus": 1}, "bogus"),
        ("ConvInteger", {"ceil_mode": 1}, "ceil_mode"),
        ("QLinearConv", {"bogus": 1}, "bogus"),
        ("QLinearConv", {"ceil_mode": 1}, "ceil_mode"),
        ("MaxPool", {"kernel_shape": [2, 2], "bogus": 1}, "bogus"),
        ("MaxPool", {"kernel_shape": [2, 2], "count_include_pad": 1}, "count_include_pad"),
        ("MaxPool", {"kernel_shape": [2, 2], "group": 1}, "group"),
    ],
)
@pytest.mark.parametrize("computed", [False, True])
def test_attributes_of_others_are_refused(op: str, attributes: Mapping[str, Any], said: str, computed: bool) -> None:
    x, w = np.zeros((1, 4, 5, 5), np.uint8), np.zeros((4, 4, 3, 3), np.int8)
    one, zero, none = np.ones((), np.float32), np.zeros((), np.uint8), np.zeros((), np.int8)
    operands: dict[str, list[Any]] = {
        "ConvInteger": [x, w], "QLinearConv": [x, one, zero, w, one, none, one, zero], "MaxPool": [x],
    }  # fmt: skip
    inputs = operands[op]
    variable = [at for at, value in enumerate(inputs) if value is x or (computed and value is w)]
    with pytest.raises(UnsupportedError, match=rf"\({op}\): attribute '{said}' is unknown; {op} knows .*auto_pad"):
        run(op, inputs, attributes, variable=variable)
