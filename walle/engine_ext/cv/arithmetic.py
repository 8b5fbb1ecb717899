"""Pixel arithmetic: saturating sums and differences, bits, look-up tables, and statistics."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, depth_name, evaluate, into_dst, scalar, to_dtype_of
from walle.engine_ext.errors import ShapeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_FAST = ("uint8", "uint16", "int16", "float32")
type Operand = ImageLike | float | Sequence[float]


def _second_operand(given: ndarray, value: Operand) -> tuple[ndarray, bool]:
    """Return the second operand (a number or a Scalar is one pixel), and whether it has the image's dtype."""
    if isinstance(value, (int, float)) or (isinstance(value, (tuple, list)) and len(value) <= 4):
        channels = given.shape[2] if given.ndim == 3 else 1
        if isinstance(value, (int, float)):  # for every channel, as in OpenCV 5
            numbers = [float(value)] * channels
        else:
            numbers = (scalar(value) + [0.0] * channels)[:channels]
        pixel = _core.asarray(numbers if given.ndim == 3 else numbers[0], "float64")
        return pixel, False
    other = as_image(value)
    if other.shape != given.shape:
        raise ShapeError(
            f"operands of shapes {given.shape} and {other.shape}; give two images of one shape, or one pixel"
        )
    return other, other.dtype == given.dtype


_PLAIN = {"add": "Add", "subtract": "Sub", "multiply": "Mul", "least": "Minimum", "greatest": "Maximum"}


_NONE = (0.0, 0.0, 0.0)


def _pointwise(op: str, a: ImageLike, b: Operand, numbers: tuple[float, float, float] = _NONE) -> ndarray:
    given = as_image(a)
    attributes: dict[str, Any] = {"op": op} if numbers is _NONE else {"op": op, "numbers": list(numbers)}
    if type(b) is ndarray and b.dtype == (dtype := given.dtype) and dtype in _FAST and b.shape == given.shape:
        return evaluate("ImagePointwise", [given, b], attributes)
    other, alike = _second_operand(given, b)
    if not alike:
        rounded = other.astype(given.dtype)
        alike = given.dtype in {"float32", "float64"} or bool(
            (rounded.astype("float64") == other.astype("float64")).all()
        )
        if alike:
            other = rounded
    if alike and given.dtype in _FAST:
        return evaluate("ImagePointwise", [given, other], attributes)
    # Other dtypes than the kernels', or a number that is not a pixel value: computed in float64.
    x, y = given.astype("float64"), other.astype("float64")
    if op == "difference":
        result = _core.unary("Abs", x - y)
    elif op == "weighted":
        result = x * numbers[0] + y * numbers[1] + numbers[2]
    elif op == "multiply":
        result = x * y * numbers[0]
    else:
        result = _core.binary(_PLAIN[op], x, y)
    return to_dtype_of(result, given) if given.dtype != "float64" else result


def _masked(result: ndarray, mask: ImageLike | None, dst: ImageLike | None, dtype: int = -1) -> ndarray:
    if dtype >= 0:
        result = _to_depth(result, dtype)
    if mask is None:
        return result if dst is None else into_dst(result, dst)
    chosen = as_image(mask) != 0
    if chosen.ndim < result.ndim:
        chosen = chosen.reshape((*chosen.shape, 1))
    under = _core.full(result.shape, 0, result.dtype) if dst is None else as_image(dst)
    return into_dst(_core.where(chosen, result, under), dst)


def _to_depth(result: ndarray, dtype: int) -> ndarray:
    return result if dtype < 0 else result.astype(depth_name(dtype, result.dtype))


def add(
    src1: ImageLike, src2: Operand, dst: ImageLike | None = None, mask: ImageLike | None = None, dtype: int = -1
) -> ndarray:
    """Return the sum, saturated; `src2` is an image or one colour."""
    return _masked(_pointwise("add", src1, src2), mask, dst, dtype)


