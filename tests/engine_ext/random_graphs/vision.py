"""Family of random convolutional networks."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.engine_ext.random_graphs.maker import GraphMaker, Unsuitable, numpy_type
from tests.engine_ext.random_graphs.steps import activation, binary, guarded, reduction, smooth

_CHANNELS = (1, 2, 3, 4, 7, 8, 12, 16, 17, 24, 32, 48)


def vision(g: GraphMaker) -> list[str]:
    """Make a network of two to nine blocks; return values that are outputs besides those that nobody reads."""
    rank = g.draw([2, 2, 2, 2, 1, 3])
    size = [g.between(3, {1: 60, 2: 18, 3: 7}[rank]) for _ in range(rank)]
    values = [g.input(g.normal((g.draw([1, 1, 2, 3]), g.draw(_CHANNELS), *size)))]
    for _ in range(g.between(2, 9)):
        x = values[-1] if g.chance(0.75) else g.draw(values)
        try:
            made = g.draw(_BLOCKS)(g, x, values)
        except Unsuitable:
            continue
        if len(g.shape(made)) > 2:  # a reduction that removed axes ends there
            values.append(made)
    if g.chance(0.4):
        with contextlib.suppress(Unsuitable):
            head(g, values[-1])
    return [g.draw(values)] if g.chance(0.2) else []


def _window(g: GraphMaker, x: str, *, dilated: bool = True) -> dict[str, Any]:
    """Return attributes of a window that fits the value: kernel_shape, strides, pads or auto_pad, dilations."""
    size = g.shape(x)[2:]
    if not size:
        raise Unsuitable("no spatial axes")
    kernel = [g.draw([one for one in (1, 2, 3, 3, 4, 5) if one <= length]) for length in size]
    if g.chance(0.3):
        kernel = [1] * len(size)
    strides = [g.draw([1, 1, 1, 2, 3]) for _ in size]
    dilations = [1] * len(size)
    if dilated and g.chance(0.2):
        dilations = [2 if 2 * (k - 1) + 1 <= length else 1 for k, length in zip(kernel, size, strict=True)]
    found: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if dilated and (max(dilations) > 1 or g.chance(0.2)):
        found["dilations"] = dilations
    how = g.draw(["none", "same", "random", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if how == "same":
        found["pads"] = [(k - 1) * d // 2 for k, d in zip(kernel, dilations, strict=True)] * 2
    elif how == "random":
        found["pads"] = [g.between(0, k - 1) for k in kernel * 2]
    elif how != "none" and max(dilations) == 1:
        found["auto_pad"] = how
        if how != "VALID":  # pads below zero: ONNX Runtime has several readings of them
            strides[:] = [min(pair) for pair in zip(strides, kernel, strict=True)]
    return found


def convolution(g: GraphMaker, x: str, _: list[str]) -> str:
    shape = g.shape(x)
    window = _window(g, x)
    kernel = window["kernel_shape"]
    assert isinstance(kernel, list)
    inner, kind = shape[1], g.draw(["plain", "plain", "depthwise", "grouped", "pointwise"])
    groups, outer = 1, g.draw(_CHANNELS)
    if kind == "depthwise":
        groups, outer = inner, inner * g.draw([1, 1, 2])
    elif kind == "grouped":
        groups = g.draw([one for one in (2, 3, 4, 8) if inner % one == 0] or [1])
        outer = groups * g.between(1, 6)
    elif kind == "pointwise":
        kernel[:] = [1] * len(kernel)
        window.pop("pads", None)
        window.pop("dilations", None)
    if outer * inner // groups * int(np.prod(kernel)) > 1 << 15:
        raise Unsuitable("large weights")
    weights = g.weights((outer, inner // groups, *kernel), inner // groups * int(np.prod(kernel)))
    inputs = [x, weights, g.constant(g.normal((outer,), 0.5))] if g.chance(0.6) else [x, weights]
    if groups > 1 or g.chance(0.1):
        window["group"] = groups
    if g.chance(0.3):
        window.pop("kernel_shape")
    return g.op("Conv", inputs, **window)


def transposed(g: GraphMaker, x: str, _: list[str]) -> str:
    shape = g.shape(x)
    window = _window(g, x, dilated=g.chance(0.3))
    window.pop("auto_pad", None)
    kernel = window["kernel_shape"]
    assert isinstance(kernel, list)
    groups = g.draw([one for one in (1, 1, 2, 4) if shape[1] % one == 0])
    outer = g.between(1, 8)
    strides = window["strides"]
    assert isinstance(strides, list)
    if g.chance(0.3):
        window["output_padding"] = [g.between(0, one - 1) for one in strides]
    weights = g.weights((shape[1], outer, *kernel), shape[1] // groups * int(np.prod(kernel)))
    inputs = [x, weights, g.constant(g.normal((outer * groups,)))] if g.chance(0.5) else [x, weights]
    return g.op("ConvTranspose", inputs, group=groups, **window)


def batch_normalization(g: GraphMaker, x: str, _: list[str]) -> str:
    channels = (g.shape(x)[1],)
    parts = [g.positive(channels), g.constant(g.normal(channels)), g.constant(g.normal(channels)), g.positive(channels)]
    return g.op("BatchNormalization", [x, *parts], epsilon=g.draw([1e-5, 1e-3]))


def convolution_block(g: GraphMaker, x: str, values: list[str]) -> str:
    """Return a convolution followed by some of: normalisation, activation, residual, scale, in any order."""
    make: Callable[[GraphMaker, str, list[str]], str] = transposed if g.chance(0.15) else convolution
    x = make(g, x, values)
    for _ in range(g.between(1, 4)):
        if g.chance(0.15):
            values.append(x)  # somebody else may read it too
        try:
            x = g.draw([batch_normalization, _activation, _activation, _residual, affine])(g, x, values)
        except Unsuitable:
            continue
    return x


def _activation(g: GraphMaker, x: str, _: list[str]) -> str:
    return activation(g, x)


def _residual(g: GraphMaker, x: str, values: list[str]) -> str:
    like = [one for one in values if g.shape(one) == g.shape(x) and one != x]
    other = g.draw(like) if like else g.constant(g.normal(g.shape(x)))
    return g.op(g.draw(["Add", "Add", "Add", "Sub", "Mul", "Max", "Sum"]), [x, other] if g.chance(0.5) else [other, x])


def affine(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x multiplied by, or plus, a number for each channel, or one number."""
    shape = g.shape(x)
    size = g.draw([(shape[1], *(1,) * (len(shape) - 2)), (1, shape[1], *(1,) * (len(shape) - 2)), (1,), ()])
    pair = [x, g.constant(g.normal(size))]
    return g.op(g.draw(["Add", "Mul", "Sub", "Mul"]), pair if g.chance(0.6) else pair[::-1])


