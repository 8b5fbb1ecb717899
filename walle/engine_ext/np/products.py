"""Products of arrays: MatMul and Einsum under NumPy's names."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.base import (
    asarray,
    normalize_axes,
    normalize_axis,
    operands,
    operator,
    product,
    to_common_dtype,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from walle.engine_ext.np.likes import ArrayLike

__all__ = [
    "cross",
    "dot",
    "einsum",
    "inner",
    "kron",
    "matmul",
    "matvec",
    "outer",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]


def matmul(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("MatMul", a, b)


def dot(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the sum of products over the last axis of `a` and the last but one (or only) axis of `b`."""
    left, right = operands(a, b)
    if left.ndim == 0 or right.ndim == 0:
        return _core.binary("Mul", left, right)
    if right.ndim <= 2:
        return _core.binary("MatMul", left, right)
    rows = left.reshape(product(left.shape[:-1]), left.shape[-1]) if left.ndim > 2 else left
    stacked = _core.binary("MatMul", rows, right)  # one matrix for each matrix of the right operand
    if left.ndim == 1:
        return stacked
    result = stacked.transpose((stacked.ndim - 2, *range(stacked.ndim - 2), stacked.ndim - 1))
    return result.reshape(left.shape[:-1] + result.shape[1:]) if left.ndim > 2 else result


def vdot(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the sum of products of all elements, those of `a` conjugated."""
    return _core.binary("MatMul", asarray(a).reshape(-1).conj(), asarray(b).reshape(-1))


def inner(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the sum of products over the last axes of both."""
    left, right = operands(a, b)
    if left.ndim == 0 or right.ndim == 0:
        return _core.binary("Mul", left, right)
    if right.ndim == 1:
        return _core.binary("MatMul", left, right)
    if right.ndim == 2:
        return _core.binary("MatMul", left, right.T)
    return tensordot(left, right, ([left.ndim - 1], [right.ndim - 1]))


def outer(a: ArrayLike, b: ArrayLike) -> ndarray:
    left, right = operands(a, b)
    return _core.binary("Mul", left.reshape(-1, 1), right.reshape(1, -1))


def vecdot(a: ArrayLike, b: ArrayLike, axis: int = -1) -> ndarray:
    """Return the sums of products along an axis, those of `a` conjugated; the other axes are broadcast."""
    products = _core.binary("Mul", asarray(a).conj(), b)
    result = products.sum(axis)
    return result if products.dtype == result.dtype else result.astype(products.dtype)


def matvec(a: ArrayLike, b: ArrayLike) -> ndarray:
    line = asarray(b)
    return _core.binary("MatMul", a, line) if line.ndim == 1 else _core.binary("MatMul", a, line[..., None])[..., 0]


def vecmat(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the products of the conjugates of vectors with matrices."""
    line = asarray(a).conj()
    if line.ndim == 1:
        return _core.binary("MatMul", line, b)
    return _core.binary("MatMul", line[..., None, :], b)[..., 0, :]


def tensordot(a: ArrayLike, b: ArrayLike, axes: int | Sequence[int | Sequence[int]] = 2) -> ndarray:
    """Return the sum of products over pairs of axes: the last n of `a` and the first n of `b`, or those named."""
    left, right = asarray(a), asarray(b)
    if isinstance(axes, int):
        gone_left, gone_right = tuple(range(left.ndim - axes, left.ndim)), tuple(range(axes))
    else:
        first, second = axes
        gone_left, gone_right = normalize_axes(first, left.ndim), normalize_axes(second, right.ndim)
    if len(gone_left) != len(gone_right) or any(
        left.shape[i] != right.shape[j] for i, j in zip(gone_left, gone_right, strict=True)
    ):
        raise ShapeError(
            f"tensordot of shapes {left.shape} and {right.shape} over axes {gone_left} and {gone_right}; "
            "paired axes must have equal sizes"
        )
    kept_left = tuple(i for i in range(left.ndim) if i not in gone_left)
    kept_right = tuple(i for i in range(right.ndim) if i not in gone_right)
    shape = tuple(left.shape[i] for i in kept_left) + tuple(right.shape[i] for i in kept_right)
    depth = product([left.shape[i] for i in gone_left])
    kept = (product(left.shape[i] for i in kept_left), depth)
    flat_left = left.transpose(kept_left + gone_left).reshape(kept)
    flat_right = right.transpose(gone_right + kept_right).reshape(depth, product(right.shape[i] for i in kept_right))
    return _core.binary("MatMul", flat_left, flat_right).reshape(shape)


def einsum(equation: str, *arrays: ArrayLike) -> ndarray:
    """Return the sum of products that an equation such as "ij,jk->ik" describes."""
    return operator("Einsum", list(to_common_dtype(arrays)), equation=equation)


def kron(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the Kronecker product: a block of `b` for each element of `a`, multiplied by it."""
    left, right = operands(a, b)
    rank = max(left.ndim, right.ndim)
    one = (1,) * (rank - left.ndim) + left.shape
    two = (1,) * (rank - right.ndim) + right.shape
    wide = left.reshape(tuple(size for n in one for size in (n, 1))) * right.reshape(
        tuple(size for n in two for size in (1, n))
    )
    return wide.reshape(tuple(m * n for m, n in zip(one, two, strict=True)))


def cross(a: ArrayLike, b: ArrayLike, axis: int = -1) -> ndarray:
    """Return the vector products of vectors of three numbers along an axis."""
    left, right = to_common_dtype([a, b])
    at, other = normalize_axis(axis, left.ndim), normalize_axis(axis, right.ndim)
    if left.shape[at] != 3 or right.shape[other] != 3:
        raise ShapeError(f"cross of shapes {left.shape} and {right.shape}; the axis must have 3 numbers")

    def part(x: ndarray, along: int, i: int) -> ndarray:
        return x[(*(slice(None),) * along, i, ...)]

    pairs = ((1, 2), (2, 0), (0, 1))
    parts = [part(left, at, i) * part(right, other, j) - part(left, at, j) * part(right, other, i) for i, j in pairs]
    return operator("Stack", parts, axis=axis if axis < 0 else at)
