"""Models in QDQ form: the operators on bytes that a plan makes of them, against the float operators."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import walle
from tests.sim.onnx_models import NODE, make_node, model, numbers, runtime
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.onnx_import.graph import Graph, Node, TypeInfo
from walle.engine_ext.onnx_import.write import write
from walle.engine_ext.operators import operators

KNOWN = {one.name for one in operators()}


class QDQ:
    """Builder of graphs in QDQ form: each value is quantised, and each operator reads dequantised floats."""

    def __init__(self, x: Any, dtype: str = "uint8") -> None:
        self.x, self.dtype = x, dtype
        self.constants: dict[str, Any] = {}
        self.nodes: list[Node] = []

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def bytes_of(self, float_name: str, scale: float, zero: int, name: str = "") -> str:
        """Add the quantisation of a value; return the name of the dequantised value."""
        name = name or f"{float_name}.q"
        point = np.array(zero, dtype=self.dtype)
        scale_name = self.constant(f"{name}.s", np.array(scale, dtype=np.float32))
        zero_name = self.constant(f"{name}.z", point)
        self.nodes.append(make_node("QuantizeLinear", (float_name, scale_name, zero_name), (name,), {}, name))
        self.nodes.append(make_node("DequantizeLinear", (name, scale_name, zero_name), (f"{name}.f",), {}, f"{name}.f"))
        return f"{name}.f"

    def weights(self, name: str, shape: Sequence[int], axis: int | None = None) -> str:
        rng = np.random.default_rng(len(name))
        count = () if axis is None else (shape[axis],)
        value = self.constant(f"{name}.q", rng.integers(-127, 128, shape).astype(np.int8))
        scale = self.constant(f"{name}.s", rng.uniform(0.002, 0.01, count).astype(np.float32))
        zero = self.constant(f"{name}.z", np.zeros(count, dtype=np.int8))
        attributes = {} if axis is None else {"axis": axis}
        self.nodes.append(make_node("DequantizeLinear", (value, scale, zero), (name,), attributes, name))
        return name

    def op(self, op: str, *inputs: str, out: str, **attributes: Any) -> str:
        self.nodes.append(make_node(op, inputs, (out,), attributes, out))
        return out

    def graph(self, *outputs: str) -> Graph:
        inputs = {"x": TypeInfo(str(self.x.dtype), self.x.shape)}
        return Graph(name="g", nodes=tuple(self.nodes), inputs=inputs, outputs=outputs, constants=self.constants)

    def check(self, output: str, wanted: Sequence[str], steps: int = 1) -> None:
        """Check the steps of the plan, and that the bytes are within `steps` of ONNX Runtime's float operators."""
        assert planned(self.graph(output)) == ["IntegerQuantize", *wanted]
        ours, theirs = run(self.graph(output), self.x)[0].astype(int), self.by_floats(output)
        assert np.abs(ours - theirs).max() <= steps
        assert np.ptp(theirs) > 20  # neither all saturated nor all equal

    def by_floats(self, output: str) -> Any:
        """Return the bytes that ONNX Runtime computes, without its optimiser: node by node."""
        nodes = [NODE(one.op, list(one.inputs), list(one.outputs), **one.attributes) for one in self.nodes]
        proto = model(nodes, {"x": self.x}, [output], weights=self.constants, opset=21)
        return runtime(proto, {"x": self.x}, optimised=False)[0].astype(int)


def planned(graph: Graph) -> list[str]:
    """Return the operators of a graph's plan, without rasters."""
    plan = walle.Session(write(graph, KNOWN)).plan()
    assert plan is not None
    return [one.op for one in plan.ops if one.op != "Raster"]


def run(graph: Graph, x: Any) -> list[Any]:
    found = walle.Session(write(graph, KNOWN)).run({"x": x})
    return [np.asarray(found[name]) for name in graph.outputs]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