def subtract(
    src1: ImageLike, src2: Operand, dst: ImageLike | None = None, mask: ImageLike | None = None, dtype: int = -1
) -> ndarray:
    """Return the difference, saturated."""
    return _masked(_pointwise("subtract", src1, src2), mask, dst, dtype)


def absdiff(src1: ImageLike, src2: Operand, dst: ImageLike | None = None) -> ndarray:
    return into_dst(_pointwise("difference", src1, src2), dst)


def multiply(
    src1: ImageLike, src2: Operand, dst: ImageLike | None = None, scale: float = 1, dtype: int = -1
) -> ndarray:
    return into_dst(_to_depth(_pointwise("multiply", src1, src2, (float(scale), 0.0, 0.0)), dtype), dst)


def min(src1: ImageLike, src2: Operand, dst: ImageLike | None = None) -> ndarray:  # noqa: A001 -- OpenCV's name
    return into_dst(_pointwise("least", src1, src2), dst)


def max(src1: ImageLike, src2: Operand, dst: ImageLike | None = None) -> ndarray:  # noqa: A001 -- OpenCV's name
    return into_dst(_pointwise("greatest", src1, src2), dst)


def addWeighted(
    src1: ImageLike,
    alpha: float,
    src2: ImageLike,
    beta: float,
    gamma: float,
    dst: ImageLike | None = None,
    dtype: int = -1,
) -> ndarray:
    """Return src1 * alpha + src2 * beta + gamma, rounded and saturated."""
    return into_dst(
        _to_depth(_pointwise("weighted", src1, src2, (float(alpha), float(beta), float(gamma))), dtype), dst
    )


def blendLinear(
    src1: ImageLike, src2: ImageLike, weights1: ImageLike, weights2: ImageLike, dst: ImageLike | None = None
) -> ndarray:
    """Return the weighted mean of two images; each has a float32 weight for every pixel."""
    a, b = as_image(src1), as_image(src2)
    left, right = as_image(weights1), as_image(weights2)
    if a.ndim == 3:
        left, right = left.reshape((*left.shape, 1)), right.reshape((*right.shape, 1))
    total = a.astype("float32") * left + b.astype("float32") * right
    return into_dst(to_dtype_of(total / (left + right + 1e-5), a), dst)


def _bits(op: str, src1: ImageLike, src2: Operand, dst: ImageLike | None, mask: ImageLike | None) -> ndarray:
    a = as_image(src1)
    other, _ = _second_operand(a, src2)
    return _masked(evaluate("ImagePointwise", [a, other.astype(a.dtype)], {"op": op}), mask, dst)


def bitwise_and(src1: ImageLike, src2: Operand, dst: ImageLike | None = None, mask: ImageLike | None = None) -> ndarray:
    return _bits("bit_and", src1, src2, dst, mask)


def bitwise_or(src1: ImageLike, src2: Operand, dst: ImageLike | None = None, mask: ImageLike | None = None) -> ndarray:
    return _bits("bit_or", src1, src2, dst, mask)


def bitwise_xor(src1: ImageLike, src2: Operand, dst: ImageLike | None = None, mask: ImageLike | None = None) -> ndarray:
    return _bits("bit_xor", src1, src2, dst, mask)


def bitwise_not(src: ImageLike, dst: ImageLike | None = None, mask: ImageLike | None = None) -> ndarray:
    return _masked(_core.unary("BitwiseNot", as_image(src)), mask, dst)


def convertScaleAbs(src: ImageLike, dst: ImageLike | None = None, alpha: float = 1, beta: float = 0) -> ndarray:
    """Return |src * alpha + beta| as uint8."""
    given = as_image(src)
    if given.dtype not in _FAST:
        given = given.astype("float32")
    return into_dst(
        evaluate("ImagePointwise", [given], {"op": "absolute_scale", "numbers": [float(alpha), float(beta), 0.0]}), dst
    )


