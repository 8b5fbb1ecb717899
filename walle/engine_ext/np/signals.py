"""One-dimensional signals, bits and polynomials."""

from __future__ import annotations

from operator import index as operator_index

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import DTypeError, ShapeError
from walle.engine_ext.np.base import (
    INEXACT,
    asarray,
    flat_or_axis,
    index_along,
    normalize_axis,
    operands,
    operator,
    product,
    to_common_dtype,
    to_floating,
)
from walle.engine_ext.np.manipulation import broadcast_arrays, trim_zeros
from walle.engine_ext.np.products import matmul

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike

__all__ = [
    "apply_along_axis", "base_repr", "binary_repr", "convolve", "correlate", "packbits", "piecewise", "polyadd",
    "polyder", "polyfit", "polyint", "polymul", "polysub", "polyval", "unpackbits", "unwrap", "vectorize",
]  # fmt: skip


def convolve(a: ArrayLike, v: ArrayLike, mode: str = "full") -> ndarray:
    """Return the convolution of two vectors; `mode` is full, same or valid."""
    left, right = (x.reshape(-1) for x in to_common_dtype([a, v]))
    if left.size < right.size:
        left, right = right, left
    return _sliding_products(left, right[::-1], mode)


def correlate(a: ArrayLike, v: ArrayLike, mode: str = "valid") -> ndarray:
    """Return the cross-correlation of two vectors, the second conjugated; `mode` is valid, same or full."""
    left, right = (x.reshape(-1) for x in to_common_dtype([a, v]))
    right = right.conj()
    if left.size < right.size:
        return _sliding_products(right, left, mode)[::-1]
    return _sliding_products(left, right, mode)


