"""Products in front of a BatchNormalization, with and without something between, against ONNX Runtime unoptimised."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import walle
from tests.sim.onnx_models import NODE, model, numbers, runtime
from walle.engine_ext.conversion import convert_bytes
from walle.onnx_backend import Backend

CASE = Path(__file__).parents[3] / "shared/cases/engine/conv_relu_batchnorm.onnx"


def check(proto: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    """Compare every output with ONNX Runtime's."""
    for ours, theirs in zip(Backend.run_model(proto, feeds), runtime(proto, feeds, optimised=False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


@pytest.mark.skipif(not CASE.exists(), reason="../shared/cases is absent")
def test_the_reported_model_agrees_with_onnx_runtime() -> None:
    proto = onnx.load(CASE)
    sizes = [one.dim_value for one in proto.graph.input[0].type.tensor_type.shape.dim]
    check(proto, {proto.graph.input[0].name: numbers(*sizes)})


@pytest.mark.parametrize("reads_plain", [False, True])
def test_a_normalisation_in_front_of_a_product(reads_plain: bool) -> None:
    x, weights = numbers(2, 6, 9, 9), {"w": numbers(6, 6, 3, 3), "s": np.abs(numbers(6)) + np.float32(0.5)}
    nodes = [NODE("BatchNormalization", ["x", *["s"] * 4], ["h"]), NODE("Conv", ["h", "w"], ["y"])]
    if reads_plain:
        nodes.append(NODE("Conv", ["x", "w"], ["z"]))
    check(model(nodes, {"x": x}, ["y", "z"][: 1 + reads_plain], weights=weights), {"x": x})


def test_statistics_through_identities_and_arithmetic() -> None:
    x = numbers(2, 6, 9, 9)
    weights = {"w": numbers(6, 6, 3, 3), "s": np.abs(numbers(6)) + np.float32(0.5), "o": np.float32(1)}
    nodes = [
        NODE("Conv", ["x", "w"], ["c"]), NODE("Identity", ["c"], ["h"]),
        NODE("Identity", ["s"], ["m"]), NODE("Add", ["s", "o"], ["v"]),
        NODE("BatchNormalization", ["h", "s", "m", "m", "v"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": x}, ["y"], weights=weights)
    check(proto, {"x": x})
    plan = walle.Session(convert_bytes(proto)).plan()
    assert plan is not None
    assert [op.op for op in plan.ops if op.op != "Raster"] == ["Conv"]


BETWEEN = ["Relu", "Sigmoid", "Tanh", "Clip", "LeakyRelu", "Add", "Nothing"]
PRODUCTS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("Conv", (6, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (6, 6, 1, 1), {}),
    ("Conv", (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ("Conv", (6, 3, 3, 3), {"group": 2, "dilations": [2, 2], "strides": [2, 1]}),
    ("ConvTranspose", (6, 6, 2, 2), {"strides": [2, 2]}),
    ("ConvTranspose", (6, 3, 3, 3), {"group": 2}),
    ("Gemm", (6, 6), {}),
    ("Gemm", (6, 6), {"transB": 1}),
    ("MatMul", (6, 6), {}),
]


def normalised(op: str, weight: tuple[int, ...], attributes: dict[str, Any], between: str, residual: bool) -> Any:
    """Return a product, a residual, an operator between and a BatchNormalization; and inputs."""
    x = numbers(3, 6) if op in {"Gemm", "MatMul"} else numbers(2, 6, 9, 9)
    weights = {
        "w": numbers(*weight, seed=1), "b": numbers(6, seed=2), "scale": numbers(6, seed=3),
        "shift": numbers(6, seed=4), "mean": numbers(6, seed=5), "var": np.abs(numbers(6, seed=6)) + 0.5,
        "low": np.float32(-0.5), "high": np.float32(0.5),
    }  # fmt: skip
    bias = [] if op == "MatMul" else ["b"]
    nodes = [NODE(op, ["x", "w", *bias], ["h0"], **attributes)]
    if residual:
        nodes += [NODE("Tanh", ["h0"], ["side"]), NODE("Add", ["side", "h0"], ["h1"])]
    last = "h1" if residual else "h0"
    more = {"Add": ["b"] if x.ndim == 2 else ["low"], "Clip": ["low", "high"]}.get(between, [])
    if between != "Nothing":
        nodes.append(NODE(between, [last, *more], ["h2"]))
        last = "h2"
    nodes.append(NODE("BatchNormalization", [last, "scale", "shift", "mean", "var"], ["y"], epsilon=1e-3))
    return model(nodes, {"x": x}, ["y"], weights=weights), {"x": x}


def in_type(proto: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """Return the model with its float32 inputs and weights in another type."""
    changed, kind = onnx.ModelProto(), onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    changed.CopyFrom(proto)
    for value in (*changed.graph.input, *changed.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    for weight in changed.graph.initializer:
        array = onnx.numpy_helper.to_array(weight)
        weight.CopyFrom(onnx.numpy_helper.from_array(array.astype(dtype), weight.name))
    return changed


TYPES = {"float16": 4e-3, "float64": 1e-5}


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES.items())
@pytest.mark.parametrize("between", ["Nothing", "Relu", "Sigmoid"])
@pytest.mark.parametrize(("op", "weight", "attributes"), PRODUCTS)
def test_other_types_of_weights(
    op: str, weight: tuple[int, ...], attributes: dict[str, Any], between: str, dtype: str, tolerance: float
) -> None:
    proto, feeds = normalised(op, weight, attributes, between, residual=False)
    expected = runtime(proto, feeds, optimised=False)
    found = Backend.run_model(in_type(proto, dtype), {name: value.astype(dtype) for name, value in feeds.items()})
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours.astype(np.float64), theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("backend", [one.name for one in walle.backends() if one.available and one.exact])
@pytest.mark.parametrize(("op", "weight", "attributes"), PRODUCTS)
def test_a_folded_normalization_agrees_on_every_backend(
    op: str, weight: tuple[int, ...], attributes: dict[str, Any], backend: str
) -> None:
    for between in ("Nothing", "Relu", "Tanh"):
        proto, feeds = normalised(op, weight, attributes, between, residual=True)
        found = walle.Session(convert_bytes(proto), backend=backend).run(feeds)["y"]
        np.testing.assert_allclose(np.asarray(found), runtime(proto, feeds, optimised=False)[0], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize(("op", "weight", "attributes"), PRODUCTS)
def test_what_stands_between_a_product_and_its_normalisation_is_applied(
    op: str, weight: tuple[int, ...], attributes: dict[str, Any], between: str, residual: bool
) -> None:
    check(*normalised(op, weight, attributes, between, residual))