def LUT(src: ImageLike, lut: ImageLike, dst: ImageLike | None = None) -> ndarray:
    """Return the table's entry for every byte; one table serves all channels, or each has its own."""
    return into_dst(evaluate("ImageLookup", [as_image(src), as_image(lut)], {}), dst)


def inRange(src: ImageLike, lowerb: Operand, upperb: Operand, dst: ImageLike | None = None) -> ndarray:
    """Return 255 where every channel is within the bounds, inclusive, else 0."""
    given = as_image(src)
    low, high = (
        scalar(bound if isinstance(bound, (int, float)) else as_image(bound).ravel().tolist())
        for bound in (lowerb, upperb)
    )
    if given.dtype in _FAST:
        return into_dst(evaluate("InRange", [given], {"low": low, "high": high}), dst)
    channels = given.shape[2] if given.ndim == 3 else 1
    wide = given.astype("float64").reshape((*given.shape[:2], channels))
    inside = (wide >= _core.asarray(low[:channels], "float64")) & (wide <= _core.asarray(high[:channels], "float64"))
    return into_dst(inside.all(2).astype("uint8") * _core.asarray(255, "uint8"), dst)


def _sums(src: ImageLike, mask: ImageLike | None, *, squared: bool) -> tuple[list[float], list[float], float]:
    given = as_image(src)
    source = given if given.dtype in _FAST else given.astype("float32")
    inputs = [source] if mask is None else [source, as_image(mask)]
    sums, squares = evaluate("ImageSums", inputs, {"squares": int(squared)}).tolist()
    count = given.shape[0] * given.shape[1] if mask is None else float(countNonZero(mask))
    return sums, squares, float(count)


def _four(numbers: list[float]) -> tuple[float, float, float, float]:
    a, b, c, d = (numbers + [0.0] * 4)[:4]
    return a, b, c, d


def mean(src: ImageLike, mask: ImageLike | None = None) -> tuple[float, float, float, float]:
    """Return the mean of every channel over the pixels where the mask is not 0."""
    sums, _, count = _sums(src, mask, squared=False)
    return _four([number / count if count else 0.0 for number in sums])


def meanStdDev(src: ImageLike, mask: ImageLike | None = None) -> tuple[ndarray, ndarray]:
    """Return the mean and the standard deviation of every channel as columns."""
    sums, squares, count = _sums(src, mask, squared=True)
    means = [number / count if count else 0.0 for number in sums]
    spread = [
        math.sqrt(abs(square / count - m * m)) if count else 0.0 for square, m in zip(squares, means, strict=True)
    ]
    return _core.asarray(means, "float64").reshape(-1, 1), _core.asarray(spread, "float64").reshape(-1, 1)


def sumElems(src: ImageLike) -> tuple[float, float, float, float]:
    return _four(_sums(src, None, squared=False)[0])


def countNonZero(src: ImageLike) -> int:
    """Return the number of elements that are not 0, of one channel."""
    given = as_image(src)
    if given.dtype == "uint8" and given.ndim == 2:
        return int(given.size) - int(evaluate("ImageHistogram", [given], {})[0])
    return int((given != 0).astype("int64").sum())


