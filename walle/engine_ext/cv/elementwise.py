"""Quotients, powers and comparisons of images; vectors as lengths and angles; products with a matrix; reductions."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, depth_name, evaluate, into_dst, scalar, to_dtype_of
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

type Operand = ImageLike | float | Sequence[float]

_COMPARISONS = {
    constants.CMP_EQ: "Equal",
    constants.CMP_GT: "Greater",
    constants.CMP_GE: "GreaterOrEqual",
    constants.CMP_LT: "Less",
    constants.CMP_LE: "LessOrEqual",
    constants.CMP_NE: "NotEqual",
}
_FLOATS = ("float32", "float64")


def _operand(value: Operand, like: ndarray) -> Any:
    """Return an image, or a number or pixel for each of the channels of `like`."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, (tuple, list)) and len(value) <= 4:
        channels = like.shape[2] if like.ndim == 3 else 1
        return _core.asarray(scalar(value)[:channels] if like.ndim == 3 else scalar(value)[0], "float64")
    return as_image(value)


def divide(src1: Operand, src2: Operand, dst: ImageLike | None = None, scale: float = 1, dtype: int = -1) -> ndarray:
    """Return src1 * scale / src2; integers are rounded and saturated, and 0 where the divisor is 0.

    `divide(number, image)` divides the number by each pixel.
    """
    upside_down = isinstance(src1, (int, float))
    given = as_image(src2 if upside_down else src1)
    other = _operand(src1 if upside_down else src2, given)
    like = _core.full((1,), 0, depth_name(dtype, given.dtype))
    wide = given.astype("float64")
    beside = other.astype("float64") if type(other) is ndarray else other
    above, below = (beside, wide) if upside_down else (wide, beside)
    quotient = _core.binary("Div", _core.asarray(above, "float64") * float(scale), _core.asarray(below, "float64"))
    if given.dtype not in _FLOATS and like.dtype not in _FLOATS:
        quotient = _core.where(_core.binary("Equal", _core.asarray(below, "float64"), 0.0), 0.0, quotient)
    return into_dst(to_dtype_of(quotient, like), dst)


def compare(src1: ImageLike, src2: Operand, cmpop: int, dst: ImageLike | None = None) -> ndarray:
    """Return uint8, 255 where the comparison CMP_ holds and 0 elsewhere."""
    if cmpop not in _COMPARISONS:
        raise UnsupportedError(f"unknown comparison {cmpop}; use one of the CMP_ constants")
    given = as_image(src1)
    other = _operand(src2, given)
    if type(other) is not ndarray or other.dtype != given.dtype:
        given = given.astype("float64")
        other = other.astype("float64") if type(other) is ndarray else _core.asarray(other, "float64")
    return into_dst(_core.binary(_COMPARISONS[cmpop], given, other).astype("uint8") * 255, dst)


def _floats(*values: ImageLike) -> list[ndarray]:
    given = [as_image(value) for value in values]
    if (
        any(one.dtype != given[0].dtype or one.shape != given[0].shape for one in given)
        or given[0].dtype not in _FLOATS
    ):
        shown = " and ".join(f"{one.dtype} {list(one.shape)}" for one in given)
        raise DTypeError(f"{shown}; give float32 or float64 of one shape")
    return given


def magnitude(x: ImageLike, y: ImageLike, magnitude: ImageLike | None = None) -> ndarray:
    """Return the lengths of the vectors (x, y)."""
    a, b = _floats(x, y)
    return into_dst(_core.unary("Sqrt", a * a + b * b), magnitude)


def phase(x: ImageLike, y: ImageLike, angle: ImageLike | None = None, angleInDegrees: bool = False) -> ndarray:
    """Return the angles of the vectors (x, y), from 0 to a whole turn."""
    a, b = _floats(x, y)
    turn = 360.0 if angleInDegrees else 2 * math.pi
    angles = _core.binary("Atan2", b, a) * (turn / (2 * math.pi))
    return into_dst(_core.where(angles < 0, angles + turn, angles).astype(a.dtype), angle)


def cartToPolar(
    x: ImageLike,
    y: ImageLike,
    magnitude_: ImageLike | None = None,
    angle: ImageLike | None = None,
    angleInDegrees: bool = False,
) -> tuple[ndarray, ndarray]:
    return magnitude(x, y, magnitude_), phase(x, y, angle, angleInDegrees)


def polarToCart(
    magnitude_: ImageLike | None,
    angle: ImageLike,
    x: ImageLike | None = None,
    y: ImageLike | None = None,
    angleInDegrees: bool = False,
) -> tuple[ndarray, ndarray]:
    """Return the vectors of these lengths (1 if None) and angles."""
    (turned,) = _floats(angle)
    radians = turned * (math.pi / 180) if angleInDegrees else turned
    parts = [_core.unary(name, radians).astype(turned.dtype) for name in ("Cos", "Sin")]
    if magnitude_ is not None:
        length, _ = _floats(magnitude_, turned)
        parts = [length * part for part in parts]
    return into_dst(parts[0], x), into_dst(parts[1], y)