def _sliding_products(line: ndarray, weights: ndarray, mode: str) -> ndarray:
    n = weights.size
    if n == 0:
        raise ShapeError("convolve or correlate with an empty vector; give one element or more")
    borders = {"full": (n - 1, n - 1), "same": (n // 2, n - 1 - n // 2), "valid": (0, 0)}
    if mode not in borders:
        raise ShapeError(f"convolution mode {mode!r}; known are full, same and valid")
    if line.dtype == "bool":
        return _sliding_products(line.astype("int64"), weights.astype("int64"), mode) > 0
    before, after = borders[mode]
    wide = line
    if before or after:
        wide = _core.full((before + line.size + after,), 0, line.dtype)
        wide[before : before + line.size] = line
    step = wide.strides[0] // wide.itemsize
    shape, steps = (wide.size - n + 1, n), (step, step)
    total = weights.sum().item() if wide is not line and weights.dtype in INEXACT else 0.0
    if total - total != 0:  # one of them is not finite
        inside = _core.full(wide.shape, False, "bool")  # zero padding times infinity must not add NaN
        inside[before : before + line.size] = True
        products = _core.as_strided(wide, shape, steps) * weights
        return _core.where(_core.as_strided(inside, shape, (1, 1)), products, 0).sum(1)
    return matmul(_core.as_strided(wide, shape, steps), _core.contiguous(weights))


def unwrap(x: ArrayLike, discont: float | None = None, axis: int = -1, period: float = 6.283185307179586) -> ndarray:
    """Return the angles with multiples of the period added, so that neighbours differ by at most half of it."""
    given = to_floating(x)
    at = normalize_axis(axis, given.ndim)
    step = given[index_along(at, slice(1, None))] - given[index_along(at, slice(None, -1))]
    half = period / 2
    turned = (step + half) % period - half
    turned = _core.where((turned == -half) & (step > 0), half, turned)
    least = half if discont is None else discont
    fix = _core.where(_core.unary("Abs", step) < least, 0, turned - step)
    total = operator("CumSum", [fix, asarray(at, "int64")])
    first = given[index_along(at, slice(0, 1))]
    return operator("Concat", [first, given[index_along(at, slice(1, None))] + total], axis=at)


def packbits(x: ArrayLike, axis: int | None = None, bitorder: str = "big") -> ndarray:
    """Return the flags packed eight to a byte; the last byte is filled up with zeros."""
    given, at = flat_or_axis(asarray(x, "bool"), axis)
    _check(bitorder)
    last = given.swapaxes(at, -1)
    bytes_ = -(-last.shape[-1] // 8)
    shape = (*last.shape[:-1], bytes_)
    if product(shape) == 0:
        return _core.full(shape, 0, "uint8").swapaxes(at, -1)
    if last.shape[-1] % 8:
        wide = _core.full((*shape[:-1], 8 * bytes_), False, "bool")
        wide[..., : last.shape[-1]] = last
        last = wide
    words = asarray(memoryview(_core.contiguous(last)).cast("B").cast("Q"))
    # A product moves the flags of a word's eight bytes next to each other into its highest byte; no two bits overlap.
    gathered = words * (0x8040201008040201 if bitorder == "big" else 0x0102040810204080) >> 56
    return gathered.astype("uint8").reshape(shape).swapaxes(at, -1)


def unpackbits(x: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> ndarray:
    """Return the bits of bytes as 0 and 1: the first `count`, or for a negative one all but the last -count."""
    given, at = flat_or_axis(x, axis)
    if given.dtype != "uint8":
        raise DTypeError(f"unpackbits of {given.dtype}; it takes uint8")
    _check(bitorder)
    last = given.swapaxes(at, -1)
    shape = (*last.shape[:-1], 8 * last.shape[-1])
    # Repeats the byte eight times in a word; each copy keeps another bit.
    words = last.astype("uint64") * 0x0101010101010101
    words = words & (0x0102040810204080 if bitorder == "big" else 0x8040201008040201)
    bits = asarray(memoryview(words.reshape(-1)).cast("B")) if words.size else _core.full((0,), 0, "uint8")
    flat = (bits != 0).view("uint8").reshape(shape).swapaxes(at, -1)
    if count is None:
        return flat
    length = flat.shape[at]
    if count > length:
        pads = [0] * (2 * flat.ndim)
        pads[flat.ndim + at] = count - length
        return operator("Pad", [flat, asarray(pads, "int64"), _core.full((), 0, "uint8")])
    return flat[index_along(at, slice(None, count))]


def _check(bitorder: str) -> None:
    if bitorder not in ("big", "little"):
        raise ShapeError(f"bitorder {bitorder!r}; known are big and little")


def binary_repr(number: int, width: int | None = None) -> str:
    """Return an integer's binary digits, padded with zeros to a width; with one, negatives are in two's complement."""
    if number >= 0:
        return f"{number:b}".zfill(width or 0)
    if width is None:
        return f"-{-number:b}"
    least = (-number - 1).bit_length() + 1
    if width < least:
        raise ShapeError(f"{number} needs {least} binary digits; the width is {width}")
    return f"{(1 << width) + number:b}"


def base_repr(number: int, base: int = 2, padding: int = 0) -> str:
    """Return an integer's digits in a base from 2 to 36, after `padding` zeros."""
    if not 2 <= base <= 36:
        raise ShapeError(f"base {base}; bases are 2 to 36")
    digits = ""
    number = operator_index(number)  # an int has any size: the least int8 has no absolute value as int8
    rest = abs(number)
    while rest:
        rest, digit = divmod(rest, base)
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
    text = "0" * padding + (digits or "0" * (padding == 0))
    return "-" + text if number < 0 else text


# Polynomials, the highest power first.


def polyval(p: ArrayLike, x: ArrayLike) -> ndarray:
    """Return the polynomial's values."""
    weights, given = operands(p, x)
    result = given * 0
    for weight in weights.reshape(-1):
        result = result * given + weight
    return result


def polyfit(x: ArrayLike, y: ArrayLike, deg: int) -> ndarray:
    """Return the polynomial of a degree that fits the points with least squares, in float64."""
    from walle.engine_ext.np import linalg

    place, value = asarray(x, "float64"), asarray(y, "float64")
    powers = _core.arange(deg, -1, deg + 1, "float64")
    table = _core.binary("Power", place.reshape(-1, 1), powers)
    size = _core.unary("Sqrt", (table * table).sum(0))
    solved = linalg.lstsq(table / size, value, place.size * 2.0**-52)[0]
    return solved / (size if solved.ndim == 1 else size[:, None])


def polyadd(a: ArrayLike, b: ArrayLike) -> ndarray:
    left, right = (x.reshape(-1) for x in to_common_dtype([a, b]))
    if left.size < right.size:
        left, right = right, left
    result = left.copy()
    tail = result[left.size - right.size :]
    tail += right
    return result


def polysub(a: ArrayLike, b: ArrayLike) -> ndarray:
    left, right = to_common_dtype([a, b])
    return polyadd(left, -right)


def polymul(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the product, without leading coefficients of 0."""
    left, right = (trim_zeros(x, "f") for x in to_common_dtype([a, b]))
    zero = _core.full((1,), 0, left.dtype)
    return convolve(left if left.size else zero, right if right.size else zero)


def polyder(p: ArrayLike, m: int = 1) -> ndarray:
    """Return the m-th derivative."""
    result = asarray(p)
    for _ in range(m):
        result = (result * _core.arange(result.size - 1, -1, result.size, "int64"))[:-1]
    return result


def polyint(p: ArrayLike, m: int = 1) -> ndarray:
    """Return the m-th integral that is 0 at 0."""
    result = to_floating(p)
    for _ in range(m):
        powers = _core.arange(result.size, -1, result.size, "float64").astype(result.dtype)
        result = operator("Concat", [result / powers, _core.full((1,), 0, result.dtype)], axis=0)
    return result


# Python functions over arrays.


def apply_along_axis(function: Callable[..., ArrayLike], axis: int, x: ArrayLike, *args: Any, **kwargs: Any) -> ndarray:
    """Return `function(line, ...)` for each line along an axis; the result replaces that axis."""
    given = asarray(x)
    at = normalize_axis(axis, given.ndim)
    last = given.transpose((*(one for one in range(given.ndim) if one != at), at))
    rest = last.shape[:-1]
    lines = last.reshape((-1, last.shape[-1]))
    results = [asarray(function(lines[i], *args, **kwargs)) for i in range(lines.shape[0])]
    if not results:
        raise ShapeError("apply_along_axis over no lines; give one element or more along each other axis")
    made = operator("Stack", to_common_dtype(results), axis=0)
    shape = results[0].shape
    whole = made.reshape((*rest, *shape))
    order = (*range(at), *range(len(rest), len(rest) + len(shape)), *range(at, len(rest)))
    return whole.transpose(order)


def piecewise(x: ArrayLike, conditions: Sequence[ArrayLike], functions: Sequence[Any], *args: Any) -> ndarray:
    """Return, for each element, the function (or number) of the last true condition; one more is for the rest."""
    given = asarray(x)
    masks = [asarray(one, "bool") for one in conditions]
    chosen = list(functions)
    if len(chosen) == len(masks) + 1:
        rest = masks[0]
        for mask in masks[1:]:
            rest = rest | mask
        masks.append(~rest)
    if len(chosen) != len(masks):
        raise ShapeError(
            f"piecewise of {len(masks)} conditions and {len(chosen)} functions; give one for each, or one more"
        )
    result = _core.full(given.shape, 0, given.dtype)
    for mask, one in zip(masks, chosen, strict=True):
        result[mask] = one(given[mask], *args) if callable(one) else one
    return result


class vectorize:  # noqa: N801 -- NumPy's name
    """Wrapper of a Python function of numbers that calls it for each element of arrays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arrays: ArrayLike) -> ndarray:
        given = broadcast_arrays(*arrays)
        rows = zip(*(x.reshape(-1).tolist() for x in given), strict=True)
        return asarray([self._function(*row) for row in rows]).reshape(given[0].shape)
