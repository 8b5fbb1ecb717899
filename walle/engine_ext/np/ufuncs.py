"""Methods of ufuncs (reduce, accumulate, outer, at, reduceat), and a call's options where=, dtype= and out=."""

from __future__ import annotations

import builtins

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray, ufunc
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError
from walle.engine_ext.np.base import asarray, index_along, normalize_axes, normalize_axis, operands
from walle.engine_ext.np.constants import can_cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, Axis, DType

_IDENTITIES = {
    "add": 0, "multiply": 1, "logical_and": True, "logical_or": False, "logical_xor": False, "bitwise_and": -1,
    "bitwise_or": 0, "bitwise_xor": 0, "gcd": 0, "hypot": 0, "logaddexp": float("-inf"), "logaddexp2": float("-inf"),
}  # fmt: skip
_REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any",
}  # fmt: skip
_IGNORED = frozenset({"order", "subok"})  # choices of what walle.np does in one way only


def identity(function: ufunc) -> Any:
    """Return the value that changes nothing when it is combined with another, or None."""
    return _IDENTITIES.get(function.__name__)


def call(function: ufunc, operands_: Sequence[ArrayLike], *, out: Any = None, where: ArrayLike | None = None,
         dtype: DType | None = None, casting: str = "same_kind", **ignored: Any) -> Any:  # fmt: skip
    """Return the function of the operands, converted to `dtype`; where `where` is false, `out` keeps its element.

    Without `out` the elements where `where` is false are 0. `casting` is the rule by which operands become `dtype` and
    results the dtype of `out`.

    Raises:
        DTypeError: the rule forbids it.
    """
    unknown = sorted(set(ignored) - _IGNORED)
    if unknown:
        raise TypeError(f"{function.__name__}() has no argument {unknown[0]!r}")
    if isinstance(out, tuple):
        (out,) = out
    if dtype is None:
        result = function(*(operands(*operands_) if len(operands_) == 2 else operands_))
    else:
        for one in operands_:
            if isinstance(one, ndarray) and not can_cast(one.dtype, dtype, casting):
                raise DTypeError(
                    f"{function.__name__} of {one.dtype} with dtype {dtype}: forbidden by casting {casting!r}"
                )
        result = function(*(asarray(one, dtype) for one in operands_))
        if result.dtype != "bool":
            result = result.astype(dtype)
    if where is None or where is True:
        return result if out is None else _stored(result, out, None, casting, may_repeat=True)
    mask = asarray(where, "bool")
    shape = _core.broadcast_to(mask, result.shape).shape if result.ndim >= mask.ndim else mask.shape
    if out is None:
        out = _core.full(shape, 0, result.dtype)
    return _stored(_core.broadcast_to(result, shape), out, _core.broadcast_to(mask, shape), casting, may_repeat=True)


def _stored(result: ndarray, out: Any, mask: ndarray | None, casting: str = "same_kind",
            *, may_repeat: bool = False) -> ndarray:  # fmt: skip
    if not isinstance(out, ndarray):
        raise TypeError(f"`out` must be an ndarray, not {type(out).__name__}")
    if not can_cast(result.dtype, out.dtype, casting):
        raise DTypeError(f"`out` has dtype {out.dtype}, which cannot hold a result of dtype {result.dtype}")
    if out.shape != result.shape and may_repeat and result.ndim <= out.ndim:
        result = _core.broadcast_to(result, out.shape)
        mask = None if mask is None else _core.broadcast_to(mask, out.shape)
    if out.shape != result.shape:
        raise ShapeError(f"`out` has shape {out.shape}, but the result has shape {result.shape}")
    if mask is None:
        out[...] = result
    else:
        out[mask] = result[mask]
    return out


def _combinable(function: ufunc, method: str, x: ArrayLike, dtype: DType | None) -> ndarray:
    """Return the array whose elements are combined; logical functions combine bools."""
    if function.nin != 2:
        raise ShapeError(f"{function.__name__}.{method}: only functions of two arrays can be combined")
    if dtype is None and function.__name__.startswith("logical"):
        dtype = "bool"
    return asarray(x) if dtype is None else asarray(x, dtype)


