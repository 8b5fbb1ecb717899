"""Rules by which operators carry the positions of their inputs' axes to their outputs.

A rule gets a `Call` and returns the axes of each output. An operator without a rule keeps all axes whole, so that an
unknown one makes a network less adaptable, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from walle.adapt.structure.axes import Axis, Positions

type Axes = list[Axis]


@dataclass(frozen=True, slots=True)
class Product:
    """A convolution or a matrix product: multiplications of one sample = `factor` times the lengths of the axes."""

    factor: int
    axes: tuple[tuple[int, ...], ...]
    node: str


@dataclass(frozen=True, slots=True)
class Operand:
    """An input: its shape and axes, its value where that is a known vector, and whether it depends on the input."""

    shape: tuple[int, ...]
    axes: Axes
    value: Any
    of_input: bool


class Call:
    """An operator of a trace, with its inputs and the shapes of its outputs."""

    def __init__(self, positions: Positions, op: str, node: str, attributes: dict[str, Any], operands: list[Operand],
                 outputs: list[tuple[int, ...]]) -> None:  # fmt: skip
        self.positions, self.op, self.node, self.attributes = positions, op, node, attributes
        self.operands, self.outputs = operands, outputs
        self.shapes = [one.shape for one in operands]
        self.axes = [one.axes for one in operands]
        self.consumed: set[int] = set()  # positions of weights that a product sums over
        self.products: list[Product] = []

    @property
    def reason(self) -> str:
        """Why the operator keeps an axis whole."""
        return f"{self.op} at {self.node}"

    def join(self, one: Axis, other: Axis) -> Axis:
        return self.positions.join(one, other, self.reason)

    def fix(self, *axes: Axis) -> None:
        for axis in axes:
            self.positions.fix(axis, self.reason)

    def consume(self, axis: Axis) -> None:
        self.consumed |= set(axis or ())

    def numbers(self, operand: int, name: str) -> list[int] | None:
        """Return whole numbers from an attribute or a known operand; None where neither is given."""
        if name in self.attributes:
            return [int(one) for one in self.attributes[name]]
        if operand >= len(self.operands) or self.operands[operand].value is None:
            return None
        return [int(one) for one in self.operands[operand].value.reshape(-1).tolist()]

    def multiply(self, factor: int, *axes: tuple[Axis, int]) -> None:
        """Count a product over axes, each with its length."""
        tracked = tuple(axis for axis, _ in axes if axis is not None)
        plain = math.prod(length for axis, length in axes if axis is None)
        self.products.append(Product(factor * plain, tracked, self.node))

    def whole(self) -> list[Axes]:
        """Keep all axes of the inputs whole; the outputs have none that could change."""
        for axes in self.axes:
            self.fix(*axes)
        return [[None] * len(shape) for shape in self.outputs]


def carry(call: Call) -> list[Axes]:
    """Return the axes of the outputs of an operator."""
    rule = _RULES.get(call.op)
    return call.whole() if rule is None else rule(call)


def _elementwise(call: Call) -> list[Axes]:
    """Operands are laid over each other from the last axis on."""
    rank = len(call.outputs[0])
    result: Axes = [None] * rank
    for at in range(rank):
        found: list[tuple[Axis, int]] = []
        for shape, axes in zip(call.shapes, call.axes, strict=True):
            place = at - rank + len(shape)
            if place >= 0:
                found.append((axes[place], shape[place]))
        full = [axis for axis, length in found if length == call.outputs[0][at]]
        for axis, length in found:
            if length != call.outputs[0][at]:
                call.fix(axis)
        joined = full[0]
        for axis in full[1:]:
            joined = call.join(joined, axis)
        result[at] = joined
    return [result]


def _same(call: Call) -> list[Axes]:
    """The first input's axes; other inputs are settings."""
    for axes in call.axes[1:]:
        call.fix(*axes)
    return [list(call.axes[0])]


def _by_channel(call: Call) -> list[Axes]:
    """Scale, shift and statistics of axis 1."""
    result = list(call.axes[0])
    for axes in call.axes[1:]:
        result[1] = call.join(result[1], axes[0])
    return [result]