def test_quantized_convolutions_become_integer_products(dtype: str, relu: bool, axis: int | None) -> None:
    net = QDQ(numbers(1, 4, 9, 9), dtype)
    zero = 0 if dtype == "int8" else 128
    x = net.bytes_of("x", 0.03, zero)
    bias = net.constant("bias", numbers(6))
    y = net.op("Conv", x, net.weights("w", (6, 4, 3, 3), axis), bias, out="c", pads=[1, 1, 1, 1])
    net.bytes_of(net.op("Relu", y, out="r") if relu else y, 0.05, zero + 7, "y")
    net.check("y", ["IntegerConv"])


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("per_column", [False, True])
def test_a_quantized_gemm_becomes_an_integer_product(turned: int, per_column: bool) -> None:
    net = QDQ(numbers(3, 20))
    x = net.bytes_of("x", 0.03, 120)
    shape, axis = ((10, 20), 0) if turned else ((20, 10), 1)
    weights = net.weights("w", shape, axis if per_column else None)
    net.bytes_of(net.op("Gemm", x, weights, net.constant("b", numbers(10)), out="g", transB=turned), 0.05, 130, "y")
    net.check("y", ["IntegerLinear"])


def test_quantized_products_of_stacks_become_integer_products() -> None:
    net = QDQ(numbers(2, 5, 20))
    x = net.bytes_of("x", 0.03, 120)
    net.bytes_of(net.op("MatMul", x, net.weights("w", (20, 10)), out="g"), 0.05, 130, "y")
    net.check("y", ["IntegerLinear"])


def test_quantized_sums_and_means_become_integer_steps() -> None:
    net = QDQ(numbers(1, 4, 6, 6))
    x = net.bytes_of("x", 0.03, 120)
    y = net.bytes_of(net.op("Relu", net.op("Add", x, x, out="a"), out="r"), 0.02, 10)
    net.bytes_of(net.op("GlobalAveragePool", y, out="m"), 0.008, 3, "y")
    net.check("y", ["IntegerSum", "IntegerConv"], 3)  # 2.5 steps of the mean are one step of the sum


def test_movements_are_those_of_bytes_where_scales_agree() -> None:
    net = QDQ(numbers(1, 4, 6, 6))
    x = net.bytes_of("x", 0.03, 120)
    y = net.bytes_of(net.op("MaxPool", x, out="p", kernel_shape=[2, 2]), 0.03, 120)
    net.bytes_of(net.op("Transpose", y, out="t", perm=[0, 2, 3, 1]), 0.03, 120, "y")
    net.check("y", ["IntegerPoolMax"], 0)


def test_moved_values_are_requantised() -> None:
    net = QDQ(numbers(1, 4, 6, 6))
    x = net.bytes_of("x", 0.03, 120)
    net.bytes_of(net.op("MaxPool", x, out="p", kernel_shape=[2, 2]), 0.02, 110, "y")
    net.check("y", ["IntegerPoolMax", "IntegerSum"])


def test_concatenated_parts_are_requantised() -> None:
    net = QDQ(numbers(1, 4, 6, 6))
    x = net.bytes_of("x", 0.03, 120)
    a = net.bytes_of(net.op("MaxPool", x, out="p", kernel_shape=[1, 1]), 0.02, 110)
    net.bytes_of(net.op("Concat", x, a, out="j", axis=1), 0.02, 110, "y")
    net.check("y", ["IntegerPoolMax", "IntegerSum", "IntegerSum"])


def test_a_float_result_that_others_read_stays_float() -> None:
    net = QDQ(numbers(1, 4, 6, 6))
    x = net.bytes_of("x", 0.03, 120)
    conv = net.op("Conv", x, net.weights("w", (6, 4, 1, 1)), out="c")
    net.bytes_of(conv, 0.05, 130, "y")
    assert {"Conv", "IntegerQuantize"} <= set(planned(net.graph("y", "c")))


