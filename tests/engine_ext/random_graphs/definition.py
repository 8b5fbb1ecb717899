"""Results of a random graph by its operators' definitions in float64: they decide where engine and reference differ.

ONNX Runtime computes in float32 too: it adds long sums one number after the other, and its quantised operators use
tables. Here each node is computed by ONNX's evaluator from exact operands; an operator on bytes is what its definition
says: bytes become numbers, which are computed and rounded to bytes once. Rounding is followed by random arithmetic
(Parker, Monte Carlo Arithmetic, 1997): the results of nodes are moved by as much as rounding may, and the bound is what
that changes in the outputs, through all later scales, divisions and steps.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.engine_ext.random_graphs.maker import Array
from tests.engine_ext.random_graphs.reference import NoReference, in_float64

_MAKE_NODE: Any = helper.make_node  # Any: the attributes are keywords of any kind
_ROUNDINGS = 2.0  # units of rounding by which a result moves: one of the result, one of what it is computed from
# Results that are computed element by element move by units of the element; others by units of the largest one.
_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Cast", "Ceil", "Clip", "Concat", "Div", "Elu", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather",
     "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Max", "MaxPool", "Min", "Mish", "Mul", "Neg",
     "PRelu", "Pad", "Pow", "Reciprocal", "Relu", "Reshape", "Round", "Selu", "Sigmoid", "Slice", "Softplus",
     "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where"}
)  # fmt: skip


class Definition:
    """A graph by its definition. `unit` is the unit of rounding of the floats that the engine computes it in."""

    def __init__(self, model: onnx.ModelProto, unit: float) -> None:
        self._model = in_float64(model)
        self._unit = unit
        self._version = next(one.version for one in model.opset_import if not one.domain)

    def run(self, feeds: Mapping[str, Array], rng: np.random.Generator | None = None) -> dict[str, Array]:
        """Return the outputs by name; with `rng`, those of operands and results that rounding moved.

        Raises:
            NoReference: a node has no definition here, or its evaluator refuses it.
        """
        values: dict[str, Array] = {"": np.zeros(0)}
        values |= {one.name: numpy_helper.to_array(one) for one in self._model.graph.initializer}
        for name, array in feeds.items():
            values[name] = self._moved(array.astype(np.float64), True, rng) if _is_float(array) else array
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                for node in self._model.graph.node:
                    results = self._results(node, [values[name] for name in node.input], rng)
                    values |= zip(node.output, results, strict=False)
            return {one.name: values[one.name] for one in self._model.graph.output}
        except Exception as error:  # the evaluator's are of many families
            raise NoReference(f"{type(error).__name__}: {error}"[:200]) from error

    def _results(self, node: onnx.NodeProto, inputs: list[Array], rng: np.random.Generator | None) -> Sequence[Array]:
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if any(isinstance(value, onnx.GraphProto) for value in attributes.values()):
            raise NoReference("control flow")
        if node.op_type in _ON_BYTES:
            numbers, scale, zero, axis = _ON_BYTES[node.op_type](self._evaluate, inputs, attributes)
            whole = _along(scale, axis, numbers.ndim), _along(zero, axis, numbers.ndim)
            scaled = self._moved(numbers / whole[0], node.op_type == "QuantizeLinear", rng)
            limits = np.iinfo(zero.dtype)
            return [np.clip(np.rint(scaled) + whole[1], limits.min, limits.max).astype(zero.dtype)]
        if node.op_type == "DequantizeLinear":
            axis = int(attributes.get("axis", 1))
            return [self._moved(_numbers(*inputs, axis=axis), True, rng)]
        if node.op_type == "ConvTranspose" and attributes.get("group", 1) > 1:
            return [self._moved(self._grouped(inputs, attributes), False, rng)]
        results = self._evaluate(node.op_type, inputs, attributes, outputs=len(node.output), present=list(node.input))
        constant = node.op_type == "Constant"
        near = node.op_type in _ELEMENTWISE
        return [self._moved(one, near, rng) if _is_float(one) and not constant else one for one in results]

    def _evaluate(
        self,
        op: str,
        inputs: Sequence[Array],
        attributes: Mapping[str, Any],
        *,
        outputs: int = 1,
        present: Sequence[str] | None = None,
    ) -> list[Array]:
        """Return the results of one operator of ONNX by its evaluator."""
        names = [f"i{at}" if present is None or present[at] else "" for at in range(len(inputs))]
        results = [f"o{at}" for at in range(outputs)]
        node = _MAKE_NODE(op, names, results, **attributes)
        feeds = {name: array for name, array in zip(names, inputs, strict=True) if name}
        graph = onnx.GraphProto(name="node", node=[node])
        graph.input.extend(onnx.ValueInfoProto(name=name) for name in feeds)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
        opset = helper.make_opsetid("", self._version)
        found: Any = ReferenceEvaluator(helper.make_model(graph, opset_imports=[opset])).run(None, feeds)
        if not all(isinstance(one, np.ndarray | np.generic) for one in found):
            raise NoReference(f"{op}: not a tensor")
        return [np.asarray(one) for one in found]

    def _grouped(self, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        """Return a transposed convolution by groups; ONNX's evaluator takes one group."""
        groups = int(attributes["group"])
        x, w = (np.split(one, groups, axis=axis) for one, axis in zip(inputs[:2], (1, 0), strict=True))
        rest = [np.split(one, groups) for one in inputs[2:] if one.size]
        parts = [[x[at], w[at], *(one[at] for one in rest)] for at in range(groups)]
        one_group = {**attributes, "group": 1}
        return np.concatenate([self._evaluate("ConvTranspose", part, one_group)[0] for part in parts], axis=1)

    def _moved(self, array: Array, near: bool, rng: np.random.Generator | None) -> Array:
        if rng is None or not array.size:
            return array
        finite = np.abs(array[np.isfinite(array)])
        size = np.abs(array) if near else float(finite.max()) if finite.size else 0.0
        return np.asarray(array + _ROUNDINGS * self._unit * size * rng.uniform(-1, 1, array.shape))


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name in {"bfloat16", "float16"}