def _layer_norm(call: Call) -> list[Axes]:
    """Statistics over the last axis count channels that no weight reads; it stays whole."""
    result = list(call.axes[0])
    first = int(call.attributes.get("axis", -1)) % len(result)
    if first != len(result) - 1:
        return call.whole()
    for axes in call.axes[1:]:
        result[-1] = call.join(result[-1], axes[-1])
    call.fix(result[-1])
    return [result]


def _convolution(call: Call) -> list[Axes]:
    x, weight = call.axes[0], call.axes[1]
    shape, output = call.shapes[1], call.outputs[0]
    group = int(call.attributes.get("group", call.attributes.get("groups", 1)))
    transposed = call.op == "ConvTranspose"
    into, out = (0, 1) if transposed else (1, 0)
    window = math.prod(shape[2:])
    places = math.prod(output[2:]) if not transposed else math.prod(call.shapes[0][2:])
    if group == 1:
        call.join(x[1], weight[into])
        call.consume(weight[into])
        channels = weight[out]
        call.multiply(window * places, (weight[out], shape[out]), (weight[into], shape[into]))
    elif group == call.shapes[0][1] == output[1] and shape[1] == 1:
        channels = call.join(x[1], weight[0])
        call.fix(weight[1])
        call.multiply(window * places, (channels, output[1]))
    else:
        call.multiply(window * places * output[1] * shape[into] // (group if transposed else 1))
        return call.whole()
    if len(call.axes) > 2 and call.axes[2]:
        channels = call.join(channels, call.axes[2][0])
    for axes in call.axes[3:]:
        call.fix(*axes)
    return [[x[0], channels, *([None] * (len(output) - 2))]]


def _matmul(call: Call) -> list[Axes]:
    a, b = call.axes[0], call.axes[1]
    if len(a) < 2 or len(b) < 2:
        return call.whole()
    joined = call.join(a[-1], b[-2])
    for operand, axis in ((0, a[-1]), (1, b[-2])):
        if not call.operands[operand].of_input:
            call.consume(axis)
    if call.operands[0].of_input and call.operands[1].of_input:
        call.fix(joined)  # a factor at a weight that reads the channel does not act on this product
    output, length = call.outputs[0], call.shapes[0][-1]
    batch: Axes = [None] * (len(output) - 2)
    for shape, axes in zip(call.shapes[:2], (a, b), strict=True):
        for at, axis in enumerate(axes[:-2]):
            place = at + len(batch) - (len(shape) - 2)
            batch[place] = axis if batch[place] is None else call.join(batch[place], axis)
    # The first axis is the batch; a product of one sample has none of it.
    rows = [(axis, size) for axis, size in zip([*batch, a[-2]], output[:-1], strict=True)][1:]
    call.multiply(1, *rows, (b[-1], output[-1]), (joined, length))
    return [[*batch, a[-2], b[-1]]]


def _transpose(call: Call) -> list[Axes]:
    axes = call.axes[0]
    order = call.attributes.get("perm", list(range(len(axes)))[::-1])
    return [[axes[int(at)] for at in order]]


def _reshape(call: Call) -> list[Axes]:
    """Axes are joined to one or split in blocks of equal size; an axis that is split stays whole."""
    before, after = call.shapes[0], call.outputs[0]
    axes = call.axes[0]
    result: Axes = [None] * len(after)
    for extra in call.axes[1:]:
        call.fix(*extra)
    if 0 in before:
        return call.whole()
    i = j = 0
    while i < len(before) or j < len(after):
        first, start = i, j
        left = right = 1
        i, j = i + (i < len(before)), j + (j < len(after))
        left *= before[first] if first < i else 1
        right *= after[start] if start < j else 1
        while left != right:
            if left < right:
                left *= before[i]
                i += 1
            else:
                right *= after[j]
                j += 1
        _block(call, before, axes, range(first, i), after, result, range(start, j))
    return [result]


def _block(call: Call, before: tuple[int, ...], axes: Axes, inputs: range, after: tuple[int, ...], result: Axes,
           outputs: range) -> None:  # fmt: skip
    """Carry a run of axes to a run of axes with as many elements."""
    given = [at for at in inputs if before[at] != 1]
    made = [at for at in outputs if after[at] != 1]
    for at in inputs:
        if before[at] == 1:
            call.fix(axes[at])
    tracked = [at for at in given if axes[at] is not None]
    if not tracked:
        return
    if len(given) == 1 and len(made) == 1:
        result[made[0]] = axes[given[0]]
    elif len(made) == 1 and len(tracked) == 1:
        axis = axes[tracked[0]]
        assert axis is not None
        inner = math.prod(before[at] for at in given if at > tracked[0])
        outer = math.prod(before[at] for at in given if at < tracked[0])
        result[made[0]] = tuple(position for _ in range(outer) for position in axis for _ in range(inner))
    else:
        call.fix(*(axes[at] for at in given))


def _concat(call: Call) -> list[Axes]:
    rank = len(call.outputs[0])
    along = int(call.attributes.get("axis", 0)) % rank
    result: Axes = []
    for at in range(rank):
        parts = [axes[at] for axes in call.axes]
        if at == along:
            if any(part is None for part in parts):
                call.fix(*parts)
                result.append(None)
            else:
                result.append(tuple(position for part in parts if part is not None for position in part))
        else:
            joined = parts[0]
            for part in parts[1:]:
                joined = call.join(joined, part)
            result.append(joined)
    return [result]


def _slice(call: Call) -> list[Axes]:
    """A part of an axis; the code names its places, so that the axis stays whole."""
    starts, along = call.numbers(1, "starts"), call.numbers(3, "axes")
    if starts is None:
        return call.whole()
    result = list(call.axes[0])
    for at in range(len(starts)) if along is None else along:
        call.fix(result[at])
        result[at] = None
    return [result]


def _pool(call: Call) -> list[Axes]:
    axes = call.axes[0]
    return [[axes[0], axes[1], *([None] * (len(output) - 2))] for output in call.outputs]


def _reduce(call: Call) -> list[Axes]:
    axes = call.axes[0]
    given = call.numbers(1, "axes")
    reduced = {one % len(axes) for one in given} if given else set(range(len(axes)))
    keep = int(call.attributes.get("keepdims", 1))
    result: Axes = []
    for at, axis in enumerate(axes):
        if at in reduced:
            call.fix(axis)
            result += [None] * keep
        else:
            result.append(axis)
    return [result]


def _softmax(call: Call) -> list[Axes]:
    result = list(call.axes[0])
    at = int(call.attributes.get("axis", -1)) % len(result)
    call.fix(result[at])
    result[at] = None
    return [result]


def _gather(call: Call) -> list[Axes]:
    """Rows by index, as of an embedding: the axis that is indexed stays whole."""
    table, index = call.axes[0], call.axes[1]
    along = int(call.attributes.get("axis", 0)) % len(table)
    call.fix(table[along], *index)
    return [[*table[:along], *([None] * len(index)), *table[along + 1 :]]]


def _recurrent(call: Call) -> list[Axes]:
    """A recurrent layer keeps its sizes; each step multiplies by both weights."""
    call.multiply(call.shapes[0][0] * sum(math.prod(shape) for shape in call.shapes[1:3]))
    return call.whole()


_UNARY = (
    "Abs Cast Ceil Celu Clip Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Mish Neg Not "
    "Reciprocal Relu Round Selu Sigmoid Sign Sin Softplus Softsign Sqrt StopGradient Swish Tanh ThresholdedRelu"
)
_BINARY = (
    "Add Div Maximum Minimum Mul Power Sub Equal Greater GreaterOrEqual Less LessOrEqual NotEqual And Or Where PRelu"
)
_RULES: dict[str, Callable[[Call], list[Axes]]] = {
    **dict.fromkeys(_UNARY.split(), _same),
    **dict.fromkeys(_BINARY.split(), _elementwise),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "BatchNormalization": _by_channel,
    "Concat": _concat,
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Gather": _gather,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _layer_norm,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Slice": _slice,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Transpose": _transpose,
    **dict.fromkeys(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "Resize"], _pool),
    **dict.fromkeys(
        ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"],
        _reduce,
    ),
}
