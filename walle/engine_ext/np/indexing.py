"""Indexing: reading and writing elements by index, mask, condition and diagonal; coordinates."""

from __future__ import annotations

from itertools import product as cartesian

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import DTypeError, ShapeError
from walle.engine_ext.np.base import as_shape, asarray, flat_or_axis, index_along, operator, product, to_common_dtype

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, Shape

__all__ = [
    "argwhere", "choose", "compress", "diag_indices", "diag_indices_from", "diagonal", "extract", "fill_diagonal",
    "flatnonzero", "ix_", "mask_indices", "ndenumerate", "ndindex", "nonzero", "place", "put", "put_along_axis",
    "putmask", "ravel_multi_index", "select", "take", "take_along_axis", "trace", "tril_indices", "tril_indices_from",
    "triu_indices", "triu_indices_from", "unravel_index", "where",
]  # fmt: skip


def where(condition: ArrayLike, a: ArrayLike | None = None, b: ArrayLike | None = None) -> Any:
    """Return a where the condition is true, else b; for a condition alone, the coordinates of true elements."""
    if a is None and b is None:
        return nonzero(condition)
    if a is None or b is None:
        raise ShapeError("where with one of its two choices; give both or neither")
    return _core.where(condition, a, b)


def nonzero(x: ArrayLike) -> tuple[ndarray, ...]:
    """Return one array of coordinates for each axis."""
    given = asarray(x)
    if given.ndim == 0:
        raise ShapeError("nonzero of an array without dimensions; reshape it to one dimension")
    places = operator("NonZero", [given])
    return tuple(places[axis] for axis in range(given.ndim))


def flatnonzero(x: ArrayLike) -> ndarray:
    return nonzero(asarray(x).reshape(-1))[0]


def argwhere(x: ArrayLike) -> ndarray:
    """Return the coordinates of the elements that are not 0, shape (count, rank)."""
    given = asarray(x)
    return operator("NonZero", [given]).T.copy() if given.ndim else _core.full((int(bool(given)), 0), 0, "int64")


def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None, mode: str = "raise") -> ndarray:
    """Return the elements at indices along an axis; `mode` "wrap" or "clip" accepts indices out of range."""
    given, at = flat_or_axis(x, axis)
    places = asarray(indices)
    if mode == "wrap":
        places = places % given.shape[at]
    elif mode == "clip":
        places = _core.binary("Minimum", _core.binary("Maximum", places, 0), given.shape[at] - 1)
    elif mode != "raise":
        raise ShapeError(f"take in mode {mode!r}; known are raise, wrap and clip")
    if places.ndim == 0:
        return given[index_along(at, int(places))].copy()
    return given[index_along(at, places) if at else places]


def _axis_key(x: ndarray, indices: ArrayLike, axis: int | None) -> tuple[ndarray, tuple[ndarray, ...]]:
    given, at = flat_or_axis(x, axis)
    places = asarray(indices)
    if places.ndim != given.ndim:
        raise ShapeError(f"indices of {places.ndim} dimensions for an array of {given.ndim}; the numbers must be equal")
    key = tuple(
        places
        if one == at
        else _core.arange(0, 1, size, "int64").reshape([-1 if i == one else 1 for i in range(given.ndim)])
        for one, size in enumerate(given.shape)
    )
    return given, key


def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = -1) -> ndarray:
    """Return, for each line along an axis, the elements at its own indices, such as those of argsort."""
    given, key = _axis_key(asarray(x), indices, axis)
    return given[key]


def put_along_axis(x: ndarray, indices: ArrayLike, values: ArrayLike, axis: int | None = -1) -> None:
    given, key = _axis_key(x, indices, axis)
    given[key] = asarray(values)
    if axis is None and x.ndim != 1:
        x[...] = given.reshape(x.shape)


def put(x: ndarray, indices: ArrayLike, values: ArrayLike) -> None:
    """Write values at indices of the flat array; too few values are repeated, and none change nothing."""
    places = asarray(indices, "int64").reshape(-1)
    flat, written = x.reshape(-1), asarray(values, x.dtype)
    if not written.size:
        return
    flat[places] = _repeat_to(written, places.size)
    if x.ndim != 1:
        x[...] = flat.reshape(x.shape)


