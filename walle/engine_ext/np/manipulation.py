"""Shape manipulation: shapes, axes, joining, splitting, repeating, padding. Views in NumPy are views here."""

from __future__ import annotations

import builtins

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.base import (
    as_shape,
    asarray,
    flat_or_axis,
    index_along,
    normalize_axes,
    normalize_axis,
    operands,
    operator,
    product,
    to_common_dtype,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, Axis, Shape

__all__ = [
    "append", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block", "broadcast_arrays",
    "broadcast_shapes", "broadcast_to", "column_stack", "concat", "concatenate", "copyto", "delete", "dsplit",
    "dstack", "expand_dims", "flip", "fliplr", "flipud", "hsplit", "hstack", "insert", "matrix_transpose", "moveaxis",
    "ndim", "pad", "permute_dims", "ravel", "repeat", "reshape", "resize", "roll", "rollaxis", "rot90", "row_stack",
    "shape", "size", "split", "squeeze", "stack", "swapaxes", "tile", "transpose", "trim_zeros", "unstack", "vsplit",
    "vstack",
]  # fmt: skip


def shape(x: ArrayLike) -> tuple[int, ...]:
    return asarray(x).shape


def ndim(x: ArrayLike) -> int:
    return asarray(x).ndim


def size(x: ArrayLike, axis: Axis = None) -> int:
    given = asarray(x)
    return given.size if axis is None else product([given.shape[at] for at in normalize_axes(axis, given.ndim)])


# Views of one array.


def reshape(x: ArrayLike, shape: Shape, order: str = "C") -> ndarray:
    """Return a view if the elements are in row-major order already, else a copy."""
    return asarray(x).reshape(shape, order=order)


def ravel(x: ArrayLike, order: str = "C") -> ndarray:
    return asarray(x).ravel(order)


def transpose(x: ArrayLike, axes: Iterable[int] | None = None) -> ndarray:
    """Return a view with the axes in another order, reversed by default."""
    return asarray(x).transpose() if axes is None else asarray(x).transpose(tuple(axes))


permute_dims = transpose


def matrix_transpose(x: ArrayLike) -> ndarray:
    """Return a view with the last two axes swapped."""
    given = asarray(x)
    if given.ndim < 2:
        raise ShapeError(f"matrix_transpose of shape {given.shape}; it takes at least two dimensions")
    return given.swapaxes(-1, -2)


def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> ndarray:
    return asarray(x).swapaxes(axis1, axis2)


def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> ndarray:
    """Return a view with axes moved to other positions; the other axes keep their order."""
    given = asarray(x)
    sources, targets = normalize_axes(source, given.ndim), normalize_axes(destination, given.ndim)
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ShapeError(f"moveaxis of {source} to {destination}; give one position for each axis, and none twice")
    order = [axis for axis in range(given.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return given.transpose(order)


def rollaxis(x: ArrayLike, axis: int, start: int = 0) -> ndarray:
    """Return a view with an axis moved before the one at `start`."""
    given = asarray(x)
    at = normalize_axis(axis, given.ndim)
    before = start + given.ndim if start < 0 else start
    if not 0 <= before <= given.ndim:
        raise ShapeError(f"rollaxis to {start} of {given.ndim} dimensions; `start` is at most {given.ndim}")
    order = [one for one in range(given.ndim) if one != at]
    order.insert(before - (at < before), at)
    return given.transpose(order)


def expand_dims(x: ArrayLike, axis: int | Sequence[int]) -> ndarray:
    """Return a view with axes of size 1 at the given positions of the result."""
    given = asarray(x)
    if isinstance(axis, int):
        return given[index_along(normalize_axis(axis, given.ndim + 1), None)]
    chosen = tuple(axis)
    rank = given.ndim + len(chosen)
    at = normalize_axes(chosen, rank)
    if len(set(at)) != len(at):
        raise ShapeError(f"expand_dims names an axis twice: {axis}")
    return given[tuple(None if one in at else slice(None) for one in range(rank))] if at else given


def squeeze(x: ArrayLike, axis: Axis = None) -> ndarray:
    """Return a view without axes of size 1: all of them, or those named."""
    given = asarray(x)
    shape = given.shape
    if axis is None:
        return given.reshape([size for size in shape if size != 1]) if 1 in shape else given
    axes = normalize_axes(axis, len(shape))
    if any(shape[at] != 1 for at in axes):
        raise ShapeError(f"squeeze of axes {sorted(axes)} of shape {shape}; each must be 1")
    return given.reshape([size for at, size in enumerate(shape) if at not in axes])


def flip(x: ArrayLike, axis: Axis = None) -> ndarray:
    """Return a view with axes reversed."""
    given = asarray(x)
    if axis is None:
        return given[(*(_BACKWARDS,) * given.ndim, ...)]
    key = [slice(None)] * given.ndim
    for at in normalize_axes(axis, given.ndim):
        key[at] = _BACKWARDS
    return given[tuple(key)]


_BACKWARDS = slice(None, None, -1)


def fliplr(x: ArrayLike) -> ndarray:
    return asarray(x)[:, ::-1]


def flipud(x: ArrayLike) -> ndarray:
    return asarray(x)[::-1]


def rot90(x: ArrayLike, k: int = 1, axes: Sequence[int] = (0, 1)) -> ndarray:
    """Return a view rotated k times by 90 degrees, from the first axis towards the second."""
    given = asarray(x)
    first, second = normalize_axes(axes, given.ndim)
    if first == second:
        raise ShapeError(f"rot90 in the plane of {tuple(axes)}; the axes must differ")
    if k % 4 == 2:
        return flip(given, (first, second))
    if k % 4 == 1:
        return swapaxes(flip(given, second), first, second)
    return flip(swapaxes(given, first, second), second) if k % 4 == 3 else given[...]


def atleast_1d(*arrays: ArrayLike) -> Any:
    if len(arrays) != 1:
        return tuple(atleast_1d(x) for x in arrays)
    given = asarray(arrays[0])
    return given if given.ndim else given.reshape(1)


def atleast_2d(*arrays: ArrayLike) -> Any:
    if len(arrays) != 1:
        return tuple(atleast_2d(x) for x in arrays)
    given = asarray(arrays[0])
    return given if given.ndim > 1 else given.reshape(1, -1)


def atleast_3d(*arrays: ArrayLike) -> Any:
    if len(arrays) != 1:
        return tuple(atleast_3d(x) for x in arrays)
    given = asarray(arrays[0])
    if given.ndim > 2:
        return given
    return given[..., None] if given.ndim == 2 else given.reshape(1, given.size, 1)


def broadcast_to(x: ArrayLike, shape: Shape) -> ndarray:
    """Return a read-only view that repeats elements."""
    return _core.broadcast_to(x, shape)


def broadcast_shapes(*shapes: Shape) -> tuple[int, ...]:
    """Return the shape that all shapes broadcast to."""
    rows = [as_shape(one) for one in shapes]
    rank = builtins.max((len(row) for row in rows), default=0)
    result = [1] * rank
    for row in rows:
        for at, length in enumerate(row, rank - len(row)):
            if length != 1 and result[at] not in (1, length):
                raise ShapeError(f"shapes {', '.join(map(str, rows))} do not broadcast together")
            if length != 1:
                result[at] = length
    return tuple(result)


def broadcast_arrays(*arrays: ArrayLike) -> tuple[ndarray, ...]:
    given = [asarray(x) for x in arrays]
    common = broadcast_shapes(*(x.shape for x in given))
    return tuple(_core.broadcast_to(x, common) for x in given)


def sliding_window_view(x: ArrayLike, window_shape: Shape, axis: Axis = None) -> ndarray:
    """Return a read-only view of all windows; the axes within a window are the last ones."""
    given = asarray(x)
    lengths = as_shape(window_shape)
    axes = normalize_axes(axis, given.ndim)
    if len(lengths) != len(axes):
        raise ShapeError(f"windows of shape {lengths} along {len(axes)} axes; give one length for each axis")
    outer = list(given.shape)
    steps = [stride // given.itemsize for stride in given.strides]
    for at, length in zip(axes, lengths, strict=True):
        outer[at] -= length - 1
        if outer[at] < 1 or length < 0:
            raise ShapeError(f"windows of shape {lengths} do not fit an array of shape {given.shape}")
    return _core.as_strided(given, (*outer, *lengths), (*steps, *(steps[at] for at in axes)))


# Joining and splitting.


concat = concatenate = _core.concatenate


def stack(arrays: Sequence[ArrayLike], axis: int = 0) -> ndarray:
    """Return the arrays joined along a new axis; all have one shape."""
    return operator("Stack", to_common_dtype(arrays), axis=axis)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[ndarray, ...]:
    """Return views of the parts along an axis, without that axis."""
    return _core.unstack(asarray(x) if axis == 0 else moveaxis(x, axis, 0))


def vstack(arrays: Sequence[ArrayLike]) -> ndarray:
    return concatenate([atleast_2d(x) for x in arrays], 0)


row_stack = vstack


def hstack(arrays: Sequence[ArrayLike]) -> ndarray:
    parts = [atleast_1d(x) for x in arrays]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1)


def dstack(arrays: Sequence[ArrayLike]) -> ndarray:
    return concatenate([atleast_3d(x) for x in arrays], 2)


def column_stack(arrays: Sequence[ArrayLike]) -> ndarray:
    """Return vectors and matrices side by side; a vector is one column."""
    given = [asarray(x) for x in arrays]
    return concatenate([x.reshape(-1, 1) if x.ndim < 2 else x for x in given], 1)


def block(arrays: Any) -> ndarray:
    """Return nested lists of blocks joined: the innermost lists along the last axis, the next ones before it."""

    def depth(item: Any) -> int:
        return 1 + builtins.max(map(depth, item)) if isinstance(item, list) else 0

    def deepest(item: Any) -> int:
        return builtins.max(map(deepest, item)) if isinstance(item, list) else asarray(item).ndim

    levels = depth(arrays)
    rank = builtins.max(levels, deepest(arrays))

    def build(item: Any, level: int) -> ndarray:
        if isinstance(item, list):
            return concatenate([build(one, level + 1) for one in item], level - levels)
        x = asarray(item)
        return x.reshape((1,) * (rank - x.ndim) + x.shape)

    return build(arrays, 0) if levels else build(arrays, 0).copy()


def array_split(x: ArrayLike, parts: int | Sequence[int], axis: int = 0) -> list[ndarray]:
    """Return views: n parts, of which the first may be longer by one, or the parts between given positions."""
    given = asarray(x)
    at = normalize_axis(axis, given.ndim)
    length = given.shape[at]
    if isinstance(parts, int):
        if parts < 1:
            raise ShapeError(f"a split into {parts} parts; the number must be positive")
        each, more = builtins.divmod(length, parts)
        cuts = [each * i + builtins.min(i, more) for i in range(1, parts)]
    else:
        cuts = list(parts)
    bounds = zip([0, *cuts], [*cuts, length], strict=True)
    return [given[index_along(at, slice(first, last))] for first, last in bounds]


def split(x: ArrayLike, parts: int | Sequence[int], axis: int = 0) -> list[ndarray]:
    """Return views: `parts` equal ones, or the parts between given positions."""
    given = asarray(x)
    length = given.shape[normalize_axis(axis, given.ndim)]
    if isinstance(parts, int) and (parts < 1 or length % parts):
        raise ShapeError(f"an axis of {length} does not split into {parts} equal parts")
    return array_split(given, parts, axis)


def hsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[ndarray]:
    return split(x, parts, 0 if asarray(x).ndim == 1 else 1)


def vsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[ndarray]:
    return split(x, parts, 0)


def dsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[ndarray]:
    return split(x, parts, 2)


# Repeating, inserting and deleting.


def tile(x: ArrayLike, repeats: int | Sequence[int]) -> ndarray:
    given = asarray(x)
    times = as_shape(repeats)
    rank = builtins.max(given.ndim, len(times))
    shaped = given.reshape((1,) * (rank - given.ndim) + given.shape)
    return operator("Tile", [shaped], repeats=(1,) * (rank - len(times)) + times)


def repeat(x: ArrayLike, repeats: int | ArrayLike, axis: int | None = None) -> ndarray:
    """Return each element repeated in place; `repeats` is one count, or one for each element."""
    given, at = flat_or_axis(x, axis)
    times = asarray(repeats, "int64").reshape(-1)
    if times.size == 1:
        count = int(times)
        if count < 0:
            raise ShapeError(f"repeat of {count} times; the count must not be negative")
        spread = given[index_along(at + 1, None)] if at + 1 < given.ndim else given[..., None]
        wide = _core.broadcast_to(spread, (*given.shape[: at + 1], count, *given.shape[at + 1 :]))
        return wide.reshape((*given.shape[:at], given.shape[at] * count, *given.shape[at + 1 :]))
    if times.size != given.shape[at] or (times < 0).any():
        raise ShapeError(
            f"repeat of {given.shape[at]} elements by {times.size} counts; give one for each, none negative"
        )
    return operator("Repeat", [given], axis=at, repeats=times.tolist())


def roll(x: ArrayLike, shift: int | Sequence[int], axis: Axis = None) -> ndarray:
    """Return the elements shifted along axes, or in the flat array without an axis; the last ones move to the front."""
    given = asarray(x)
    if axis is None:
        return roll(given.reshape(-1), shift, 0).reshape(given.shape)
    shifts, axes = as_shape(shift), normalize_axes(axis, given.ndim)
    if len(shifts) == 1:
        shifts *= len(axes)
    elif len(axes) == 1:
        axes *= len(shifts)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll by {len(shifts)} shifts along {len(axes)} axes; give one shift, or one for each axis")
    by: dict[int, int] = {}
    for at, step in zip(axes, shifts, strict=True):
        by[at] = by.get(at, 0) + step
    return operator("Roll", [given], shifts=list(by.values()), axes=list(by))


def resize(x: ArrayLike, shape: Shape) -> ndarray:
    """Return the elements in another shape; too few elements are repeated."""
    given = asarray(x)
    if given.size == 0:
        return _core.full(shape, 0, given.dtype)
    return operator("Cycle", [given], shape=as_shape(shape))


def append(x: ArrayLike, values: ArrayLike, axis: int | None = None) -> ndarray:
    return concatenate(operands(x, values), axis)


def insert(x: ArrayLike, places: Any, values: ArrayLike, axis: int | None = None) -> ndarray:
    """Return the array with values inserted before the given positions."""
    given, at = flat_or_axis(x, axis)
    length = given.shape[at]
    if isinstance(places, slice):
        where = list(range(*places.indices(length)))
    else:
        where = asarray(places).reshape(-1).tolist()
        if where and isinstance(where[0], bool) and not isinstance(places, bool):  # a mask
            where = [spot for spot, is_there in enumerate(where) if is_there]
    for place in where:
        if not -length <= place <= length:
            raise IndexError(f"insert at {place} of an axis of size {length}; the position is {-length} to {length}")
    where = [place + length if place < 0 else place for place in where]
    added = asarray(values, given.dtype)
    if len(where) == 1:
        place = where[0]
        if isinstance(places, int):
            added = added.reshape((1,) * (given.ndim - added.ndim) + added.shape)
            added = moveaxis(added, 0, at)
        wide = added.shape[at - given.ndim] if added.ndim >= given.ndim - at and added.ndim else 1
        target = _core.broadcast_to(added, (*given.shape[:at], wide, *given.shape[at + 1 :]))
        return concatenate(
            [given[index_along(at, slice(None, place))], target, given[index_along(at, slice(place, None))]], at
        )
    order = sorted(range(len(where)), key=lambda i: where[i])
    spots = [0] * len(where)
    for shift, i in enumerate(order):
        spots[i] = where[i] + shift
    result = _core.full((*given.shape[:at], length + len(where), *given.shape[at + 1 :]), 0, given.dtype)
    taken = set(spots)
    old = [i for i in range(length + len(where)) if i not in taken]
    result[index_along(at, asarray(old, "int64"))] = given
    result[index_along(at, asarray(spots, "int64"))] = added
    return result


def delete(x: ArrayLike, places: Any, axis: int | None = None) -> ndarray:
    """Return the array without some elements along an axis; `obj` is an int, a slice, indices or a mask."""
    given, at = flat_or_axis(x, axis)
    keep = _core.full((given.shape[at],), True, "bool")
    keep[places if isinstance(places, slice | int) else asarray(places)] = False
    return given[index_along(at, keep)]


def trim_zeros(x: ArrayLike, trim: str = "fb") -> ndarray:
    """Return a view without zeros at the front ("f") and back ("b") of a vector."""
    given = asarray(x)
    places = operator("NonZero", [given]).reshape(-1)
    if places.size == 0:
        return given[:0]
    first = int(places[0]) if "f" in trim.lower() else 0
    last = int(places[-1]) + 1 if "b" in trim.lower() else given.size
    return given[first:last]


def copyto(to: ndarray, source: ArrayLike, where: ArrayLike | None = None) -> None:
    """Write the source into an array, where the mask is true."""
    if where is None:
        to[...] = asarray(source, to.dtype)
    else:
        to[...] = _core.where(where, asarray(source, to.dtype), to)


def pad(x: ArrayLike, width: int | Sequence[Any], mode: str = "constant", *, constant_values: Any = 0,
        end_values: Any = 0) -> ndarray:  # fmt: skip
    """Return a copy with a border; `width` is one number, one pair, or one pair for each axis.

    Modes are constant, edge, reflect, symmetric, wrap, linear_ramp (to `end_values`), maximum, mean, minimum and empty
    (zeros).
    """
    given = asarray(x)
    pairs = _pairs(width, given.ndim)
    if any(number < 0 for pair in pairs for number in pair):
        raise ShapeError(f"pad by {width}; widths must not be negative")
    if mode == "empty":
        mode, constant_values = "constant", 0
    if mode in ("edge", "reflect", "symmetric", "wrap"):
        result = given
        for at, (before, after) in enumerate(pairs):
            if before or after:
                result = result[index_along(at, _border_indices(given.shape[at], before, after, mode))]
        return result.copy() if result is given else result
    if mode == "constant":
        fills = _pairs(constant_values, given.ndim)
        if len({number for pair in fills for number in pair}) == 1:
            pads = [before for before, _ in pairs] + [after for _, after in pairs]
            fill = asarray(fills[0][0], given.dtype)
            return operator("Pad", [given, asarray(pads, "int64"), fill])
        result = given
        for at, ((before, after), (low, high)) in enumerate(zip(pairs, fills, strict=True)):
            result = _join_borders(result, at, before, after, asarray(low, given.dtype), asarray(high, given.dtype))
        return result
    return _compute_border(given, pairs, mode, _pairs(end_values, given.ndim))


def _pairs(width: Any, ndim: int) -> list[tuple[Any, Any]]:
    numbers = width.tolist() if isinstance(width, ndarray) else width
    if isinstance(numbers, int | float):
        return [(numbers, numbers)] * ndim
    rows = list(numbers)
    if rows and isinstance(rows[0], int | float):
        rows = [rows]
    pairs = [tuple(row) * 2 if len(row) == 1 else tuple(row) for row in rows]
    if len(pairs) == 1:
        pairs *= ndim
    if len(pairs) != ndim or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(f"pad of {ndim} dimensions by {width}; give a number, a pair, or one pair for each axis")
    return pairs


def _border_indices(length: int, before: int, after: int, mode: str) -> ndarray:
    """Return, for each index of the padded axis, the index of the element that is there."""
    if length == 0:
        raise ShapeError(f"pad of an axis without elements in mode {mode!r}; use constant or empty")
    place = _core.arange(-before, 1, before + length + after, "int64")
    if mode == "edge":
        return _core.binary("Minimum", _core.binary("Maximum", place, 0), length - 1)
    if mode == "wrap":
        return place % length
    if mode == "symmetric":
        turn = place % (2 * length)
        return _core.binary("Minimum", turn, 2 * length - 1 - turn)
    if length == 1:
        return place * 0
    turn = place % (2 * length - 2)
    return _core.binary("Minimum", turn, 2 * length - 2 - turn)


def _join_borders(x: ndarray, at: int, before: int, after: int, low: ndarray, high: ndarray) -> ndarray:
    """Return the array with borders along an axis, `low` before and `high` after, each broadcast."""
    left = _core.broadcast_to(low, (*x.shape[:at], before, *x.shape[at + 1 :]))
    right = _core.broadcast_to(high, (*x.shape[:at], after, *x.shape[at + 1 :]))
    return concatenate([left, x, right], at) if before or after else x


def _compute_border(given: ndarray, pairs: list[tuple[Any, Any]], mode: str, ends: list[tuple[Any, Any]]) -> ndarray:
    statistics = {"maximum": "ReduceMax", "minimum": "ReduceMin", "mean": "ReduceMean"}
    result = given
    for at, (before, after) in enumerate(pairs):
        if mode in statistics:
            value = _core.reduce(statistics[mode], result, at, True)
            if mode == "mean" and value.dtype != given.dtype:
                value = _core.unary("Round", value) if given.dtype not in ("float32", "float64") else value
            edge = value.astype(given.dtype)
            result = _join_borders(result, at, before, after, edge, edge)
        elif mode == "linear_ramp":
            low, high = result[index_along(at, slice(0, 1))], result[index_along(at, slice(-1, None))]
            line = [1] * given.ndim
            line[at] = -1
            up = (_core.arange(0, 1, before, "float64") / float(builtins.max(before, 1))).reshape(line)
            down = (_core.arange(after - 1, -1, after, "float64") / float(builtins.max(after, 1))).reshape(line)
            first, last = (float(end) for end in ends[at])
            left = low.astype("float64") * up + (1.0 - up) * first
            right = high.astype("float64") * down + (1.0 - down) * last
            if not given.dtype.startswith("float"):
                left, right = _core.unary("Floor", left), _core.unary("Floor", right)
            result = _join_borders(result, at, before, after, left.astype(given.dtype), right.astype(given.dtype))
        else:
            raise ShapeError(
                f"pad in mode {mode!r}; known are constant, edge, reflect, symmetric, wrap, linear_ramp, maximum, "
                "mean, minimum and empty"
            )
    return result
