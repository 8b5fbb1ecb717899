"""Sorting, searching, partitions and sets."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError, UnsupportedError
from walle.engine_ext.np.base import FLOATS, asarray, flat_or_axis, normalize_axis, operands, operator, to_common_dtype

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike

__all__ = [
    "argpartition", "argsort", "digitize", "in1d", "intersect1d", "isin", "lexsort", "msort", "partition",
    "searchsorted", "setdiff1d", "setxor1d", "sort", "union1d", "unique", "unique_counts", "unique_inverse",
    "unique_values",
]  # fmt: skip


def sort(x: ArrayLike, axis: int | None = -1, kind: str | None = None, order: None = None, *,
         stable: bool | None = None) -> ndarray:  # fmt: skip  # noqa: ARG001 -- sorts are stable
    """Return the elements in ascending order, NaN last; equal elements stay in order, whatever `kind` is."""
    _check_kind(kind, order)
    return _core.sort(x, axis)


def argsort(x: ArrayLike, axis: int | None = -1, kind: str | None = None, order: None = None, *,
            stable: bool | None = None) -> ndarray:  # fmt: skip  # noqa: ARG001 -- sorts are stable
    """Return the indices that sort the array; equal elements stay in order, whatever `kind` is."""
    _check_kind(kind, order)
    return _core.argsort(x, axis)


def _check_kind(kind: str | None, order: None) -> None:
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise UnsupportedError(f"kind {kind!r} is not supported; known are quicksort, mergesort, heapsort and stable")
    if order is not None:
        raise UnsupportedError("`order` names fields of records, which walle.np does not have; leave it out")


def msort(x: ArrayLike) -> ndarray:
    return sort(x, 0)


def partition(x: ArrayLike, kth: int | Sequence[int], axis: int | None = -1) -> ndarray:
    """Return the array with its k-th element in its sorted position; all other elements are sorted too."""
    _check_kth(x, kth, axis)
    return sort(x, axis)


def argpartition(x: ArrayLike, kth: int | Sequence[int], axis: int | None = -1) -> ndarray:
    _check_kth(x, kth, axis)
    return argsort(x, axis)


def _check_kth(x: ArrayLike, kth: int | Sequence[int], axis: int | None) -> None:
    given, at = flat_or_axis(x, axis)
    for place in (kth,) if isinstance(kth, int) else kth:
        normalize_axis(place, given.shape[at])


def lexsort(keys: Sequence[ArrayLike] | ndarray, axis: int = -1) -> ndarray:
    """Return the indices that sort by the last key, then by the one before, and so on."""
    order: ndarray | None = None
    for key in keys:
        line = asarray(key)
        if order is None:
            order = argsort(line, axis)
        elif line.ndim == 1:
            order = order[argsort(line[order])]
        else:
            from walle.engine_ext.np import take_along_axis

            order = take_along_axis(order, argsort(take_along_axis(line, order, axis), axis), axis)
    if order is None:
        raise ShapeError("lexsort without keys; give one key or more")
    return order


def searchsorted(x: ArrayLike, values: ArrayLike, side: str = "left", sorter: ArrayLike | None = None) -> ndarray:
    """Return the insertion index of each value in an ascending vector: before equal ones, or after (side "right")."""
    if side not in ("left", "right"):
        raise ShapeError(f"searchsorted on side {side!r}; known are left and right")
    if isinstance(values, float):
        values = asarray(values, "float64")  # keeps all digits of a Python float
    line, needles = to_common_dtype([x, values])
    if line.ndim != 1:
        raise ShapeError(f"searchsorted in an array of shape {line.shape}; it takes a vector")
    if sorter is not None:
        line = line[asarray(sorter)]
    return operator("SearchSorted", [line, needles], right=int(side == "right"))


def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False) -> ndarray:
    """Return the index of each value's bin; bins ascend or descend."""
    edges = asarray(bins)
    if edges.size > 1 and bool((edges[1:] < edges[:-1]).any()):
        if bool((edges[1:] > edges[:-1]).any()):
            raise ShapeError("digitize with unsorted bins; sort them in ascending or descending order")
        return edges.size - searchsorted(edges[::-1], x, "left" if right else "right")
    return searchsorted(edges, x, "left" if right else "right")


# Sets.


