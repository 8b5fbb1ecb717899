"""Lowering rules for operators of ONNX Runtime's domain, com.microsoft, that its quantiser writes.

Their meaning is that of the float operator between DequantizeLinear and QuantizeLinear, which planning turns into an
operator on bytes where the engine has one. Source: onnxruntime/core/graph/contrib_ops/quantization_defs.cc.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from walle.engine_ext.errors import UnsupportedError
from walle.engine_ext.onnx_import.graph import Attribute, Node, Rewriting

type Rule = Callable[[Rewriting, Node], Iterator[Node]]

DOMAIN = "com.microsoft"


class _Chain:
    """Nodes that replace one node, under names that nobody else has."""

    def __init__(self, lowering: Rewriting, node: Node) -> None:
        self.lowering = lowering
        self.node = node
        self.nodes: list[Node] = []

    def input(self, index: int) -> str:
        return self.node.inputs[index] if self.node.has_input(index) else ""

    def op(self, op: str, inputs: tuple[str, ...], attributes: Mapping[str, Attribute] | None = None) -> str:
        """Return the result of a new node."""
        made = self.lowering.fresh(f"{self.node.name}.{op}")
        self.end(op, inputs, made, attributes)
        return made

    def end(
        self, op: str, inputs: tuple[str, ...], output: str, attributes: Mapping[str, Attribute] | None = None
    ) -> None:
        """Append a node that makes this value."""
        while inputs and inputs[-1] == "":
            inputs = inputs[:-1]
        name = self.node.name if output == self.node.outputs[0] else output
        self.nodes.append(Node(op=op, inputs=inputs, outputs=(output,), attributes=attributes or {}, name=name))

    def floats(self, index: int, axis: int = 1) -> str:
        """Return the numbers of the bytes, scale and zero point that stand from this input on."""
        names = self.input(index), self.input(index + 1), self.input(index + 2)
        return self.op("DequantizeLinear", names, {"axis": axis})

    def quantise(self, value: str, index: int) -> None:
        """Let the node's output be the bytes of a value, by the scale and zero point from this input on."""
        zero = self.input(index + 1)
        if not zero and self.lowering.graph.dtype_of(self.input(0)) == "int8":
            zero = self.lowering.constant(f"{self.node.name}.zero", np.zeros((), dtype=np.int8))
        self.end("QuantizeLinear", (value, self.input(index), zero), self.node.outputs[0])


def _refusal(node: Node, why: str) -> UnsupportedError:
    return UnsupportedError(f"node {node.name!r} ({DOMAIN}.{node.op}): {why}")


def _given(node: Node, *names: str) -> dict[str, Attribute]:
    """Return the attributes of these names that the node has."""
    return {key: value for key, value in node.attributes.items() if key in names}


def _refuse_channels_last(node: Node) -> None:
    if node.int_attribute("channels_last") != 0:
        raise _refusal(node, "channels_last=1 is not supported; quantise the model before its layout is changed")


def _binary(op: str) -> Rule:
    def rule(lowering: Rewriting, node: Node) -> Iterator[Node]:
        """A, its scale and zero point, B, its scale and zero point, the result's scale and zero point."""
        chain = _Chain(lowering, node)
        chain.quantise(chain.op(op, (chain.floats(0), chain.floats(3))), 6)
        yield from chain.nodes

    return rule


def _unary(op: str, *attributes: str) -> Rule:
    def rule(lowering: Rewriting, node: Node) -> Iterator[Node]:
        """X, its scale and zero point, the result's scale and zero point."""
        _refuse_channels_last(node)
        chain = _Chain(lowering, node)
        chain.quantise(chain.op(op, (chain.floats(0),), _given(node, *attributes)), 3)
        yield from chain.nodes

    return rule


