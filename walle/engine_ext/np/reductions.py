"""Reductions over axes: sums, means, extremes, cumulative sums, and the same without NaN; differences."""
# ruff: noqa: A001 -- NumPy's names

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.base import (
    COMPLEX,
    FLOATS,
    INEXACT,
    asarray,
    flat_or_axis,
    index_along,
    normalize_axes,
    normalize_axis,
    operand_for,
    operator,
    product,
    to_floating,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, Axis, DType

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "average", "count_nonzero", "cumprod", "cumsum",
    "cumulative_prod", "cumulative_sum", "diff", "ediff1d", "gradient", "max", "mean", "min", "nanargmax", "nanargmin",
    "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "prod", "ptp",
    "std", "sum", "trapezoid", "trapz", "var",
]  # fmt: skip


def _as_dtype(x: ArrayLike, dtype: DType | None) -> ndarray:
    return asarray(x) if dtype is None else asarray(x, dtype)


def _reduce_where(op: str, join: str, x: ndarray, axis: Axis, keepdims: bool, initial: float | None,
              where: ArrayLike | None, neutral: float | None) -> ndarray:  # fmt: skip
    """Return a reduction of the elements where `where` is true, starting with `initial`; `neutral` is its identity."""
    if initial is None and where is None:
        return _core.reduce(op, x, axis, keepdims)
    fill = initial if neutral is None else neutral
    if fill is None:
        raise ShapeError("max or min with `where` needs `initial`, because it may leave no element")
    first = asarray(fill, x.dtype)
    given = x if where is None else _core.where(where, x, first)
    if neutral is None and 0 in [given.shape[at] for at in normalize_axes(axis, given.ndim)]:
        return _core.full(_reduced_shape(given.shape, normalize_axes(axis, given.ndim), keepdims), first, given.dtype)
    result = _core.reduce(op, given, axis, keepdims)
    return result if initial is None else _core.binary(join, result, asarray(initial, result.dtype))


def _reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if at in axes else size for at, size in enumerate(shape))
    return tuple(size for at, size in enumerate(shape) if at not in axes)


def sum(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, *, keepdims: bool = False,
        initial: float | None = None, where: ArrayLike | None = None) -> ndarray:  # fmt: skip
    """Return the sum; floats are summed in float64 along the innermost axis, integers in int64.

    It starts with `initial` and takes only the elements where `where` is true.
    """
    return _reduce_where("ReduceSum", "Add", _as_dtype(x, dtype), axis, keepdims, initial, where, 0)


def prod(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, *, keepdims: bool = False,
         initial: float | None = None, where: ArrayLike | None = None) -> ndarray:  # fmt: skip
    return _reduce_where("ReduceProd", "Mul", _as_dtype(x, dtype), axis, keepdims, initial, where, 1)


def mean(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, *, keepdims: bool = False,
         where: ArrayLike | None = None) -> ndarray:  # fmt: skip
    """Return the mean of the elements where `where` is true."""
    given = _as_dtype(x, dtype)
    if where is None:
        return _core.reduce("ReduceMean", given, axis, keepdims)
    return sum(to_floating(given), axis, keepdims=keepdims, where=where) / _count_where(given, axis, keepdims, where)


def _count_where(x: ndarray, axis: Axis, keepdims: bool, where: ArrayLike) -> ndarray:
    """Return the number of elements where `where` is true, as floats."""
    flags = _core.broadcast_to(asarray(where, "bool"), x.shape)
    return _core.reduce("ReduceSum", flags, axis, keepdims).astype(to_floating(x).dtype)


def max(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False, initial: float | None = None,
        where: ArrayLike | None = None) -> ndarray:  # fmt: skip
    """Return the greatest of `initial` and the elements where `where` is true."""
    return _reduce_where("ReduceMax", "Maximum", asarray(x), axis, keepdims, initial, where, None)


def min(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False, initial: float | None = None,
        where: ArrayLike | None = None) -> ndarray:  # fmt: skip
    """Return the least of `initial` and the elements where `where` is true."""
    return _reduce_where("ReduceMin", "Minimum", asarray(x), axis, keepdims, initial, where, None)


amax, amin = max, min


