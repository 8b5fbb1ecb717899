"""Family of random quantised networks: QDQ, QLinear operators, and dynamic quantisation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.engine_ext.random_graphs.maker import Array, GraphMaker, Unsuitable
from tests.engine_ext.random_graphs.steps import activation


def quantised(g: GraphMaker) -> list[str]:
    """Make two to seven blocks of one of three forms; all results that nobody reads are outputs."""
    if g.dtype != "float32":
        raise Unsuitable("float32 only")
    if g.chance(0.2):
        return dynamic(g)
    rank = g.draw([2, 2, 2, 1])
    shape = (g.draw([1, 1, 2]), g.draw([1, 3, 4, 8, 16, 20]), *(g.between(3, 14) for _ in range(rank)))
    if g.chance(0.25):
        shape = (g.between(1, 6), g.draw([4, 8, 16, 33]))
    x = quantise(g, g.input(g.normal(shape)))
    values = [x]
    steps = _OPERATORS if g.chance(0.35) else _PAIRS
    for _ in range(g.between(2, 7)):
        x = values[-1] if g.chance(0.8) else g.draw(values)
        try:
            values.append(g.draw(steps)(g, x, values))
        except Unsuitable:
            continue
    if g.chance(0.8):
        values[-1].floats(g)
    return []


@dataclass(frozen=True, slots=True)
class Bytes:
    """A quantised value: its name, and those of its scale and zero point."""

    name: str
    scale: str
    zero: str

    def floats(self, g: GraphMaker) -> str:
        return g.op("DequantizeLinear", [self.name, self.scale, self.zero] if self.zero else [self.name, self.scale])

    @property
    def names(self) -> list[str]:
        return [self.name, self.scale, self.zero]


def parameters(g: GraphMaker, *, positive: bool = False) -> tuple[str, str]:
    """Return scale and zero point of values of unit size; for positive ones the zero point is the least byte."""
    kind = g.draw([np.uint8, np.uint8, np.int8])
    info = np.iinfo(kind)
    step = (0.5 + g.rng.random() / 2) * (4 if positive else 8) / 255
    middle = (info.min + info.max + 1) // 2
    zero = info.min if positive else g.draw([middle, middle, middle + g.between(-40, 40)])
    return g.constant(np.array(step, dtype=np.float32)), g.constant(np.array(zero, dtype=kind))


def quantise(g: GraphMaker, x: str, *, positive: bool = False, like: Bytes | None = None) -> Bytes:
    scale, zero = parameters(g, positive=positive) if like is None else (like.scale, like.zero)
    return Bytes(g.op("QuantizeLinear", [x, scale, zero]), scale, zero)


def weights(
    g: GraphMaker, shape: tuple[int, ...], axis: int, fan_in: int, *, most: int = 127
) -> tuple[str, str, str, Array]:
    """Return int8 weights with their scale and zero point, one or one for each slice along the axis."""
    if min(shape) < 1:
        raise Unsuitable("no weights")
    value = g.rng.standard_normal(shape) / max(1, fan_in) ** 0.5
    others = tuple(at for at in range(len(shape)) if at != axis)
    size = np.abs(value).max(axis=others, keepdims=True) if g.chance(0.5) else np.abs(value).max()
    scale = np.asarray(size / most, dtype=np.float32)
    whole = np.clip(np.rint(value / scale), -most, most).astype(np.int8)
    flat = scale.reshape(-1) if scale.ndim else scale
    zero = np.zeros(flat.shape, dtype=np.int8)
    return g.constant(whole), g.constant(flat), g.constant(zero), flat


def bias(g: GraphMaker, x: Bytes, scale: Array, size: int) -> tuple[str, str]:
    """Return an int32 bias and its scale."""
    own = g.value_of(x.scale)
    assert own is not None
    unit = np.broadcast_to(np.asarray(own * scale, dtype=np.float32), (size,)).copy()
    return g.constant(np.rint(g.rng.standard_normal(size) * 0.5 / unit).astype(np.int32)), g.constant(unit)


def _window(g: GraphMaker, shape: tuple[int, ...]) -> dict[str, Any]:
    size = shape[2:]
    if not size:
        raise Unsuitable("no spatial axes")
    kernel = [g.draw([1, min(3, one), min(2, one)]) for one in size]
    return {
        "kernel_shape": kernel,
        "strides": [g.draw([1, 1, 2]) for _ in size],
        "pads": [(one - 1) // 2 for one in kernel] * 2,
    }


def _filters(g: GraphMaker, channels: int) -> tuple[int, int]:
    """Return groups and output channels."""
    if g.chance(0.3):
        return channels, channels
    groups = 2 if channels % 2 == 0 and g.chance(0.15) else 1
    return groups, groups * g.draw([1, 3, 4, 8, 16])


def pair_convolution(g: GraphMaker, x: Bytes, _: list[Bytes]) -> Bytes:
    """Return a convolution between DequantizeLinear and QuantizeLinear, with an activation or without."""
    shape, window = g.shape(x.name), _window(g, g.shape(x.name))
    groups, outer = _filters(g, shape[1])
    fan_in = shape[1] // groups * int(np.prod(window["kernel_shape"]))
    w, scale, zero, values = weights(g, (outer, shape[1] // groups, *window["kernel_shape"]), 0, fan_in)
    inputs = [x.floats(g), g.op("DequantizeLinear", [w, scale, zero], axis=0)]
    if g.chance(0.7):
        b, unit = bias(g, x, values, outer)
        inputs.append(g.op("DequantizeLinear", [b, unit], axis=0))
    return _ended(g, g.op("Conv", inputs, group=groups, **window))


def _ended(g: GraphMaker, y: str) -> Bytes:
    kind = g.draw(["none", "none", "Relu", "Relu", "Clip", "other"])
    if kind == "Relu":
        return quantise(g, g.op("Relu", [y]), positive=True)
    if kind == "Clip":
        return quantise(g, g.op("Clip", [y, g.number(0), g.number(6)]), positive=True)
    return quantise(g, activation(g, y) if kind == "other" else y)


def pair_product(g: GraphMaker, x: Bytes, _: list[Bytes]) -> Bytes:
    shape = g.shape(x.name)
    if len(shape) != 2:
        raise Unsuitable("no matrix")
    inner, outer, turned = shape[1], g.draw([1, 4, 10, 16]), g.between(0, 1)
    gemm = g.chance(0.5)
    axis = 0 if gemm and turned else 1
    w, scale, zero, values = weights(g, (outer, inner) if axis == 0 else (inner, outer), axis, inner)
    factors = [x.floats(g), g.op("DequantizeLinear", [w, scale, zero], axis=axis)]
    if gemm:
        if g.chance(0.7):
            b, unit = bias(g, x, values, outer)
            factors.append(g.op("DequantizeLinear", [b, unit], axis=0))
        return _ended(g, g.op("Gemm", factors, transB=1 - axis))
    return _ended(g, g.op("MatMul", factors))


def pair_sum(g: GraphMaker, x: Bytes, values: list[Bytes]) -> Bytes:
    like = [one for one in values if g.shape(one.name) == g.shape(x.name)]
    total = g.op(g.draw(["Add", "Add", "Add", "Mul"]), [x.floats(g), g.draw(like).floats(g)])
    return _ended(g, total)


def pair_movement(g: GraphMaker, x: Bytes, values: list[Bytes]) -> Bytes:
    """Return bytes moved or pooled, to the same scale or another one."""
    shape, floats = g.shape(x.name), x.floats(g)
    kind = g.draw(["MaxPool", "GlobalAveragePool", "Reshape", "Transpose", "Concat", "Flatten", "AveragePool", "Slice"])
    if kind in {"MaxPool", "AveragePool"}:
        y = g.op(kind, [floats], **_window(g, shape))
    elif kind == "GlobalAveragePool":
        if len(shape) < 3:
            raise Unsuitable("no image")
        y = g.op(kind, [floats])
    elif kind == "Reshape":
        y = g.op(kind, [floats, g.ints([shape[0], -1])])
    elif kind == "Transpose":
        y = g.op(kind, [floats], perm=[0, *range(1, len(shape))[::-1]])
    elif kind == "Flatten":
        y = g.op(kind, [floats])
    elif kind == "Slice":
        y = g.op(kind, [floats, g.ints([0]), g.ints([max(1, shape[1] - 1)]), g.ints([1])])
    else:
        like = [one for one in values if g.shape(one.name) == shape]
        y = g.op(kind, [floats, g.draw(like).floats(g)], axis=1)
    return quantise(g, y, like=x if g.chance(0.6) else None)


def pair_float(g: GraphMaker, x: Bytes, _: list[Bytes]) -> Bytes:
    return quantise(g, activation(g, x.floats(g)))


def linear_convolution(g: GraphMaker, x: Bytes, _: list[Bytes]) -> Bytes:
    shape, window = g.shape(x.name), _window(g, g.shape(x.name))
    groups, outer = _filters(g, shape[1])
    fan_in = shape[1] // groups * int(np.prod(window["kernel_shape"]))
    w, scale, zero, values = weights(g, (outer, shape[1] // groups, *window["kernel_shape"]), 0, fan_in, most=63)
    y_scale, y_zero = parameters(g)
    inputs = [*x.names, w, scale, zero, y_scale, y_zero]
    if g.kind(y_zero) != g.kind(x.name):
        raise Unsuitable("ONNX Runtime has no such pair")
    if g.chance(0.6):
        inputs.append(bias(g, x, values, outer)[0])
    return Bytes(g.op("QLinearConv", inputs, group=groups, **window), y_scale, y_zero)


def linear_product(g: GraphMaker, x: Bytes, _: list[Bytes]) -> Bytes:
    shape = g.shape(x.name)
    if len(shape) != 2:
        raise Unsuitable("no matrix")
    outer = g.draw([1, 4, 10, 16])
    w, scale, zero, _values = weights(g, (shape[1], outer), 1, shape[1], most=63)
    y_scale, y_zero = parameters(g)
    if g.kind(y_zero) != g.kind(x.name):
        raise Unsuitable("ONNX Runtime has no such pair")
    return Bytes(g.op("QLinearMatMul", [*x.names, w, scale, zero, y_scale, y_zero]), y_scale, y_zero)


def linear_other(g: GraphMaker, x: Bytes, values: list[Bytes]) -> Bytes:
    """Return one of the operators of ONNX Runtime's domain that its quantiser writes."""
    shape, kind = g.shape(x.name), g.kind(x.name)
    like = [one for one in values if g.shape(one.name) == shape and g.kind(one.name) == kind]
    y_scale, y_zero = parameters(g)
    if g.kind(y_zero) != kind:
        raise Unsuitable("another type")
    op = g.draw(["QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearGlobalAveragePool",
                 "QLinearConcat", "QLinearSoftmax", "QLinearAveragePool", "QGemm"])  # fmt: skip
    result = (kind, shape)
    inputs, attributes = [*x.names, y_scale, y_zero], dict[str, Any]()
    if op in {"QLinearAdd", "QLinearMul"}:
        inputs = [*x.names, *g.draw(like).names, y_scale, y_zero]
    elif op == "QLinearLeakyRelu":
        attributes["alpha"] = 0.2
    elif op == "QLinearGlobalAveragePool":
        if len(shape) < 3:
            raise Unsuitable("no image")
        attributes["channels_last"] = 0
        result = (kind, (*shape[:2], *(1,) * (len(shape) - 2)))
    elif op == "QLinearConcat":
        parts = [x, *(g.draw(like) for _ in range(g.between(1, 2)))]
        inputs = [y_scale, y_zero, *(name for part in parts for name in part.names)]
        attributes["axis"] = 1
        result = (kind, (shape[0], shape[1] * len(parts), *shape[2:]))
    elif op == "QLinearSoftmax":
        attributes |= {"axis": -1, "opset": g.opset}
    elif op == "QLinearAveragePool":
        if len(shape) != 4:
            raise Unsuitable("no image")
        attributes |= {"kernel_shape": [2, 2], "strides": [1, 1]}
        result = (kind, (*shape[:2], shape[2] - 1, shape[3] - 1))
    elif op == "QGemm":
        if len(shape) != 2:
            raise Unsuitable("no matrix")
        outer = g.draw([1, 4, 10])
        w, scale, zero, values_of = weights(g, (shape[1], outer), 1, shape[1], most=63)
        inputs = [*x.names, w, scale, zero, bias(g, x, values_of, outer)[0], y_scale, y_zero]
        result = (kind, (shape[0], outer))
    return Bytes(g.node(op, inputs, [result], domain="com.microsoft", **attributes)[0], y_scale, y_zero)


