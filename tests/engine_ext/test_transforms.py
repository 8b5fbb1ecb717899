"""Every transform operator of the registry against NumPy's indexing, eagerly and in a session; and its errors."""

from typing import Any

import numpy
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from tests.engine_ext.transform_cases import MEANING, Array, Case, filled, whole
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.operators import operators
from walle.engine_ext.session import Session
from walle.errors import EngineError
from walle.onnx_backend import Backend

TRANSFORMS = [one.name for one in operators() if one.category == "transform"]


def test_every_transform_operator_has_its_meaning_here() -> None:
    assert sorted(MEANING) == TRANSFORMS
    assert {name for name, _, _ in BAD} >= set(TRANSFORMS) - {"Identity"}  # Identity takes any operand


@pytest.mark.parametrize("name", MEANING)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_movement_is_numpys_indexing(name: str, data: st.DataObject) -> None:
    case = data.draw(st.composite(MEANING[name])())
    found = _core.evaluate(name, [_core.asarray(one, None) for one in case.inputs], case.attributes, len(case.expected))
    same(found, case.expected)
    same(in_session(name, case), case.expected)


def same(found: list[Any], expected: list[Array]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype.name)
        numpy.testing.assert_array_equal(numpy.asarray(ours), theirs)


def in_session(name: str, case: Case) -> list[Any]:
    """Run the operator as the only node of a model."""
    graph = GraphBuilder("g")
    values = [
        graph.constant(f"i{i}", one) if i in case.known else graph.input(f"i{i}", one.shape, one.dtype.name)
        for i, one in enumerate(case.inputs)
    ]
    for i, value in enumerate(graph.node(name, values, len(case.expected), "node", case.attributes)):
        graph.output(f"o{i}", value)
    feeds = {f"i{i}": one for i, one in enumerate(case.inputs) if i not in case.known}
    found = Session(graph.to_bytes()).run(feeds)
    return [found[f"o{i}"] for i in range(len(case.expected))]


X = filled((2, 3))
# Operands and attributes that an operator must refuse.
BAD: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("ArrayFeatureExtractor", [X, whole(3)], {}),
    ("AsStrided", [X], {"shape": [7], "strides": [1]}),
    ("AsStrided", [X], {"shape": [2], "strides": [1, 1]}),
    ("BatchToSpace", [filled((3, 2))], {"block_shape": [2]}),
    ("BatchToSpace", [filled((2, 2))], {"block_shape": [2], "crops": [3, 2]}),
    ("BitCast", [X], {"to": "float64"}),
    ("CenterCropPad", [X, whole(2)], {}),
    ("Concat", [X, filled((3, 3))], {"axis": 1}),
    ("Concat", [X, X], {"axis": 2}),
    ("Cycle", [X], {"shape": [-1]}),
    ("Cycle", [X], {}),
    ("Delete", [X], {"axis": 1, "indices": [3]}),
    ("Delete", [X], {"axis": 2, "indices": [0]}),
    ("DepthToSpace", [filled((1, 3, 2, 2))], {"blocksize": 2}),
    ("Diag", [X], {}),
    ("Diag", [X[0]], {"k": 1 << 40}),
    ("Diagonal", [X[0]], {}),
    ("Diagonal", [X], {"axis1": 1, "axis2": -1}),
    ("Expand", [X, whole(4)], {}),
    ("EyeLike", [X[0]], {}),
    ("EyeLike", [X], {"dtype": 8}),
    ("FeatureVectorizer", [X, filled((3, 2))], {}),
    ("FeatureVectorizer", [X], {"inputdimensions": [2]}),
    ("Flatten", [X], {"axis": 3}),
    ("Flip", [X], {"axes": [2]}),
    ("Flip", [X], {"axes": [0, -2]}),
    ("Gather", [X, whole(2)], {"axis": 0}),
    ("GatherElements", [X, whole(0)], {}),
    ("GatherND", [X, whole(0, 0, 0)], {}),
    ("Im2Col", [X], {"kernel_shape": [1]}),
    ("Im2Col", [filled((1, 1, 3))], {"kernel_shape": [1, 1]}),
    ("Im2Col", [filled((1, 1, 3))], {}),
    ("Insert", [X, X], {"axis": 0, "indices": [0]}),
    ("Insert", [X, X], {"axis": 0, "indices": [0, 3]}),
    ("Insert", [X, X.astype("int64")], {"axis": 0, "indices": [0, 1]}),
    ("MaxUnpool", [X, X], {"kernel_shape": [2]}),
    ("Meshgrid", [X], {}),
    ("Meshgrid", [X[0]], {"indexing": "yx"}),
    ("Pad", [X, whole(1)], {}),
    ("Pad", [X, whole(0, 0, -2, -2)], {"mode": "none"}),
    ("Range", [whole(0), whole(3), whole(0)], {}),
    ("Repeat", [X], {"axis": 0, "repeats": [1, 2, 3]}),
    ("Repeat", [X], {"repeats": [-1]}),
    ("Repeat", [X], {"repeats": [1 << 62]}),
    ("Reshape", [X, whole(4, -1)], {}),
    ("ReverseSequence", [X, whole(1, 3, 1)], {}),
    ("Roll", [X], {"shifts": [1, 2, 3], "axes": [0, 1]}),
    ("Roll", [X], {"axes": [0]}),
    ("Rot90", [X], {"axes": [1, 1]}),
    ("Rot90", [X[0]], {}),
    ("ScatterElements", [X, whole(0), whole(0)], {}),
    ("ScatterND", [X, whole(0), whole(0)], {}),
    ("Slice", [X, whole(0), whole(1), whole(2)], {}),
    ("Slice", [X, whole(0), whole(1), whole(0), whole(0)], {}),
    ("SlidingWindow", [X], {"window": [4], "axes": [1]}),
    ("SlidingWindow", [X], {"window": [1]}),
    ("SlidingWindow", [X], {"window": [1], "axes": [1], "steps": [0]}),
    ("SpaceToBatch", [X], {"block_shape": [2]}),
    ("SpaceToBatch", [X], {"block_shape": [0]}),
    ("SpaceToBatch", [X], {"block_shape": [3], "pads": [-1, 1]}),
    ("SpaceToDepth", [filled((1, 1, 3, 2))], {"blocksize": 2}),
    ("Split", [X, whole(1, 1)], {"axis": 1}),
    ("Squeeze", [X, whole(0)], {}),
    ("Stack", [X, X[0]], {}),
    ("TensorScatter", [X, filled((3, 3))], {"axis": 1}),
    ("Tile", [X, whole(1)], {}),
    ("Transpose", [X], {"perm": [0, 0]}),
    ("Trilu", [X[0]], {}),
    ("Unsqueeze", [X, whole(4)], {}),
    ("Unstack", [X], {"axis": 1}),
    ("Unstack", [X], {"axis": 2}),
]


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"), BAD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_does_not_fit_is_refused(name: str, inputs: list[Array], attributes: dict[str, Any]) -> None:
    outputs = len(inputs) if name == "Meshgrid" else 2 if name in {"Split", "Unstack"} else 1
    with pytest.raises(EngineError, match=r"\w+ \w+"):
        _core.evaluate(name, [_core.asarray(one, None) for one in inputs], attributes, outputs)