def pow(src: ImageLike, power: float, dst: ImageLike | None = None) -> ndarray:  # noqa: A001 -- OpenCV's name
    """Return src to a power, saturated; if it is not whole, of the absolute value."""
    given = as_image(src)
    whole = float(power).is_integer()
    if given.dtype not in _FLOATS and not whole:
        raise DTypeError(f"pow of {given.dtype} to {power}; give float32 or float64, or a whole power")
    base = given.astype("float64")
    if not whole:
        base = _core.unary("Abs", base)
    return into_dst(to_dtype_of(_core.binary("Power", base, _core.asarray(float(power), "float64")), given), dst)


def _unary(op: str, src: ImageLike, dst: ImageLike | None) -> ndarray:
    (given,) = _floats(src)
    return into_dst(_core.unary(op, given), dst)


def sqrt(src: ImageLike, dst: ImageLike | None = None) -> ndarray:
    return _unary("Sqrt", src, dst)


def exp(src: ImageLike, dst: ImageLike | None = None) -> ndarray:
    return _unary("Exp", src, dst)


def log(src: ImageLike, dst: ImageLike | None = None) -> ndarray:
    """Return the natural logarithm."""
    return _unary("Log", src, dst)


def reduce(src: ImageLike, dim: int, rtype: int, dst: ImageLike | None = None, dtype: int = -1) -> ndarray:
    """Return one row (dim 0) or one column (dim 1): the sum, mean, greatest, least or sum of squares (REDUCE_)."""
    given = as_image(src)
    if dim not in {0, 1}:
        raise ShapeError(f"reduce along {dim}; use 0 for one row or 1 for one column")
    kind = depth_name(dtype, given.dtype)
    match rtype:
        case constants.REDUCE_MAX:
            result = given.max(dim, keepdims=True)
        case constants.REDUCE_MIN:
            result = given.min(dim, keepdims=True)
        case constants.REDUCE_SUM | constants.REDUCE_AVG | constants.REDUCE_SUM2:
            wide = given.astype("float64")
            result = (wide * wide if rtype == constants.REDUCE_SUM2 else wide).sum(dim, keepdims=True)
            if rtype == constants.REDUCE_AVG:
                result = result * (1 / given.shape[dim])
        case _:
            raise UnsupportedError(f"unknown reduction {rtype}; use one of the REDUCE_ constants")
    return into_dst(to_dtype_of(result, _core.full((1,), 0, kind)), dst)


def _matrix(m: ImageLike) -> ndarray:
    matrix = as_image(m).astype("float64")
    if matrix.ndim != 2:
        raise ShapeError(f"a matrix of shape {matrix.shape}; give two dimensions")
    return matrix


def transform(src: ImageLike, m: ImageLike, dst: ImageLike | None = None) -> ndarray:
    """Return each pixel times the matrix `m` [to, from] or [to, from + 1], whose last column is added."""
    given, matrix = as_image(src), _matrix(m)
    channels = given.shape[2] if given.ndim == 3 else 1
    pixels = given.reshape(-1, channels).astype("float64")
    if matrix.shape[1] not in {channels, channels + 1}:
        raise ShapeError(f"transform of {channels} channels by a matrix of shape {matrix.shape}")
    mapped = evaluate("MatMul", [pixels, matrix[:, :channels].transpose()], {})
    if matrix.shape[1] > channels:
        mapped = mapped + matrix[:, channels]
    shape = given.shape[:2] if matrix.shape[0] == 1 else (*given.shape[:2], matrix.shape[0])
    return into_dst(to_dtype_of(mapped.reshape(*shape), given), dst)


def perspectiveTransform(src: ImageLike, m: ImageLike, dst: ImageLike | None = None) -> ndarray:
    """Return points [count, 1, 2] after the projection by a [3, 3] matrix, or 3 and [4, 4]; 0 where it is infinite."""
    given, matrix = as_image(src), _matrix(m)
    size = given.shape[-1]
    if given.dtype not in _FLOATS or matrix.shape != (size + 1, size + 1):
        raise ShapeError(
            f"perspectiveTransform of {given.dtype} {list(given.shape)} by a matrix of shape {matrix.shape};"
            f" give floats whose last dimension is one less than the matrix's"
        )
    points = given.reshape(-1, size).astype("float64")
    mapped = evaluate("MatMul", [points, matrix[:, :size].transpose()], {}) + matrix[:, size]
    below = mapped[:, size:]
    finite = _core.unary("Abs", below) > 1.1920929e-07
    result = _core.where(finite, mapped[:, :size] / _core.where(finite, below, 1.0), 0.0)
    return into_dst(result.reshape(*given.shape).astype(given.dtype), dst)


def accumulateWeighted(src: ImageLike, dst: ImageLike, alpha: float, mask: ImageLike | None = None) -> ndarray:
    """Move the running mean `dst` (float32 or float64) towards the image by `alpha`; return it."""
    mean = as_image(dst)
    moved = mean * (1 - alpha) + as_image(src).astype(mean.dtype) * alpha
    if mask is not None:
        chosen = as_image(mask) != 0
        moved = _core.where(chosen.reshape((*chosen.shape, 1)) if mean.ndim == 3 else chosen, moved, mean)
    return into_dst(moved.astype(mean.dtype), dst)
