"""Statistics: quantiles, histograms, covariances, interpolation."""

from __future__ import annotations

import itertools

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.base import (
    COMPLEX,
    FLOATS,
    asarray,
    normalize_axes,
    operator,
    product,
    refuse_complex,
    to_common_dtype,
    to_floating,
)
from walle.engine_ext.np.creation import linspace
from walle.engine_ext.np.products import matmul
from walle.engine_ext.np.sorting import searchsorted, sort

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, Axis

__all__ = [
    "bincount", "corrcoef", "cov", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "interp", "median",
    "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile",
]  # fmt: skip

_BLOCK = 1 << 15  # elements per block, so that intermediate results stay in cache
_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _join_axes(x: ArrayLike, axis: Axis, keepdims: bool) -> tuple[ndarray, tuple[int, ...]]:
    """Return the array with the reduced axes joined as its last axis, and the shape of the result."""
    given = to_floating(x)
    axes = normalize_axes(axis, given.ndim)
    kept = [at for at in range(given.ndim) if at not in axes]
    rest = tuple(given.shape[at] for at in kept)
    count = product([given.shape[at] for at in axes])
    lines = given.transpose((*kept, *axes)).reshape((*rest, count))
    shape = tuple(1 if at in axes else size for at, size in enumerate(given.shape)) if keepdims else rest
    return lines, shape


def _interpolate(ordered: ndarray, place: ndarray, method: str) -> ndarray:
    """Return each line's value at a fractional index; `place` is (..., 1), or (count,) for all lines."""
    below = _core.unary("Floor", place)
    low = below.astype("int64")
    high = _core.binary("Minimum", low + 1, ordered.shape[-1] - 1)

    def at(index: ndarray) -> ndarray:
        if index.ndim <= 1:
            return ordered[..., index]
        return operator("GatherElements", [ordered, index], axis=ordered.ndim - 1)

    if method == "lower":
        return at(low)
    if method == "higher":
        return at(_core.unary("Ceil", place).astype("int64"))
    if method == "nearest":
        return at(_core.unary("Round", place).astype("int64"))
    left, right = at(low), at(high)
    if method == "midpoint":
        return _core.where(place == below, left, (left + right) * 0.5)
    share = (place - below).astype(ordered.dtype)
    mixed = left + (right - left) * share
    return _core.where((share == 0) | (left == right), left, mixed)  # infinity - infinity would be NaN


def quantile(x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear",
             keepdims: bool = False) -> ndarray:  # fmt: skip
    """Return the q-quantile; several q add a leading axis. NaN in the elements gives NaN.

    `method` is the interpolation between two elements: linear, lower, higher, midpoint or nearest.
    """
    return _quantile(x, asarray(q, "float64"), axis, method, keepdims, skip_nan=False)


def _quantile(x: ArrayLike, q: ndarray, axis: Axis, method: str, keepdims: bool, *, skip_nan: bool) -> ndarray:
    if method not in _METHODS:
        raise ShapeError(f"quantile with method {method!r}; known are {', '.join(_METHODS)}")
    if ((q < 0) | (q > 1)).any():
        raise ShapeError("quantile of a share outside 0 to 1 (of a percentage outside 0 to 100)")
    lines, shape = _join_axes(x, axis, keepdims)
    count = lines.shape[-1]
    if count == 0:
        if skip_nan:
            return _core.full(q.shape + shape, float("nan"), lines.dtype)
        raise ShapeError("quantile of an empty array; give one element or more")
    ordered = sort(lines)
    missing = _core.unary("IsNaN", ordered[..., -1:])
    shares = q.reshape(-1)
    if skip_nan and bool(missing.any()):
        there = _core.reduce("ReduceSum", ~_core.unary("IsNaN", ordered), -1, True)
        place = shares * _core.binary("Maximum", there - 1, 0).astype("float64")
        missing = there == 0
    else:
        place = shares * float(count - 1)
    picked = _interpolate(ordered, place, method)
    result = _core.where(missing, float("nan"), picked)
    result = operator("Transpose", [result], perm=(result.ndim - 1, *range(result.ndim - 1))).reshape(q.shape + shape)
    dtype = asarray(x).dtype  # a result that is an element keeps its dtype
    return result.astype(dtype) if method in ("lower", "higher", "nearest") and dtype not in FLOATS else result