def pool(g: GraphMaker, x: str, _: list[str]) -> str:
    window = _window(g, x, dilated=False)
    kernel = window["kernel_shape"]
    assert isinstance(kernel, list)
    op = g.draw(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"])
    if "pads" in window:
        window["pads"] = [min(pad, (k - 1) // 2) for pad, k in zip(window["pads"], kernel * 2, strict=True)]
    if "auto_pad" not in window and op != "LpPool" and g.chance(0.25):
        window["ceil_mode"] = 1
    if op == "AveragePool":
        window["count_include_pad"] = g.between(0, 1)
    if op == "LpPool":
        window["p"] = g.between(1, 2)
    result = g.op(op, [x], **window)
    if (
        "ceil_mode" in window
    ):  # onnx's inference also counts windows that begin in the padding behind, and references differ
        shape, pads = g.shape(x), window.get("pads", [0] * 2 * len(kernel))
        for size, begin, stride, length in zip(shape[2:], pads, window["strides"], g.shape(result)[2:], strict=False):
            if (length - 1) * stride >= size + begin:
                raise Unsuitable("a window outside")
    return result


def global_pool(g: GraphMaker, x: str, _: list[str]) -> str:
    return g.op(g.draw(["GlobalAveragePool", "GlobalMaxPool", "GlobalAveragePool"]), [x])


def squeeze_and_excite(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x scaled by a gate for each channel, which is computed from its mean."""
    channels = g.shape(x)[1]
    mean, ones = g.op("GlobalAveragePool", [x]), (1,) * (len(g.shape(x)) - 2)
    inner = max(1, channels // 4)
    low = g.op("Conv", [mean, g.weights((inner, channels, *ones), channels), g.constant(g.normal((inner,)))])
    high = g.op("Conv", [activation(g, low), g.weights((channels, inner, *ones), inner)])
    gate = g.op(g.draw(["Sigmoid", "HardSigmoid", "Tanh"]), [high])
    return g.op("Mul", [x, gate] if g.chance(0.5) else [gate, x])


def resize(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x resized along its spatial axes, by whole scales or to a size."""
    shape, mode = g.shape(x), g.draw(["nearest", "linear", "nearest", "cubic"])
    if len(shape) != 4 and mode != "nearest":
        raise Unsuitable("four axes only")
    attributes: dict[str, Any] = {"mode": mode}
    ways = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    attributes["coordinate_transformation_mode"] = way = g.draw(ways)
    if mode == "nearest":
        attributes["nearest_mode"] = "floor" if way != "asymmetric" else g.draw(["floor", "ceil", "round_prefer_floor"])
        if way != "asymmetric":
            attributes["coordinate_transformation_mode"] = "half_pixel"
    none = g.constant(np.zeros(0, dtype=np.float32))
    if g.chance(0.5):
        scales = [1, 1, *(g.draw([1, 2, 2, 3]) for _ in shape[2:])]
        return g.op("Resize", [x, none, g.constant(np.array(scales, dtype=np.float32))], **attributes)
    if mode == "nearest":
        sizes = [*shape[:2], *(one * g.draw([1, 2, 4]) for one in shape[2:])]
    else:
        sizes = [*shape[:2], *(g.between(1, 20) for _ in shape[2:])]
    return g.op("Resize", [x, none, "", g.ints(sizes)], **attributes)


def joined(g: GraphMaker, x: str, values: list[str]) -> str:
    """Return the channels of x joined with those of other values, or with its own."""
    shape = g.shape(x)
    like = [one for one in values if len(g.shape(one)) == len(shape) and g.shape(one)[2:] == shape[2:]]
    others = [g.draw(like) for _ in range(g.between(1, 2))] if like else [x]
    if any(g.shape(one)[0] != shape[0] for one in others):
        raise Unsuitable("another batch")
    return g.op("Concat", [x, *others] if g.chance(0.5) else [*others, x], axis=g.draw([1, 1, -len(shape) + 1]))


def shuffled(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x with its channels shuffled between groups, moved to space, or back."""
    n, channels, *size = g.shape(x)
    if len(size) != 2:
        raise Unsuitable("two spatial axes only")
    kind = g.draw(["shuffle", "DepthToSpace", "SpaceToDepth", "split", "pad"])
    if kind == "shuffle":
        groups = g.draw([one for one in (2, 3, 4) if channels % one == 0] or [1])
        apart = g.op("Reshape", [x, g.ints([n, groups, channels // groups, *size])])
        return g.op("Reshape", [g.op("Transpose", [apart], perm=[0, 2, 1, 3, 4]), g.ints([n, channels, *size])])
    if kind == "DepthToSpace":
        if channels % 4:
            raise Unsuitable("channels do not divide")
        return g.op(kind, [x], blocksize=2, mode=g.draw(["DCR", "CRD"]))
    if kind == "SpaceToDepth":
        if size[0] % 2 or size[1] % 2:
            raise Unsuitable("sizes do not divide")
        return g.op(kind, [x], blocksize=2)
    if kind == "pad":
        pads = g.ints([0, 0, *(g.between(0, 2) for _ in size)] * 2)
        if g.chance(0.5):
            return g.op("Pad", [x, pads, g.number(g.draw([0, 1.5]))])
        if min(size) < 4:
            raise Unsuitable("reflected more than once")
        return g.op("Pad", [x, pads], mode=g.draw(["reflect", "edge", "constant"]))
    if channels < 2:
        raise Unsuitable("one channel")
    cut = g.between(1, channels - 1)
    parts = g.ops("Split", [x, g.ints([cut, channels - cut])], 2, axis=1)
    return g.op("Concat", parts[::-1], axis=1)


def normalised(g: GraphMaker, x: str, _: list[str]) -> str:
    channels = g.shape(x)[1]
    kind = g.draw(
        ["InstanceNormalization", "LRN", "GroupNormalization", "BatchNormalization", "MeanVarianceNormalization"]
    )
    if kind == "BatchNormalization":
        return batch_normalization(g, x, [])
    if kind == "LRN":
        if len(g.shape(x)) != 4:
            raise Unsuitable("ONNX Runtime normalises images only")
        return g.op("LRN", [x], size=g.draw([1, 3, 5]), alpha=0.1)
    if kind == "MeanVarianceNormalization":
        return g.op(
            kind, [x], axes=list(range(2, len(g.shape(x)))) if g.chance(0.5) else [0, *range(2, len(g.shape(x)))]
        )
    if int(np.prod(g.shape(x)[2:])) < 4:
        raise Unsuitable("too few numbers for a variance")
    if kind == "GroupNormalization":
        if g.opset < 21:
            raise Unsuitable("deprecated form")
        groups = g.draw([one for one in (1, 2, 4) if channels % one == 0])
        return g.op(
            kind, [x, g.positive((channels,)), g.constant(g.normal((channels,)))], num_groups=groups, epsilon=0.1
        )
    # A large epsilon, as planes may be of one number.
    return g.op(kind, [x, g.positive((channels,)), g.constant(g.normal((channels,)))], epsilon=0.1)


def head(g: GraphMaker, x: str) -> str:
    """Return a classifier's end: a pool or a flattening, and a product."""
    if g.chance(0.6):
        x = g.op("GlobalAveragePool", [x])
    flat = g.op("Flatten", [x], axis=1)
    if g.chance(0.3):
        flat = g.op("Reshape", [x, g.ints([g.shape(x)[0], -1])])
    inner, outer = g.shape(flat)[1], g.between(1, 20)
    if inner > 1024:
        raise Unsuitable("wide")
    if g.chance(0.5):
        inputs = [flat, g.weights((outer, inner), inner), g.constant(g.normal((outer,)))]
        y = g.op("Gemm", inputs, transB=1)
    else:
        y = g.op("Add", [g.op("MatMul", [flat, g.weights((inner, outer), inner)]), g.constant(g.normal((outer,)))])
    return g.op("Softmax", [y], axis=-1) if g.chance(0.4) else activation(g, y)


def _elementwise(g: GraphMaker, x: str, values: list[str]) -> str:
    return g.draw([smooth, guarded])(g, x) if g.chance(0.5) else binary(g, x, values)


def _image(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x converted to the range of an image and back."""
    return g.op("Sub", [g.op("Div", [x, g.constant(np.array(127.5, dtype=numpy_type(g.dtype)))]), g.number(1)])


def _reduced(g: GraphMaker, x: str, _: list[str]) -> str:
    return reduction(g, x)


_BLOCKS: tuple[Callable[[GraphMaker, str, list[str]], str], ...] = (
    convolution_block, convolution_block, convolution_block, convolution_block, convolution_block, convolution,
    batch_normalization, pool, pool, global_pool, squeeze_and_excite, resize, joined, joined, shuffled, normalised,
    _activation, _residual, affine, _elementwise, _image, _reduced,
)  # fmt: skip
