"""Operators of ONNX Runtime's domain com.microsoft, as its quantiser writes them, against ONNX Runtime."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.sim.onnx_models import NODE, model, runtime
from walle.engine_ext.errors import UnsupportedError
from walle.onnx_backend import Backend

SMALL_CNN = Path(__file__).parents[3] / "shared/cases/engine/qoperator_small_cnn.onnx"
DOMAIN = "com.microsoft"


def operator(
    op: str, inputs: Mapping[str, Any], kind: int = TensorProto.UINT8, given: int = 1, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model of one operator, whose first `given` inputs are the model's; the others are constants."""
    names = ["" if value is None else name for name, value in inputs.items()]
    feeds = dict(list(inputs.items())[:given])
    weights = {name: value for name, value in inputs.items() if name not in feeds and value is not None}
    node = NODE(op, names, ["y"], domain=DOMAIN, **attributes)
    made = model([node], feeds, ["y"], weights=weights, domains=[DOMAIN])
    made.graph.output[0].type.tensor_type.elem_type = kind
    return made, feeds


def agree(made: onnx.ModelProto, feeds: Mapping[str, Any], steps: float = 1) -> None:
    """Compare results with ONNX Runtime's: bytes by steps, floats by the sum of rounding."""
    expected = runtime(made, feeds)
    found = Backend.run_model(made, dict(feeds))
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if one.dtype.kind == "f":
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
        else:
            apart = np.abs(one.astype(int) - other.astype(int))
            assert apart.max() <= steps
            assert (apart > 0).mean() < 0.02, "values between two steps are rare"


def bytes_of(shape: tuple[int, ...], dtype: str = "uint8", seed: int = 0) -> Any:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def f32(value: Any) -> Any:
    return np.array(value, dtype=np.float32)


def parts(
    name: str, shape: tuple[int, ...], scale: float, zero: int, dtype: str = "uint8", seed: int = 0
) -> dict[str, Any]:
    return {name: bytes_of(shape, dtype, seed), f"{name}_scale": f32(scale), f"{name}_zero": np.array(zero, dtype)}


def result(scale: float, zero: int, dtype: str = "uint8") -> dict[str, Any]:
    return {"y_scale": f32(scale), "y_zero": np.array(zero, dtype)}


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1,), (7,), (3, 1, 7)])
def test_quantized_binary_operators_agree_with_onnx_runtime(op: str, dtype: str, shape: tuple[int, ...]) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    a, b = parts("a", (2, 3, 5, 7), 0.021, 12, dtype), parts("b", shape, 0.013, -3 if dtype == "int8" else 99, dtype, 1)
    agree(*operator(op, a | b | result(0.037, 5, dtype), kind))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.3}),
        ("QLinearLeakyRelu", {}),
        ("QLinearGlobalAveragePool", {"channels_last": 0}),
        ("QLinearAveragePool", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "count_include_pad": 1, "pads": [1, 1, 0, 0], "ceil_mode": 1}),
        ("QLinearSoftmax", {"axis": -1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 1, "opset": 11}),
        ("QLinearReduceMean", {"axes": [2, 3], "keepdims": 0}),
        ("QLinearReduceMean", {"axes": [1], "keepdims": 1}),
    ],
)
def test_operators_on_one_tensor(op: str, attributes: dict[str, Any]) -> None:
    scale, zero = (1 / 256, 0) if op == "QLinearSoftmax" else (0.019, 101)
    made, feeds = operator(op, parts("x", (2, 4, 6, 6), 0.027, 131) | result(scale, zero), **attributes)
    if op == "QLinearReduceMean":  # ONNX Runtime states it, and has no kernel
        (found,) = Backend.run_model(made, feeds)
        assert np.abs(found.astype(int) - reduce_mean(feeds["x"], attributes)).max() <= 1
        return
    agree(made, feeds)


def reduce_mean(x: Any, attributes: Mapping[str, Any]) -> Any:
    mean = ((x.astype(np.float64) - 131) * 0.027).mean(tuple(attributes["axes"]), keepdims=attributes["keepdims"] == 1)
    return np.clip(np.rint(mean / 0.019) + 101, 0, 255).astype(int)


def test_concat_takes_each_part_to_the_scale_of_the_result() -> None:
    x = parts("x", (2, 3, 4), 0.02, 128)
    inputs = result(0.031, 120) | x | parts("z", (2, 5, 4), 0.05, 30, seed=2)
    order = ["x", *(name for name in inputs if name != "x")]
    made, _ = operator("QLinearConcat", {name: inputs[name] for name in order}, axis=1)
    made.graph.node[0].input[:] = list(inputs)
    agree(made, {"x": inputs["x"]})


