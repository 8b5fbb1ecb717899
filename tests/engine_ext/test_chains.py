"""Arithmetic that a plan replaces by LayerNormalization or Gelu, and arithmetic that it must not replace."""

from collections.abc import Sequence
from dataclasses import replace
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

import walle
from tests.sim.onnx_models import NODE, make_node, model, numbers, runtime
from walle.engine_ext.onnx_import import write
from walle.engine_ext.onnx_import.graph import Attribute, Graph, Node, TypeInfo
from walle.engine_ext.operators import operators

KNOWN = {one.name for one in operators()}
X = numbers(2, 5, 6)
F32 = np.float32


def graph(nodes: Sequence[Node], constants: dict[str, Any], *, x: Any = X) -> Graph:
    return Graph(
        name="g", nodes=tuple(nodes), inputs={"x": TypeInfo("float32", x.shape)}, outputs=("y",), constants=constants
    )


def ops(one: Graph) -> list[str]:
    plan = walle.Session(write.write(one, KNOWN)).plan()
    assert plan is not None
    return [op.op for op in plan.ops if op.op != "Raster"]


def check(one: Graph, x: Any = X) -> None:
    """Compare with ONNX Runtime, which computes the chain step by step."""
    found = np.asarray(walle.Session(write.write(one, KNOWN)).run({"x": x})["y"])
    nodes = [NODE(node.op, list(node.inputs), list(node.outputs), **node.attributes) for node in one.nodes]
    proto = model(nodes, {"x": x}, ["y"], weights=dict(one.constants), opset=17)
    np.testing.assert_allclose(found, runtime(proto, {"x": x}, optimised=False)[0], rtol=1e-5, atol=1e-6)


def normalisation(*, square: str = "Pow", axes: Sequence[int] = (-1,), swapped: bool = False) -> Graph:
    reduction: dict[str, Attribute] = {"axes": list(axes), "keepdims": 1}

    def pair(a: str, b: str) -> tuple[str, str]:
        return (b, a) if swapped else (a, b)

    row = X.shape[-len(axes) :]
    nodes = [
        make_node("ReduceMean", ("x",), ("mean",), reduction),
        make_node("Sub", ("x", "mean"), ("centred",)),
        make_node(square, ("centred", "two" if square == "Pow" else "centred"), ("square",)),
        make_node("ReduceMean", ("square",), ("variance",), reduction),
        make_node("Add", pair("variance", "epsilon"), ("padded",)),
        make_node("Sqrt", ("padded",), ("deviation",)),
        make_node("Div", ("centred", "deviation"), ("normal",)),
        make_node("Mul", pair("normal", "scale"), ("scaled",)),
        make_node("Add", pair("scaled", "shift"), ("y",)),
    ]
    constants = {"two": F32(2), "epsilon": F32(1e-3), "scale": numbers(*row, seed=1), "shift": numbers(*row, seed=2)}
    return graph(nodes, {name: np.asarray(value) for name, value in constants.items()})


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("axes", [[-1], [2], [-2, -1], [2, 1]])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_chain_becomes_a_layer_normalization(square: str, axes: list[int], swapped: bool) -> None:
    one = normalisation(square=square, axes=axes, swapped=swapped)
    assert ops(one) == ["LayerNormalization"]
    check(one)


@pytest.mark.parametrize(
    ("at", "change"),
    [
        (0, {"attributes": {"axes": [0], "keepdims": 1}}),  # another mean
        (0, {"attributes": {"axes": [-2], "keepdims": 1}}),
        (1, {"inputs": ("mean", "x")}),  # the other way round
        (2, {"inputs": ("centred", "epsilon")}),  # another power
        (2, {"inputs": ("x", "two")}),  # power of something else
        (6, {"inputs": ("x", "deviation")}),
        (4, {"inputs": ("variance", "scale")}),  # more than one number
        (7, {"inputs": ("normal", "x")}),  # computed, no constant
        (8, {"inputs": ("scaled", "epsilon")}),  # one number for all
    ],
)
def test_a_chain_that_is_not_a_normalization_is_not_fused(at: int, change: dict[str, Any]) -> None:
    before = normalisation()
    nodes = list(before.nodes)
    nodes[at] = replace(nodes[at], **change)
    before = replace(before, nodes=tuple(nodes))
    if at == 4:
        before = replace(before, constants={**before.constants, "scale": numbers(*X.shape[-1:]) ** 2})
    assert "LayerNormalization" not in ops(before)
    if at != 1:  # reversed, the square root gets negative numbers
        check(before)