def test_numpys_functions_are_these_operators() -> None:
    there = filled((3, 4, 5), "int64")
    here = _core.asarray(there, None)
    view, windows = np.lib.stride_tricks.sliding_window_view, numpy.lib.stride_tricks.sliding_window_view
    same([np.roll(here, 2), np.roll(here, 7, axis=1)], [numpy.roll(there, 2), numpy.roll(there, 7, axis=1)])
    same([np.roll(here, [1, -2], (0, 2))], [numpy.roll(there, [1, -2], (0, 2))])
    same([np.rot90(here), np.rot90(here, -1, (1, 2))], [numpy.rot90(there), numpy.rot90(there, -1, (1, 2))])
    same([np.repeat(here, 2)], [numpy.repeat(there, 2)])
    same([np.repeat(here, [2, 0, 1], 0)], [numpy.repeat(there, [2, 0, 1], 0)])
    gone: Any
    places: Any
    values: Any
    axis: Any
    for gone, axis in [(1, None), (slice(None, None, 2), 1), ([0, -1], 2)]:
        same([np.delete(here, gone, axis)], [numpy.delete(there, gone, axis)])
    for places, values, axis in [
        (1, 9, 1),
        (1, 9, None),
        ([0, 2], 9, 0),
        (2, [1, 2, 3, 4], -1),
        ([3, 0, 3], numpy.arange(3), 2),
        (0, numpy.ones((2, 4, 5)), 0),
    ]:
        same([np.insert(here, places, values, axis)], [numpy.insert(there, places, values, axis)])
    same([np.resize(here, (7, 11)), np.resize(here, 3)], [numpy.resize(there, (7, 11)), numpy.resize(there, 3)])
    same([np.diagonal(here, -1, 2, 0)], [numpy.diagonal(there, -1, 2, 0)])
    same([np.diag(here[0], 1), np.diag(here[0, 0], -1)], [numpy.diag(there[0], 1), numpy.diag(there[0, 0], -1)])
    lines = [there[0, 0], there[0, :, 0], there[:, 0, 0]]
    same(list(np.meshgrid(*lines)), list(numpy.meshgrid(*lines)))
    same(list(np.meshgrid(*lines[:2], indexing="ij")), list(numpy.meshgrid(*lines[:2], indexing="ij")))
    same(list(np.unstack(here, axis=-1)), list(numpy.unstack(there, axis=-1)))
    same([view(here, (2, 3), (0, 2))], [windows(there, (2, 3), (0, 2))])
    same([view(here[0, 0], 3)], [windows(there[0, 0], 3)])


def test_a_domain_of_an_onnx_model_has_the_engines_own_operators() -> None:
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Rot90", ["x"], ["y"], domain="walle", k=1)
    floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph([node], "g", [info("x", floats, [2, 3])], [info("y", floats, None)])
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("walle", 1)]
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=imports)
    numpy.testing.assert_array_equal(Backend.run_model(model, [X])[0], numpy.rot90(X))


def test_features_of_any_type_become_one_matrix_of_floats() -> None:
    info = onnx.helper.make_tensor_value_info
    inputs = [info("a", onnx.TensorProto.INT64, [2, 2]), info("b", onnx.TensorProto.FLOAT, [2, 1])]
    node = onnx.helper.make_node("FeatureVectorizer", ["a", "b"], ["y"], domain="ai.onnx.ml", inputdimensions=[2, 1])
    graph = onnx.helper.make_graph([node], "g", inputs, [info("y", onnx.TensorProto.FLOAT, None)])
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=imports)
    a, b = whole(1, 2, 3, 4).reshape(2, 2), filled((2, 1))
    (found,) = Backend.run_model(model, [a, b])
    assert found.dtype == numpy.float32
    numpy.testing.assert_array_equal(found, numpy.concatenate([a, b], 1))