def unique(x: ArrayLike, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
           axis: int | None = None, *, equal_nan: bool = True) -> Any:  # fmt: skip
    """Return the sorted distinct elements or slices; on request also first indices, inverse and counts."""
    given = asarray(x)
    if axis is not None:
        at = normalize_axis(axis, given.ndim)
        values, first, inverse, counts = _core.evaluate("Unique", [given], {"axis": at, "sorted": 1}, 4)
        results = [values, first, inverse, counts]
        asked = [True, return_index, return_inverse, return_counts]
        chosen = [result for result, one in zip(results, asked, strict=True) if one]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)
    flat = given.reshape(-1)
    if flat.size == 0:
        none = _core.full((0,), 0, "int64")
        results = [flat.copy(), none, none.reshape(given.shape), none]
    elif return_index or return_inverse:
        order = argsort(flat)
        ordered = flat[order]
        starts = _run_starts(ordered, equal_nan)
        inverse = _core.full(order.shape, 0, "int64")
        inverse[order] = operator("CumSum", [starts.astype("int64"), asarray(0, "int64")]) - 1
        results = [ordered[starts], order[starts], inverse.reshape(given.shape), _run_lengths(starts)]
    else:
        ordered = sort(flat)
        starts = _run_starts(ordered, equal_nan)
        results = [ordered[starts], starts, starts, _run_lengths(starts) if return_counts else starts]
    asked = [True, return_index, return_inverse, return_counts]
    chosen = [result for result, one in zip(results, asked, strict=True) if one]
    return chosen[0] if len(chosen) == 1 else tuple(chosen)


def _run_starts(ordered: ndarray, equal_nan: bool) -> ndarray:
    """Return a mask that is true at the first of each run of equal elements; NaN sorts last."""
    starts = _core.full(ordered.shape, True, "bool")
    starts[1:] = ordered[1:] != ordered[:-1]
    last = float(ordered[-1]) if equal_nan and ordered.dtype in FLOATS else 0.0
    if last != last:  # noqa: PLR0124 -- NaN
        starts[1:] = starts[1:] & ~(_core.unary("IsNaN", ordered[1:]) & _core.unary("IsNaN", ordered[:-1]))
    return starts


def _run_lengths(starts: ndarray) -> ndarray:
    places = operator("NonZero", [starts])[0]
    return operator("Concat", [places[1:], asarray([starts.size], "int64")], axis=0) - places


def unique_values(x: ArrayLike) -> ndarray:
    result: ndarray = unique(x, equal_nan=False)
    return result


def unique_counts(x: ArrayLike) -> tuple[ndarray, ndarray]:
    values, counts = unique(x, return_counts=True, equal_nan=False)
    return values, counts


def unique_inverse(x: ArrayLike) -> tuple[ndarray, ndarray]:
    values, inverse = unique(x, return_inverse=True, equal_nan=False)
    return values, inverse


def isin(x: ArrayLike, among: ArrayLike, *, invert: bool = False) -> ndarray:
    """Return, for each element, whether it is among the others."""
    left, right = operands(x, among)
    given, others = to_common_dtype([left, right.reshape(-1)])
    if others.size == 0:
        return _core.full(given.shape, invert, "bool")
    if others.size <= _FEW_OTHERS:
        compare, join = ("NotEqual", "And") if invert else ("Equal", "Or")
        first, *rest = others.tolist()
        marks = _core.binary(compare, given, first)
        for other in rest:
            marks = _core.binary(join, marks, _core.binary(compare, given, other))
        return marks
    line = sort(others)
    at = _core.binary("Minimum", searchsorted(line, given), line.size - 1)
    found = line[at] == given
    return ~found if invert else found


_FEW_OTHERS = 16  # up to this many, comparing with each is faster than sorting and searching

in1d = isin


def union1d(a: ArrayLike, b: ArrayLike) -> ndarray:
    left, right = to_common_dtype([a, b])
    result: ndarray = unique(operator("Concat", [left.reshape(-1), right.reshape(-1)], axis=0))
    return result


def intersect1d(a: ArrayLike, b: ArrayLike, assume_unique: bool = False) -> ndarray:
    """Return the sorted elements that are in both."""
    left, right = (x.reshape(-1) for x in to_common_dtype([a, b]))
    if not assume_unique:
        left, right = unique(left), unique(right)
    ordered = sort(operator("Concat", [left, right], axis=0))
    return ordered[:-1][ordered[1:] == ordered[:-1]]


def setdiff1d(a: ArrayLike, b: ArrayLike, assume_unique: bool = False) -> ndarray:
    """Return the sorted elements of the first that are not in the second."""
    left = asarray(a).reshape(-1)
    if not assume_unique:
        left = unique(left)
    return left[isin(left, b, invert=True)]


def setxor1d(a: ArrayLike, b: ArrayLike, assume_unique: bool = False) -> ndarray:
    """Return the sorted elements that are in exactly one of the two."""
    left, right = (x.reshape(-1) for x in to_common_dtype([a, b]))
    if not assume_unique:
        left, right = unique(left), unique(right)
    ordered = sort(operator("Concat", [left, right], axis=0))
    if ordered.size == 0:
        return ordered
    edge = _core.full((1,), True, "bool")
    new = operator("Concat", [edge, ordered[1:] != ordered[:-1], edge], axis=0)
    return ordered[new[1:] & new[:-1]]
