"""Plans of graphs: constants and shapes computed, nodes folded, merged and removed; outputs stay the same."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import walle
from tests.sim.onnx_models import NODE, make_node, model, numbers, runtime
from walle.engine_ext.conversion import convert_bytes
from walle.engine_ext.errors import UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.onnx_import import write
from walle.engine_ext.onnx_import.graph import Graph, Node, TypeInfo
from walle.engine_ext.operators import operators
from walle.engine_ext.session import load

KNOWN = {one.name for one in operators()}


def graph(nodes: Sequence[Node], inputs: dict[str, Any], outputs: Sequence[str], **constants: Any) -> Graph:
    types = {name: TypeInfo(str(array.dtype), array.shape) for name, array in inputs.items()}
    return Graph(name="g", nodes=tuple(nodes), inputs=types, outputs=tuple(outputs), constants=constants)


def session(one: Graph) -> walle.Session:
    return walle.Session(write.write(one, KNOWN))


def run(one: Graph, inputs: dict[str, Any]) -> list[Any]:
    found = session(one).run(inputs)
    return [np.asarray(found[name]) for name in one.outputs]


def ops(model: walle.Session) -> list[str]:
    plan = model.plan()
    assert plan is not None
    return [op.op for op in plan.ops if op.op != "Raster"]


def planned(one: Graph) -> list[str]:
    return ops(session(one))


def test_a_node_that_no_output_needs_is_not_planned() -> None:
    x = {"x": numbers(3)}
    nodes = [
        make_node("Neg", ("x",), ("y",)),
        make_node("Exp", ("x",), ("unused",)),
        make_node("Abs", ("unused",), ("more",)),
    ]
    assert planned(graph(nodes, x, ["y"])) == ["Neg"]


def test_constants_are_computed_once() -> None:
    x, w = {"x": numbers(3)}, numbers(3, seed=1)
    nodes = [
        make_node("Exp", ("w",), ("e",)),
        make_node("Add", ("e", "w"), ("s",)),
        make_node("Mul", ("x", "s"), ("y",)),
    ]
    before = graph(nodes, x, ["y"], w=w)
    assert planned(before) == ["Mul"]
    np.testing.assert_allclose(run(before, x)[0], x["x"] * (np.exp(w) + w), rtol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "expected"), [({}, [2, 3, 4]), ({"start": 1}, [3, 4]), ({"start": -2, "end": -1}, [3])]
)
def test_known_shapes_are_constants(attributes: dict[str, Any], expected: list[int]) -> None:
    x = {"x": numbers(2, 3, 4)}
    before = graph([make_node("Neg", ("x",), ("n",)), make_node("Shape", ("n",), ("s",), attributes)], x, ["s"])
    assert planned(before) == []
    assert run(before, x)[0].tolist() == expected


def test_identities_take_no_step() -> None:
    x = {"x": numbers(3)}
    nodes = [
        make_node("Identity", ("x",), ("a",)),
        make_node("Identity", ("a",), ("b",)),
        make_node("Neg", ("b",), ("c",)),
        make_node("Identity", ("c",), ("y",)),
        make_node("Identity", ("c",), ("z",)),
        make_node("Identity", ("x",), ("copy",)),
    ]
    before = graph(nodes, x, ["y", "z", "copy"])
    assert planned(before) == ["Neg"]
    for found, expected in zip(run(before, x), [-x["x"], -x["x"], x["x"]], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_operators_that_compute_the_same_run_once() -> None:
    x = {"x": numbers(2, 3)}
    nodes = [
        make_node("Transpose", ("x",), ("a",), {"perm": [1, 0]}),
        make_node("Transpose", ("x",), ("b",), {"perm": [1, 0]}),
        make_node("Exp", ("a",), ("d",)),
        make_node("Exp", ("b",), ("e",)),
        make_node("Add", ("d", "e"), ("y",)),
        make_node("LeakyRelu", ("a",), ("f",), {"alpha": 0.5}),
        make_node("LeakyRelu", ("b",), ("z",), {"alpha": 0.25}),
    ]
    before = graph(nodes, x, ["y", "f", "z"])
    assert sorted(planned(before)) == ["Add", "Exp", "LeakyRelu", "LeakyRelu"]
    turned = x["x"].T
    for found, expected in zip(
        run(before, x),
        [2 * np.exp(turned), np.where(turned < 0, 0.5 * turned, turned), np.where(turned < 0, 0.25 * turned, turned)],
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def branches(x: str = "x") -> dict[str, Graph]:
    """Return two branches that use the same names for their values, and read a value of the outer graph."""
    yes = [make_node("Add", (x, "w"), ("t",)), make_node("Neg", ("t",), ("r",))]
    no = [make_node("Exp", (x,), ("t",)), make_node("Abs", ("t",), ("r",))]
    return {
        "then_branch": Graph(name="yes", nodes=tuple(yes), inputs={}, outputs=("r",), constants={"w": numbers(2)}),
        "else_branch": Graph(name="no", nodes=tuple(no), inputs={}, outputs=("r",)),
    }


@pytest.mark.parametrize("condition", [True, False])
def test_a_session_runs_the_branch_of_a_constant_condition(condition: bool) -> None:
    x = {"x": numbers(2)}
    nodes = [
        make_node("If", ("c",), ("a",), branches(), "first"),
        make_node("If", ("c",), ("b",), branches(), "second"),
        make_node("Add", ("a", "b"), ("y",)),
    ]
    data = write.write(graph(nodes, x, ["y"], c=np.array(condition)), KNOWN)
    one = -(x["x"] + numbers(2)) if condition else np.exp(x["x"])
    for runner in (walle.Session, load, walle.Module):
        np.testing.assert_allclose(np.asarray(runner(data).run(x)["y"]), 2 * one, rtol=1e-5)
    assert isinstance(load(data), walle.Session)


SIZED = [
    make_node("Size", ("x",), ("s",)),
    make_node("Equal", ("s", "two"), ("c",)),
    make_node("If", ("c",), ("y",), branches(), "by size"),
]


def test_a_session_runs_the_branch_that_shapes_choose() -> None:
    for x, expected in ((numbers(2), -2 * numbers(2)), (numbers(3), np.exp(numbers(3)))):
        data = write.write(graph(SIZED, {"x": x}, ["y"], two=np.array(2)), KNOWN)
        found = load(data)
        assert isinstance(found, walle.Session)
        np.testing.assert_allclose(np.asarray(found.run({"x": x})["y"]), expected, rtol=1e-5)


def test_a_condition_that_is_open_needs_a_module() -> None:
    by_shape = replace(graph(SIZED, {}, ["y"], two=np.array(2)), inputs={"x": TypeInfo("float32", (None,))})
    given = graph([make_node("If", ("c",), ("y",), branches(), "if")], {"x": numbers(2), "c": np.array(True)}, ["y"])
    for one in (by_shape, given):
        data = write.write(one, KNOWN)
        with pytest.raises(UnsupportedError, match=r"(if|by size)'.*Module"):
            walle.Session(data)
        assert isinstance(load(data), walle.Module)


def test_an_operator_whose_shape_depends_on_constants_runs_in_a_session() -> None:
    x = {"x": numbers(4)}
    nodes = [
        make_node("NonZero", ("mask",), ("i",)),
        make_node("Squeeze", ("i", "zero"), ("at",)),
        make_node("Gather", ("x", "at"), ("y",)),
    ]
    before = graph(nodes, x, ["y"], mask=np.array([1, 0, 1, 1]), zero=np.array([0]))
    np.testing.assert_array_equal(run(before, x)[0], x["x"][[0, 2, 3]])


def test_conversion_writes_the_nodes_as_they_are() -> None:
    nodes = [
        NODE("Conv", ["x", "w"], ["h"]),
        NODE("BatchNormalization", ["h", "s", "s", "s", "v"], ["n"]),
        NODE("Relu", ["n"], ["r"]),
        NODE("Identity", ["r"], ["y"]),
    ]
    weights = {"w": numbers(3, 3, 1, 1), "s": numbers(3), "v": np.ones(3, np.float32)}
    data = convert_bytes(model(nodes, {"x": numbers(1, 3, 4, 4)}, ["y"], weights=weights))
    for name in (b"Conv", b"BatchNormalization", b"Relu", b"Identity"):
        assert name in data
    assert b"activation" not in data
    assert ops(walle.Session(data)) == ["Conv"]


def norm_of(
    product: onnx.NodeProto, weights: dict[str, Any], x: Any, *more: onnx.NodeProto, outputs: Any = ("y",)
) -> Any:
    channels = {"scale": numbers(6, seed=2), "shift": numbers(6, seed=3), "mean": numbers(6, seed=4)}
    variance = {"var": np.abs(numbers(6, seed=5)) + np.float32(0.5)}
    norm = NODE("BatchNormalization", ["h", *channels, "var"], ["y"], epsilon=1e-3)
    return model([product, norm, *more], {"x": x}, list(outputs), weights=weights | channels | variance)


PRODUCTS = [
    ("Conv", {"pads": [1, 1, 1, 1]}, (6, 4, 3, 3), "Conv"),
    ("Conv", {"group": 2}, (6, 2, 1, 1), "Conv"),
    ("ConvTranspose", {"strides": [2, 2]}, (4, 6, 2, 2), "Conv"),
    ("ConvTranspose", {"group": 2}, (4, 3, 2, 2), "Conv"),
    ("Gemm", {}, (4, 6), "Linear"),
    ("Gemm", {"transB": 1}, (6, 4), "Linear"),
]


@pytest.mark.parametrize(("op", "attributes", "weight", "step"), PRODUCTS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("backend", [one.name for one in walle.backends() if one.available and one.exact])
def test_batch_normalization_is_folded_into_a_product(
    op: str, attributes: dict[str, Any], weight: tuple[int, ...], step: str, bias: bool, backend: str
) -> None:
    x = numbers(3, 4, seed=7) if op == "Gemm" else numbers(2, 4, 5, 5, seed=7)
    product = NODE(op, ["x", "w", "b"][: 3 if bias else 2], ["h"], **attributes)
    proto = norm_of(product, {"w": numbers(*weight, seed=1), "b": numbers(6, seed=9)}, x)
    one = walle.Session(convert_bytes(proto), backend=backend)
    assert ops(one) == [step]
    np.testing.assert_allclose(
        np.asarray(one.run({"x": x})["y"]), runtime(proto, {"x": x}, optimised=False)[0], rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("outputs", [("y", "z"), ("y", "h")])
def test_batch_normalization_is_not_folded_where_others_read_its_input(outputs: tuple[str, ...]) -> None:
    x = numbers(2, 4, 5, 5)
    proto = norm_of(
        NODE("Conv", ["x", "w"], ["h"]), {"w": numbers(6, 4, 1, 1)}, x, NODE("Neg", ["h"], ["z"]), outputs=outputs
    )
    one = walle.Session(convert_bytes(proto))
    assert "Mul" in ops(one)
    for name, expected in zip(outputs, runtime(proto, {"x": x}, optimised=False), strict=True):
        np.testing.assert_allclose(np.asarray(one.run({"x": x})[name]), expected, rtol=1e-4, atol=1e-5)


def test_two_products_by_one_weight_are_folded_apart() -> None:
    x = numbers(2, 3, 5, 5)
    nodes, weights = [], {"w": numbers(3, 3, 3, 3), "v": np.ones(3, np.float32)}
    for at in range(2):
        weights[f"s{at}"] = numbers(3, seed=at + 1)
        nodes.append(NODE("Conv", ["x", "w"], [f"h{at}"]))
        nodes.append(NODE("BatchNormalization", [f"h{at}", *[f"s{at}"] * 3, "v"], [f"y{at}"]))
    proto = model(nodes, {"x": x}, ["y0", "y1"], weights=weights)
    found = walle.Session(convert_bytes(proto)).run({"x": x})
    for name, expected in zip(("y0", "y1"), runtime(proto, {"x": x}, optimised=False), strict=True):
        np.testing.assert_allclose(np.asarray(found[name]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("residual", [False, True])
def test_files_that_attach_an_activation_or_a_residual_to_a_convolution(activation: str, residual: bool) -> None:
    """Check a file of an earlier version: its Conv has an activation, and a BatchNormalization behind it."""
    x, w, row = numbers(1, 3, 5, 5), numbers(3, 3, 1, 1, seed=1), np.abs(numbers(3, seed=2)) + np.float32(0.5)
    g = GraphBuilder("old")
    given, norm = g.input("x", (1, 3, 5, 5)), [g.constant(name, row) for name in ("s", "b", "m", "v")]
    operands = [given, g.constant("w", w)] + ([None, given] if residual else [])
    h = g.op("Conv", operands, activation=activation)
    g.output("y", g.op("BatchNormalization", [h, *norm]))
    sums = np.einsum("oi,nihw->nohw", w[:, :, 0, 0], x) + (x if residual else 0)
    curves: dict[str, Callable[[Any], Any]] = {
        "Relu": lambda a: np.maximum(a, 0),
        "Sigmoid": lambda a: 1 / (1 + np.exp(-a)),
        "Tanh": np.tanh,
    }
    wide = row[:, None, None]
    expected = (curves[activation](sums) - wide) / np.sqrt(wide + 1e-5) * wide + wide
    found = walle.Session(g.to_bytes()).run({"x": x})["y"]
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


CONV = NODE("Conv", ["x", "w", "b"], ["h"], pads=[1, 1, 1, 1])


@pytest.mark.parametrize(
    ("nodes", "outputs", "steps"),
    [
        (
            [NODE("Neg", ["r"], ["l"]), NODE("Add", ["l", "h"], ["s"]), NODE("Relu", ["s"], ["y"])],
            ["y"],
            ["Neg", "Conv"],
        ),
        ([NODE("Add", ["h", "row"], ["y"])], ["y"], ["Conv", "Add"]),  # broadcasts
        ([NODE("Add", ["h", "h"], ["y"])], ["y"], ["Conv", "Add"]),  # reads it twice
        ([NODE("Relu", ["h"], ["y"]), NODE("Neg", ["h"], ["z"])], ["y", "z"], ["Conv", "Relu", "Neg"]),
        ([NODE("Relu", ["h"], ["y"])], ["y", "h"], ["Conv", "Relu"]),  # an output stays
    ],
)
def test_a_convolution_absorbs_the_nodes_after_it(
    nodes: list[onnx.NodeProto], outputs: list[str], steps: list[str]
) -> None:
    shapes = {"x": (1, 3, 5, 5), "r": (1, 3, 5, 5), "row": (5,)}
    feeds = {name: numbers(*shape, seed=len(name)) for name, shape in shapes.items()}
    read = {name for node in [CONV, *nodes] for name in node.input} & feeds.keys()
    feeds = {name: feeds[name] for name in sorted(read)}
    proto = model([CONV, *nodes], feeds, outputs, weights={"w": numbers(3, 3, 3, 3), "b": numbers(3, seed=9)})
    one = walle.Session(convert_bytes(proto))
    assert ops(one) == steps
    for name, expected in zip(outputs, runtime(proto, feeds, optimised=False), strict=True):
        np.testing.assert_allclose(np.asarray(one.run(feeds)[name]), expected, rtol=1e-4, atol=1e-5)


OPENED = """
import resource, sys, walle
from walle.errors import WalleError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    walle.Session(sys.argv[1])
except WalleError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("kind", ["expand", "broadcast"])
def test_a_small_file_does_not_become_large_before_it_is_planned(tmp_path: Path, kind: str) -> None:
    g = GraphBuilder("large")
    if kind == "expand":
        value = g.op("Expand", [g.constant("one", np.ones(1, np.float32)), g.constant("to", np.array([1 << 28]))])
    else:
        sides = [g.constant(name, np.ones(shape, np.float32)) for name, shape in (("r", (1, 8000)), ("c", (8000, 1)))]
        value = g.op("Add", sides)
    g.output("y", g.op("NonZero", [value]))
    (tmp_path / "large.walle").write_bytes(g.to_bytes())
    run = [sys.executable, "-c", OPENED, str(tmp_path / "large.walle")]
    *said, size_bytes = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    assert "walle.Module" in said[0]
    assert int(size_bytes) < 1 << 27