def reduce(function: ufunc, x: ArrayLike, axis: Axis = 0, dtype: DType | None = None, out: ndarray | None = None,
           keepdims: bool = False, initial: Any = None, where: ArrayLike | None = None) -> Any:  # fmt: skip
    """Combine the elements along the axes, or all of them where `axis` is None, starting with `initial`."""
    given = _combinable(function, "reduce", x, dtype)
    if given.ndim == 0 and axis == 0:
        axis = None
    name = _REDUCTIONS.get(function.__name__)
    where = None if where is True else where
    if name in ("all", "any"):
        options: dict[str, Any] = {"where": where}
    else:
        options = {"initial": initial, "where": where}
    if name is not None and (initial is None or name not in ("all", "any")):
        result = getattr(_functions(), name)(given, axis, keepdims=keepdims, **options)
    else:
        result = _reduce_in_order(function, given, axis, keepdims, initial, where)
    return result if out is None else _stored(result, out, None)


def _functions() -> Any:
    from walle.engine_ext import np

    return np


def _reduce_in_order(function: ufunc, x: ndarray, axis: Axis, keepdims: bool, initial: Any,
                     where: ArrayLike | None) -> ndarray:  # fmt: skip
    neutral = identity(function)
    if where is not None:
        if initial is None and neutral is None:
            raise ShapeError(f"{function.__name__}.reduce with `where` needs `initial`, because it has no identity")
        x = _core.where(where, x, neutral if initial is None else initial)
    axes = normalize_axes(axis, x.ndim)
    if len(axes) > 1 and function.__name__ in ("subtract", "divide", "power", "floor_divide", "remainder"):
        raise ShapeError(
            f"{function.__name__} depends on the order of its operands, so it is reduced along one axis only"
        )
    result = x
    for at in sorted(axes, reverse=True):
        result = _reduce_axis(function, result, at, neutral)
    if initial is not None:
        result = function(asarray(initial, result.dtype), result)
    if keepdims:
        result = result.reshape([1 if at in axes else size for at, size in enumerate(x.shape)])
    return result


def _reduce_axis(function: ufunc, x: ndarray, at: int, neutral: Any) -> ndarray:
    n = x.shape[at]
    if n == 0:
        if neutral is None:
            raise ShapeError(f"{function.__name__}.reduce of an axis without elements, because it has no identity")
        return _core.full(x.shape[:at] + x.shape[at + 1 :], neutral, x.dtype)
    if function.__name__ in _IDENTITIES and n > 2:  # associative: halves at a time
        while n > 1:
            half = n // 2
            joined = function(x[index_along(at, slice(0, half))], x[index_along(at, slice(half, 2 * half))])
            if n % 2:
                joined = _core.operator(
                    "Concat", [joined, x[index_along(at, slice(n - 1, n))].astype(joined.dtype)], axis=at
                )
            x, n = joined, half + n % 2
        return x[index_along(at, 0)]
    result = x[index_along(at, 0)]
    for i in range(1, n):
        result = function(result, x[index_along(at, i)])
    return result


def accumulate(function: ufunc, x: ArrayLike, axis: int = 0, dtype: DType | None = None,
               out: ndarray | None = None) -> ndarray:  # fmt: skip
    """Return the partial results of combining the elements along one axis, from the first on."""
    given = _combinable(function, "accumulate", x, dtype)
    at = normalize_axis(axis, given.ndim)
    if function.__name__ in ("add", "multiply"):
        result = getattr(_functions(), "cumsum" if function.__name__ == "add" else "cumprod")(given, at)
    elif function.__name__ in ("maximum", "minimum"):  # each step doubles the number of elements that are combined
        result, step = given.copy(), 1
        while step < given.shape[at]:
            high, low = index_along(at, slice(step, None)), index_along(at, slice(None, -step))
            result[high] = function(result[high], result[low])
            step *= 2
    else:
        lines = [given[index_along(at, i)] for i in range(given.shape[at])]
        for i in range(1, len(lines)):
            lines[i] = function(lines[i - 1], lines[i])
        dtypes = {line.dtype for line in lines}
        if len(dtypes) > 1:
            lines = [line.astype(lines[-1].dtype) for line in lines]
        result = _core.operator("Stack", lines, axis=at) if lines else given.copy()
    return result if out is None else _stored(result, out, None)