def test_products_of_two_activations_stay_float() -> None:
    net = QDQ(numbers(3, 3))
    x = net.bytes_of("x", 0.03, 120)
    net.bytes_of(net.op("MatMul", x, x, out="g"), 0.05, 130, "y")
    steps = planned(net.graph("y"))
    assert "MatMul" in steps
    assert "IntegerLinear" not in steps
    np.testing.assert_array_equal(run(net.graph("y"), net.x)[0], net.by_floats("y"))


def test_a_bias_of_another_scale_is_rounded_to_the_sums() -> None:
    net = QDQ(numbers(1, 4, 6, 6))
    x = net.bytes_of("x", 0.03, 120)
    whole = net.constant("bias.q", np.arange(-300, 300, 100, dtype=np.int32))
    net.op("DequantizeLinear", whole, net.constant("bias.s", np.float32(0.004)), out="bias")
    net.bytes_of(net.op("Conv", x, net.weights("w", (6, 4, 1, 1)), "bias", out="c"), 0.05, 130, "y")
    net.check("y", ["IntegerConv"])


def coarse(bias: Any, scale: Any = None, x_scale: float = 1) -> Graph:
    """Return a convolution of three channels of ones, in units of `x_scale`, with a bias; its steps are 0.01."""
    net = QDQ(np.zeros((1, 1, 1, 2), np.float32))
    x = net.bytes_of("x", x_scale, 0)
    ones = net.constant("w.q", np.ones((3, 1, 1, 1), np.int8))
    net.op("DequantizeLinear", ones, net.constant("w.s", np.float32(1)), out="w")
    if scale is None:
        net.constant("bias", bias)
    else:
        whole = net.constant("bias.q", np.array(bias, np.int32))
        net.op("DequantizeLinear", whole, net.constant("bias.s", np.array(scale, np.float32)), out="bias", axis=0)
    net.bytes_of(net.op("Conv", x, "w", "bias", out="c"), 0.01, 128, "y")
    return net.graph("y")


@pytest.mark.parametrize(
    ("bias", "scale"), [(np.array([0.4, 0, 1], np.float32), None), ([40, 0, 100], 0.01), ([4, 0, 10], [0.1, 2, 0.1])]
)
def test_a_bias_that_the_sums_unit_is_too_coarse_for_stays_float(bias: Any, scale: Any) -> None:
    graph = coarse(bias, scale)
    assert "Conv" in planned(graph)
    (found,) = run(graph, np.zeros((1, 1, 1, 2), np.float32))
    np.testing.assert_array_equal(found[0, :, 0], [[168, 168], [128, 128], [228, 228]])
    assert "IntegerConv" in planned(coarse(bias, scale, x_scale=1 / 512))


def test_a_bias_of_whole_units_is_quantised() -> None:
    assert "IntegerConv" in planned(coarse([0, 1, -1], 1))


@pytest.mark.parametrize(("bias", "scale"), [([40, 1, 2], [0.01, 0.01]), ([40, 1], 1)])
def test_a_bias_that_does_not_fit_is_refused_by_the_name_of_its_node(bias: Any, scale: Any) -> None:
    with pytest.raises(ShapeError, match=r"'bias'|'c'"):
        planned(coarse(bias, scale))


def test_a_bias_that_is_not_finite_stays_float() -> None:
    assert "Conv" in planned(coarse([40, 1, 0], np.inf))


@pytest.mark.parametrize("zero", [0, 128])
def test_sums_that_can_leave_int32_stay_float(zero: int) -> None:
    """Compare 255 * 127 * 70000, which exceeds int32, with 128 * 127 * 70000 (zero point 128), which fits."""
    depth = 70000
    net = QDQ(np.ones((1, depth), np.float32))
    x = net.bytes_of("x", 1 / 127, zero)
    whole = net.constant("w.q", np.full((depth, 2), 127, np.int8))
    net.op("DequantizeLinear", whole, net.constant("w.s", np.float32(1 / 127)), out="w")
    net.bytes_of(net.op("MatMul", x, "w", out="g"), 400, 0, "y")
    graph = net.graph("y")
    assert ("IntegerLinear" in planned(graph)) == (zero == 128)
    np.testing.assert_array_equal(run(graph, net.x)[0], [[175, 175]])


