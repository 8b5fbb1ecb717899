"""Complex numbers: their parts, conjugates and tests. Arithmetic and functions are those of all numbers."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.np.base import COMPLEX, asarray

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext.np.likes import ArrayLike

__all__ = [
    "angle", "conj", "conjugate", "imag", "iscomplex", "iscomplexobj", "isreal", "isrealobj", "real", "real_if_close",
]  # fmt: skip


def real(x: ArrayLike) -> ndarray:
    """Return the real part: a view of a complex array, a real array itself."""
    return asarray(x).real


def imag(x: ArrayLike) -> ndarray:
    """Return the imaginary part: a view of a complex array, zeros for a real one."""
    return asarray(x).imag


def conj(x: ArrayLike) -> ndarray:
    return asarray(x).conj()


conjugate = conj


def angle(x: ArrayLike, deg: bool = False) -> ndarray:
    """Return the angle in the complex plane, from -pi to pi; of real numbers 0, or pi for negative ones."""
    given = asarray(x)
    if given.dtype in COMPLEX:
        turn = _core.binary("Atan2", given.imag, given.real)
        return turn * (180 / 3.141592653589793) if deg else turn
    given = given.astype(_core.promote(given.dtype, "float32")) if given.dtype == "bool" else given * 1.0
    half = _core.full((), 180.0 if deg else 3.141592653589793, given.dtype)
    return _core.where(_core.unary("IsNaN", given), given, _core.where(_core.unary("SignBit", given), half, half * 0))


def isreal(x: ArrayLike) -> ndarray:
    """Return for each number whether its imaginary part is 0."""
    return asarray(x).imag == 0


def iscomplex(x: ArrayLike) -> ndarray:
    """Return for each number whether its imaginary part is not 0."""
    return asarray(x).imag != 0


def iscomplexobj(x: ArrayLike) -> bool:
    """Return whether the array is of a complex dtype, or the number is complex."""
    return asarray(x).dtype in COMPLEX


def isrealobj(x: ArrayLike) -> bool:
    return not iscomplexobj(x)


def real_if_close(x: ArrayLike, tol: float = 100) -> ndarray:
    """Return the real parts if all imaginary ones are closer to 0 than `tol`, in the dtype's eps if above 1."""
    given = asarray(x)
    if given.dtype not in COMPLEX:
        return given
    limit = tol * (2.0**-52 if given.dtype == "complex128" else 2.0**-23) if tol > 1 else tol
    return given.real if (_core.unary("Abs", given.imag) < limit).all() else given
