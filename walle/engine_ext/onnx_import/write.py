"""Graphs of the importer as `.walle` bytes."""

from collections.abc import Collection
from typing import Any

import numpy as np
from onnx import defs

from walle.engine_ext.errors import UnsupportedError
from walle.engine_ext.model import DTYPES, GraphBuilder, Value
from walle.engine_ext.onnx_import.graph import Array, Attribute, Graph, Node

_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.preview.training"})


def write(graph: Graph, operators: Collection[str]) -> bytes:
    """Return the `.walle` file of a graph whose nodes are all among `operators`, the engine's.

    Raises:
        UnsupportedError: an operator, an attribute or an element type that the engine does not have; names the node.
    """
    builder = GraphBuilder(graph.name)
    values: dict[str, Value] = {}
    for name, info in graph.inputs.items():
        if info.kind != "tensor" or info.dtype is None:
            raise UnsupportedError(f"input {name!r} is a {info.kind} of unknown content; inputs are tensors")
        if info.shape is None:
            raise UnsupportedError(f"input {name!r} has no shape, not even a number of dimensions; give it one")
        values[name] = builder.input(name, info.shape, _known(info.dtype, f"input {name!r}"))
    used = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    for name, array in graph.constants.items():
        if name in used:
            values[name] = _constant(builder, name, array)
    for node in graph.nodes:
        _write_node(builder, values, node, operators)
    for name in graph.outputs:
        if name not in values:
            raise UnsupportedError(f"output {name!r} is given by no node")
        builder.output(name, values[name])
    return builder.to_bytes()


def _known(dtype: str, what: str) -> str:
    if dtype not in DTYPES:
        raise UnsupportedError(f"{what} is {dtype}; the engine has {', '.join(DTYPES)}")
    return dtype


def _constant(builder: GraphBuilder, name: str, array: Array) -> Value:
    dtype = "string" if array.dtype.kind in "OSU" else str(array.dtype)
    return builder.raw(name, _known(dtype, f"constant {name!r}"), array.shape, array.tobytes())


def _write_node(builder: GraphBuilder, values: dict[str, Value], node: Node, operators: Collection[str]) -> None:
    where = f"node {node.name!r} ({_title(node)})"
    if node.op not in operators or node.domain not in _DOMAINS:
        raise UnsupportedError(f"{where}: the engine has no such operator; `walle operators` lists those it has")
    inputs: list[Value | None] = []
    for name in node.inputs:
        if name and name not in values:
            raise UnsupportedError(f"{where} reads {name!r}, which nothing before it gives")
        inputs.append(values[name] if name else None)
    attributes: dict[str, Any] = {key: _plain(value, key, where) for key, value in node.attributes.items()}
    made = builder.node(node.op, inputs, len(node.outputs), node.name, attributes)
    values.update({name: value for name, value in zip(node.outputs, made, strict=True) if name})


def _title(node: Node) -> str:
    domain = f"{node.domain}." if node.domain else ""
    if not node.version:
        return f"{domain}{node.op}"
    try:
        since = f", since {defs.get_schema(node.op, node.version, node.domain).since_version}"
    except defs.SchemaError:
        since = ", unknown to ONNX"
    return f"{domain}{node.op}, opset {node.version}{since}"


def _plain(value: Attribute, key: str, where: str) -> Any:
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list) and all(isinstance(one, int | float) for one in value):
        return value
    kind = "subgraph" if isinstance(value, Graph) else "tensor" if isinstance(value, np.ndarray) else "list of strings"
    raise UnsupportedError(f"{where}: attribute {key!r} is a {kind}, which the engine's {key} does not take")
