"""Checks of an ONNX model before the package `onnx` works on it: its C++ trusts what they refuse.

Its shape inference divides by strides, block sizes and numbers of groups, and its inliner follows calls of functions
without a bound. Each check names the node.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import onnx
from onnx import defs

from walle.engine_ext.conversion.job import ConvertLimits
from walle.engine_ext.errors import ModelError
from walle.engine_ext.onnx_import.weights import Weights

type Protos = onnx.NodeProto | onnx.GraphProto | onnx.FunctionProto

MAIN = ("", "ai.onnx")
_MAX_DEPTH = 32  # subgraphs within subgraphs, after functions are inlined
_MAX_CALLS = 100  # functions within functions
_MAX_NAME = 500  # characters of a node's name or operator
_MOST = 1 << 31  # larger attributes overflow where sizes are computed from them
# The least value of attributes that count, divide or measure; and of those that may be zero.
_LEAST: Mapping[str, int] = {
    **dict.fromkeys(
        ("blocksize", "dilations", "group", "hidden_size", "kernel_shape", "max_gram_length", "min_gram_length",
         "num_groups", "num_outputs", "output_height", "output_width", "pooled_shape", "size", "strides"), 1),
    **dict.fromkeys(
        ("kv_num_heads", "num_heads", "output_padding", "output_shape", "q_num_heads", "rotary_embedding_dim"), 0),
}  # fmt: skip
_SIGNED = frozenset({"pads", "axis", "axes", "border", "perm"})  # attributes whose size alone is bounded


class _Size(NamedTuple):
    """Size of a graph after inlining: its nodes, and how deep its subgraphs and calls are nested."""

    nodes: int
    depth: int
    calls: int  # depth of functions within functions


def check_model(model: onnx.ModelProto, weights: Weights, limits: ConvertLimits) -> None:
    """Check names, attributes, weights, inputs and calls of functions.

    Raises:
        ModelError: names the node and what is wrong with it.
    """
    versions = opsets(model)
    for where, graph in _graphs(model.graph, "the graph"):
        _check_names(graph, where)
        for index, node in enumerate(graph.node):
            _check_node(node, title(node, index), versions)
        for one in graph.initializer:
            weights.check(one, one.name)
        _check_inputs(graph)
    for function in model.functions:
        own = {("" if one.domain in MAIN else one.domain): one.version for one in function.opset_import}
        for index, node in _all_nodes(function.node):
            _check_node(node, f"{title(node, index)} of function {function.name!r}", own)
    _Calls(model, limits.nodes).check()


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Return the version of each operator set that the model imports; "" is the main one.

    Raises:
        ModelError: it imports none, or a version that is not a positive number.
    """
    versions = {("" if one.domain in MAIN else one.domain): one.version for one in model.opset_import}
    if not versions and model.ir_version < 3:
        versions[""] = 1
    if not model.HasField("graph"):
        raise ModelError("it has no graph: the file is empty, cut off, or not an ONNX model")
    if not versions:
        raise ModelError("it imports no operator set (opset_import): export the model again")
    for domain, version in versions.items():
        if version < 1:
            raise ModelError(f"it imports version {version} of the operator set {domain!r}; versions begin with 1")
    return versions


def title(node: onnx.NodeProto, index: int) -> str:
    """Return a node as messages name it."""
    return f"node {node_name(node, index)!r} ({node.op_type[:_MAX_NAME]})"


def node_name(node: onnx.NodeProto, index: int) -> str:
    """Return the name that a node has in messages and in the converted file: long ones are cut."""
    return (node.name or next((name for name in node.output if name), f"node {index}"))[:_MAX_NAME]


def _graphs(graph: onnx.GraphProto, where: str) -> Iterator[tuple[str, onnx.GraphProto]]:
    waiting = [(where, graph)]
    while waiting:
        name, one = waiting.pop()
        yield name, one
        for index, node in enumerate(one.node):
            waiting += [(f"a subgraph of {title(node, index)}", inner) for inner in subgraphs(node)]