def linear_movement(g: GraphMaker, x: Bytes, _: list[Bytes]) -> Bytes:
    """Return bytes that are only moved."""
    shape = g.shape(x.name)
    kind = g.draw(["Reshape", "Transpose", "MaxPool"])
    if kind == "Reshape":
        return Bytes(g.op(kind, [x.name, g.ints([shape[0], -1])]), x.scale, x.zero)
    if kind == "Transpose":
        return Bytes(g.op(kind, [x.name], perm=[0, *range(1, len(shape))[::-1]]), x.scale, x.zero)
    return Bytes(g.op(kind, [x.name], **_window(g, shape)), x.scale, x.zero)


def dynamic(g: GraphMaker) -> list[str]:
    """Make products of dynamically quantised values, as ONNX Runtime's quantiser writes them."""
    x = g.input(g.normal((g.between(1, 5), g.draw([4, 16, 33]))))
    for _ in range(g.between(1, 3)):
        inner, outer = g.shape(x)[1], g.draw([3, 8, 16])
        whole, scale, zero = g.ops("DynamicQuantizeLinear", [x], 3)
        w, w_scale, w_zero, _ = weights(g, (inner, outer), 1, inner, most=63)
        if g.shape(w_zero) and g.chance(0.5):
            w_zero = g.constant(np.zeros(outer, dtype=np.int8))
        product = g.op("MatMulInteger", [whole, w, zero, w_zero])
        floats = g.op("Cast", [product], to=1)
        x = g.op("Mul", [floats, g.op("Mul", [scale, w_scale])])
        if g.chance(0.6):
            x = g.op("Add", [x, g.constant(g.normal((outer,)))])
        if g.chance(0.6):
            x = activation(g, x)
    return []


type _Step = Callable[[GraphMaker, Bytes, list[Bytes]], Bytes]
_PAIRS: tuple[_Step, ...] = (
    pair_convolution,
    pair_convolution,
    pair_convolution,
    pair_product,
    pair_sum,
    pair_movement,
    pair_movement,
    pair_float,
)
_OPERATORS: tuple[_Step, ...] = (
    linear_convolution,
    linear_convolution,
    linear_product,
    linear_other,
    linear_other,
    linear_other,
    linear_movement,
)
