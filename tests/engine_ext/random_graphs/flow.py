"""Family of random graphs with branches, loops and scans."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.engine_ext.random_graphs.maker import GraphMaker, Unsuitable
from tests.engine_ext.random_graphs.steps import activation, binary, guarded, reduction, smooth

_NODE: Any = helper.make_node  # Any: the attributes are keywords of any kind
_UNARY = ("Tanh", "Sigmoid", "Neg", "Relu", "Abs", "Sin")


def flow(g: GraphMaker) -> list[str]:
    """Make two to six steps of float32, some of them control flow; all results that nobody reads are outputs."""
    if g.dtype != "float32":
        raise Unsuitable("float32 only")
    shape = tuple(g.draw([1, 2, 3, 4, 8]) for _ in range(g.between(1, 3)))
    values = [g.input(g.normal(shape))]
    for _ in range(g.between(2, 6)):
        x = g.draw(values[-2:])
        try:
            if g.chance(0.5):
                values.append(g.draw([branch, loop, scan])(g, x))
            elif g.chance(0.4):
                values.append(binary(g, x, values))
            else:
                values.append(g.draw([smooth, activation, guarded, reduction])(g, x))
        except Unsuitable:
            continue
    return []


def _chain(g: GraphMaker, x: str, other: str, result: str) -> list[onnx.NodeProto]:
    """Return one to three nodes from x to the result, which may read another value of the same shape."""
    nodes = []
    for _ in range(g.between(0, 2)):
        made = g.name("i")
        nodes.append(_NODE(g.draw(_UNARY), [x], [made]))
        x = made
    pair = [x, other] if g.chance(0.5) else [other, x]
    nodes.append(_NODE(g.draw(["Add", "Mul", "Sub", "Max"]), pair, [result]))
    return nodes


def _info(name: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def branch(g: GraphMaker, x: str) -> str:
    """Return one of two chains by a condition that is a constant, an input, or depends on data."""
    shape = g.shape(x)
    how = g.draw(["constant", "input", "data"])
    truth = np.array(g.chance(0.5))
    if how == "data":
        total = g.op("ReduceSum", [x], keepdims=0)
        condition = g.op("Less", [total, g.number(3.33 if truth else -3.33)])
    else:
        condition = g.constant(truth) if how == "constant" else g.input(truth)
    graphs = []
    for _ in range(2):
        result = g.name("b")
        nodes = _chain(g, x, x, result)
        graphs.append(helper.make_graph(nodes, g.name("branch"), [], [_info(result, shape=shape)]))
    return g.node("If", [condition], [("float32", shape)], then_branch=graphs[0], else_branch=graphs[1])[0]


def loop(g: GraphMaker, x: str) -> str:
    """Return the last value of a loop of one to four turns, with a scan output and perhaps an end by condition."""
    shape, count = g.shape(x), g.between(1, 4)
    turn, going, carried, result, still = (g.name("l") for _ in range(5))
    nodes = [_NODE("Tanh", [carried], [low := g.name("l")]), *_chain(g, low, x, result)]
    nodes.append(_NODE("Identity", [going], [still]))
    outputs = [_info(still, TensorProto.BOOL, ()), _info(result, shape=shape), _info(result, shape=shape)]
    inputs = [_info(turn, TensorProto.INT64, ()), _info(going, TensorProto.BOOL, ()), _info(carried, shape=shape)]
    if g.chance(0.5):  # the scan output: another value than the carried one
        nodes.append(_NODE("Neg", [result], [seen := g.name("l")]))
        outputs[2] = _info(seen, shape=shape)
    else:
        nodes.append(_NODE("Identity", [result], [seen := g.name("l")]))
        outputs[2] = _info(seen, shape=shape)
    body = helper.make_graph(nodes, g.name("body"), inputs, outputs)
    trips = np.array(count, dtype=np.int64)
    most = g.input(trips) if g.chance(0.4) else g.constant(trips)
    start = g.constant(np.array(True)) if g.chance(0.6) else ""
    types = [("float32", shape), ("float32", (count, *shape))]
    return g.draw(g.node("Loop", [most, start, x], types, body=body))


def scan(g: GraphMaker, x: str) -> str:
    """Return the states of a scan along the first axis, or its last one."""
    shape = g.shape(x)
    if len(shape) < 2:
        raise Unsuitable("no axis to scan")
    row = shape[1:]
    state, item, result, seen = (g.name("s") for _ in range(4))
    nodes = [_NODE("Tanh", [state], [low := g.name("s")]), *_chain(g, low, item, result)]
    nodes.append(_NODE("Sigmoid", [result], [seen]))
    outputs = [_info(result, shape=row), _info(seen, shape=row)]
    body = helper.make_graph(nodes, g.name("body"), [_info(state, shape=row), _info(item, shape=row)], outputs)
    start = g.constant(g.normal(row))
    backwards: dict[str, Any] = {"scan_input_directions": [1]} if g.chance(0.3) else {}
    types = [("float32", row), ("float32", shape)]
    return g.draw(g.node("Scan", [start, x], types, body=body, num_scan_inputs=1, **backwards))
