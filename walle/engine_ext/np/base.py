"""What the modules of walle.np share: operators by name, axes, dtypes."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, Axis, DType

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})

asarray = _core.asarray
operator = _core.operator


def axis_of(axis: int, ndim: int) -> int:
    """Return the axis counted from the front.

    Raises:
        ShapeError: it is out of range.
    """
    if not -ndim <= axis < ndim:
        raise ShapeError(f"axis {axis} is out of range for {ndim} dimensions")
    return axis % ndim


def axes_of(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return the axes counted from the front; None means all of them."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(axis_of(one, ndim) for one in ((axis,) if isinstance(axis, int) else axis))


def flat_or_axis(x: ArrayLike, axis: int | None) -> tuple[ndarray, int]:
    """Return the array and the axis counted from the front; without one, the array in one dimension and 0."""
    given = asarray(x)
    return (given.reshape(-1), 0) if axis is None else (given, axis_of(axis, given.ndim))


def along(axis: int, item: Any) -> tuple[Any, ...]:
    """Return the index that takes `item` along an axis."""
    return (slice(None),) * axis + (item,)


def alike(arrays: Iterable[ArrayLike], dtype: DType | None = None) -> list[ndarray]:
    """Return arrays of one dtype, that of all together."""
    parts = [asarray(part) for part in arrays]
    if not parts:
        raise ShapeError("at least one array is needed")
    if dtype is None:
        if len({part.dtype for part in parts}) == 1:
            return parts
        dtype = parts[0].dtype
        for part in parts[1:]:
            dtype = _core.promote(dtype, part.dtype)
    return [asarray(part, dtype) for part in parts]


def floating(x: ArrayLike) -> ndarray:
    """Return the array as floats: float64 for int32 and int64, float32 for smaller integers and bool."""
    given = asarray(x)
    return given if given.dtype in FLOATS else given.astype(_float_for(given))


def beside(x: ArrayLike, other: ndarray) -> ndarray:
    """Return the array; a float of Python's has the dtype of the one beside it, and loses no digit in float64."""
    return asarray(x, _float_for(other)) if isinstance(x, float) else asarray(x)


def pair(a: ArrayLike, b: ArrayLike) -> tuple[ndarray, ndarray]:
    """Return two arrays, of which a float of Python's has the dtype of the other."""
    if isinstance(a, float):
        right = asarray(b)
        return beside(a, right), right
    left = asarray(a)
    return left, beside(b, left)


def _float_for(x: ndarray) -> DType:
    return x.dtype if x.dtype in FLOATS else "float64" if x.itemsize >= 4 else "float32"


def sizes(shape: int | Iterable[int]) -> tuple[int, ...]:
    """Return a shape as a tuple."""
    return (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)


def product(numbers: Iterable[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
