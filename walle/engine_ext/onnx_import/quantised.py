"""Models quantised in ONNX's QDQ form: DequantizeLinear, a float operator, QuantizeLinear become one operator on bytes.

A convolution or matrix product by constant weights, a sum, and a mean over all pixels go over to their QLinear forms,
whose products and sums are whole numbers; what only moves or chooses elements works on the bytes as they are, taken to
the result's scale where that is another. Results differ from those of the float operators by rounding alone: one step
of the result's scale where a value lies between two. Whatever else stands between the two, has scales of another form,
has a bias that the sums' unit is too coarse for, or sums that can leave int32, stays float.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from walle.engine_ext.onnx_import.graph import Array, Attribute, Graph, Node, Rewriting, uses_of

_BYTES = {"int8", "uint8"}
# Operators whose results consist of elements of their first input (Concat: of all inputs).
_MOVEMENTS = frozenset({"Concat", "Flatten", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_INT32 = np.iinfo(np.int32)
# Of the result's step: by how much a bias may change where it becomes a whole number of the sums' units.
_BIAS_ERROR = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantised:
    """Bytes, and the names of their scale and zero point with their values."""

    name: str
    scale_name: str
    zero_name: str
    scale: Array
    zero: Array
    axis: int = 1

    @property
    def names(self) -> tuple[str, str, str]:
        return self.name, self.scale_name, self.zero_name

    def is_like(self, other: "_Quantised") -> bool:
        """Return whether equal bytes mean equal numbers."""
        same = self.zero.dtype == other.zero.dtype and bool(np.all(self.zero == other.zero))
        return same and bool(np.all(self.scale == other.scale))


def fuse_quantised(graph: Graph) -> Graph:
    """Replace float operators between DequantizeLinear and QuantizeLinear by operators on bytes."""
    if not any(node.op == "QuantizeLinear" for node in graph.nodes):
        return graph
    values = _Values(graph)
    nodes = tuple(made for node in graph.nodes for made in values.made(node))
    return replace(graph, nodes=nodes, constants=values.rewriting.constants)


class _Values:
    """The producer of each value of a graph, and the bytes that it is dequantised from."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rewriting = Rewriting(graph)
        self.uses = uses_of(graph)
        self.produced: Mapping[str, Node] = {
            name: node for node in graph.nodes if node.domain == "" for name in node.outputs
        }

    def made(self, node: Node) -> tuple[Node, ...]:
        """Return the replacement of a node: for a QuantizeLinear, the operator before it, on bytes."""
        quantises = node.domain == "" and node.op == "QuantizeLinear"
        return (self._operator(node) if quantises else ()) or (node,)

    def _operator(self, node: Node) -> tuple[Node, ...]:
        result = self._parameters(node, node.outputs[0])
        if result is None or result.scale.size != 1:
            return ()
        x = self.bytes_of(node.inputs[0])
        if x is not None:
            return (self.rescaled(x, result, node.name),)
        before, activation = self._only_producer(node.inputs[0]), ""
        if before is not None and before.op == "Relu":
            before, activation = self._only_producer(before.inputs[0]), "Relu"
        if before is None or len(before.outputs) != 1:
            return ()
        if before.op in _RULES:
            made = _RULES[before.op](self, before, result, activation)
            return (made,) if made is not None else ()
        if activation or before.op not in _MOVEMENTS:
            return ()
        return self._joined(before, result) if before.op == "Concat" else self._moved(before, result)

    def _only_producer(self, name: str) -> Node | None:
        return self.produced.get(name) if self.uses.get(name, 0) == 1 else None

    def _parameters(self, node: Node, name: str) -> _Quantised | None:
        """Return the scale and zero point of the bytes of this name by its QuantizeLinear or DequantizeLinear."""
        scale = self.rewriting.constants.get(node.inputs[1])
        if scale is None or str(scale.dtype) != "float32":
            return None
        if any(node.int_attribute(key) != 0 for key in ("block_size", "output_dtype", "precision")):
            return None
        if scale.size < 1 or not np.all(np.isfinite(scale) & (scale > 0)):
            return None
        zero_name = node.inputs[2] if node.has_input(2) else ""
        if not zero_name:
            kind = self.graph.dtype_of(name)
            if kind not in _BYTES:
                return None
            zero_name = self.rewriting.constant(f"{node.name}.zero", np.zeros(scale.shape, dtype=kind))
        zero = self.rewriting.constants.get(zero_name)
        if zero is None or str(zero.dtype) not in _BYTES or zero.size != scale.size:
            return None
        return _Quantised(
            name=name,
            scale_name=node.inputs[1],
            zero_name=zero_name,
            scale=scale,
            zero=zero,
            axis=node.int_attribute("axis", 1),
        )

    def bytes_of(self, name: str) -> _Quantised | None:
        """Return the bytes that a float value is dequantised from by one scale."""
        producer = self.produced.get(name)
        if producer is None or producer.op != "DequantizeLinear":
            return None
        found = self._parameters(producer, producer.inputs[0])
        return found if found is not None and found.scale.size == 1 else None

    def weights_of(self, name: str, axis: int) -> tuple[_Quantised, Array] | None:
        """Return constant bytes with one scale, or one for each slice along this axis."""
        producer = self.produced.get(name)
        if producer is None or producer.op != "DequantizeLinear":
            return None
        found, value = self._parameters(producer, producer.inputs[0]), self.rewriting.constants.get(producer.inputs[0])
        if found is None or value is None or value.ndim <= axis or value.dtype != found.zero.dtype:
            return None
        if found.scale.size != 1 and (found.axis % value.ndim != axis or found.scale.size != value.shape[axis]):
            return None
        return found, value

    def bias_of(self, name: str, columns: int, scale: Array, step: float) -> Array | None:
        """Return the bias in whole units of `scale`, one for each column.

        None where that does not fit int32, or is not near in steps of the result.
        """
        value, steps = self.rewriting.constants.get(name), None
        producer = self.produced.get(name)
        if value is None and producer is not None and producer.op == "DequantizeLinear":
            whole, own = (self.rewriting.constants.get(one) for one in producer.inputs[:2])
            if whole is None or own is None or whole.dtype != np.int32 or whole.shape != (columns,):
                return None
            if producer.has_input(2) and np.any(self.rewriting.constants.get(producer.inputs[2], np.ones(1)) != 0):
                return None
            if own.size not in (1, columns) or not np.all(np.isfinite(own)):
                return None
            own = np.asarray(own, dtype=np.float64).reshape(-1)
            if np.allclose(own, scale, rtol=1e-6, atol=0):
                return whole
            steps = np.asarray(whole * own / scale)
        elif value is not None and value.shape == (columns,):
            steps = np.asarray(value.astype(np.float64) / scale)
        if steps is None or not np.all((steps > _INT32.min) & (steps < _INT32.max)):
            return None
        if np.any(np.abs(np.rint(steps) - steps) * scale > _BIAS_ERROR * step):
            return None
        return np.rint(steps).astype(np.int32)

    def product(
        self,
        op: str,
        node: Node,
        result: _Quantised,
        weights: tuple[_Quantised, Array] | None,
        attributes: Mapping[str, Attribute],
    ) -> Node | None:
        """Return the QLinear form of a product by weights as that takes them; an empty attribute is left out."""
        x = self.bytes_of(node.inputs[0])
        if x is None or weights is None:
            return None
        w, value = weights
        axis = 0 if op == "QLinearConv" else 1
        inputs: tuple[str, ...] = (*x.names, *w.names, result.scale_name, result.zero_name)
        bias: Array | None = np.zeros(1, dtype=np.int32)
        if node.has_input(2):
            scale = x.scale.astype(np.float64).reshape(-1) * w.scale.reshape(-1)
            bias = self.bias_of(node.inputs[2], value.shape[axis], scale, float(result.scale.reshape(-1)[0]))
        if bias is None or not _fit(x, w, value, axis, bias):
            return None
        if node.has_input(2):
            inputs = (*inputs, self.rewriting.constant(f"{node.name}.bias", bias))
        said = {key: one for key, one in attributes.items() if not isinstance(one, str) or one}
        return Node(op=op, inputs=inputs, outputs=(result.name,), attributes=said, name=node.name)

    def rescaled(self, x: _Quantised, result: _Quantised, name: str) -> Node:
        if x.is_like(result):
            return Node(op="Identity", inputs=(x.name,), outputs=(result.name,), name=name)
        return Node(
            op="QLinearRescale",
            inputs=(*x.names, result.scale_name, result.zero_name),
            outputs=(result.name,),
            name=name,
        )

    def _moved(self, node: Node, result: _Quantised) -> tuple[Node, ...]:
        x = self.bytes_of(node.inputs[0])
        if x is None:
            return ()
        moved = replace(x, name=self.rewriting.fresh(result.name))
        made = replace(node, inputs=(x.name, *node.inputs[1:]), outputs=(moved.name,))
        return made, self.rescaled(moved, result, f"{node.name}.scale")

    def _joined(self, node: Node, result: _Quantised) -> tuple[Node, ...]:
        parts = [found for name in node.inputs if (found := self.bytes_of(name)) is not None]
        if len(parts) != len(node.inputs):
            return ()
        fits = [replace(result, name=self.rewriting.fresh(part.name)) for part in parts]
        scaled = [self.rescaled(*pair, f"{node.name}.scale") for pair in zip(parts, fits, strict=True)]
        return *scaled, replace(node, inputs=tuple(one.name for one in fits), outputs=(result.name,))


