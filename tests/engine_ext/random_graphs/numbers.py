"""Family of random elementwise graphs: floats, integers, comparisons, reductions, and selection."""

from collections.abc import Callable

import numpy as np

from tests.engine_ext.random_graphs.maker import GraphMaker, Unsuitable, numpy_type
from tests.engine_ext.random_graphs.steps import (
    activation,
    binary,
    guarded,
    normalise,
    operand,
    reduction,
    smooth,
    typed,
)

_INTEGERS = ("int64", "int32", "uint8", "int8", "uint32", "int16")


def numbers(g: GraphMaker) -> list[str]:
    """Make four to sixteen operators on one to three inputs; return values that are outputs besides the last ones."""
    shape = tuple(g.draw([1, 2, 3, 5, 7, 16, 33]) for _ in range(g.between(0, 4)))
    values = [g.input(g.normal(shape)) for _ in range(g.between(1, 2))]
    if g.chance(0.5):
        values.append(g.input(g.rng.integers(0, 90, shape).astype(g.draw(_INTEGERS))))
    if g.chance(0.2):
        values.append(g.input(g.rng.random(shape) < 0.5))
    for _ in range(g.between(4, 16)):
        x = g.draw(values[-4:])
        steps = _FLOATS if g.floating(x) else _TRUTHS if g.kind(x) == "bool" else _WHOLE
        try:
            made = g.draw(steps)(g, x, values)
        except Unsuitable:
            continue
        values.extend([made] if isinstance(made, str) else made)
    return [g.draw(values)] if g.chance(0.3) else []


def compare(g: GraphMaker, x: str, values: list[str]) -> str:
    kind = g.draw(["Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"])
    if g.floating(x) and (kind == "Equal" or not g.exact):
        raise Unsuitable("it jumps")
    return g.op(kind, [x, operand(g, x, values)])


def jump(g: GraphMaker, x: str, _: list[str]) -> str:
    if not g.exact:
        raise Unsuitable("it jumps")
    scaled = g.op("Mul", [x, g.number(7.3)])
    kind = g.draw(["Floor", "Ceil", "Round", "Sign", "Cast"])
    return g.op("Cast", [scaled], to=g.draw([6, 7])) if kind == "Cast" else g.op(kind, [scaled])


def select(g: GraphMaker, x: str, _: list[str]) -> str | list[str]:
    """Return the greatest elements along an axis, or their places."""
    rank = len(g.shape(x))
    if rank == 0 or not g.exact:
        raise Unsuitable("no axis")
    axis = g.between(-rank, rank - 1)
    x = g.op("Add", [x, typed(g, x, g.shape(x))])  # makes all elements different
    if g.chance(0.5):
        return g.op(g.draw(["ArgMax", "ArgMin"]), [x], axis=axis, keepdims=g.between(0, 1))
    count = g.ints([g.between(1, g.shape(x)[axis])])
    return g.ops("TopK", [x, count], 2, axis=axis, largest=g.between(0, 1), sorted=1)


def choose(g: GraphMaker, x: str, values: list[str]) -> str:
    conditions = [one for one in values if g.kind(one) == "bool" and g.shape(one) == g.shape(x)]
    if not conditions:
        raise Unsuitable("no condition")
    return g.op("Where", [g.draw(conditions), x, operand(g, x, values)])


def whole(g: GraphMaker, x: str, values: list[str]) -> str:
    """Return integer arithmetic that stays in range."""
    kind = g.draw(
        ["Add", "Mul", "Sub", "Mod", "Div", "Max", "Min", "Abs", "Neg", "BitwiseAnd", "BitwiseXor", "BitShift"]
    )
    if g.kind(x) in {"uint8", "int8", "int16"} and kind in {"Add", "Mul", "Sub"}:
        raise Unsuitable("beyond the range")
    if kind in {"Abs", "Neg"}:
        if kind == "Neg" and g.kind(x).startswith("u"):
            raise Unsuitable("no sign")
        return g.op(kind, [x])
    if kind == "Mul":
        x = g.op("Mod", [x, typed_number(g, x, 50)])
        return g.op("Mul", [x, typed_number(g, x, g.between(0, 9))])
    if kind in {"Mod", "Div"}:
        return g.op(kind, [x, typed_number(g, x, g.between(1, 9))])
    if kind == "BitShift":
        return g.op(kind, [x, typed_number(g, x, g.between(0, 3))], direction="RIGHT")
    if kind == "Sub" and g.kind(x).startswith("u"):
        raise Unsuitable("below zero")
    return g.op(kind, [x, operand(g, x, values)])


