"""Steps that families of random graphs share: elementwise operators, reductions and activations."""

from typing import Any

import numpy as np

from tests.engine_ext.random_graphs.maker import GraphMaker, Unsuitable, numpy_type

# Functions whose values are of unit size wherever their operand is.
SMOOTH = ("Neg", "Abs", "Tanh", "Sigmoid", "Atan", "Erf", "Softplus", "Softsign", "Identity")
ACTIVATIONS = (
    "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Clip", "Clip6",
    "Softplus", "Softsign", "PRelu", "ThresholdedRelu", "Swish", "Mish", "Gelu", "SwishChain", "HardSwishChain",
    "GeluChain", "TanhGeluChain", "Identity", "Abs", "Neg",
)  # fmt: skip


def activation(g: GraphMaker, x: str) -> str:
    """Return an activation of a value, as one operator or as exporters write it."""
    kind = g.draw(ACTIVATIONS)
    if kind == "Clip":
        bounds = (g.number(-0.5), g.number(0.75))
        return g.op("Clip", [(x, bounds[0]), (x, "", bounds[1]), (x, *bounds)][g.between(0, 2)])
    if kind == "Clip6":
        return g.op("Clip", [x, g.number(0), g.number(6)])
    if kind == "PRelu":
        shape = g.shape(x)
        if not shape:
            raise Unsuitable("no axis for slopes")
        slope = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 1 and g.chance(0.7) else (1,)
        return g.op("PRelu", [x, g.constant(g.normal(slope, 0.3))])
    if kind == "SwishChain":
        pair = [x, g.op("Sigmoid", [x])]
        return g.op("Mul", pair if g.chance(0.5) else pair[::-1])
    if kind == "HardSwishChain":
        return g.op("Mul", [x, g.op("HardSigmoid", [x], alpha=1 / 6, beta=0.5)])
    if kind == "GeluChain":
        return gelu_chain(g, x)
    if kind == "TanhGeluChain":
        return tanh_gelu_chain(g, x)
    if kind == "ThresholdedRelu" and not g.exact:
        raise Unsuitable("it jumps")
    if kind in {"LeakyRelu", "Elu", "Celu"} and g.chance(0.6):
        return g.op(kind, [x], alpha=float(g.draw([0.01, 0.1, 0.5, 1.5])))
    if kind == "HardSigmoid" and g.chance(0.6):
        return g.op(kind, [x], alpha=1 / 6, beta=0.5)
    if kind == "Gelu" and g.chance(0.5):
        return g.op(kind, [x], approximate="tanh")
    return g.op(kind, [x])


def gelu_chain(g: GraphMaker, x: str) -> str:
    """Return Gelu as opsets before 20 write it, in one of its orders."""
    inner = g.op("Div", [x, g.number(2**0.5)]) if g.chance(0.5) else g.op("Mul", [x, g.number(0.5**0.5)])
    one = g.op("Add", _either(g, [g.op("Erf", [inner]), g.number(1)]))
    if g.chance(0.5):
        return g.op("Mul", _either(g, [g.op("Mul", _either(g, [x, one])), g.number(0.5)]))
    return g.op("Mul", _either(g, [g.op("Mul", _either(g, [x, g.number(0.5)])), one]))


def tanh_gelu_chain(g: GraphMaker, x: str) -> str:
    """Return Gelu's approximation by Tanh as exporters write it."""
    if g.dtype == "float16":  # a cube of more is beyond its range
        x = g.op("Clip", [x, g.number(-30), g.number(30)])
    cube = g.op("Pow", [x, g.number(3)]) if g.chance(0.5) else g.op("Mul", [g.op("Mul", [x, x]), x])
    inner = g.op("Add", _either(g, [x, g.op("Mul", _either(g, [cube, g.number(0.044715)]))]))
    one = g.op(
        "Add", _either(g, [g.op("Tanh", [g.op("Mul", _either(g, [inner, g.number((2 / np.pi) ** 0.5)]))]), g.number(1)])
    )
    return g.op("Mul", [g.op("Mul", _either(g, [x, g.number(0.5)])), one])


def _either(g: GraphMaker, pair: list[str]) -> list[str]:
    return pair if g.chance(0.5) else pair[::-1]


def smooth(g: GraphMaker, x: str) -> str:
    return g.op(g.draw(SMOOTH), [x])