def outer(function: ufunc, a: ArrayLike, b: ArrayLike, **options: Any) -> Any:
    """Return the function of each element of `a` with each of `b`, of shape a.shape + b.shape."""
    left, right = operands(_combinable(function, "outer", a, None), b)
    return function(left.reshape(left.shape + (1,) * right.ndim), right, **options)


def at(function: ufunc, x: ndarray, indices: Any, b: ArrayLike | None = None) -> None:
    """Apply the function to the elements at the indices in place; an index that occurs again is computed again.

    Results are converted to the array's dtype, as in NumPy: floats stored in integers lose their fractions.
    """
    if not isinstance(x, ndarray):
        raise TypeError(f"{function.__name__}.at changes an ndarray in place, and was given a {type(x).__name__}")
    if (b is None) != (function.nin == 1):
        raise TypeError(f"{function.__name__}.at takes {function.nin - 1} arrays after the indices")
    places = _core.arange_until(x.size).reshape(x.shape)[indices]
    flat = places.reshape(-1)
    order = _core.argsort(flat, -1)
    ordered = flat[order]
    first = _core.full(ordered.shape, True, "bool")
    first[1:] = ordered[1:] != ordered[:-1]
    numbers = _core.arange_until(flat.size)
    starts = _core.operator("CumSum", [first.astype("int64"), asarray(0, "int64")]) - 1
    occurrence = numbers - numbers[first][starts]  # how often the index came before
    values = None if b is None else _core.broadcast_to(operands(x, b)[1], places.shape).reshape(-1)
    target = x.reshape(-1)
    is_copy = _core.contiguous(x) is not x
    rounds = int(occurrence.max()) + 1 if flat.size else 0
    if rounds > _FEW_ROUNDS and values is not None and function.__name__ in _ASSOCIATIVE and values.dtype == x.dtype:
        order, values = _joined(function, order, values, occurrence)
        occurrence, rounds = _core.full(order.shape, 0, "int64"), 1
    turn = _core.argsort(occurrence, -1)
    start = 0
    for end in _functions().searchsorted(occurrence[turn], _core.arange_until(rounds), "right").tolist():
        chosen = order[turn[start:end]]
        cells = flat[chosen]
        old = target[cells]
        target[cells] = function(old) if values is None else function(old, values[chosen])
        start = end
    if is_copy:
        x[...] = target.reshape(x.shape)


_FEW_ROUNDS = 64  # up to this often at an index, values are combined one after the other, with NumPy's rounding
_ASSOCIATIVE = frozenset({"add", "multiply", "maximum", "minimum", "fmax", "fmin", "bitwise_and", "bitwise_or",
                          "bitwise_xor", "gcd"})  # fmt: skip


def _joined(function: ufunc, order: ndarray, values: ndarray, occurrence: ndarray) -> tuple[ndarray, ndarray]:
    """Combine the values of each index, neighbours first: half of them are left after each step.

    `order` numbers the values so that those of an index are side by side; `occurrence` counts them. Returns the first
    place of each index in `order`, and the values with the combined ones there.
    """
    values = values.copy()
    while order.size and int(occurrence.max()) > 0:
        second = occurrence % 2 == 1
        left = order[:-1][second[1:]]
        values[left] = function(values[left], values[order[second]])
        order, occurrence = order[~second], occurrence[~second] // 2
    return order, values


def reduceat(function: ufunc, x: ArrayLike, indices: Sequence[int], axis: int = 0, dtype: DType | None = None,
             out: ndarray | None = None) -> Any:  # fmt: skip
    """Combine the elements between each index and the next along an axis; one element where the next is not greater."""
    given = _combinable(function, "reduceat", x, dtype)
    at_ = normalize_axis(axis, given.ndim)
    n = given.shape[at_]
    edges = [int(i) for i in asarray(indices, "int64")]
    if builtins.any(not 0 <= edge < n for edge in edges):
        raise IndexError(f"reduceat: an index is out of range for an axis of size {n}")
    parts = []
    for start, stop in zip(edges, [*edges[1:], n], strict=True):
        part = given[index_along(at_, slice(start, stop if stop > start else start + 1))]
        parts.append(reduce(function, part, at_))
    if not parts:
        raise UnsupportedError("reduceat without indices is not supported; give one index or more")
    result = _core.operator("Stack", parts, axis=at_)
    return result if out is None else _stored(result, out, None)