def ptp(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:
    """Return the greatest element minus the least."""
    return max(x, axis, keepdims=keepdims) - min(x, axis, keepdims=keepdims)


def argmax(x: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> ndarray:
    return _core.reduce("ArgMax", x, axis, keepdims)


def argmin(x: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> ndarray:
    return _core.reduce("ArgMin", x, axis, keepdims)


def all(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False, where: ArrayLike | None = None) -> ndarray:
    """Return whether all elements are true, of those where `where` is true."""
    if where is not None:
        x = _core.where(where, asarray(x, "bool"), True)
    return _core.reduce("All", x, axis, keepdims)


def any(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False, where: ArrayLike | None = None) -> ndarray:
    """Return whether any element is true, of those where `where` is true."""
    if where is not None:
        x = _core.where(where, asarray(x, "bool"), False)
    return _core.reduce("Any", x, axis, keepdims)


def count_nonzero(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:
    return _core.reduce("ReduceSum", asarray(x, "bool"), axis, keepdims)


def var(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, ddof: float = 0, *,
        keepdims: bool = False, where: ArrayLike | None = None) -> ndarray:  # fmt: skip
    """Return the variance: the sum of squared differences from the mean, over n - ddof."""
    given = to_floating(_as_dtype(x, dtype))
    centred = given - mean(given, axis, keepdims=True, where=where)
    total = sum(_squares(centred), axis, keepdims=keepdims, where=where)
    if where is not None:
        return total / (_count_where(given, axis, keepdims, where) - float(ddof))
    return total / float(product([given.shape[at] for at in normalize_axes(axis, given.ndim)]) - ddof)


def _squares(x: ndarray) -> ndarray:
    """Return the squared magnitudes."""
    return x.real * x.real + x.imag * x.imag if x.dtype in COMPLEX else x * x


def std(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, ddof: float = 0, *,
        keepdims: bool = False, where: ArrayLike | None = None) -> ndarray:  # fmt: skip
    return _core.unary("Sqrt", var(x, axis, dtype, ddof, keepdims=keepdims, where=where))


def average(x: ArrayLike, axis: Axis = None, weights: ArrayLike | None = None, returned: bool = False, *,
            keepdims: bool = False) -> Any:  # fmt: skip
    """Return the weighted mean; `returned` adds the sum of the weights."""
    given = to_floating(x)
    if weights is None:
        result = mean(given, axis, keepdims=keepdims)
        count = product([given.shape[at] for at in normalize_axes(axis, given.ndim)])
        return (result, _core.full(result.shape, count, result.dtype)) if returned else result
    weight = to_floating(weights)
    if weight.shape != given.shape:
        if not isinstance(axis, int) or weight.shape != (given.shape[axis],):
            raise ShapeError(f"weights of shape {weight.shape} for an array of shape {given.shape} along axis {axis}")
        weight = weight.reshape([-1 if at == normalize_axis(axis, given.ndim) else 1 for at in range(given.ndim)])
    total = sum(_core.broadcast_to(weight, given.shape), axis, keepdims=keepdims)
    if (total == 0).any():
        raise ZeroDivisionError("the weights of an average sum to 0")
    result = sum(given * weight, axis, keepdims=keepdims) / total
    return (result, total) if returned else result


def cumsum(x: ArrayLike, axis: int | None = None, dtype: DType | None = None) -> ndarray:
    return _cumulate("CumSum", _as_dtype(x, dtype), axis)


def cumprod(x: ArrayLike, axis: int | None = None, dtype: DType | None = None) -> ndarray:
    return _cumulate("CumProd", _as_dtype(x, dtype), axis)


def _cumulate(op: str, x: ArrayLike, axis: int | None) -> ndarray:
    given, at = flat_or_axis(x, axis)
    if given.dtype not in INEXACT:
        given = asarray(given, "uint64" if given.dtype.startswith("uint") else "int64")
    return operator(op, [given, asarray(at, "int64")])


def cumulative_sum(x: ArrayLike, *, axis: int | None = None, dtype: DType | None = None,
                   include_initial: bool = False) -> ndarray:  # fmt: skip
    return _with_initial(cumsum(x, axis, dtype), 0 if axis is None else axis, 0, include_initial)


def cumulative_prod(x: ArrayLike, *, axis: int | None = None, dtype: DType | None = None,
                    include_initial: bool = False) -> ndarray:  # fmt: skip
    return _with_initial(cumprod(x, axis, dtype), 0 if axis is None else axis, 1, include_initial)


def _with_initial(totals: ndarray, axis: int, initial: int, include_initial: bool) -> ndarray:
    if not include_initial:
        return totals
    at = normalize_axis(axis, totals.ndim)
    first = _core.full((*totals.shape[:at], 1, *totals.shape[at + 1 :]), initial, totals.dtype)
    return operator("Concat", [first, totals], axis=at)


# The same without NaN.


def _without_nan(x: ArrayLike, instead: float) -> tuple[ndarray, ndarray]:
    given = asarray(x)
    if given.dtype not in INEXACT:
        return given, _core.full(given.shape, False, "bool")
    missing = _core.unary("IsNaN", given)
    return _core.where(missing, instead, given), missing


def nansum(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, *, keepdims: bool = False) -> ndarray:
    return sum(_without_nan(x, 0)[0], axis, dtype, keepdims=keepdims)


def nanprod(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, *, keepdims: bool = False) -> ndarray:
    return prod(_without_nan(x, 1)[0], axis, dtype, keepdims=keepdims)


def nancumsum(x: ArrayLike, axis: int | None = None, dtype: DType | None = None) -> ndarray:
    return cumsum(_without_nan(x, 0)[0], axis, dtype)


def nancumprod(x: ArrayLike, axis: int | None = None, dtype: DType | None = None) -> ndarray:
    return cumprod(_without_nan(x, 1)[0], axis, dtype)


def _nan_extreme(op: str, x: ArrayLike, axis: Axis, instead: float, keepdims: bool) -> ndarray:
    filled, missing = _without_nan(x, instead)
    result = _core.reduce(op, filled, axis, keepdims)
    if filled.dtype not in FLOATS:
        return result
    return _core.where(all(missing, axis, keepdims=keepdims), float("nan"), result)


def nanmax(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:
    """Return the greatest element that is not NaN; NaN if all are."""
    return _nan_extreme("ReduceMax", x, axis, float("-inf"), keepdims)


def nanmin(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:
    """Return the least element that is not NaN; NaN if all are."""
    return _nan_extreme("ReduceMin", x, axis, float("inf"), keepdims)


def _nan_arg_extreme(op: str, x: ArrayLike, axis: int | None, instead: float, keepdims: bool) -> ndarray:
    filled, missing = _without_nan(x, instead)
    if filled.dtype in FLOATS and bool(all(missing, axis).any()):
        raise ShapeError("nanargmax or nanargmin of a slice that is all NaN")
    return _core.reduce(op, filled, axis, keepdims)


def nanargmax(x: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> ndarray:
    return _nan_arg_extreme("ArgMax", x, axis, float("-inf"), keepdims)


def nanargmin(x: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> ndarray:
    return _nan_arg_extreme("ArgMin", x, axis, float("inf"), keepdims)


def _counts(missing: ndarray, axis: Axis, keepdims: bool, dtype: str) -> ndarray:
    return count_nonzero(~missing, axis, keepdims=keepdims).astype(dtype)


def nanmean(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, *, keepdims: bool = False) -> ndarray:
    filled, missing = _without_nan(to_floating(_as_dtype(x, dtype)), 0)
    return sum(filled, axis, keepdims=keepdims) / _counts(missing, axis, keepdims, filled.dtype)


def nanvar(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, ddof: float = 0, *,
           keepdims: bool = False) -> ndarray:  # fmt: skip
    filled, missing = _without_nan(to_floating(_as_dtype(x, dtype)), 0)
    middle = sum(filled, axis, keepdims=True) / _counts(missing, axis, True, filled.dtype)
    centred = _core.where(missing, 0, filled - middle)
    free = _counts(missing, axis, keepdims, filled.real.dtype) - float(ddof)
    spread = sum(_squares(centred), axis, keepdims=keepdims)
    return _core.where(free > 0, spread / free, float("nan"))


def nanstd(x: ArrayLike, axis: Axis = None, dtype: DType | None = None, ddof: float = 0, *,
           keepdims: bool = False) -> ndarray:  # fmt: skip
    return _core.unary("Sqrt", nanvar(x, axis, dtype, ddof, keepdims=keepdims))


# Differences of neighbours, gradients and integrals.


def diff(x: ArrayLike, n: int = 1, axis: int = -1) -> ndarray:
    """Return the n-th differences of neighbours."""
    result = asarray(x)
    at = normalize_axis(axis, result.ndim)
    if n < 0:
        raise ShapeError(f"diff of order {n}; the order must not be negative")
    for _ in range(n):
        high, low = result[index_along(at, slice(1, None))], result[index_along(at, slice(None, -1))]
        result = high != low if result.dtype == "bool" else high - low
    return result


def ediff1d(x: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None) -> ndarray:
    steps = diff(asarray(x).reshape(-1))
    parts = [asarray(part, steps.dtype).reshape(-1) for part in (to_begin,) if part is not None] + [steps]
    parts += [asarray(part, steps.dtype).reshape(-1) for part in (to_end,) if part is not None]
    return operator("Concat", parts, axis=0) if len(parts) > 1 else steps


def gradient(x: ArrayLike, *spacing: float | ArrayLike, axis: Axis = None, edge_order: int = 1) -> Any:
    """Return the gradient along each axis by central differences, one-sided of order `edge_order` at both ends.

    `spacing` is one distance for all axes, one distance for each axis, or each axis' coordinates.
    """
    given = to_floating(x)
    axes = normalize_axes(axis, given.ndim)
    steps: list[Any] = list(spacing) * (len(axes) if len(spacing) == 1 else 1) if spacing else [1.0] * len(axes)
    if len(steps) != len(axes):
        raise ShapeError(
            f"gradient along {len(axes)} axes with {len(steps)} spacings; give one spacing, or one for each axis"
        )
    if edge_order not in (1, 2):
        raise ShapeError(f"gradient with edge_order {edge_order}; it is 1 or 2")
    slopes = [_slope(given, at, operand_for(step, given), edge_order) for at, step in zip(axes, steps, strict=True)]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _slope(f: ndarray, at: int, step: ndarray, edge_order: int) -> ndarray:
    n = f.shape[at]
    if n < edge_order + 1:
        raise ShapeError(f"gradient along an axis of size {n}; edge_order {edge_order} needs {edge_order + 1}")

    def part(first: int | None, last: int | None) -> ndarray:
        return f[index_along(at, slice(first, last))]

    if step.ndim == 0:  # the same weights everywhere, in NumPy's order of rounding
        low = second = third = high = asarray(step, f.dtype)
        inner = (part(2, None) - part(None, -2)) / (2 * low)
    elif step.shape == (n,):
        gaps = diff(asarray(step, f.dtype)).reshape([-1 if one == at else 1 for one in range(f.ndim)])
        a, b = gaps[index_along(at, slice(None, -1))], gaps[index_along(at, slice(1, None))]
        low, second, third, high = (gaps[index_along(at, slice(i, i + 1 or None))] for i in (0, 1, -2, -1))
        inner = (
            part(None, -2) * (-b / (a * (a + b)))
            + part(1, -1) * ((b - a) / (a * b))
            + part(2, None) * (a / (b * (a + b)))
        )
    else:
        raise ShapeError(
            f"gradient with coordinates of shape {step.shape} along an axis of size {n}; give a vector of that size"
        )
    if edge_order == 1:
        first, last = (part(1, 2) - part(0, 1)) / low, (part(-1, None) - part(-2, -1)) / high
    else:
        p, q = low, second
        first = (
            part(0, 1) * (-(2 * p + q) / (p * (p + q)))
            + part(1, 2) * ((p + q) / (p * q))
            - part(2, 3) * (p / (q * (p + q)))
        )
        p, q = third, high
        last = (
            part(-3, -2) * (q / (p * (p + q)))
            - part(-2, -1) * ((q + p) / (p * q))
            + part(-1, None) * ((2 * q + p) / (q * (p + q)))
        )
    return operator("Concat", [first, inner, last], axis=at)


def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: float = 1.0, axis: int = -1) -> ndarray:
    """Return the integral by the trapezoidal rule."""
    given = to_floating(y)
    at = normalize_axis(axis, given.ndim)
    pairs = given[index_along(at, slice(1, None))] + given[index_along(at, slice(None, -1))]
    if x is None:
        return sum(pairs * (dx / 2.0), at)
    place = asarray(x)
    gaps = diff(place) if place.ndim == 1 else diff(place, axis=axis)
    if gaps.ndim == 1:
        gaps = gaps.reshape([-1 if one == at else 1 for one in range(given.ndim)])
    return sum(pairs * gaps / 2.0, at)


trapz = trapezoid
