"""`walle.np.linalg`: linear algebra on stacks of matrices, the last two dimensions; computed in float64.

Complex matrices: products, norms, `solve`, `inv`, `det`, `slogdet` and `matrix_power`; decompositions refuse them.
"""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError
from walle.engine_ext.np import indexing
from walle.engine_ext.np.base import (
    COMPLEX,
    asarray,
    normalize_axes,
    normalize_axis,
    operator,
    refuse_complex,
    to_floating,
)
from walle.engine_ext.np.manipulation import matrix_transpose
from walle.engine_ext.np.products import cross, matmul, outer, tensordot, vecdot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, Axis, DType

__all__ = [
    "LinAlgError", "cholesky", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr",
    "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class LinAlgError(ValueError):
    """A matrix that a function cannot work on: singular, not positive definite, not square, or without convergence."""


def _matrices(x: ArrayLike, name: str, *, square: bool = True, may_be_complex: bool = False) -> ndarray:
    given = to_floating(x)
    if not may_be_complex and given.dtype in COMPLEX:
        raise DTypeError(f"{name} does not support {given.dtype}; of complex matrices there are solve, inv and det")
    if given.dtype not in ("float32", "float64", *COMPLEX):
        given = given.astype("float32")
    if given.ndim < 2 or (square and given.shape[-1] != given.shape[-2]):
        raise LinAlgError(f"{name} of shape {given.shape}; it takes {'square ' * square}matrices")
    return given


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> ndarray:
    """Return a read-only view of the diagonals of the last two axes; np.diagonal takes the first two."""
    return indexing.diagonal(x, offset, -2, -1)


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DType | None = None) -> ndarray:
    """Return the sums of the diagonals of the last two axes; np.trace takes the first two."""
    return diagonal(x, offset=offset).sum(-1, dtype=dtype)


def _refuse_not_finite(x: ndarray, name: str) -> ndarray:
    """Return the array.

    Raises:
        LinAlgError: it has inf or NaN, with which no iteration converges.
    """
    if not _core.reduce("All", _core.unary("IsFinite", x), None, False):
        raise LinAlgError(f"{name} of a matrix with inf or NaN does not converge; replace them (np.nan_to_num)")
    return x


def _factorize(op: str, inputs: list[ndarray], **attributes: Any) -> ndarray:
    try:
        return operator(op, inputs, **attributes)
    except ShapeError as error:
        raise LinAlgError(str(error)) from error