def _softmax(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """Yield a softmax along one axis; before opset 13 the axes from `axis` on count as one."""
    opset, axis = node.int_attribute("opset", 13), node.int_attribute("axis", -1)
    chain = _Chain(lowering, node)
    if opset >= 13:
        chain.quantise(chain.op("Softmax", (chain.floats(0),), {"axis": axis}), 3)
        yield from chain.nodes
        return
    x = chain.floats(0)
    flat = chain.op("Softmax", (chain.op("Flatten", (x,), {"axis": axis}),), {"axis": -1})
    whole = chain.op("Reshape", (flat, chain.op("Shape", (x,))), {"allowzero": 1})
    chain.quantise(whole, 3)
    yield from chain.nodes


def _concat(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """The result's scale and zero point, then for each part its bytes, scale and zero point."""
    chain = _Chain(lowering, node)
    parts = tuple(chain.floats(index) for index in range(2, len(node.inputs), 3))
    joined = chain.op("Concat", parts, _given(node, "axis"))
    chain.end("QuantizeLinear", (joined, chain.input(0), chain.input(1)), node.outputs[0])
    yield from chain.nodes


def _mean(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """Data, its scale and zero point, the result's scale and zero point; `axes` is an attribute."""
    chain = _Chain(lowering, node)
    axes = node.attributes.get("axes")
    names = (lowering.constant(f"{node.name}.axes", np.array(axes, dtype=np.int64)),) if axes else ()
    chain.quantise(chain.op("ReduceMean", (chain.floats(0), *names), _given(node, "keepdims")), 3)
    yield from chain.nodes


def _where(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """Condition, X, its scale and zero point, Y, its scale and zero point, the result's scale and zero point."""
    chain = _Chain(lowering, node)
    chosen = chain.op("Where", (chain.input(0), chain.floats(1), chain.floats(4)))
    chain.end("QuantizeLinear", (chosen, chain.input(7), chain.input(8)), node.outputs[0])
    yield from chain.nodes


def _gemm(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """A, its scale and zero point, B, its scale and zero point, an int32 C or none, and the result's two, or none.

    C counts in units of alpha · A's scale · B's scale. Without the result's scale the result is float32.
    """
    chain = _Chain(lowering, node)
    turned, alpha = node.int_attribute("transB"), node.attributes.get("alpha", 1.0)
    factors = chain.floats(0), chain.floats(3, axis=0 if turned else 1)
    product = chain.op("Gemm", factors, _given(node, "transA", "transB", "alpha"))
    if node.has_input(6):
        unit = chain.op("Mul", (chain.input(1), chain.input(4)))
        if alpha != 1.0:
            unit = chain.op("Mul", (unit, lowering.constant(f"{node.name}.alpha", np.array(alpha, dtype=np.float32))))
        bias = chain.op("Mul", (chain.op("Cast", (chain.input(6),), {"to": "float32"}), unit))
        product = chain.op("Add", (product, bias))
    if node.has_input(7):
        chain.quantise(product, 7)
    else:
        chain.end("Identity", (product,), node.outputs[0])
    yield from chain.nodes


def _integer_product(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """A, B, their scales, their zero points, a float bias: a product of bytes as float32."""
    chain = _Chain(lowering, node)
    _scaled_product(chain, (chain.input(0), chain.input(4)), chain.input(2), (chain.input(3), chain.input(5)), 6)
    yield from chain.nodes


def _dynamic_product(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """A in float32, B in bytes, its scale and zero point, a float bias."""
    chain = _Chain(lowering, node)
    whole, scale, zero = (lowering.fresh(f"{node.name}.{part}") for part in ("bytes", "scale", "zero"))
    made = Node(op="DynamicQuantizeLinear", inputs=node.inputs[:1], outputs=(whole, scale, zero), name=whole)
    chain.nodes.append(made)
    _scaled_product(chain, (whole, zero), scale, (chain.input(2), chain.input(3)), 4)
    yield from chain.nodes


def _scaled_product(chain: _Chain, a: tuple[str, str], scale: str, b: tuple[str, str], bias: int) -> None:
    """Append MatMulInteger of A and the node's input 1, both scales, and the bias if there is one.

    `a` is A with its zero point, `b` B's scale with its zero point.
    """
    product = chain.op("MatMulInteger", (a[0], chain.input(1), a[1], b[1]))
    floats = chain.op("Mul", (chain.op("Cast", (product,), {"to": "float32"}), chain.op("Mul", (scale, b[0]))))
    if chain.node.has_input(bias):
        chain.end("Add", (floats, chain.input(bias)), chain.node.outputs[0])
    else:
        chain.end("Identity", (floats,), chain.node.outputs[0])


def _lstm(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """Yield an LSTM by the numbers of its int8 weights, whose inputs and states stay float32.

    Inputs 8 to 11 are scale and zero point of W and of R, one for each direction, or for each row of each direction;
    W and R are turned: [directions, columns, rows].

    Departure: ONNX Runtime quantises inputs and states at each step, and so differs by their rounding.
    """
    chain = _Chain(lowering, node)
    weights = []
    for index, scale in ((1, 8), (2, 10)):
        if not node.has_input(index):
            raise _refusal(node, f"input {index}, its weights, is missing")
        whole = chain.op("Cast", (chain.input(index),), {"to": "float32"})
        if node.has_input(scale + 1):
            zero = chain.op("Cast", (_spread(chain, scale + 1),), {"to": "float32"})
            whole = chain.op("Sub", (whole, zero))
        floats = chain.op("Mul", (whole, _spread(chain, scale)))
        weights.append(chain.op("Transpose", (floats,), {"perm": [0, 2, 1]}))
    inputs = (node.inputs[0], *weights, *(chain.input(index) for index in range(3, 8)))
    while inputs[-1] == "":
        inputs = inputs[:-1]
    yield from chain.nodes
    yield replace(node, op="LSTM", domain="", version=0, inputs=inputs)


def _spread(chain: _Chain, index: int) -> str:
    """Return scales or zero points as [directions, 1, rows or 1]."""
    directions = 2 if chain.node.attributes.get("direction") == "bidirectional" else 1
    shape = chain.lowering.constant("shape", np.array([directions, 1, -1]))
    return chain.op("Reshape", (chain.input(index), shape))


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
RULES: Mapping[str, Rule] = {
    "DynamicQuantizeLSTM": _lstm,
    "DynamicQuantizeMatMul": _dynamic_product,
    "MatMulIntegerToFloat": _integer_product,
    "QGemm": _gemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _unary("AveragePool", *_POOL),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool"),
    "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
    "QLinearMul": _binary("Mul"),
    "QLinearReduceMean": _mean,
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
}