def percentile(x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear",
               keepdims: bool = False) -> ndarray:  # fmt: skip
    """Return the quantiles of shares in percent."""
    return _quantile(x, asarray(q, "float64") / 100.0, axis, method, keepdims, skip_nan=False)


def nanquantile(x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear",
                keepdims: bool = False) -> ndarray:  # fmt: skip
    return _quantile(x, asarray(q, "float64"), axis, method, keepdims, skip_nan=True)


def nanpercentile(x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear",
                  keepdims: bool = False) -> ndarray:  # fmt: skip
    return _quantile(x, asarray(q, "float64") / 100.0, axis, method, keepdims, skip_nan=True)


def _median(x: ArrayLike, axis: Axis, keepdims: bool, *, skip_nan: bool) -> ndarray:
    given = asarray(x)
    if product([given.shape[at] for at in normalize_axes(axis, given.ndim)]) == 0:
        lines, shape = _join_axes(given, axis, keepdims)
        return _core.full(shape, float("nan"), lines.dtype)
    return _quantile(given, asarray(0.5, "float64"), axis, "midpoint", keepdims, skip_nan=skip_nan)


def median(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:
    """Return the middle element, or the mean of the two middle ones; NaN if an element is NaN or the array is empty."""
    return _median(x, axis, keepdims, skip_nan=False)


def nanmedian(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:
    return _median(x, axis, keepdims, skip_nan=True)


def cov(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, bias: bool = False,
        ddof: int | None = None) -> ndarray:  # fmt: skip
    """Return the covariances of variables: the rows of a matrix, or its columns unless `rowvar`."""
    rows = _variables(x, rowvar)
    if y is not None:
        rows = operator("Concat", to_common_dtype([rows, _variables(y, rowvar)]), axis=0)
    free = rows.shape[1] - ((0 if bias else 1) if ddof is None else ddof)
    centred = rows - _core.reduce("ReduceMean", rows, 1, True)
    result = matmul(centred, centred.T.conj()) / float(free)
    return result.reshape(()) if result.size == 1 else result


def _variables(x: ArrayLike, rowvar: bool) -> ndarray:
    given = to_floating(x)
    if given.ndim > 2:
        raise ShapeError(f"cov of shape {given.shape}; it takes at most two dimensions")
    if given.ndim < 2:
        return given.reshape(1, -1)
    return given if rowvar or given.shape[0] == 1 else given.T


def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True) -> ndarray:
    """Return the correlation coefficients: covariances over the products of standard deviations."""
    joint = cov(x, y, rowvar)
    if joint.ndim == 0:
        return joint / joint
    spread = _core.unary("Sqrt", joint.real.reshape(-1)[:: joint.shape[0] + 1])
    result = joint / spread[:, None] / spread[None, :]
    for part in (result.real, result.imag) if result.dtype in COMPLEX else (result,):
        part[...] = _core.clip(part, -1.0, 1.0)
    return result


def bincount(x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0) -> ndarray:
    """Return the count of each integer from 0 on, or the sum of its weights (float64)."""
    places = asarray(x)
    if places.ndim != 1 or places.dtype in FLOATS:
        raise ShapeError(f"bincount of {places.dtype} of shape {places.shape}; it takes a vector of integers")
    given = [places] if weights is None else [places, asarray(weights, "float64").reshape(places.shape)]
    return operator("BinCount", given, minlength=minlength)


def histogram_bin_edges(x: ArrayLike, bins: Any = 10, range: tuple[float, float] | None = None) -> ndarray:  # noqa: A002 -- NumPy's name
    """Return the edges of `bins` bins of equal width, or the given edges."""
    given = to_floating(x)
    if not isinstance(bins, int):
        given_edges = asarray(bins)
        if given_edges.ndim != 1 or (given_edges[1:] < given_edges[:-1]).any():
            raise ShapeError(
                "histogram with unsorted edges or edges of more than one dimension; give an ascending vector"
            )
        return given_edges
    if bins < 1:
        raise ShapeError(f"histogram of {bins} bins; the number must be positive")
    if range is not None:
        low, high = float(range[0]), float(range[1])
    elif given.size:
        low, high = float(given.min()), float(given.max())
    else:
        low, high = 0.0, 1.0
    if not (low <= high and high - low < float("inf")):
        raise ShapeError(f"histogram from {low} to {high}; the range must ascend and be finite")
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges: ndarray = linspace(low, high, bins + 1, dtype="float64")
    return edges.astype("float32") if asarray(x).dtype == "float32" else edges


def histogram(x: ArrayLike, bins: Any = 10, range: tuple[float, float] | None = None,  # noqa: A002 -- NumPy's name
              density: bool = False, weights: ArrayLike | None = None) -> tuple[ndarray, ndarray]:  # fmt: skip
    """Return the number of elements in each bin, and the edges; the last bin includes both its edges."""
    if weights is not None:
        weights = refuse_complex(asarray(weights), "histogram with weights of")
    edges = histogram_bin_edges(x, bins, range)
    flat = asarray(x).reshape(-1)
    few = edges.size <= _FEW_EDGES and weights is None and flat.size > 0
    counts = (
        _count_between_edges(flat, edges) if few else _count_in_bins([flat], [edges], [isinstance(bins, int)], weights)
    )
    if density:
        widths = (edges[1:] - edges[:-1]).astype("float64")
        return counts.astype("float64") / widths / float(counts.sum()), edges
    return counts, edges


_FEW_EDGES = 65  # up to this many, counting above each edge is faster than finding each element's bin


def _count_between_edges(x: ndarray, edges: ndarray) -> ndarray:
    """Return the counts between neighbouring edges: elements above the one minus elements above the next."""
    line, above = edges.tolist(), [0] * edges.size
    if not x.dtype == edges.dtype == "float32":
        x = x.astype("float64")
    for start in range(0, x.size, _BLOCK):
        part = x[start : start + _BLOCK]
        for at, edge in enumerate(line[:-1]):
            above[at] += int((part >= edge).sum())
        above[-1] += int((part > line[-1]).sum())
    return asarray([low - high for low, high in itertools.pairwise(above)], "int64")


def _bin_index(column: ndarray, line: ndarray) -> ndarray:
    """Return the index of each element's bin; the last bin includes both its edges."""
    return _core.binary("Minimum", searchsorted(line, column, "right") - 1, line.size - 2)


def _uniform_bin_index(column: ndarray, line: ndarray) -> ndarray:
    """Return the same for edges of equal distance: computed, then corrected by a comparison with the bin's edges."""
    count = line.size - 1
    low, high = float(line[0]), float(line[-1])
    guess = _core.unary("Floor", (to_floating(column) - low) * (count / (high - low)))
    bin_ = _core.clip(guess, 0.0, count - 1.0).astype("int64")
    down = (column < line[bin_]).astype("int64")
    up = ((column >= line[bin_ + 1]) & (bin_ < count - 1)).astype("int64")
    return _core.clip(bin_ - down + up, 0, count - 1)


def _count_in_bins(
    columns: list[ndarray], edges: list[ndarray], uniform: list[bool], weights: ArrayLike | None
) -> ndarray:
    place = _core.full((), 0, "int64")
    inside = _core.full((), True, "bool")
    for column, line, one in zip(columns, edges, uniform, strict=True):
        count = line.size - 1
        bin_ = _uniform_bin_index(column, line) if one else _bin_index(column, line)
        inside = inside & (column >= line[0]) & (column <= line[-1])
        place = place * count + bin_
    shape = tuple(line.size - 1 for line in edges)
    total = product(shape)
    place = _core.where(inside, place, total)  # one more bin for elements outside
    flat_weights = None if weights is None else asarray(weights).reshape(-1)
    sums = bincount(place, flat_weights, total + 1)
    counts = sums[:total].reshape(shape)
    if flat_weights is not None and flat_weights.dtype not in FLOATS:
        return counts.astype("int64")
    return counts


def histogramdd(x: ArrayLike | Sequence[ArrayLike], bins: Any = 10, range: Any = None, density: bool = False,  # noqa: A002 -- NumPy's name
                weights: ArrayLike | None = None) -> tuple[ndarray, list[ndarray]]:  # fmt: skip
    """Return the counts (float64) of points over a grid of bins, and the edges of each dimension.

    An array has one point per row; a sequence has one array of coordinates per dimension, as in NumPy.
    """
    points = asarray(x)
    if points.ndim == 1:
        points = points.reshape(-1, 1)
    elif isinstance(x, list | tuple):
        points = points.T
    rank = points.shape[1]
    each = [bins] * rank if isinstance(bins, int) else list(bins)
    ranges = [None] * rank if range is None else list(range)
    if len(each) != rank or len(ranges) != rank:
        raise ShapeError(
            f"histogramdd of {rank} dimensions with {len(each)} bins and {len(ranges)} ranges; give one for each"
        )
    columns = [points[:, at] for at, _ in enumerate(each)]
    edges = [histogram_bin_edges(*one) for one in zip(columns, each, ranges, strict=True)]
    counts = _count_in_bins(columns, edges, [isinstance(one, int) for one in each], weights).astype("float64")
    if density:
        counts = counts / counts.sum()
        for at, line in enumerate(edges):
            widths = (line[1:] - line[:-1]).astype("float64")
            counts = counts / widths.reshape([-1 if one == at else 1 for one, _ in enumerate(edges)])
    return counts, edges


def histogram2d(x: ArrayLike, y: ArrayLike, bins: Any = 10, range: Any = None, density: bool = False,  # noqa: A002 -- NumPy's name
                weights: ArrayLike | None = None) -> tuple[ndarray, ndarray, ndarray]:  # fmt: skip
    points = operator("Stack", to_common_dtype([x, y]), axis=1)
    both = bins if isinstance(bins, int) or len(bins) == 2 else [bins, bins]
    counts, edges = histogramdd(points, both, range, density, weights)
    return counts, edges[0], edges[1]


def interp(
    x: ArrayLike, xp: ArrayLike, fp: ArrayLike, left: float | None = None, right: float | None = None
) -> ndarray:
    """Return the values at x of the line through points (xp ascending, fp), in float64."""
    places, values = asarray(xp, "float64"), asarray(fp, "float64")
    points = asarray(x, "float64")
    if places.ndim != 1 or places.shape != values.shape or places.size == 0:
        raise ShapeError(
            f"interp between points of shapes {places.shape} and {values.shape}; give two vectors of one size"
        )
    slope = _core.full(places.shape, 0, "float64")  # slope from each point to the next; 0 after the last
    slope[:-1] = (values[1:] - values[:-1]) / (places[1:] - places[:-1])
    finite = bool(_core.unary("IsFinite", slope).all())  # if not, two points share an x, or a value is infinite
    flat, result = points.reshape(-1), _core.full(points.shape, 0, "float64")
    line = result.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        inside = _core.clip(flat[part], float(places[0]), float(places[-1]))
        below = operator("SearchSorted", [places, inside], right=1) - 1
        gap = inside - places[below]
        rise = slope[below] * gap
        line[part] = values[below] + (rise if finite else _core.where(gap == 0, 0, rise))
    if left is not None:
        result = _core.where(points < places[0], left, result)
    return result if right is None else _core.where(points > places[-1], right, result)
