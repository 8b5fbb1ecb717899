from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import walle
from tests.sim.onnx_models import NODE, make_node, model, numbers, runtime
from walle.engine_ext.onnx_import import lowering, passes, write
from walle.engine_ext.onnx_import.graph import Graph, Node, TypeInfo, free_values
from walle.engine_ext.operators import operators

KNOWN = {one.name for one in operators()}


def graph(nodes: Sequence[Node], inputs: dict[str, Any], outputs: Sequence[str], **constants: Any) -> Graph:
    types = {name: TypeInfo(str(array.dtype), array.shape) for name, array in inputs.items()}
    return Graph(name="g", nodes=tuple(nodes), inputs=types, outputs=tuple(outputs), constants=constants)


def run(one: Graph, inputs: dict[str, Any]) -> list[Any]:
    found = walle.Session(write.write(one, KNOWN)).run(inputs)
    return [np.asarray(found[name]) for name in one.outputs]


def same(before: Graph, after: Graph, inputs: dict[str, Any], *, rtol: float = 0) -> None:
    for ours, theirs in zip(run(after, inputs), run(before, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)


def ops(one: Graph) -> list[str]:
    return [node.op for node in one.nodes]


def test_dead_nodes_and_constants_are_removed() -> None:
    x = {"x": numbers(3)}
    before = graph(
        [make_node("Neg", ("x",), ("y",)), make_node("Exp", ("x",), ("unused",)),
         make_node("Abs", ("unused",), ("more",))],
        x, ["y"], w=numbers(3),
    )  # fmt: skip
    after = passes.drop_dead(before)
    assert ops(after) == ["Neg"]
    assert not after.constants
    same(before, after, x)


def test_constants_are_computed() -> None:
    x = {"x": numbers(3)}
    before = graph(
        [make_node("Exp", ("w",), ("e",)), make_node("Add", ("e", "w"), ("s",)), make_node("Mul", ("x", "s"), ("y",))],
        x, ["y"], w=numbers(3, seed=1),
    )  # fmt: skip
    after = passes.fold_constants(before)
    assert ops(after) == ["Mul"]
    same(before, after, x)


def test_large_results_are_left_to_the_plan() -> None:
    before = graph([make_node("Expand", ("w", "shape"), ("y",))], {}, ["y"], w=numbers(1), shape=np.array([100_000]))
    assert ops(passes.fold_constants(before)) == ["Expand"]


def test_an_operator_that_refuses_its_constants_is_kept_for_its_error() -> None:
    before = graph([make_node("Add", ("a", "b"), ("y",))], {}, ["y"], a=numbers(2), b=numbers(3))
    assert ops(passes.fold_constants(before)) == ["Add"]


@pytest.mark.parametrize(
    ("attributes", "expected"), [({}, [2, 3, 4]), ({"start": 1}, [3, 4]), ({"start": -2, "end": -1}, [3])]
)
def test_known_shapes_become_constants(attributes: dict[str, Any], expected: list[int]) -> None:
    before = graph([make_node("Shape", ("x",), ("s",), attributes)], {"x": numbers(2, 3, 4)}, ["s"])
    after = passes.fold_shapes(before)
    assert ops(after) == []
    assert after.constants["s"].tolist() == expected


def test_an_open_dimension_is_not_guessed() -> None:
    before = Graph(
        name="g",
        nodes=(make_node("Shape", ("x",), ("s",)),),
        inputs={"x": TypeInfo("float32", (None, 3))},
        outputs=("s",),
    )
    assert ops(passes.fold_shapes(before)) == ["Shape"]


def test_identities_are_removed_except_from_inputs_to_outputs() -> None:
    x = {"x": numbers(3)}
    before = graph(
        [
            make_node("Identity", ("x",), ("a",)),
            make_node("Identity", ("a",), ("b",)),
            make_node("Neg", ("b",), ("c",)),
            make_node("Identity", ("c",), ("y",)),  # the Neg writes y itself
            make_node("Identity", ("x",), ("copy",)),  # an input cannot be renamed
            make_node("Abs", ("c",), ("z",)),
        ],
        x, ["y", "copy", "z"],
    )  # fmt: skip
    after = passes.drop_identities(before)
    assert ops(after) == ["Neg", "Identity", "Abs"]
    same(before, after, x)


def test_identities_of_one_value_that_give_two_outputs() -> None:
    x = {"x": numbers(3)}
    nodes = [
        make_node("Neg", ("x",), ("c",)),
        make_node("Identity", ("c",), ("y",)),
        make_node("Identity", ("c",), ("z",)),
    ]
    before = graph(nodes, x, ["y", "z"])
    same(before, passes.drop_identities(before), x)


def test_identities_are_renamed_within_subgraphs() -> None:
    branch = Graph(name="b", nodes=(make_node("Neg", ("i",), ("n",)),), inputs={}, outputs=("n",))
    node = make_node("If", ("c",), ("y",), {"then_branch": branch, "else_branch": branch})
    before = graph([make_node("Identity", ("x",), ("i",)), node], {"x": numbers(2), "c": np.array(True)}, ["y"])
    after = passes.drop_identities(before)
    assert [free_values(inner) for inner in after.nodes[0].subgraphs()] == [{"x"}, {"x"}]


@pytest.mark.parametrize("condition", [True, False])
def test_an_if_with_a_constant_condition_becomes_its_branch(condition: bool) -> None:
    x = {"x": numbers(2)}
    # Both branches use the same names for their values, and read a value of the outer graph.
    yes = Graph(
        name="yes",
        nodes=(make_node("Add", ("x", "w"), ("t",)), make_node("Neg", ("t",), ("r",))),
        inputs={},
        outputs=("r",),
        constants={"w": numbers(2)},
    )
    no = Graph(
        name="no", nodes=(make_node("Exp", ("x",), ("t",)), make_node("Abs", ("t",), ("r",))), inputs={}, outputs=("r",)
    )
    nodes = [
        make_node("If", ("c",), ("a",), {"then_branch": yes, "else_branch": no}, "first"),
        make_node("If", ("c",), ("b",), {"then_branch": yes, "else_branch": no}, "second"),
        make_node("Add", ("a", "b"), ("y",)),
    ]
    after = passes.drop_identities(passes.fold_branches(graph(nodes, x, ["y"], c=np.array(condition))))
    assert "If" not in ops(after)
    one = -(x["x"] + numbers(2)) if condition else np.exp(x["x"])
    np.testing.assert_allclose(run(after, x)[0], 2 * one, rtol=1e-5)


def test_equal_nodes_are_merged() -> None:
    x = {"x": numbers(2, 3)}
    before = graph(
        [
            make_node("Transpose", ("x",), ("a",), {"perm": [1, 0]}),
            make_node("Transpose", ("x",), ("b",), {"perm": [1, 0]}),
            make_node("Transpose", ("x",), ("c",), {"perm": [0, 1]}),
            make_node("Exp", ("a",), ("d",)),
            make_node("Exp", ("b",), ("e",)),
            make_node("Add", ("d", "e"), ("y",)),
            make_node("Neg", ("c",), ("z",)),
        ],
        x, ["y", "z"],
    )  # fmt: skip
    after = passes.merge_equal(before)
    assert ops(after) == ["Transpose", "Transpose", "Exp", "Add", "Neg"]
    same(before, after, x)


def test_random_values_are_neither_folded_nor_merged() -> None:
    nodes = [make_node("RandomNormalLike", ("w",), (name,)) for name in "ab"]
    before = graph([*nodes, make_node("Sub", ("a", "b"), ("y",))], {}, ["y"], w=numbers(2))
    assert ops(passes.merge_equal(passes.fold_constants(before))) == ops(before)


NORM = {"scale": numbers(6, seed=2), "shift": numbers(6, seed=3), "mean": numbers(6, seed=4)}
VARIANCE = np.abs(numbers(6, seed=5)) + 0.5
BATCH_NORM = make_node("BatchNormalization", ("h", "scale", "shift", "mean", "var"), ("y",), {"epsilon": 1e-3}, "bn")


def by_hand(h: Any) -> Any:
    spread = (6,) + (1,) * (h.ndim - 2)
    scale, shift, mean, var = (v.reshape(spread) for v in (*NORM.values(), VARIANCE))
    return scale * (h - mean) / np.sqrt(var + 1e-3) + shift


@pytest.mark.parametrize("bias", [True, False])
def test_batch_normalization_is_folded_into_a_gemm(bias: bool) -> None:
    for transposed in (0, 1):
        x, weight = {"x": numbers(4, 5)}, numbers(*((6, 5) if transposed else (5, 6)), seed=1)
        gemm = make_node("Gemm", ("x", "w", "b")[: 3 if bias else 2], ("h",), {"transB": transposed}, "gemm")
        before = graph([gemm, BATCH_NORM], x, ["y"], w=weight, b=numbers(6, seed=9), var=VARIANCE, **NORM)
        after = passes.drop_dead(passes.fold_batch_normalization(before))
        assert ops(after) == ["Gemm"]
        h = x["x"] @ (weight.T if transposed else weight) + (before.constants["b"] if bias else 0)
        np.testing.assert_allclose(run(after, x)[0], by_hand(h), rtol=1e-4, atol=1e-5)


def first_node(one: Graph, x: Any) -> Any:
    """Return the result of the first node by ONNX Runtime, to check the operands that the pass wrote."""
    node = one.nodes[0]
    proto = model(
        [NODE(node.op, list(node.inputs), list(node.outputs), **node.attributes)],
        {"x": x}, list(node.outputs), weights=one.constants,
    )  # fmt: skip
    return runtime(proto, {"x": x})[0]


@pytest.mark.parametrize(
    ("op", "attributes", "weight"),
    [
        ("Conv", {"pads": [1, 1, 1, 1]}, numbers(6, 4, 3, 3)),
        ("Conv", {"group": 2}, numbers(6, 2, 1, 1)),
        ("ConvTranspose", {"strides": [2, 2]}, numbers(4, 6, 2, 2)),
        ("ConvTranspose", {"group": 2}, numbers(4, 3, 2, 2)),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_batch_normalization_is_folded_into_a_convolution(
    op: str, attributes: dict[str, Any], weight: Any, bias: bool
) -> None:
    x = numbers(1, 4, 5, 5, seed=7)
    conv = make_node(op, ("x", "w", "b")[: 3 if bias else 2], ("h",), attributes, "conv")
    before = graph([conv, BATCH_NORM], {"x": x}, ["y"], w=weight, b=numbers(6, seed=9), var=VARIANCE, **NORM)
    after = passes.drop_dead(passes.fold_batch_normalization(before))
    assert ops(after) == [op]
    plain = graph([conv], {"x": x}, ["h"], w=weight, b=numbers(6, seed=9))
    np.testing.assert_allclose(
        first_node(after, x), by_hand(first_node(passes.drop_dead(plain), x)), rtol=1e-3, atol=1e-4
    )


CONV = make_node("Conv", ("x", "w", "b"), ("h",), {"pads": [1, 1, 1, 1]}, "conv")
CONV_TYPES = {name: TypeInfo("float32", (1, 3, 5, 5)) for name in ("h", "r", "s", "late")}


def conv_graph(nodes: Sequence[Node], outputs: Sequence[str]) -> tuple[Graph, dict[str, Any]]:
    x = {"x": numbers(1, 3, 5, 5, seed=7), "r": numbers(1, 3, 5, 5, seed=8), "row": numbers(5, seed=6)}
    one = graph(nodes, x, outputs, w=numbers(3, 3, 3, 3), b=numbers(3, seed=9))
    return replace(one, types=CONV_TYPES), x


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh"])
def test_a_convolution_applies_its_activation_and_adds_its_residual(activation: str) -> None:
    late = make_node("Neg", ("r",), ("late",))  # comes after the convolution, before the addition
    nodes = [CONV, late, make_node("Add", ("late", "h"), ("s",)), make_node(activation, ("s",), ("y",))]
    before, x = conv_graph(nodes, ["y"])
    after = passes.fuse_activations(passes.fuse_residuals(before))
    assert ops(after) == ["Neg", "Conv"]
    same(before, after, x, rtol=1e-5)


def test_a_convolution_without_bias_adds_its_residual() -> None:
    before, x = conv_graph([replace(CONV, inputs=("x", "w")), make_node("Add", ("h", "r"), ("y",))], ["y"])
    after = passes.drop_dead(passes.fuse_residuals(before))
    assert [node.inputs for node in after.nodes] == [("x", "w", "", "r")]
    same(before, after, x, rtol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([make_node("Add", ("h", "row"), ("y",))], ["y"]),  # broadcasts
        ([make_node("Add", ("h", "h"), ("y",))], ["y"]),  # reads it twice
        ([make_node("Relu", ("h",), ("y",)), make_node("Neg", ("h",), ("z",))], ["y", "z"]),  # another reads it
        ([make_node("Relu", ("h",), ("y",))], ["y", "h"]),  # it is an output
        ([make_node("Relu", ("h",), ("y",), {"odd": 1})], ["y"]),
    ],
)
def test_nodes_that_a_convolution_must_not_absorb(nodes: list[Node], outputs: list[str]) -> None:
    before, _ = conv_graph([CONV, *nodes], outputs)
    assert ops(passes.fuse_activations(passes.fuse_residuals(before))) == ops(before)


def test_batch_normalization_stays_where_others_read_what_it_reads() -> None:
    gemm = make_node("Gemm", ("x", "w"), ("h",), {}, "gemm")
    before = graph([gemm, BATCH_NORM, make_node("Neg", ("h",), ("z",))], {"x": numbers(4, 5)}, ["y", "z"],
                   w=numbers(5, 6), var=VARIANCE, **NORM)  # fmt: skip
    assert ops(passes.fold_batch_normalization(before)) == ["Gemm", "BatchNormalization", "Neg"]


@pytest.mark.parametrize("between", ["Relu", "Sigmoid", "Tanh", "Add"])
def test_batch_normalization_is_not_folded_through_what_a_convolution_absorbed(between: str) -> None:
    operands = ("h", "k") if between == "Add" else ("h",)
    norm = make_node("BatchNormalization", ("a", "scale", "shift", "mean", "var"), ("y",), {}, "norm")
    before, x = conv_graph([CONV, make_node(between, operands, ("a",)), norm], ["y"])
    parts = {part: numbers(3, seed=seed) for seed, part in enumerate(("scale", "shift", "mean"), 1)}
    parts |= {"var": np.abs(numbers(3, seed=4)) + 0.5, "k": numbers(1, 3, 5, 5, seed=5)}
    before = replace(before, constants={**before.constants, **parts})
    same(before, passes.optimise(before), x, rtol=1e-5)


def test_all_passes_together_keep_the_outputs() -> None:
    x = {"x": numbers(2, 3)}
    before = graph(
        [
            make_node("Shape", ("x",), ("s",)),
            make_node("Identity", ("x",), ("i",)),
            make_node("Exp", ("w",), ("e",)),
            make_node("Mul", ("i", "e"), ("m",)),
            make_node("Mul", ("x", "e"), ("n",)),
            make_node("Add", ("m", "n"), ("a",)),
            make_node("Reshape", ("a", "s"), ("r",)),
            make_node("Identity", ("r",), ("y",)),
        ],
        x, ["y"], w=numbers(3, seed=1),
    )  # fmt: skip
    after = passes.optimise(lowering.lower(before))
    assert ops(after) == ["Mul", "Add", "Reshape"]
    np.testing.assert_allclose(run(after, x)[0], 2 * x["x"] * np.exp(before.constants["w"]), rtol=1e-5)