def test_a_broadcast_scale_is_not_a_layer_normalization() -> None:
    before = normalisation()
    before = replace(before, constants={**before.constants, "scale": np.ones(1, np.float32)})
    assert "LayerNormalization" not in ops(before)
    check(before)


def test_a_chain_that_would_widen_its_input_is_not_a_layer_normalization() -> None:
    before = normalisation()
    assert "LayerNormalization" not in ops(replace(before, inputs={"x": TypeInfo("float32", (2, 5, 1))}))


def test_a_chain_whose_parts_are_read_elsewhere() -> None:
    before = normalisation()
    both = replace(before, outputs=("y", "centred"))
    assert sorted(ops(both)) == ["LayerNormalization", "ReduceMean", "Sub"]
    found = walle.Session(write.write(both, KNOWN)).run({"x": X})
    np.testing.assert_allclose(np.asarray(found["centred"]), X - X.mean(-1, keepdims=True), rtol=1e-5, atol=1e-6)


NUMBERS = {
    "half": 0.5, "one": 1.0, "root": sqrt(2), "inverse": sqrt(0.5), "three": 3.0, "cube": 0.044715,
    "tanh": sqrt(2 / pi),
}  # fmt: skip
CONSTANTS = {name: np.asarray(value, np.float32) for name, value in NUMBERS.items()}
DIVIDED = [
    make_node("Div", ("x", "root"), ("u",)),
    make_node("Erf", ("u",), ("e",)),
    make_node("Add", ("e", "one"), ("s",)),
]
SCALED = [
    make_node("Mul", ("inverse", "x"), ("u",)),
    make_node("Erf", ("u",), ("e",)),
    make_node("Add", ("one", "e"), ("s",)),
]
POWER = [make_node("Pow", ("x", "three"), ("c",)), make_node("Mul", ("c", "cube"), ("w",))]
CUBE = [
    make_node("Mul", ("x", "x"), ("q",)),
    make_node("Mul", ("q", "x"), ("c",)),
    make_node("Mul", ("cube", "c"), ("w",)),
]
TANH = [
    make_node("Add", ("x", "w"), ("t",)),
    make_node("Mul", ("t", "tanh"), ("u",)),
    make_node("Tanh", ("u",), ("e",)),
    make_node("Add", ("e", "one"), ("s",)),
]
PRODUCTS = [
    [make_node("Mul", ("x", "s"), ("p",)), make_node("Mul", ("p", "half"), ("y",))],
    [make_node("Mul", ("x", "half"), ("p",)), make_node("Mul", ("p", "s"), ("y",))],
    [make_node("Mul", ("half", "s"), ("p",)), make_node("Mul", ("x", "p"), ("y",))],
]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("inner", [DIVIDED, SCALED, [*POWER, *TANH], [*CUBE, *TANH]])
def test_a_chain_becomes_a_gelu(inner: list[Node], product: list[Node]) -> None:
    before = graph([*inner, *product], CONSTANTS)
    assert ops(before) == ["Gelu"]
    check(before)


@pytest.mark.parametrize(
    "nodes",
    [
        [*DIVIDED, make_node("Mul", ("x", "s"), ("y",))],
        [*DIVIDED, make_node("Mul", ("x", "s"), ("p",)), make_node("Mul", ("p", "three"), ("y",))],
        [*DIVIDED, make_node("Mul", ("u", "s"), ("p",)), make_node("Mul", ("p", "half"), ("y",))],
        [make_node("Div", ("root", "x"), ("u",)), *DIVIDED[1:], *PRODUCTS[0]],
        [make_node("Div", ("x", "three"), ("u",)), *DIVIDED[1:], *PRODUCTS[0]],
        [make_node("Pow", ("x", "one"), ("c",)), POWER[1], *TANH, *PRODUCTS[0]],
    ],
)
def test_products_that_are_not_a_gelu_are_not_fused(nodes: list[Node]) -> None:
    assert "Gelu" not in ops(graph(nodes, CONSTANTS))


def test_a_gelu_of_a_product() -> None:
    inner = [
        replace(node, inputs=tuple("z" if name == "x" else name for name in node.inputs)) for node in [*CUBE, *TANH]
    ]
    product = [
        replace(node, inputs=tuple("z" if name == "x" else name for name in node.inputs)) for node in PRODUCTS[0]
    ]
    before = graph([make_node("Mul", ("x", "three"), ("z",)), *inner, *product], CONSTANTS)
    assert ops(before) == ["Mul", "Gelu"]
    check(before)
