"""Operators that ONNX defines by others, on constants: replaced by their definitions, or refused with the reason."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.sim.onnx_models import NODE, model, reference, runtime
from tests.sim.onnx_suite import all_cases, difference, load_case, quiet, to_value
from walle.engine_ext.conversion import convert_bytes
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.errors import EngineError
from walle.onnx_backend import Backend

CASES = Path(__file__).parents[3] / "shared/cases/engine"
needs_cases = pytest.mark.skipif(not CASES.exists(), reason="../shared/cases is not beside this checkout")
# The operators that the engine does not have, and whose definitions consist of those that it has.
DEFINED = {
    "BlackmanWindow", "HammingWindow", "HannWindow", "NegativeLogLikelihoodLoss", "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
}  # fmt: skip


def on_constants(case: Any) -> str | None:
    """Return what is wrong with a case of the suite whose inputs but the first are constants, None where nothing is."""
    proto, [(inputs, expected), *_] = load_case(case)
    arrays = [to_value(one) for one in inputs]
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for info, array in zip(list(fixed.graph.input)[1:], arrays[1:], strict=True):
        fixed.graph.initializer.append(numpy_helper.from_array(array, info.name))
    del fixed.graph.input[1:]
    try:
        found = Backend.prepare(fixed).run(arrays[:1])
    except EngineError as error:
        return str(error)
    return difference(to_value(expected), list(found), case.rtol, case.atol)


@pytest.mark.night
def test_defined_operators_run_with_all_inputs_but_the_first_constant() -> None:
    with quiet():
        found = {
            name: on_constants(case)
            for name, case in all_cases().items()
            if DEFINED & {node.op_type for node in load_case(case)[0].graph.node}
        }
    assert len(found) > 90
    assert {name: why for name, why in found.items() if why is not None} == {}


def rotary(tables: int) -> tuple[list[onnx.NodeProto], dict[str, Any], dict[str, Any]]:
    """Return nodes, inputs and weights of a RotaryEmbedding after another node, as in models of language."""
    rng = np.random.default_rng(5)
    angles = rng.uniform(0, 6, (tables, 32)).astype(np.float32)
    x = rng.standard_normal((2, 4, 3, 64)).astype(np.float32)
    places = rng.integers(0, tables, (2, 3))
    nodes = [NODE("Neg", ["x"], ["q"]), NODE("RotaryEmbedding", ["q", "c", "s", "p"], ["y"], name="rotary")]
    return nodes, {"x": x, "p": places}, {"c": np.cos(angles), "s": np.sin(angles)}


@pytest.mark.parametrize("tables", [10, 4096])  # the second has 512 KiB, which stay in the file
def test_rotary_embedding_by_constant_tables(tables: int) -> None:
    nodes, inputs, weights = rotary(tables)
    proto = model(nodes, inputs, ["y"], weights=weights, opset=23)
    (found,) = Backend.run_model(proto, inputs)
    np.testing.assert_allclose(found, reference(proto, inputs)[0], rtol=1e-5, atol=1e-6)


def test_rotary_embedding_by_tables_of_constant_nodes() -> None:
    nodes, inputs, weights = rotary(64)
    tables = [NODE("Constant", [], [name], value=numpy_helper.from_array(one)) for name, one in weights.items()]
    proto = model([*tables, *nodes], inputs, ["y"], opset=23)
    (found,) = Backend.run_model(proto, inputs)
    np.testing.assert_allclose(found, reference(proto, inputs)[0], rtol=1e-5, atol=1e-6)


def test_rotary_embedding_in_a_branch_uses_the_branchs_tables() -> None:
    nodes, inputs, weights = rotary(10)
    tables = [numpy_helper.from_array(one, name) for name, one in weights.items()]
    branch = helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("y", 1, None)], tables)
    other = helper.make_graph([NODE("Identity", ["x"], ["z"])], "o", [], [helper.make_tensor_value_info("z", 1, None)])
    node = NODE("If", ["if"], ["r"], then_branch=branch, else_branch=other)
    proto = model([node], {"if": np.array(True), **inputs}, ["r"], opset=23)
    straight = model(nodes, inputs, ["y"], weights=weights, opset=23)
    (found,) = Backend.run_model(proto, {"if": np.array(True), **inputs})
    np.testing.assert_allclose(found, reference(straight, inputs)[0], rtol=1e-5, atol=1e-6)


def test_values_of_one_name_and_two_types_in_branches_are_not_mixed_up() -> None:
    """The definition depends on the rank: that of the other branch would be another operator."""
    branches = []
    for shape in ([2, 3, 8], [2, 2, 3, 4]):
        tables = [numpy_helper.from_array(np.ones((2, 3, 2), np.float32), name) for name in "cs"]
        nodes = [
            NODE("Constant", [], ["n"], value=numpy_helper.from_array(np.array(shape))),
            NODE("Reshape", ["x", "n"], ["q"]),
            NODE("RotaryEmbedding", ["q", "c", "s"], ["y"], num_heads=2),
        ]
        branches.append(helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("y", 1, None)], tables))
    node = NODE("If", ["if"], ["r"], then_branch=branches[0], else_branch=branches[1])
    x = np.arange(48, dtype=np.float32).reshape(2, 3, 8)
    proto = model([node], {"if": np.array(True), "x": x}, ["r"], opset=23)
    with pytest.raises(UnsupportedError, match=r"RotaryEmbedding.*Type unknown for q"):
        convert_bytes(proto)


@needs_cases
def test_the_published_rotary_case_runs() -> None:
    proto = onnx.load(CASES / "rotary_after_neg.onnx")
    inputs = {
        "x": np.random.default_rng(1).standard_normal((2, 4, 3, 8)).astype(np.float32),
        "p": np.arange(6).reshape(2, 3),
    }
    (found,) = Backend.run_model(proto, inputs)
    np.testing.assert_allclose(found, reference(proto, inputs)[0], rtol=1e-5, atol=1e-6)


@needs_cases
def test_the_published_loss_case_runs() -> None:
    proto = onnx.load(CASES / "loss_constant_labels.onnx")
    inputs = {"x": np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)}
    (found,) = Backend.run_model(proto, inputs)
    np.testing.assert_allclose(found, runtime(proto, inputs)[0], rtol=1e-5, atol=1e-6)


def test_an_operator_whose_definition_cannot_be_used_is_refused_with_the_reason() -> None:
    """onnx does not know the type of what an operator of another domain makes."""
    nodes = [
        NODE("Own", ["x"], ["t"], domain="elsewhere"),
        NODE("SoftmaxCrossEntropyLoss", ["x", "t"], ["y"], name="loss"),
    ]
    proto = model(nodes, {"x": np.zeros((3, 4), np.float32)}, ["y"], opset=13, domains=["elsewhere"])
    with pytest.raises(UnsupportedError, match=r"'loss' \(SoftmaxCrossEntropyLoss\).*definition.*Type unknown for t"):
        convert_bytes(proto)


def test_functions_that_cannot_be_inlined_are_refused_with_the_reason() -> None:
    own = helper.make_function(
        "own", "F", ["a"], ["b"], [NODE("SoftmaxCrossEntropyLoss", ["a", "u"], ["b"])], [helper.make_opsetid("", 13)]
    )
    proto = model(
        [NODE("F", ["x"], ["y"], domain="own")],
        {"x": np.zeros((3, 4), np.float32)},
        ["y"],
        functions=[own],
        domains=["own"],
        opset=13,
    )
    with pytest.raises((ModelError, UnsupportedError), match=r"functions of the model|'u'|unknown"):
        convert_bytes(proto)
