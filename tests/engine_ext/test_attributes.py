"""Attributes of operators: each operator knows its own; an unknown one is refused when the model is loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import defs

import walle
from tests.sim.onnx_models import NODE, model, numbers, runtime
from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.onnx_import.lowering import LOWERED
from walle.engine_ext.onnx_import.versions import CHANGED, MOVED, NEWEST_OPSET, OLDEST_OPSET
from walle.engine_ext.operators import operators
from walle.errors import EngineError

X = numbers(3, 8)
IMAGE = numbers(1, 2, 6, 6)


def whole(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


# Valid models in which an attribute has no effect.
WITHOUT_EFFECT: dict[str, tuple[str, list[np.ndarray], int, dict[str, Any]]] = {
    "noop_with_empty_axes, axes given": ("ReduceSum", [X, whole(1)], 1, {"noop_with_empty_axes": 1}),
    "noop_with_empty_axes, axes given, composite": ("ReduceL2", [X, whole(0)], 1, {"noop_with_empty_axes": 1}),
    "beta without C": ("Gemm", [X, numbers(8, 4, seed=1)], 1, {"beta": 0.5}),
    "storage_order with one output": ("MaxPool", [IMAGE], 1, {"kernel_shape": [2, 2], "storage_order": 1}),
    "extrapolation_value without cropping": (
        "Resize",
        [IMAGE, np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)],
        1,
        {"mode": "linear", "extrapolation_value": 7.0},
    ),
    "momentum outside of training": (
        "BatchNormalization",
        [IMAGE, *(np.full(2, number, np.float32) for number in (2, 1, 0.5, 3))],
        1,
        {"momentum": 0.5},
    ),
    "axis of one scale": (
        "QuantizeLinear",
        [X, np.array(0.1, np.float32), np.array(3, np.uint8)],
        1,
        {"axis": 0},
    ),
    "num_outputs": ("Split", [X], 2, {"axis": 1, "num_outputs": 2}),
}


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_an_attribute_without_effect_is_accepted(case: str, tmp_path: Path) -> None:
    op, inputs, outputs, attributes = WITHOUT_EFFECT[case]
    names = [f"i{at}" for at in range(len(inputs))]
    feeds, weights = {names[0]: inputs[0]}, dict(zip(names[1:], inputs[1:], strict=True))
    results = [f"o{at}" for at in range(outputs)]
    proto = model([NODE(op, names, results, **attributes)], feeds, results, weights=weights, opset=18)
    onnx.save(proto, tmp_path / "m.onnx")
    expected = runtime(proto, feeds)
    for runner in (walle.Session, walle.Module):
        found = runner(tmp_path / "m.onnx").run(feeds)
        for name, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(np.asarray(found[name]), value, rtol=1e-5, atol=1e-6)


def test_the_elements_of_an_unsorted_top_k_may_have_any_order(tmp_path: Path) -> None:
    proto = model([NODE("TopK", ["x", "k"], ["v", "i"], sorted=0)], {"x": X}, ["v", "i"], weights={"k": whole(3)})
    onnx.save(proto, tmp_path / "m.onnx")
    found = walle.Session(tmp_path / "m.onnx").run({"x": X})
    values, places = np.asarray(found["v"]), np.asarray(found["i"])
    np.testing.assert_array_equal(np.sort(values), np.sort(X)[:, -3:])
    np.testing.assert_array_equal(np.take_along_axis(X, places, axis=1), values)


@pytest.mark.parametrize("runner", [walle.Session, walle.Module])
@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        (
            "Transpose",
            {"perm": [1, 0], "bogus": 1},
            r"node 'n' \(Transpose\): attribute 'bogus' is unknown; .* knows perm",
        ),
        ("Neg", {"axis": 0}, r"node 'n' \(Neg\): attribute 'axis' is unknown; Neg has no attributes"),
        ("Softmax", {"axes": [0]}, r"node 'n' \(Softmax\): attribute 'axes' is unknown; Softmax knows axis"),
    ],
)
def test_an_unknown_attribute_is_refused(runner: Any, op: str, attributes: dict[str, Any], message: str) -> None:
    g = GraphBuilder("g")
    g.output("y", g.op(op, [g.input("x", (2, 3))], name="n", **attributes))
    with pytest.raises(UnsupportedError, match=message):
        runner(g.to_bytes())


def test_an_unknown_attribute_is_refused_in_a_branch_that_is_not_taken() -> None:
    g = GraphBuilder("g")
    x, condition = g.input("x", (2, 3)), g.input("c", (), "bool")
    taken, other = g.subgraph("then"), g.subgraph("else")
    taken.output("y", taken.op("Neg", [taken.outer(x)]))
    other.output("y", other.op("Neg", [other.outer(x)], name="inner", bogus=1))
    g.output("y", g.op("If", [condition], then_branch=taken, else_branch=other))
    with pytest.raises(UnsupportedError, match=r"node 'inner' \(Neg\): attribute 'bogus' is unknown"):
        walle.Module(g.to_bytes())


def test_an_unknown_attribute_is_refused_at_once_by_an_operator_that_is_computed_eagerly() -> None:
    with pytest.raises(UnsupportedError, match="Softmax: attribute 'bogus' is unknown; Softmax knows axis"):
        _core.operator("Softmax", [X], bogus=1)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "message"),
    [
        ("Split", [X], {"axis": 1, "num_outputs": 3}, ModelError, "'num_outputs' is 3 with 2 outputs"),
        ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "auto_pad": "ODD"}, UnsupportedError, "auto_pad 'ODD'"),
        ("Attention", [IMAGE] * 3, {"softmax_precision": 7}, UnsupportedError, "softmax_precision is 7; supported are"),
        ("Attention", [IMAGE] * 3, {"qk_matmul_output_mode": 4}, ModelError, "qk_matmul_output_mode is 4; it must be"),
        ("Pad", [X], {"pads": [0] * 4, "mode": "odd"}, UnsupportedError, "'odd'; known are constant"),
    ],
)
def test_an_unsupported_value_is_refused_with_the_value(
    op: str, inputs: list[np.ndarray], attributes: dict[str, Any], error: type[EngineError], message: str
) -> None:
    g = GraphBuilder("g")
    given = [g.input(f"x{at}", value.shape) for at, value in enumerate(inputs)]
    outputs = 2 if op == "Split" else 1
    made = g.op(op, given, outputs=outputs, name="n", **attributes)
    g.output("y", made[0] if outputs > 1 else made)
    with pytest.raises(error, match=rf"node 'n' \({op}\).*{message}"):
        walle.Session(g.to_bytes())


# Attributes of the engine's operators that the newest ONNX schema does not have, by reason.
AS_INPUTS = "the input may also be given as an attribute"
NEWER = "of versions that the oldest supported onnx does not have"
REDUCTIONS = [
    f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
]
OWN: dict[str, dict[str, set[str]]] = {
    AS_INPUTS: {
        **{name: {"axes"} for name in (*REDUCTIONS, "Squeeze", "Unsqueeze")},
        "CenterCropPad": {"shape"}, "Clip": {"max", "min"}, "CumProd": {"axis"}, "CumSum": {"axis"},
        "Expand": {"shape"}, "Pad": {"axes", "pads", "value"}, "Reshape": {"shape"},
        "Slice": {"axes", "ends", "starts", "steps"}, "Split": {"split"}, "Tile": {"repeats"},
    },
    NEWER: {
        "Attention": {"left_window_size", "right_window_size"}, "Range": {"stash_type"}, "SpaceToDepth": {"mode"},
    },
    "written by the importer's fusions": {
        "Conv": {"activation"}, "QLinearConv": {"activation"}, "QLinearMatMul": {"activation"},
    },
    "forces one of the engine's algorithms": {name: {"algorithm"} for name in ("Conv", "GRU", "LSTM", "RNN")},
    "the engine returns the logarithm as well": {"Det": {"logarithm"}},
    "version 8 of Scan, in the engine's form": {"Scan": {"batched", "directions"}},
}  # fmt: skip
OF_TRACES = "its inputs say so: the importer refuses the operator, which walle.nn writes"
# Attributes of ONNX's schemas that the engine's operators do not know, by reason.
LEFT_OUT: dict[str, dict[str, set[str]]] = {
    "become inputs (onnx_import/lowering.py)": {
        "LabelEncoder": {
            "classes_strings", "default_float", "default_int64", "default_string", "default_tensor", "keys_floats",
            "keys_int64s", "keys_strings", "keys_tensor", "values_floats", "values_int64s", "values_strings",
            "values_tensor",
        },
    },
    OF_TRACES: {"Gradient": {"xs", "y", "zs"}},
    "of old versions, which the importer renews (onnx_import/versions.py)": {
        "BatchNormalization": {"spatial"}, "DFT": {"axis"}, "Dropout": {"ratio"}, "TopK": {"k"},
    },
}  # fmt: skip
DOMAINS = {"", "ai.onnx.ml", "ai.onnx.preview.training"}


def listed(table: dict[str, dict[str, set[str]]], op: str) -> set[str]:
    return set().union(*(group.get(op, set()) for group in table.values()))


def test_the_known_attributes_are_those_of_onnx_apart_from_a_written_list() -> None:
    names = {one.name for one in operators()}
    schemas: dict[str, list[defs.OpSchema]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.name in names and schema.domain in DOMAINS and schema.since_version <= NEWEST_OPSET:
            schemas.setdefault(schema.name, []).append(schema)
    assert len(schemas) > 150
    for op, versions in schemas.items():
        versions.sort(key=lambda one: one.since_version)
        before = [one.since_version for one in versions if one.since_version <= OLDEST_OPSET and one.domain == ""]
        taken = [one for one in versions if one.since_version >= max(before, default=0)]
        known, newest = set(_core.known_attributes(op)), set(versions[-1].attributes)
        own = listed(OWN, op) - (newest if op in OWN[NEWER] else set())
        assert known - newest == own, op
        every = set().union(*(one.attributes for one in taken))
        assert every - known == listed(LEFT_OUT, op), op
    for op in listed_operators(LEFT_OUT):
        assert op in LOWERED or op in CHANGED or op in MOVED or op in LEFT_OUT[OF_TRACES]


def listed_operators(table: dict[str, dict[str, set[str]]]) -> set[str]:
    return set().union(*table.values())


def test_the_names_of_every_operator_are_distinct_and_in_order() -> None:
    for one in operators():
        known = _core.known_attributes(one.name)
        assert known == sorted(set(known)), one.name