def _along(values: Array, axis: int, rank: int) -> Array:
    """Return values for each place along an axis in a shape that broadcasts over an array of that rank."""
    if values.size == 1 or not rank:
        return values.astype(np.float64).reshape(())
    shape = [1] * rank
    shape[axis] = values.size
    return values.astype(np.float64).reshape(shape)


def _numbers(whole: Array, scale: Array, zero: Array | None = None, *, axis: int = 1) -> Array:
    """Return the numbers that bytes stand for."""
    wide = whole.astype(np.float64)
    shifted = wide - _along(zero, axis, whole.ndim) if zero is not None and zero.size else wide
    return np.asarray(shifted * _along(scale, axis, whole.ndim))


# An operator's numbers before they are rounded to bytes, and scale, zero point and axis of those.
type _Numbers = tuple[Array, Array, Array, int]
type _Evaluate = Callable[..., list[Array]]


def _quantize(_: _Evaluate, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> _Numbers:
    x, scale, zero = (*inputs, np.zeros((), np.uint8))[:3]
    return x, scale, zero, int(attributes.get("axis", 1))


def _binary(op: str) -> Callable[[_Evaluate, Sequence[Array], Mapping[str, Any]], _Numbers]:
    def numbers(evaluate: _Evaluate, inputs: Sequence[Array], _: Mapping[str, Any]) -> _Numbers:
        a, b = _numbers(*inputs[:3]), _numbers(*inputs[3:6])
        return evaluate(op, [a, b], {})[0], inputs[6], inputs[7], 1

    return numbers


def _unary(op: str, *ignored: str) -> Callable[[_Evaluate, Sequence[Array], Mapping[str, Any]], _Numbers]:
    def numbers(evaluate: _Evaluate, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> _Numbers:
        kept = {name: value for name, value in attributes.items() if name not in ignored}
        return evaluate(op, [_numbers(*inputs[:3])], kept)[0], inputs[3], inputs[4], 1

    return numbers


def _convolution(evaluate: _Evaluate, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> _Numbers:
    operands = [_numbers(*inputs[:3]), _numbers(*inputs[3:6], axis=0)]
    if len(inputs) > 8:
        operands.append(inputs[8] * (inputs[1] * np.broadcast_to(inputs[4].reshape(-1), inputs[8].shape)))
    return evaluate("Conv", operands, attributes)[0], inputs[6], inputs[7], 1


def _product(evaluate: _Evaluate, inputs: Sequence[Array], _: Mapping[str, Any]) -> _Numbers:
    b = _numbers(*inputs[3:6], axis=inputs[3].ndim - 1)
    return evaluate("MatMul", [_numbers(*inputs[:3]), b], {})[0], inputs[6], inputs[7], 1


def _gemm(evaluate: _Evaluate, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> _Numbers:
    operands = [_numbers(*inputs[:3]), _numbers(*inputs[3:6], axis=0 if attributes.get("transB") else 1)]
    if inputs[6].size:
        operands.append(inputs[6] * (inputs[1] * np.broadcast_to(inputs[4].reshape(-1), inputs[6].shape)))
    return evaluate("Gemm", operands, attributes)[0], inputs[7], inputs[8], 1


def _concatenation(evaluate: _Evaluate, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> _Numbers:
    parts = [_numbers(*inputs[at : at + 3]) for at in range(2, len(inputs), 3)]
    return evaluate("Concat", parts, attributes)[0], inputs[0], inputs[1], 1


_ON_BYTES: Mapping[str, Callable[[_Evaluate, Sequence[Array], Mapping[str, Any]], _Numbers]] = {
    "QuantizeLinear": _quantize,
    "QLinearConv": _convolution,
    "QLinearMatMul": _product,
    "QGemm": _gemm,
    "QLinearConcat": _concatenation,
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearSoftmax": _unary("Softmax", "opset"),
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool", "channels_last"),
    "QLinearAveragePool": _unary("AveragePool", "channels_last"),
}