def _repeat_to(values: ndarray, count: int) -> ndarray:
    flat = values.reshape(-1)
    if count in (0, flat.size):
        return flat[:count]
    if flat.size == 0:
        raise ShapeError("no values to write; give one value or more")
    return operator("Tile", [flat], repeats=(-(-count // flat.size),))[:count]


def place(x: ndarray, mask: ArrayLike, values: ArrayLike) -> None:
    """Write values in turn to the elements where the mask is true; too few values are repeated."""
    chosen = asarray(mask, "bool").reshape(x.shape)
    x[chosen] = _repeat_to(asarray(values, x.dtype), int(chosen.sum()))


def putmask(x: ndarray, mask: ArrayLike, values: ArrayLike) -> None:
    """Write, where the mask is true, the value at the same index; values are repeated over the array."""
    if asarray(mask).size != x.size:
        raise ShapeError(f"putmask with a mask of {asarray(mask).size} elements for an array of {x.size}")
    mask = asarray(mask).reshape(x.shape)
    filled = _repeat_to(asarray(values, x.dtype), x.size).reshape(x.shape)
    x[...] = _core.where(mask, filled, x)


def choose(choice: ArrayLike, choices: Sequence[ArrayLike]) -> ndarray:
    """Return, for each element, the element of the choice that it numbers."""
    which = asarray(choice, "int64")
    options = to_common_dtype(choices)
    if which.size and (int(which.min()) < 0 or int(which.max()) >= len(options)):
        raise ShapeError(f"choose with an index outside 0 to {len(options) - 1}")
    result = options[0]
    for number, option in enumerate(options[1:], 1):
        result = _core.where(which == number, option, result)
    return _core.where(which == 0, options[0], result)


def select(conditions: Sequence[ArrayLike], choices: Sequence[ArrayLike], default: ArrayLike = 0) -> ndarray:
    """Return, for each element, the choice of the first condition that is true."""
    if len(conditions) != len(choices) or not conditions:
        raise ShapeError(
            f"select with {len(conditions)} conditions and {len(choices)} choices; give one choice for each"
        )
    result: ArrayLike = default
    for condition, option in zip(reversed(conditions), reversed(choices), strict=True):
        result = _core.where(condition, option, result)
    return asarray(result)


def compress(condition: ArrayLike, x: ArrayLike, axis: int | None = None) -> ndarray:
    """Return the slices along an axis whose condition is true."""
    if isinstance(condition, ndarray) and condition.dtype != "bool" and asarray(x).dtype == "bool":
        condition, x = x, condition  # called as a method: x.compress(condition)
    given, at = flat_or_axis(x, axis)
    return operator("Compress", [given, asarray(condition, "bool").reshape(-1)], axis=at)


def extract(condition: ArrayLike, x: ArrayLike) -> ndarray:
    return compress(asarray(condition).reshape(-1), asarray(x).reshape(-1))


# Diagonals and triangles.


def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    """Return a read-only view of the diagonals of the plane of two axes; they are its last axis."""
    return _core.diagonal(asarray(x), offset, axis1, axis2)


def trace(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    return diagonal(x, offset, axis1, axis2).sum(-1)


def fill_diagonal(x: ndarray, value: ArrayLike) -> None:
    """Write a value, or values in turn, to the main diagonal."""
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) != 1):
        raise ShapeError(f"fill_diagonal of shape {x.shape}; it takes a matrix, or more axes of one size")
    count = min(x.shape)
    line = _core.arange(0, 1, count, "int64")
    x[(line,) * x.ndim] = _repeat_to(asarray(value, x.dtype), count)


def diag_indices(n: int, ndim: int = 2) -> tuple[ndarray, ...]:
    return (_core.arange(0, 1, n, "int64"),) * ndim


def diag_indices_from(x: ArrayLike) -> tuple[ndarray, ...]:
    given = asarray(x)
    if given.ndim < 2 or len(set(given.shape)) != 1:
        raise ShapeError(f"diag_indices_from of shape {given.shape}; all axes must have one size")
    return diag_indices(given.shape[0], given.ndim)


def mask_indices(n: int, mask: Callable[[ndarray, int], ndarray], k: int = 0) -> tuple[ndarray, ...]:
    """Return the coordinates of an n x n matrix that a function such as triu keeps."""
    return nonzero(mask(_core.full((n, n), 1, "int64"), k))


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[ndarray, ...]:
    rows, columns = _core.arange(0, 1, n, "int64"), _core.arange(0, 1, n if m is None else m, "int64")
    return nonzero(rows[:, None] + k >= columns[None, :])


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[ndarray, ...]:
    rows, columns = _core.arange(0, 1, n, "int64"), _core.arange(0, 1, n if m is None else m, "int64")
    return nonzero(rows[:, None] + k <= columns[None, :])


def tril_indices_from(x: ArrayLike, k: int = 0) -> tuple[ndarray, ...]:
    n, m = asarray(x).shape
    return tril_indices(n, k, m)


def triu_indices_from(x: ArrayLike, k: int = 0) -> tuple[ndarray, ...]:
    n, m = asarray(x).shape
    return triu_indices(n, k, m)


# Coordinates.


def ix_(*lines: ArrayLike) -> tuple[ndarray, ...]:
    """Return index arrays that select the grid of the given vectors."""
    result = []
    for at, line in enumerate(lines):
        places = asarray(line)
        if places.ndim != 1:
            raise ShapeError(f"ix_ takes vectors, not shape {places.shape}")
        if places.dtype == "bool":
            places = flatnonzero(places)
        elif places.size == 0:
            places = places.astype("int64")
        result.append(places.reshape([-1 if one == at else 1 for one in range(len(lines))]))
    return tuple(result)


def unravel_index(indices: ArrayLike, shape: Shape) -> tuple[ndarray, ...]:
    """Return the coordinates of indices of the flat array."""
    rest = asarray(indices, "int64")
    lengths = as_shape(shape)
    given = asarray(indices)
    if given.size and given.dtype.kind not in "iu":
        raise DTypeError(f"unravel_index of {given.dtype}; indices must be integers")
    if _is_outside(rest, product(lengths)):
        raise ShapeError(f"unravel_index with an index outside an array of shape {lengths}")
    if not lengths and rest.ndim:
        raise ShapeError("unravel_index of a shape without dimensions; it has one index, 0, without dimensions")
    if len(lengths) < 2:
        return (rest.copy(),) * len(lengths)
    result = []
    for length in reversed(lengths[1:]):
        result.append(rest % length)
        rest = rest // length
    return (rest, *reversed(result))


def _is_outside(places: ndarray, length: int) -> bool:
    """Return whether an int64 index is out of range; read as unsigned, a negative index exceeds every length."""
    return bool((places.view("uint64") >= length).any())


def ravel_multi_index(coordinates: Sequence[ArrayLike], dims: Shape, mode: str | Sequence[str] = "raise") -> ndarray:
    """Return indices of the flat array from one array of coordinates for each axis.

    `mode` says, for all axes or for each, what a coordinate outside becomes: an error ("raise"), one counted from the
    other end ("wrap"), or the nearest inside ("clip").
    """
    lines = [asarray(line, "int64") for line in coordinates]
    lengths = as_shape(dims)
    modes = [mode] * len(lengths) if isinstance(mode, str) else list(mode)
    if len(lines) != len(lengths) or len(modes) != len(lengths):
        raise ShapeError(
            f"{len(lines)} coordinate arrays and {len(modes)} modes for {len(lengths)} dimensions; give one for each"
        )
    if any(one not in ("raise", "wrap", "clip") for one in modes):
        raise ShapeError(f"unknown mode {mode!r}; known are raise, wrap and clip")
    result: ndarray | None = None
    for line, length, how in zip(lines, lengths, modes, strict=True):
        if length == 0 and line.size:
            raise ShapeError("ravel_multi_index with a coordinate on an axis without elements")
        if how == "wrap":
            inside = line % length
        elif how == "clip":
            inside = _core.binary("Minimum", _core.binary("Maximum", line, 0), length - 1)
        elif _is_outside(line, length):
            raise ShapeError(f"ravel_multi_index with a coordinate outside an axis of size {length}")
        else:
            inside = line
        result = inside if result is None else result * length + inside
    return _core.full((), 0, "int64") if result is None else result


def ndindex(*shape: Any) -> Iterator[tuple[int, ...]]:
    """Iterate over the coordinates of a shape, the last axis fastest."""
    lengths = as_shape(shape[0] if len(shape) == 1 else shape)
    if any(length < 0 for length in lengths):
        raise ShapeError(f"ndindex of shape {lengths}; sizes must not be negative")
    return cartesian(*(range(length) for length in lengths))


def ndenumerate(x: ArrayLike) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Iterate over (coordinates, element as a Python number)."""
    given = asarray(x)
    return zip(ndindex(given.shape), given.reshape(-1).tolist(), strict=True)
