"""Arrays that are written as indices: `r_`, `c_`, `mgrid`, `ogrid`, and the index itself, `s_`."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError, UnsupportedError
from walle.engine_ext.np.base import asarray

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["c_", "index_exp", "mgrid", "ogrid", "r_", "s_"]


def _line(part: slice) -> ndarray:
    """Return the numbers of start:stop:step, or of start:stop:nj, which is n numbers with the last one."""
    from walle.engine_ext.np import linspace

    if part.stop is None:
        raise ShapeError("a slice of r_, c_, mgrid or ogrid needs an end, as in r_[0:3]")
    start, step = 0 if part.start is None else part.start, 1 if part.step is None else part.step
    if isinstance(step, complex):
        numbers: ndarray = linspace(float(start), float(part.stop), int(abs(step)))
        return numbers
    return _core.arange_until(start, part.stop, step)


class _Concatenation:
    """`r_[...]`: slices, numbers and arrays, joined along an axis."""

    def __init__(self, axis: int, ndmin: int, at_end: bool) -> None:
        self._axis, self._ndmin, self._at_end = axis, ndmin, at_end

    def __getitem__(self, key: Any) -> ndarray:
        parts = list(key) if isinstance(key, tuple) else [key]
        axis, ndmin, first = self._axis, self._ndmin, -1 if self._at_end else 0
        if parts and isinstance(parts[0], str):
            words = parts.pop(0).split(",")
            try:
                numbers = [int(word) for word in words]
            except ValueError:
                message = f"r_ with {words[0]!r} is not supported; give axis,ndim,place, as in '0,2'"
                raise UnsupportedError(message) from None
            axis, ndmin, first = [*numbers, *(axis, ndmin, -1)[len(numbers) :]][:3]
        arrays = [self._part(part, ndmin, first) for part in parts]
        return _core.concatenate(arrays, axis)

    def _part(self, part: Any, ndmin: int, first: int) -> ndarray:
        array = _line(part) if isinstance(part, slice) else asarray(part)
        missing = max(max(ndmin, 1) - array.ndim, 0)
        if not missing:
            return array
        before = missing if first == -1 else min(first, missing)
        if self._at_end and first == -1:
            before = 0 if array.ndim else missing
        return array.reshape((1,) * before + array.shape + (1,) * (missing - before))


class _Grid:
    """`mgrid[...]` and `ogrid[...]`: the coordinates over a grid of slices, filled or open."""

    def __init__(self, is_open: bool) -> None:
        self._is_open = is_open

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, tuple):
            return _line(key)
        lines = [_line(part) for part in key]
        rank = len(lines)
        parts = [line.reshape((1,) * at + (-1,) + (1,) * (rank - at - 1)) for at, line in enumerate(lines)]
        if self._is_open:
            return tuple(parts)
        shape = tuple(line.size for line in lines)
        dtype = lines[0].dtype if lines else "int64"
        for line in lines[1:]:
            dtype = _core.promote(dtype, line.dtype)
        result = _core.full((rank, *shape), 0, dtype)
        for at, part in enumerate(parts):
            result[at] = part
        return result


class _Index:
    """`s_[1:2, ...]`: the index that is written."""

    def __init__(self, is_tuple: bool) -> None:
        self._is_tuple = is_tuple

    def __getitem__(self, key: Any) -> Any:
        return (key,) if self._is_tuple and not isinstance(key, tuple) else key


r_ = _Concatenation(0, 1, at_end=False)
c_ = _Concatenation(-1, 2, at_end=True)
mgrid, ogrid = _Grid(is_open=False), _Grid(is_open=True)
s_, index_exp = _Index(is_tuple=False), _Index(is_tuple=True)