def _all_nodes(nodes: Protos) -> Iterator[tuple[int, onnx.NodeProto]]:
    waiting = [nodes]
    while waiting:
        for index, node in enumerate(waiting.pop()):
            yield index, node
            waiting += [inner.node for inner in subgraphs(node)]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes."""
    for one in node.attribute:
        if one.HasField("g"):
            yield one.g
        yield from one.graphs


def _check_names(graph: onnx.GraphProto, where: str) -> None:
    made: set[str] = set()
    for name in (*(one.name for one in graph.initializer), *(one.values.name for one in graph.sparse_initializer)):
        if name in made:
            raise ModelError(f"{where} has two initializers {name!r}")
        made.add(name)
    inputs: set[str] = set()
    for one in graph.input:
        if one.name in inputs:
            raise ModelError(f"{where} has two inputs {one.name!r}")
        inputs.add(one.name)
    made |= inputs
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name and name in made:
                raise ModelError(f"{title(node, index)} makes {name!r}, which {where} has already")
            made.add(name)


def _check_inputs(graph: onnx.GraphProto) -> None:
    for one in graph.input:
        if one.type.HasField("tensor_type"):
            for dim in one.type.tensor_type.shape.dim:
                if dim.dim_value == -1:  # some exporters write an open dimension so
                    dim.ClearField("value")
                elif dim.dim_value < 0:
                    raise ModelError(f"input {one.name!r} has the dimension {dim.dim_value}; it must be 0 or more")


def _check_node(node: onnx.NodeProto, where: str, versions: Mapping[str, int]) -> None:
    if not node.op_type:
        raise ModelError(f"{where} names no operator")
    schema = _schema(node, versions)
    if schema is None:
        return
    for what, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            allowed = str(least) if least == most else f"{least} to {most}"
            raise ModelError(f"{where} has {count} {what}; ONNX has {allowed}")
    types = {name: int(one.type.value) for name, one in schema.attributes.items()}  # type: ignore[attr-defined]
    given = {one.name for one in node.attribute}
    missing = next((name for name, one in schema.attributes.items() if one.required and name not in given), "")
    if missing:
        raise ModelError(f"{where} has no attribute {missing!r}")
    _check_bodies(node, where)
    for one in node.attribute:
        if one.ref_attr_name:
            continue
        kind = types.get(one.name)
        if kind is not None and kind != one.type:
            names = onnx.AttributeProto.AttributeType.Name
            found = names(one.type) if one.type in onnx.AttributeProto.AttributeType.values() else str(one.type)
            raise ModelError(f"{where}: attribute {one.name!r} has the type {found}; ONNX has {names(kind)}")
        lowest = _LEAST.get(one.name)
        if lowest is None and one.name not in _SIGNED:
            continue
        low = -_MOST if lowest is None else lowest
        for value in (*one.ints, *([one.i] if one.type == onnx.AttributeProto.INT else [])):
            if not low <= value < _MOST:
                allowed = f"{low} or more" if value < low else f"less than {_MOST}"
                raise ModelError(f"{where}: attribute {one.name!r} has {value}; it must be {allowed}")


def _check_bodies(node: onnx.NodeProto, where: str) -> None:
    """Check the numbers of inputs and outputs of the subgraphs of If and Loop."""
    bodies = {one.name: one.g for one in node.attribute if one.HasField("g")}
    if node.op_type == "If":
        counts = [len(one.output) for one in bodies.values()]
        if len(set(counts)) > 1 or any(count < len(node.output) for count in counts):
            raise ModelError(f"{where} has {len(node.output)} outputs, and its branches have {counts}")
    for name, body in bodies.items() if node.op_type == "Loop" else ():
        if len(body.input) != len(node.input) or len(body.output) <= len(node.output):
            raise ModelError(
                f"{where} has {len(node.input)} inputs and {len(node.output)} outputs; its {name} has {len(body.input)}"
                f" and {len(body.output)}, and must have as many inputs and more outputs"
            )


def _schema(node: onnx.NodeProto, versions: Mapping[str, int]) -> defs.OpSchema | None:
    domain = "" if node.domain in MAIN else node.domain
    try:
        return defs.get_schema(node.op_type, versions.get(domain, 1), domain)
    except defs.SchemaError:
        return None


class _Calls:
    """Calls among the functions of a model."""

    def __init__(self, model: onnx.ModelProto, most_nodes: int) -> None:
        self._model = model
        self._most_nodes = most_nodes
        self._functions = {(one.domain, one.name, one.overload): one for one in model.functions}
        self._sizes: dict[tuple[str, str, str], _Size] = {}
        self._path: list[tuple[str, str, str]] = []

    def check(self) -> None:
        for key in self._functions:
            self._function(key)
        self._size(self._model.graph.node, 0)

    def _function(self, key: tuple[str, str, str]) -> _Size:
        if key in self._path:
            names = " → ".join(repr(one[1]) for one in (*self._path[self._path.index(key) :], key))
            raise ModelError(f"function {key[1]!r} calls itself ({names}); a function of ONNX must not")
        if key not in self._sizes:
            self._path.append(key)
            self._sizes[key] = self._size(self._functions[key].node, 0)
            self._path.pop()
        return self._sizes[key]

    def _size(self, nodes: Protos, depth: int) -> _Size:
        if depth > _MAX_DEPTH:
            raise ModelError(f"subgraphs are nested more than {_MAX_DEPTH} deep")
        count, deepest, calls = 0, depth, 0
        for index, node in enumerate(nodes):
            key = (node.domain, node.op_type, node.overload)
            one = self._function(key) if key in self._functions else _Size(1, 0, -1)
            calls = max(calls, one.calls + 1)
            deepest = max(deepest, depth + one.depth)
            count += one.nodes
            for inner in subgraphs(node):
                found = self._size(inner.node, depth + 1)
                count, deepest = count + found.nodes, max(deepest, depth + 1 + found.depth)
                calls = max(calls, found.calls)
            if count > self._most_nodes:
                raise ModelError(f"{title(node, index)}: with it, functions have more than {self._most_nodes} nodes")
            if deepest > _MAX_DEPTH:
                raise ModelError(f"{title(node, index)}: with it, subgraphs are nested more than {_MAX_DEPTH} deep")
            if max(calls, len(self._path)) > _MAX_CALLS:
                raise ModelError(f"{title(node, index)}: calls of functions are nested more than {_MAX_CALLS} deep")
        return _Size(count, deepest - depth, calls)
