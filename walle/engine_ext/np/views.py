"""Views of an array as objects: `x.flags`, the iterator `x.flat`, and NumPy's array."""

from __future__ import annotations

import contextlib

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike

__all__ = ["Flags", "as_numpy", "flatiter"]

_NAMES = {
    "C_CONTIGUOUS": "c_contiguous", "C": "c_contiguous", "CONTIGUOUS": "c_contiguous", "F_CONTIGUOUS": "f_contiguous",
    "F": "f_contiguous", "FORTRAN": "f_contiguous", "WRITEABLE": "writeable", "W": "writeable", "OWNDATA": "owndata",
    "O": "owndata", "ALIGNED": "aligned", "A": "aligned",
}  # fmt: skip


def as_numpy(array: ndarray, dtype: Any = None, copy: bool | None = None) -> Any:
    """Return a NumPy array that shares an array's memory, or a copy where one is asked for or `dtype` is another one.

    bfloat16 and the storage types have ml_dtypes' type of their name; where ml_dtypes is not installed or lacks it,
    uint16 or uint8: their bits. Needs NumPy.

    Raises:
        ValueError: `copy` is False and the dtype is another one.
    """
    import numpy as np

    try:
        found = np.asarray(memoryview(array))
    except BufferError:
        found = np.asarray(memoryview(array.view("uint8" if array.itemsize == 1 else "uint16")))
        with contextlib.suppress(ModuleNotFoundError):
            import ml_dtypes

            found = found.view(getattr(ml_dtypes, str(array.dtype), found.dtype))
    if dtype is not None and found.dtype != dtype:
        if copy is False:
            raise ValueError(f"an array of {found.dtype} cannot become {dtype} without a copy")
        return found.astype(dtype)
    return found.copy() if copy else found


class Flags:
    """Order of an array's elements in memory, and whether they may be written; keys and attributes as NumPy's."""

    def __init__(self, array: ndarray) -> None:
        self._array = array

    @property
    def c_contiguous(self) -> bool:
        return memoryview(self._array).c_contiguous

    @property
    def f_contiguous(self) -> bool:
        return memoryview(self._array).f_contiguous

    contiguous = c_contiguous

    @property
    def owndata(self) -> bool:
        return self._array.base is None

    @property
    def aligned(self) -> bool:
        return True

    @property
    def writeable(self) -> bool:
        return not memoryview(self._array).readonly

    @writeable.setter
    def writeable(self, write: bool) -> None:
        self._array.setflags(write=write)

    def __getitem__(self, name: str) -> bool:
        if name not in _NAMES:
            raise KeyError(f"unknown flag {name!r}; known are {', '.join(sorted(_NAMES))}")
        value: bool = getattr(self, _NAMES[name])
        return value

    def __setitem__(self, name: str, value: bool) -> None:
        if name not in ("WRITEABLE", "W"):
            raise KeyError(f"flag {name!r} cannot be set; only WRITEABLE can")
        self.writeable = value

    def __repr__(self) -> str:
        names = ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA", "WRITEABLE", "ALIGNED")
        return "\n".join(f"  {name} : {self[name]}" for name in names)


class flatiter:  # noqa: N801 -- NumPy's name
    """The elements of an array in row-major order; an index reads and writes the array itself."""

    def __init__(self, array: ndarray) -> None:
        self.base = array
        self.index = 0

    @property
    def coords(self) -> tuple[int, ...]:
        """The place of the next element."""
        from walle.engine_ext.np import unravel_index

        return tuple(int(at) for at in unravel_index(self.index, self.base.shape))

    def copy(self) -> ndarray:
        return self.base.flatten()

    def __iter__(self) -> flatiter:
        return self

    def __next__(self) -> ndarray:
        if self.index >= self.base.size:
            raise StopIteration
        self.index += 1
        return self[self.index - 1]

    def __len__(self) -> int:
        return self.base.size

    def __getitem__(self, key: Any) -> ndarray:
        result = self.base.reshape(-1)[key]
        return result.copy() if result.ndim else result

    def __setitem__(self, key: Any, value: ArrayLike) -> None:
        """Set elements; a value with too few elements is repeated, as NumPy does."""
        flat = self.base.reshape(-1)
        is_view = flat.base is not None or self.base.ndim == 1
        places = _core.arange_until(flat.size)[key]
        values = _core.asarray(value, flat.dtype).reshape(-1)
        if places.size and not values.size:
            raise ShapeError("elements of `flat` cannot be set to an empty array")
        if places.size:
            flat[places.reshape(-1)] = values[_core.arange_until(places.size) % values.size]
        if not is_view:
            self.base[...] = flat.reshape(self.base.shape)

    def __eq__(self, other: object) -> Any:
        return self.base.reshape(-1) == other

    def __ne__(self, other: object) -> Any:
        return self.base.reshape(-1) != other

    __hash__ = None  # type: ignore[assignment]