def guarded(g: GraphMaker, x: str) -> str:
    """Return a function that is not defined everywhere, of an operand that is inside its domain."""
    kind = g.draw(["Exp", "Log", "Sqrt", "Reciprocal", "Asin", "Acosh", "Atanh", "Sinh", "Tan", "Pow", "Sin", "Cos"])
    bounded = g.op("Tanh", [x])
    if kind in {"Asin", "Atanh"}:
        return g.op(kind, [g.op("Mul", [bounded, g.number(0.75)])])
    if kind == "Exp":
        return g.op("Exp", [bounded])
    if kind in {"Sinh", "Tan", "Sin", "Cos"}:
        return g.op(kind, [bounded])
    safe = g.op("Add", [g.op("Abs", [bounded]), g.number(1.25 if kind == "Acosh" else 0.5)])
    if kind == "Pow":
        return g.op("Pow", [safe, g.number(g.draw([0.5, 2, 3, -1, -0.5, 1.5]))])
    return g.op(kind, [safe])


def binary(g: GraphMaker, x: str, values: list[str]) -> str:
    """Return a binary operator of a value and another one, a constant that broadcasts, or itself."""
    kind = g.draw(["Add", "Sub", "Mul", "Add", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow2"])
    if kind == "Pow2":
        return g.op("Pow", [x, g.number(2)])
    if kind == "Div":
        below = g.positive(broadcastable(g, g.shape(x)))
        return g.op("Div", [x, below])
    return g.op(kind, _either(g, [x, operand(g, x, values)]))


def operand(g: GraphMaker, x: str, values: list[str]) -> str:
    """Return something that an operator combines with x: a value of the graph of its shape, or a constant."""
    like = [one for one in values if g.shape(one) == g.shape(x) and g.kind(one) == g.kind(x)]
    if like and g.chance(0.6):
        return g.draw(like)
    return typed(g, x, broadcastable(g, g.shape(x)))


def typed(g: GraphMaker, x: str, shape: tuple[int, ...]) -> str:
    """Return a constant of the element type of x."""
    if g.floating(x):
        return g.constant(g.normal(shape).astype(numpy_type(g.kind(x))))
    if g.kind(x) == "bool":
        return g.constant(g.rng.random(shape) < 0.5)
    return g.constant(g.rng.integers(0, 5, shape).astype(g.kind(x)))


def broadcastable(g: GraphMaker, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that broadcasts to this one."""
    kept = tuple(size if g.chance(0.6) else 1 for size in shape)
    return kept[g.between(0, len(kept)) :] if kept and g.chance(0.5) else kept


def axes_of(g: GraphMaker, x: str, least: int = 1) -> list[int]:
    """Return some of the axes of a value, from either end."""
    rank = len(g.shape(x))
    if rank < least:
        raise Unsuitable("too few axes")
    axes = sorted(g.rng.permutation(rank)[: g.between(least, rank)].tolist())
    return [axis - rank if g.chance(0.3) else axis for axis in axes]


def with_axes(g: GraphMaker, op: str, x: str, axes: list[int], since: int, **attributes: Any) -> str:
    """Return an operator whose axes are an attribute before the opset `since`, and an input from there on."""
    if g.opset < since:
        return g.op(op, [x], axes=axes, **attributes)
    return g.op(op, [x, g.ints(axes)], **attributes)


def reduction(g: GraphMaker, x: str) -> str:
    kinds = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp"]
    kind = g.draw([*kinds, "ReduceSumSquare", "ReduceMean", "ReduceProd"])
    if kind == "ReduceProd":  # numbers around 1 keep the product's size
        x = g.op("Add", [g.op("Mul", [g.op("Tanh", [x]), g.number(0.1)]), g.number(1)])
    since = 13 if kind == "ReduceSum" else 18
    return with_axes(g, kind, x, axes_of(g, x), since, keepdims=g.between(0, 1))


def normalise(g: GraphMaker, x: str) -> str:
    """Return a softmax or another normalisation along one axis."""
    rank = len(g.shape(x))
    if rank == 0:
        raise Unsuitable("a number")
    axis = g.between(-rank, rank - 1)
    kind = g.draw(["Softmax", "LogSoftmax", "Softmax", "LpNormalization", "CumSum"])
    if kind == "LpNormalization":
        if g.dtype != "float32":
            raise Unsuitable("ONNX's evaluator, the only reference, divides by the sum of signed numbers")
        return g.op(kind, [x], axis=axis, p=g.between(1, 2))
    if kind == "CumSum":
        where = g.constant(np.array(axis, dtype=np.int64))
        return g.op(kind, [x, where], exclusive=g.between(0, 1), reverse=g.between(0, 1))
    return g.op(kind, [x], axis=axis)