def test_quantized_where_agrees_with_onnx_runtime() -> None:
    condition = np.random.default_rng(3).random((2, 1, 5)) < 0.5
    inputs = (
        {"c": condition} | parts("x", (2, 3, 5), 0.02, 128) | parts("z", (3, 5), 0.05, 30, seed=2) | result(0.03, 99)
    )
    agree(*operator("QLinearWhere", inputs))


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize(("alpha", "bias", "is_float"), [(1.0, True, False), (0.5, True, False), (1.0, False, True)])
def test_quantized_gemm_agrees_with_onnx_runtime(
    turned: int, channels: bool, alpha: float, bias: bool, is_float: bool
) -> None:
    rng = np.random.default_rng(4)
    shape, count = ((6, 9) if turned else (9, 6)), (6,) if channels else ()
    inputs = parts("a", (5, 9), 0.02, 128) | {
        "b": rng.integers(-60, 61, shape).astype(np.int8),
        "b_scale": f32(rng.uniform(0.01, 0.02, count)),
        "b_zero": np.zeros(count, np.int8),
        "c": rng.integers(-900, 900, 6).astype(np.int32) if bias else None,
    }
    kind = TensorProto.FLOAT if is_float else TensorProto.UINT8
    agree(*operator("QGemm", inputs if is_float else inputs | result(0.09, 110), kind, transB=turned, alpha=alpha))


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_products_with_float_results(channels: bool, bias: bool) -> None:
    rng = np.random.default_rng(5)
    count = (6,) if channels else ()
    b = rng.integers(-60, 61, (9, 6)).astype(np.int8)
    scale, zero = f32(rng.uniform(0.01, 0.02, count)), np.zeros(count, np.int8)
    added = f32(rng.standard_normal(6)) if bias else None
    x = f32(rng.standard_normal((4, 9)))
    inputs = {"x": x, "b": b, "b_scale": scale, "b_zero": zero, "bias": added}
    agree(*operator("DynamicQuantizeMatMul", inputs, TensorProto.FLOAT))
    inputs = {"a": bytes_of((4, 9)), "b": b, "a_scale": f32(0.02), "b_scale": scale, "a_zero": np.array(128, np.uint8),
              "b_zero": zero, "bias": added}  # fmt: skip
    agree(*operator("MatMulIntegerToFloat", inputs, TensorProto.FLOAT))


def test_the_shared_network_in_operator_form_runs() -> None:
    if not SMALL_CNN.exists():
        pytest.skip(f"{SMALL_CNN.name} is not beside this checkout")
    made = onnx.load(SMALL_CNN)
    info = made.graph.input[0]
    shape = [one.dim_value or 1 for one in info.type.tensor_type.shape.dim]
    feeds = {info.name: np.random.default_rng(6).standard_normal(shape).astype(np.float32)}
    expected, found = runtime(made, feeds)[0], Backend.run_model(made, feeds)[0]
    step = max(np.abs(np.diff(np.unique(expected))).min(), 1e-6)
    assert np.abs(found - expected).max() <= 3 * step