def minMaxLoc(src: ImageLike, mask: ImageLike | None = None) -> tuple[float, float, tuple[int, int], tuple[int, int]]:
    """Return the minimum and the maximum of one channel and their first locations, as (x, y)."""
    given = as_image(src)
    if given.ndim != 2:
        raise ShapeError(f"minMaxLoc takes one channel, not {given.shape}")
    low = high = given
    if mask is not None:
        chosen = as_image(mask) != 0
        if not bool(chosen.any()):
            return 0.0, 0.0, (-1, -1), (-1, -1)
        wide = given.astype("float64")
        low, high = _core.where(chosen, wide, math.inf), _core.where(chosen, wide, -math.inf)
    places = [int(low.argmin()), int(high.argmax())]
    width = given.shape[1]
    numbers = [float(given[place // width, place % width]) for place in places]
    return numbers[0], numbers[1], (places[0] % width, places[0] // width), (places[1] % width, places[1] // width)


def norm(src1: ImageLike, normType: int = constants.NORM_L2) -> float:
    """Return the greatest absolute value (NORM_INF), their sum (NORM_L1), or the root of the squares' sum (NORM_L2)."""
    wide = as_image(src1).astype("float64")
    if normType == constants.NORM_L2:
        return math.sqrt(float((wide * wide).sum()))
    sizes = _core.unary("Abs", wide)
    return float(sizes.max() if normType == constants.NORM_INF else sizes.sum())


def normalize(
    src: ImageLike,
    dst: ImageLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    norm_type: int = constants.NORM_L2,
    dtype: int = -1,
    mask: ImageLike | None = None,
) -> ndarray:
    """Return the image scaled to a norm of `alpha`, or (NORM_MINMAX) to numbers from `alpha` to `beta`."""
    given = as_image(src)
    if mask is not None:
        raise UnsupportedError(
            "normalize with a mask is not supported; normalise the masked pixels as a separate array"
        )
    if norm_type == constants.NORM_MINMAX:
        low, high = float(given.min()), float(given.max())
        least, most = (alpha, beta) if alpha < beta else (beta, alpha)
        scale = (most - least) * (1 / (high - low) if high - low > 2.220446049250313e-16 else 0.0)
        shift = least - low * scale
    elif norm_type in {constants.NORM_INF, constants.NORM_L1, constants.NORM_L2}:
        size = norm(given, norm_type)
        scale, shift = (alpha / size if size > 2.220446049250313e-16 else 0.0), 0.0
    else:
        raise UnsupportedError(f"unknown norm {norm_type}; use one of the NORM_ constants")
    like = _core.full((1,), 0, depth_name(dtype, given.dtype))
    return into_dst(to_dtype_of(given.astype("float64") * scale + shift, like), dst)


def integral(src: ImageLike, sum: ImageLike | None = None, sdepth: int = -1) -> ndarray:
    """Return the integral image: sums of all pixels above and to the left, with one more row and column."""
    given = as_image(src)
    result = evaluate("ImageIntegral", [given if given.dtype == "uint8" else given.astype("float32")], {})
    return into_dst(_to_depth(result, sdepth), sum)


def integral2(src: ImageLike) -> tuple[ndarray, ndarray]:
    """Return the integral images of the pixels and of their squares (float64)."""
    given = as_image(src)
    source = given if given.dtype == "uint8" else given.astype("float32")
    return integral(source), evaluate("ImageIntegral", [source], {"squared": 1})


def solve(
    src1: ImageLike, src2: ImageLike, dst: ImageLike | None = None, flags: int = constants.DECOMP_LU
) -> tuple[bool, ndarray]:
    """Return whether the square system `src1` x = `src2` has one solution, and the solution, by elimination."""
    left, right = as_image(src1), as_image(src2)
    size = left.shape[0]
    if left.shape != (size, size) or right.ndim != 2 or right.shape[0] != size:
        raise ShapeError(f"solve takes a square matrix and columns of its height, not {left.shape} and {right.shape}")
    rows: list[list[float]] = [
        [*a, *b] for a, b in zip(left.astype("float64").tolist(), right.astype("float64").tolist(), strict=True)
    ]
    for at in range(size):
        best = at
        for row in range(at, size):
            if abs(rows[row][at]) > abs(rows[best][at]):
                best = row
        if abs(rows[best][at]) < 1e-300:
            return False, into_dst(_core.full(right.shape, 0, right.dtype), dst)
        rows[at], rows[best] = rows[best], [*rows[at]]
        rows[at] = [number / rows[at][at] for number in rows[at]]
        for row in range(size):
            if row != at and rows[row][at]:
                factor = rows[row][at]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[at], strict=True)]
    return True, into_dst(_core.asarray([row[size:] for row in rows], "float64").astype(right.dtype), dst)