def network() -> onnx.ModelProto:
    """Return a residual block, a depthwise convolution and a classifier, as exporters write them."""
    nodes = [
        NODE("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]), NODE("Relu", ["c1"], ["r1"]),
        NODE("MaxPool", ["r1"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        NODE("Conv", ["p", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]), NODE("Relu", ["c2"], ["r2"]),
        NODE("Conv", ["r2", "w3", "b2"], ["c3"], pads=[1, 1, 1, 1]),
        NODE("Add", ["c3", "p"], ["a"]), NODE("Relu", ["a"], ["r3"]),
        NODE("Conv", ["r3", "w4", "b2"], ["c4"], pads=[1, 1, 1, 1], group=16), NODE("Relu", ["c4"], ["r4"]),
        NODE("GlobalAveragePool", ["r4"], ["m"]), NODE("Flatten", ["m"], ["f"]),
        NODE("Gemm", ["f", "w5", "b5"], ["y"], transB=1),
    ]  # fmt: skip
    weights = {
        "w1": numbers(16, 3, 3, 3, seed=1) * 0.3, "b1": numbers(16, seed=2),
        "w2": numbers(16, 16, 3, 3, seed=3) * 0.1, "b2": numbers(16, seed=4) * 0.1,
        "w3": numbers(16, 16, 3, 3, seed=5) * 0.1, "w4": numbers(16, 1, 3, 3, seed=6) * 0.4,
        "w5": numbers(10, 16, seed=7), "b5": numbers(10, seed=8),
    }  # fmt: skip
    proto = model(nodes, {"x": numbers(1, 3, 24, 24)}, ["y"], weights=weights)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 10)))
    return proto


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activations", ["QUInt8", "QInt8"])
def test_a_network_quantised_by_onnx_runtime(tmp_path: Path, activations: str, per_channel: bool) -> None:
    from onnxruntime import quantization

    class Seeded(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [{"x": numbers(1, 3, 24, 24, seed=seed)} for seed in range(4)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    onnx.save(network(), tmp_path / "float.onnx")
    # Weights of 7 bits: without VNNI, ONNX Runtime's products of bytes saturate in 16 bits; the engine's do not.
    quantization.quantize_static(
        tmp_path / "float.onnx", tmp_path / "quantised.onnx", Seeded(), per_channel=per_channel, reduce_range=True,
        activation_type=quantization.QuantType[activations], weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    proto, feeds = onnx.load(tmp_path / "quantised.onnx"), {"x": numbers(1, 3, 24, 24, seed=9)}
    walle.convert(tmp_path / "quantised.onnx", tmp_path / "quantised.walle")
    session = walle.Session(tmp_path / "quantised.walle")
    ours, (theirs,) = np.asarray(session.run(feeds)["y"]), runtime(proto, feeds)
    plan = session.plan()
    assert plan is not None
    ops = [one.op for one in plan.ops]
    assert [ops.count(op) for op in ("IntegerConv", "IntegerLinear", "IntegerSum", "IntegerPoolMax")] == [5, 1, 1, 1]
    assert not {"Conv", "Linear", "MatMul", "PoolMax"} & set(ops)
    # The last operator's step, from the scale of its DequantizeLinear. A value between two steps may round either way
    # at each operator, because ONNX Runtime's kernels and ours multiply scales in different orders.
    last = next(node for node in proto.graph.node if "y" in node.output)
    step = next(onnx.numpy_helper.to_array(one) for one in proto.graph.initializer if one.name == last.input[1])
    assert np.abs(ours - theirs).max() <= 2.01 * step
    assert np.ptp(theirs) > 20 * step
