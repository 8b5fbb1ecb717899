"""Writing of the importer's graphs as `.walle` bytes."""

from collections.abc import Collection

import numpy as np
from onnx import defs

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.model import DTYPES, AttributeValue, GraphBuilder, Value
from walle.engine_ext.onnx_import.graph import Array, Attribute, Graph, Node, TypeInfo

# "walle" has the engine's own operators, by the names and attributes that `walle operators` shows.
_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.preview.training", "walle"})


def write(graph: Graph, operators: Collection[str]) -> bytes:
    """Return the `.walle` file of a graph; raises as `builder_of`."""
    return builder_of(graph, operators).to_bytes()


def builder_of(graph: Graph, operators: Collection[str]) -> GraphBuilder:
    """Return the writer of the `.walle` file of a graph whose nodes are all among `operators`, the engine's.

    It refers to the graph's constants, of which no copy is made.

    Raises:
        UnsupportedError: an operator, an attribute or an element type that the engine does not have; names the node.
    """
    builder = GraphBuilder(graph.name)
    _Writer(builder, operators, None).write(graph)
    return builder


class _Writer:
    """Writes one graph; `around` writes the graph that contains it."""

    def __init__(self, builder: GraphBuilder, operators: Collection[str], around: "_Writer | None") -> None:
        self._builder = builder
        self._operators = operators
        self._around = around
        self._values: dict[str, Value] = {}

    def write(self, graph: Graph) -> None:
        for name, info in graph.inputs.items():
            self._values[name] = self._input(name, info)
        for name, array in graph.constants.items():
            self._values[name] = _constant(self._builder, name, array)
        for node in graph.nodes:
            self._node(node)
        for index, name in enumerate(graph.outputs):
            value = self.find(name)
            if value is None:
                raise ModelError(f"output {name!r} of graph {graph.name!r} has no producer")
            # A subgraph's outputs go by place, and may be one value twice.
            self._builder.output(name if self._around is None else f"{index}", value)

    def find(self, name: str) -> Value | None:
        """Return a value of this graph, or of one around it as this graph sees it."""
        if name not in self._values and self._around is not None:
            outside = self._around.find(name)
            if outside is not None:
                self._values[name] = self._builder.outer(outside)
        return self._values.get(name)

    def _input(self, name: str, info: TypeInfo) -> Value:
        if info.kind != "tensor":
            return self._builder.object_input(name)
        dtype = None if info.dtype is None else _known(info.dtype, f"input {name!r}")
        if self._around is not None:  # a body's declared shape may be true for its first turn only
            return self._builder.input(name, None, dtype)
        return self._builder.input(name, info.shape, dtype)

    def _node(self, node: Node) -> None:
        where = f"node {node.name!r} ({_title(node)})"
        if node.op not in self._operators or node.domain not in _DOMAINS:
            raise UnsupportedError(
                f"{where}: the engine does not have this operator; `walle operators` lists those it has"
            )
        inputs: list[Value | None] = []
        for name in node.inputs:
            value = self.find(name) if name else None
            if name and value is None:
                raise ModelError(f"{where} reads {name!r}, which has no producer before it")
            inputs.append(value)
        attributes = {key: self._attribute(value, key, where) for key, value in node.attributes.items()}
        made = self._builder.node(node.op, inputs, len(node.outputs), node.name, attributes)
        self._values.update({name: value for name, value in zip(node.outputs, made, strict=True) if name})

    def _attribute(self, value: Attribute, key: str, where: str) -> AttributeValue:
        if isinstance(value, Graph):
            inner = self._builder.subgraph(value.name)
            _Writer(inner, self._operators, self).write(value)
            return inner
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "iuf":
                raise UnsupportedError(f"{where}: attribute {key!r} is a tensor of {value.dtype}")
            return [one.item() for one in value.reshape(-1)]
        return value


def _known(dtype: str, what: str) -> str:
    if dtype not in DTYPES:
        raise UnsupportedError(f"{what} is {dtype}; the engine has {', '.join(DTYPES)}")
    return dtype


def _constant(builder: GraphBuilder, name: str, array: Array) -> Value:
    dtype = "string" if array.dtype.kind in "OSU" else str(array.dtype)
    dtype = _known(dtype, f"constant {name!r}")
    flat = np.ascontiguousarray(array).reshape(-1)
    # A view of bytes: NumPy's buffers do not know the types of ml_dtypes.
    return builder.raw(name, dtype, array.shape, memoryview(flat.view(np.uint8)) if array.size else b"")


def _title(node: Node) -> str:
    domain = f"{node.domain}." if node.domain else ""
    if not node.version:
        return f"{domain}{node.op}"
    try:
        since = f", since {defs.get_schema(node.op, node.version, node.domain).since_version}"
    except defs.SchemaError:
        since = ", unknown to ONNX"
    return f"{domain}{node.op}, opset {node.version}{since}"