def typed_number(g: GraphMaker, x: str, value: int) -> str:
    return g.constant(np.array(value, dtype=g.kind(x)))


def whole_reduction(g: GraphMaker, x: str, _: list[str]) -> str:
    if g.kind(x) not in {"int32", "int64"} or not g.shape(x):
        raise Unsuitable("not reduced")
    kind = g.draw(["ReduceSum", "ReduceMax", "ReduceMin", "ArgMax"])
    if kind == "ArgMax":
        return g.op(kind, [x], axis=0, select_last_index=g.between(0, 1))
    if kind == "ReduceSum" or g.opset >= 18:
        return g.op(kind, [x, g.ints([0])], keepdims=g.between(0, 1))
    return g.op(kind, [x], axes=[0], keepdims=g.between(0, 1))


def to_float(g: GraphMaker, x: str, _: list[str]) -> str:
    if g.dtype == "bfloat16" or g.kind(x) == "uint32":
        raise Unsuitable("stays")
    made = g.op("Cast", [x], to=g.kinds_number())
    return g.op("Tanh", [g.op("Mul", [made, g.number(0.02)])])


def one_hot(g: GraphMaker, x: str, _: list[str]) -> str:
    if g.kind(x) != "int64":
        raise Unsuitable("not an index of ONNX Runtime's")
    values = g.constant(np.array([0.25, 1.5], dtype=np.float32))
    return g.op("OneHot", [g.op("Mod", [x, typed_number(g, x, 5)]), g.ints([5]), values], axis=-1)


def logic(g: GraphMaker, x: str, values: list[str]) -> str:
    kind = g.draw(["And", "Or", "Xor", "Not", "Cast"])
    if kind == "Not":
        return g.op(kind, [x])
    return g.op("Cast", [x], to=g.draw([1, 6])) if kind == "Cast" else g.op(kind, [x, operand(g, x, values)])


def _unary(g: GraphMaker, x: str, _: list[str]) -> str:
    return g.draw([smooth, guarded, activation, reduction, normalise])(g, x)


def shared(g: GraphMaker, x: str, values: list[str]) -> str:
    """Return the difference of two equal computations from an own one, so that equal nodes are merged."""
    pair = [g.op("Tanh", [g.op("Mul", [x, g.number(0.5)])]) for _ in range(2)]
    return g.op("Add", [pair[0], g.op("Mul", [pair[1], typed(g, x, ())])])


def dead(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x through operators that change nothing."""
    kind = g.draw(["Identity", "Cast", "Mul", "Add", "Dropout", "Transpose"])
    if kind == "Cast":
        if g.kind(x) != g.dtype:
            raise Unsuitable("another type")
        return g.op("Cast", [x], to=g.kinds_number())
    if kind == "Mul":
        return g.op("Mul", [x, g.constant(np.ones((), dtype=numpy_type(g.kind(x))))])
    if kind == "Add":
        return g.op("Add", [x, g.constant(np.zeros((), dtype=numpy_type(g.kind(x))))])
    if kind == "Transpose":
        return g.op("Transpose", [g.op("Transpose", [x])])
    return g.op(kind, [x])


type _Step = Callable[[GraphMaker, str, list[str]], str | list[str]]
_FLOATS: tuple[_Step, ...] = (
    _unary,
    _unary,
    _unary,
    _unary,
    binary,
    binary,
    binary,
    compare,
    jump,
    select,
    choose,
    shared,
    dead,
)
_WHOLE: tuple[_Step, ...] = (whole, whole, whole, compare, whole_reduction, to_float, one_hot, choose)
_TRUTHS: tuple[_Step, ...] = (logic,)