def solve(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return x with a @ x = b; b is a vector or a stack of matrices.

    Raises:
        LinAlgError: a matrix is singular or not square.
    """
    left, right = _matrices(a, "solve", may_be_complex=True), to_floating(b)
    dtype = _core.promote(left.dtype, right.dtype)
    left, right = asarray(left, dtype), asarray(right, dtype)
    vector = right.ndim == 1
    if vector:
        right = right[:, None]
    if right.shape[-2] != left.shape[-1]:
        raise LinAlgError(
            f"solve of shapes {left.shape} and {asarray(b).shape}; both must have the same number of rows"
        )
    stack = (left[..., 0, 0] + right[..., 0, 0]).shape if left.ndim > 2 or right.ndim > 2 else ()
    left = _core.broadcast_to(left, (*stack, *left.shape[-2:]))
    right = _core.broadcast_to(right, (*stack, *right.shape[-2:]))
    result = _solve_complex(left, right) if dtype in COMPLEX else _factorize("Solve", [left, right])
    return result[..., 0] if vector else result


def _solve_complex(a: ndarray, b: ndarray) -> ndarray:
    """Return x with a @ x = b, from the real system [Re a, -Im a; Im a, Re a] of twice the size."""
    n = a.shape[-1]
    real = _core.full((*a.shape[:-2], 2 * n, 2 * n), 0, a.real.dtype)
    real[..., :n, :n] = real[..., n:, n:] = a.real
    real[..., n:, :n] = a.imag
    real[..., :n, n:] = -a.imag
    parts = _factorize("Solve", [real, operator("Concat", [b.real, b.imag], axis=b.ndim - 2)])
    result = _core.full((*a.shape[:-2], n, b.shape[-1]), 0, a.dtype)
    result.real, result.imag = parts[..., :n, :], parts[..., n:, :]
    return result


def inv(a: ArrayLike) -> ndarray:
    """Return the inverse of each matrix.

    Raises:
        LinAlgError: a matrix is singular or not square.
    """
    given = _matrices(a, "inv", may_be_complex=True)
    one = _core.full((given.shape[-1],) * 2, 0, given.dtype)
    one.reshape(-1)[:: given.shape[-1] + 1] = 1
    one = _core.broadcast_to(one, given.shape)
    return _solve_complex(given, one) if given.dtype in COMPLEX else _factorize("Solve", [given, one])


def det(a: ArrayLike) -> ndarray:
    given = _matrices(a, "det", may_be_complex=True)
    if given.dtype not in COMPLEX:
        return operator("Det", [given])
    sign, size = _complex_determinant(given)
    return (sign * _core.unary("Exp", size)).astype(given.dtype)


def slogdet(a: ArrayLike) -> tuple[ndarray, ndarray]:
    """Return the determinant's sign (of absolute value 1 or 0) and the logarithm of its absolute value."""
    given = _matrices(a, "slogdet", may_be_complex=True)
    if given.dtype in COMPLEX:
        sign, size = _complex_determinant(given)
        return sign.astype(given.dtype), size.astype(given.real.dtype)
    parts = operator("Det", [given], logarithm=1)
    return parts[..., 0].copy(), parts[..., 1].copy()


def _complex_determinant(a: ndarray) -> tuple[ndarray, ndarray]:
    """Return the sign and the logarithm of the size, by Gaussian elimination with the largest pivot of each column."""
    n, shape = a.shape[-1], a.shape[:-2]
    rows = a.astype("complex128").reshape((-1, n, n))
    sign = _core.full((rows.shape[0],), 1, "complex128")
    size = _core.full((rows.shape[0],), 0, "float64")
    for one in range(rows.shape[0]):
        left = rows[one]
        for k in range(n):
            at = k + int(_core.reduce("ArgMax", _core.unary("Abs", left[k:, k]), None, False))
            pivot = left[at, k]
            if at != k:
                left[[k, at]] = left[[at, k]]
                sign[one] = -sign[one]
            length = abs(pivot)
            if length == 0:
                sign[one], size[one] = 0, float("-inf")
                break
            sign[one] = sign[one] * (pivot / length)
            size[one] += _core.unary("Log", length)
            if k + 1 < n:
                left[k + 1 :, k + 1 :] -= (left[k + 1 :, k] / pivot)[:, None] * left[k, k + 1 :]
    return sign.reshape(shape), size.reshape(shape)


def cholesky(a: ArrayLike, *, upper: bool = False) -> ndarray:
    """Return the lower triangular l with l @ l.T = a, or its transpose.

    Raises:
        LinAlgError: a matrix is not positive definite or not square.
    """
    given = _matrices(a, "cholesky")
    if upper:
        return matrix_transpose(_factorize("Cholesky", [matrix_transpose(given)]))
    return _factorize("Cholesky", [given])


def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """Return q with orthonormal columns and the upper triangular r; `mode` is reduced, complete, or r (r alone)."""
    given = _matrices(a, "qr", square=False)
    if mode not in ("reduced", "complete", "r"):
        raise UnsupportedError(f"qr in mode {mode!r} is not supported; known are reduced, complete and r")
    m, n = given.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    parts = operator("Qr", [given], complete=int(mode == "complete"))
    r = parts[..., m:, :n]
    return r if mode == "r" else (parts[..., :m, :k], r)


def eigh(a: ArrayLike, UPLO: str = "L") -> tuple[ndarray, ndarray]:  # noqa: N803 -- NumPy's name
    """Return the eigenvalues of symmetric matrices in ascending order, and the eigenvectors as columns.

    Only the lower triangle is read, or the upper one (`UPLO` "U").

    Raises:
        LinAlgError: a matrix has inf or NaN, or is not square.
    """
    parts = _factorize("Eigh", [_lower(a, "eigh", UPLO)])
    return parts[..., 0, :], parts[..., 1:, :]


def eigvalsh(a: ArrayLike, UPLO: str = "L") -> ndarray:  # noqa: N803 -- NumPy's name
    """Return the eigenvalues in ascending order; takes less time than eigh."""
    return _factorize("Eigh", [_lower(a, "eigvalsh", UPLO)], vectors=0)[..., 0, :]


def _lower(a: ArrayLike, name: str, triangle: str) -> ndarray:
    """Return the matrices, transposed where the upper triangle is given."""
    if triangle not in ("L", "U", "l", "u"):
        raise ShapeError(f"{name} with UPLO {triangle!r}; known are L and U")
    given = _refuse_not_finite(_matrices(a, name), name)
    return matrix_transpose(given) if triangle in "Uu" else given


def svd(a: ArrayLike, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return u, s, vh with a = u @ diag(s) @ vh and s in descending order; only s unless `compute_uv`.

    Raises:
        LinAlgError: a matrix has inf or NaN.
    """
    given = _refuse_not_finite(_matrices(a, "svd", square=False), "svd")
    m, n = given.shape[-2:]
    k = min(m, n)
    if not compute_uv:
        return _factorize("Svd", [given], vectors=0)[..., 0, :]
    parts = _factorize("Svd", [given])
    s = parts[..., 0, :]
    u, v = parts[..., 1 : m + 1, :], parts[..., m + 1 :, :]
    if full_matrices and m > k:
        u = _complete_basis(u, m, k)
    if full_matrices and n > k:
        v = _complete_basis(v, n, k)
    return u, s, matrix_transpose(v)


def _complete_basis(q: ndarray, m: int, k: int) -> ndarray:
    """Return an orthonormal basis of m vectors whose first k are the given ones."""
    whole, _ = qr(q, "complete")
    return operator("Concat", [q, whole[..., k:]], axis=q.ndim - 1) if m > k else q


def svdvals(a: ArrayLike) -> ndarray:
    result: ndarray = svd(a, compute_uv=False)
    return result


def pinv(a: ArrayLike, rcond: float | None = None) -> ndarray:
    """Return the pseudo-inverse; singular values below rcond times the greatest count as 0."""
    given = _matrices(a, "pinv", square=False)
    u, s, vh = svd(given, full_matrices=False)
    limit = 1e-15 if rcond is None else rcond
    if s.shape[-1] == 0:
        return matrix_transpose(given).copy()
    large = s > limit * _core.reduce("ReduceMax", s, -1, True)
    back = _core.where(large, _core.unary("Reciprocal", _core.where(large, s, 1)), 0)
    return matmul(matrix_transpose(vh), back[..., None] * matrix_transpose(u))


def matrix_rank(a: ArrayLike, tol: float | None = None) -> ndarray:
    """Return the number of singular values above `tol`: by default the greatest times the larger size times eps."""
    given = to_floating(a)
    if given.ndim < 2:
        return asarray(int(bool((given != 0).any())))
    s = svdvals(given)
    if s.shape[-1] == 0:
        return _core.full(s.shape[:-1], 0, "int64")
    eps = 2.0**-52 if s.dtype == "float64" else 2.0**-23
    limit = _core.reduce("ReduceMax", s, -1, True) * (max(given.shape[-2:]) * eps) if tol is None else asarray(tol)
    return _core.reduce("ReduceSum", s > limit, -1, False)


def lstsq(a: ArrayLike, b: ArrayLike, rcond: float | None = None) -> tuple[ndarray, ndarray, int, ndarray]:
    """Return x with the least |a @ x - b|, squared residuals (empty without full rank), rank, singular values."""
    left, right = _matrices(a, "lstsq", square=False), to_floating(b)
    dtype = _core.promote(left.dtype, right.dtype)
    left, right = asarray(left, dtype), asarray(right, dtype)
    if left.ndim != 2 or right.ndim not in (1, 2) or right.shape[0] != left.shape[0]:
        raise LinAlgError(f"lstsq of shapes {left.shape} and {right.shape}; both must have the same number of rows")
    m, n = left.shape
    u, s, vh = svd(left, full_matrices=False)
    eps = 2.0**-52 if dtype == "float64" else 2.0**-23
    limit = eps * max(m, n) if rcond is None else rcond
    if m == 0 or n == 0:
        return _core.full((n, *right.shape[1:]), 0, dtype), _core.full((0,), 0, dtype), 0, s
    large = s > limit * s.max()
    rank = int(large.sum())
    back = _core.where(large, _core.unary("Reciprocal", _core.where(large, s, 1)), 0)
    part = matmul(u.T, right)
    x = matmul(vh.T, part * (back if right.ndim == 1 else back[:, None]))
    rest = _core.full((0,), 0, dtype)
    if rank == n and m > n:
        gap = matmul(left, x) - right
        rest = (gap * gap).sum(0).reshape(-1)
    return x, rest, rank, s


def norm(x: ArrayLike, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False) -> ndarray:  # noqa: A002 -- NumPy's name
    """Return the norm of vectors (one axis), of matrices (two axes), or of the whole array."""
    given = _magnitudes(x, None)
    if axis is None:
        if ord is None or (ord == 2 and given.ndim == 1) or (ord == "fro" and given.ndim == 2):
            result = _core.unary("Sqrt", _square_sum(given.reshape(-1)))
            return result.reshape((1,) * given.ndim) if keepdims else result
        axes = tuple(range(given.ndim))
    else:
        axes = normalize_axes(axis, given.ndim)
    if len(axes) == 1:
        return _vector_norm(given, 2 if ord is None else ord, axes[0], keepdims)
    if len(axes) == 2:
        given = _magnitudes(x, -2 if ord == 2 else ord)
        return _matrix_norm(given, "fro" if ord is None else ord, axes, keepdims)
    raise ShapeError(f"norm of order {ord} over {len(axes)} axes; give one axis for vectors or two for matrices")


def _magnitudes(x: ArrayLike, order: float | str | None) -> ndarray:
    """Return the array as floats; of complex numbers the magnitudes, which have the same norms."""
    given = to_floating(x)
    if given.dtype not in COMPLEX:
        return given
    return refuse_complex(given, "a norm of singular values") if order in (-2, "nuc") else _core.unary("Abs", given)


def _square_sum(x: ndarray) -> ndarray:
    """Return the sum of a vector's squares, by products of pieces that are short enough for an error of a few ulp."""
    piece = 1024
    whole = x.size // piece * piece
    if not whole:
        return (x * x).sum()
    rows = x[:whole].reshape((-1, piece))
    rest = x[whole:]
    return matmul(rows[:, None, :], rows[:, :, None]).sum() + (rest * rest).sum()


def _vector_norm(x: ndarray, order: float | str, axis: int | tuple[int, ...] | None, keepdims: bool) -> ndarray:
    if isinstance(order, str):
        raise ShapeError(f"a vector has no norm of order {order!r}; give a number")
    size = _core.unary("Abs", x)
    if order == float("inf") and x.size == 0:
        order = 1  # an empty vector has norm 0
    if order == float("inf"):
        return _core.reduce("ReduceMax", size, axis, keepdims)
    if order == float("-inf"):
        return _core.reduce("ReduceMin", size, axis, keepdims)
    if order == 0:
        return _core.reduce("ReduceSum", (x != 0).astype(x.dtype), axis, keepdims)
    if order == 1:
        return _core.reduce("ReduceSum", size, axis, keepdims)
    if order == 2:
        return _core.unary("Sqrt", _core.reduce("ReduceSum", x * x, axis, keepdims))
    return _core.reduce("ReduceSum", size ** float(order), axis, keepdims) ** (1.0 / order)


def _matrix_norm(x: ndarray, order: float | str, axes: tuple[int, ...], keepdims: bool) -> ndarray:
    rows, columns = axes
    if rows == columns:
        raise ShapeError("a matrix norm over the same axis twice; give two axes")
    if order == "fro":
        return _core.unary("Sqrt", _core.reduce("ReduceSum", x * x, axes, keepdims))
    if order in (1, -1, float("inf"), float("-inf")):
        inner, outer_ = (rows, columns) if order in (1, -1) else (columns, rows)
        sums = _core.reduce("ReduceSum", _core.unary("Abs", x), inner, True)
        extreme = "ReduceMax" if isinstance(order, int | float) and order > 0 else "ReduceMin"
        result = _core.reduce(extreme, sums, outer_, True)
    elif order in (2, -2, "nuc"):
        last = [at for at in range(x.ndim) if at not in axes] + [rows, columns]
        s = svdvals(x.transpose(last))
        op = "ReduceSum" if order == "nuc" else "ReduceMax" if order == 2 else "ReduceMin"
        value = _core.reduce(op, s, -1, False)
        result = value.reshape([1 if at in axes else size for at, size in enumerate(x.shape)])
    else:
        raise ShapeError(f"a matrix has no norm of order {order!r}; known are fro, nuc, 1, -1, 2, -2, inf and -inf")
    return result if keepdims else result.reshape([size for at, size in enumerate(x.shape) if at not in axes])


def vector_norm(x: ArrayLike, *, axis: Axis = None, ord: float = 2, keepdims: bool = False) -> ndarray:  # noqa: A002 -- NumPy's name
    given = _magnitudes(x, None)
    where = None if axis is None else normalize_axes(axis, given.ndim)
    return _vector_norm(given, ord, where, keepdims)


def matrix_norm(x: ArrayLike, *, ord: float | str = "fro", keepdims: bool = False) -> ndarray:  # noqa: A002 -- NumPy's name
    given = _magnitudes(x, -2 if ord == 2 else ord)
    return _matrix_norm(given, ord, (normalize_axis(-2, given.ndim), normalize_axis(-1, given.ndim)), keepdims)


def cond(a: ArrayLike, p: float | str | None = None) -> ndarray:
    """Return the condition number in a norm: by default the greatest singular value over the least."""
    given = _matrices(a, "cond", square=p not in (None, 2, -2), may_be_complex=p not in (None, 2, -2, "nuc"))
    if 0 in given.shape[-2:]:
        raise LinAlgError(f"cond of shape {given.shape}; a matrix without elements has no condition number")
    # What has no condition number is replaced by a matrix that has one: a stack may hold others.
    is_finite = _core.reduce("All", _core.unary("IsFinite", given), (-2, -1), False)
    is_nan = _core.reduce("Any", _core.unary("IsNaN", given), (-2, -1), False)
    used = _core.where(is_finite[..., None, None], given, _core.full((), 1, given.dtype))
    if p in (None, 2, -2):
        s = svdvals(used)
        result = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    else:
        is_finite &= slogdet(used)[0] != 0
        one = _core.full((given.shape[-1],) * 2, 0, given.dtype)
        one.reshape(-1)[:: given.shape[-1] + 1] = 1
        used = _core.where(is_finite[..., None, None], given, one)
        result = matrix_norm(used, ord=p) * matrix_norm(inv(used), ord=p)
    inf = float("inf")
    usable = _core.where(is_finite & ~_core.unary("IsNaN", result), result, inf)
    return _core.where(is_nan, float("nan"), usable)


def matrix_power(a: ArrayLike, n: int) -> ndarray:
    """Return a to the power n; for a negative n, the inverse to the power -n."""
    given = asarray(a)
    if given.ndim < 2 or given.shape[-1] != given.shape[-2]:
        raise LinAlgError(f"matrix_power of shape {given.shape}; it takes square matrices")
    if n < 0:
        given, n = inv(given), -n
    if n == 0:
        one = _core.full((given.shape[-1],) * 2, 0, given.dtype)
        one.reshape(-1)[:: given.shape[-1] + 1] = 1
        return _core.broadcast_to(one, given.shape).copy()
    result: ndarray | None = None
    while n:
        if n & 1:
            result = given if result is None else matmul(result, given)
        n >>= 1
        if n:
            given = matmul(given, given)
    return given if result is None else result


def multi_dot(arrays: Sequence[ArrayLike]) -> ndarray:
    """Return the product of all arrays, in the order that takes the fewest multiplications."""
    given = [asarray(x) for x in arrays]
    if len(given) < 2:
        raise ShapeError("multi_dot of fewer than two arrays; give two or more")
    first, last = given[0].ndim == 1, given[-1].ndim == 1
    given[0] = given[0].reshape(1, -1) if first else given[0]
    given[-1] = given[-1].reshape(-1, 1) if last else given[-1]
    sizes = [given[0].shape[0], *(x.shape[1] for x in given)]
    count = len(given)
    cost = [[0] * count for _ in range(count)]
    cut = [[0] * count for _ in range(count)]
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i][j], cut[i][j] = min(
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )

    def product(i: int, j: int) -> ndarray:
        return given[i] if i == j else matmul(product(i, cut[i][j]), product(cut[i][j] + 1, j))

    result = product(0, count - 1)
    shape = ([] if first else [result.shape[0]]) + ([] if last else [result.shape[1]])
    return result.reshape(shape)
