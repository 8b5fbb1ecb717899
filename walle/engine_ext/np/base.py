"""Helpers that the modules of walle.np share: operators by name, axes, dtypes."""

from __future__ import annotations

from operator import index

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import DTypeError, ShapeError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, Axis, DType

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
COMPLEX = frozenset({"complex64", "complex128"})
INEXACT = FLOATS | COMPLEX

asarray = _core.asarray
operator = _core.operator


def normalize_axis(axis: int, ndim: int) -> int:
    """Return the axis as an index from the front.

    Raises:
        ShapeError: the axis is out of range.
    """
    if not -ndim <= axis < ndim:
        raise ShapeError(f"axis {axis} is out of range for {ndim} dimensions")
    return axis % ndim


def normalize_axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return the axes as indices from the front; None means all of them."""
    return tuple(range(ndim)) if axis is None else tuple(normalize_axis(one, ndim) for one in as_shape(axis))


def flat_or_axis(x: ArrayLike, axis: int | None) -> tuple[ndarray, int]:
    """Return the array and the axis as an index from the front; without an axis, the flat array and 0."""
    given = asarray(x)
    return (given.reshape(-1), 0) if axis is None else (given, normalize_axis(axis, given.ndim))


def index_along(axis: int, item: Any) -> tuple[Any, ...]:
    """Return the index that applies `item` to one axis and takes all of the axes before it."""
    return (slice(None),) * axis + (item,)


def to_common_dtype(arrays: Iterable[ArrayLike], dtype: DType | None = None) -> list[ndarray]:
    """Return the arrays converted to `dtype`, or without one to the dtype that they all promote to."""
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


def to_floating(x: ArrayLike) -> ndarray:
    """Return the array converted to floats: float64 for int32 and int64, float32 for smaller integers and bool.

    Complex numbers stay unchanged.
    """
    given = asarray(x)
    return given if given.dtype in INEXACT else given.astype(_float_for(given))


def operand_for(x: ArrayLike, other: ndarray) -> ndarray:
    """Return the array; a Python float or complex takes the precision of `other`, so that none is lost."""
    if isinstance(x, complex):
        return asarray(x, "complex128" if _float_for(other) in ("float64", "complex128") else "complex64")
    return asarray(x, _float_for(other)) if isinstance(x, float) else asarray(x)


def refuse_complex(x: ndarray, function: str) -> ndarray:
    """Return the array.

    Raises:
        DTypeError: it is complex.
    """
    if x.dtype in COMPLEX:
        raise DTypeError(f"{function} does not support {x.dtype}; take x.real, x.imag or abs(x)")
    return x


def operands(a: ArrayLike, b: ArrayLike) -> tuple[ndarray, ndarray]:
    """Return two arrays; a Python float or complex takes the precision of the other operand."""
    if isinstance(a, float | complex):
        right = asarray(b)
        return operand_for(a, right), right
    left = asarray(a)
    return left, operand_for(b, left)


def _float_for(x: ndarray) -> DType:
    return x.dtype if x.dtype in INEXACT else "float64" if x.itemsize >= 4 else "float32"


def as_shape(shape: int | ndarray | Iterable[int]) -> tuple[int, ...]:
    """Return a shape, or other integers, as a tuple; one integer, which may be an array without dimensions, as one."""
    if isinstance(shape, int):
        return (shape,)
    if isinstance(shape, ndarray) and shape.ndim == 0:
        return (index(shape),)
    return tuple(index(size) for size in shape)


def product(numbers: Iterable[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