def network() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a float network with an operator of each kind that the static quantiser writes."""
    rng = np.random.default_rng(7)

    def normal(*shape: int) -> Any:
        return f32(rng.standard_normal(shape) / max(1, int(np.prod(shape[1:]))) ** 0.5)

    nodes = [
        NODE("Conv", ["x", "w", "wb"], ["a"], pads=[1, 1, 1, 1]),
        NODE("LeakyRelu", ["a"], ["b"], alpha=0.2),
        NODE("Conv", ["b", "v"], ["c"]),
        NODE("Relu", ["c"], ["d"]),
        NODE("Sigmoid", ["c"], ["e"]),
        NODE("Mul", ["d", "e"], ["f"]),
        NODE("Add", ["f", "b"], ["g"]),
        NODE("Concat", ["g", "b"], ["h"], axis=1),
        NODE("AveragePool", ["h"], ["i"], kernel_shape=[2, 2], strides=[2, 2]),
        NODE("MaxPool", ["i"], ["j"], kernel_shape=[2, 2]),
        NODE("Resize", ["j", "", "scales"], ["k"], mode="nearest", nearest_mode="floor"),
        NODE("Transpose", ["k"], ["l"], perm=[0, 1, 3, 2]),
        NODE("GlobalAveragePool", ["l"], ["m"]),
        NODE("Flatten", ["m"], ["n"]),
        NODE("Gemm", ["n", "u", "ub"], ["o"], transB=1),
        NODE("MatMul", ["o", "t"], ["p"]),
        NODE("Softmax", ["p"], ["y"], axis=-1),
    ]  # fmt: skip
    weights = {"w": normal(8, 3, 3, 3), "wb": normal(8), "v": normal(8, 8, 1, 1), "u": normal(10, 16), "ub": normal(10),
               "t": normal(10, 7), "scales": f32([1, 1, 2, 2])}  # fmt: skip
    feeds = {"x": normal(2, 3, 12, 12) * 5}
    made = model(nodes, feeds, ["y"], weights=weights)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return onnx.shape_inference.infer_shapes(made), feeds


@pytest.mark.parametrize("activations", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("channels", [False, True])
def test_models_of_the_static_quantizer_in_operator_form_run(activations: str, channels: bool, tmp_path: Path) -> None:
    from onnxruntime import quantization

    made, feeds = network()

    class Seeded(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[dict[str, Any]] = iter([feeds] * 2)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._left, None)

    onnx.save(made, tmp_path / "float.onnx")
    quantization.quantize_static(
        str(tmp_path / "float.onnx"), str(tmp_path / "bytes.onnx"), Seeded(),
        quant_format=quantization.QuantFormat.QOperator, per_channel=channels,
        activation_type=quantization.QuantType[activations], weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    written = onnx.load(tmp_path / "bytes.onnx")
    domains = {node.op_type for node in written.graph.node if node.domain == DOMAIN}
    assert {"QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearAveragePool", "QGemm"} <= domains
    expected, found = runtime(written, feeds)[0], Backend.run_model(written, feeds)[0]
    assert np.abs(found - expected).max() < 0.01
    assert np.abs(found - runtime(made, feeds)[0]).max() < 0.05, "beside the float network"


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("channels", [False, True])
def test_models_of_the_dynamic_quantizer_run(direction: str, channels: bool, tmp_path: Path) -> None:
    from onnxruntime import quantization

    rng = np.random.default_rng(8)
    count = 2 if direction == "bidirectional" else 1
    feeds = {"x": f32(rng.standard_normal((5, 2, 6)))}
    weights = {"w": f32(rng.standard_normal((count, 16, 6)) / 3), "r": f32(rng.standard_normal((count, 16, 4)) / 3),
               "b": f32(rng.standard_normal((count, 32)) / 3), "v": f32(rng.standard_normal((4, 3)))}  # fmt: skip
    nodes = [
        NODE("LSTM", ["x", "w", "r", "b"], ["h", "last"], hidden_size=4, direction=direction),
        NODE("MatMul", ["last", "v"], ["y"]),
    ]
    made = model(nodes, feeds, ["y", "h"], weights=weights)
    for one in made.graph.output:
        one.type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(onnx.shape_inference.infer_shapes(made), tmp_path / "float.onnx")
    # On a processor without VNNI the peer's sums of 8-bit weights saturate; those of 7 bits do not.
    for is_reduced in (False, True):
        quantization.quantize_dynamic(
            tmp_path / "float.onnx", tmp_path / "bytes.onnx", per_channel=channels, reduce_range=is_reduced
        )
        written = onnx.load(tmp_path / "bytes.onnx")
        assert "DynamicQuantizeLSTM" in {node.op_type for node in written.graph.node}
        expected = runtime(written if is_reduced else made, feeds)
        for wanted, found in zip(expected, Backend.run_model(written, feeds), strict=True):
            np.testing.assert_allclose(found, wanted, atol=0.05)  # inputs and states are rounded


def test_an_unknown_operator_of_the_domain_is_refused_by_name() -> None:
    made, _ = operator("QAttention", parts("x", (1, 2, 4), 0.02, 128))
    made.graph.node[0].name = "head"
    with pytest.raises(UnsupportedError, match=r"head.*com\.microsoft\.QAttention"):
        Backend.prepare(made)


@pytest.mark.parametrize("op", ["QLinearGlobalAveragePool", "QLinearAveragePool"])
def test_channels_last_is_refused_by_name(op: str) -> None:
    made, _ = operator(
        op, parts("x", (1, 4, 4, 2), 0.02, 128) | result(0.02, 128), channels_last=1, kernel_shape=[2, 2]
    )
    with pytest.raises(UnsupportedError, match=rf"com\.microsoft\.{op}.*channels_last"):
        Backend.prepare(made)