def _fit(x: _Quantised, w: _Quantised, value: Array, axis: int, bias: Array) -> bool:
    """Return whether the sums of x by these weights, whose columns are along the axis, and of the bias fit int32."""
    info, zero = np.iinfo(x.zero.dtype), int(x.zero.reshape(-1)[0])
    most = max(int(info.max) - zero, zero - int(info.min))
    spread = [-1 if at == axis else 1 for at in range(value.ndim)]
    weights = np.abs(value.astype(np.int16) - w.zero.astype(np.int16).reshape(spread))
    sums = weights.sum(axis=tuple(at for at in range(value.ndim) if at != axis), dtype=np.int64)
    return bool(np.all(most * sums + np.abs(bias.astype(np.int64)) <= _INT32.max))


def _conv(values: _Values, node: Node, result: _Quantised, activation: str) -> Node | None:
    weights = values.weights_of(node.inputs[1], 0)
    return values.product("QLinearConv", node, result, weights, {**node.attributes, "activation": activation})


def _gemm(values: _Values, node: Node, result: _Quantised, activation: str) -> Node | None:
    if any(node.attributes.get(key, 1.0) != 1.0 for key in ("alpha", "beta")) or node.int_attribute("transA") != 0:
        return None
    turned = node.int_attribute("transB") != 0
    weights = values.weights_of(node.inputs[1], 0 if turned else 1)
    if weights is None or weights[1].ndim != 2:
        return None
    if turned:
        value = np.ascontiguousarray(weights[1].T)
        weights = replace(weights[0], name=values.rewriting.constant(f"{node.name}.weight", value)), value
    return values.product("QLinearMatMul", node, result, weights, {"activation": activation})


def _matmul(values: _Values, node: Node, result: _Quantised, activation: str) -> Node | None:
    weights = values.weights_of(node.inputs[1], 1)
    if weights is None or weights[1].ndim != 2:
        return None
    return values.product("QLinearMatMul", node, result, weights, {"activation": activation})


def _add(values: _Values, node: Node, result: _Quantised, activation: str) -> Node | None:
    a, b = (values.bytes_of(name) for name in node.inputs)
    if a is None or b is None:
        return None
    attributes = {"activation": activation} if activation else {}
    inputs = (*a.names, *b.names, result.scale_name, result.zero_name)
    return Node(op="QLinearAdd", inputs=inputs, outputs=(result.name,), attributes=attributes, name=node.name)


def _mean(values: _Values, node: Node, result: _Quantised, activation: str) -> Node | None:
    x = values.bytes_of(node.inputs[0])
    if x is None or activation:
        return None
    inputs = (*x.names, result.scale_name, result.zero_name)
    return Node(op="QLinearGlobalAveragePool", inputs=inputs, outputs=(result.name,), name=node.name)


_RULES: Mapping[str, Callable[[_Values, Node, _Quantised, str], Node | None]] = {
    "Add": _add,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _mean,
    "MatMul": _matmul,
}
