"""`walle.np.fft`: Fourier transforms; complex arrays are real ones with a last axis of two, real and imaginary part.

`axis` and `axes` do not count that last axis, so that they mean the same as in NumPy.
"""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.base import asarray, normalize_axes, normalize_axis, operator, to_floating
from walle.engine_ext.np.manipulation import roll

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from walle.engine_ext.np.likes import ArrayLike, Axis

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "ifft", "ifft2", "ifftn", "ifftshift", "irfft", "irfft2", "irfftn",
    "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip


def _scale(norm: str | None, n: int, *, inverse: bool) -> float:
    """Return the factor of a normalisation, beside the 1 / n that the inverse operator already applies."""
    scales = {None: 1.0, "backward": 1.0, "ortho": n**0.5 if inverse else n**-0.5, "forward": n if inverse else 1 / n}
    if norm not in scales:
        raise ShapeError(f"norm {norm!r}; known are backward, ortho and forward")
    return float(scales[norm])


def _transform(x: ndarray, n: int | None, axis: int, norm: str | None, *, inverse: bool, onesided: bool) -> ndarray:
    """Return the transform along an axis of an array whose last axis is real and imaginary part."""
    at = normalize_axis(axis, x.ndim - 1)
    length = n if n is not None else 2 * (x.shape[at] - 1) if inverse and onesided else x.shape[at]
    if length < 1:
        raise ShapeError(f"a Fourier transform of length {length}; the length must be positive")
    inputs = [x, asarray(length, "int64"), asarray(at, "int64")]
    result = operator("DFT", inputs, inverse=int(inverse), onesided=int(onesided))
    scale = _scale(norm, length, inverse=inverse)
    return result if scale == 1.0 else result * scale


def _real(x: ArrayLike) -> ndarray:
    return to_floating(x)[..., None]


def _complex(x: ArrayLike, name: str) -> ndarray:
    given = to_floating(x)
    if given.ndim < 2 or given.shape[-1] != 2:
        raise ShapeError(f"{name} of shape {given.shape}; the last axis holds real and imaginary part")
    return given


def fft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, real: bool = False) -> ndarray:
    """Return the transform of complex numbers (..., n, 2), or if `real` of real ones (..., n)."""
    given = _real(x) if real else _complex(x, "fft")
    return _transform(given, n, axis, norm, inverse=False, onesided=False)


def ifft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    return _transform(_complex(x, "ifft"), n, axis, norm, inverse=True, onesided=False)


def rfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    """Return the first n // 2 + 1 numbers of the transform of real numbers; the rest are their conjugates."""
    return _transform(_real(x), n, axis, norm, inverse=False, onesided=True)


def irfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    """Return `n` real numbers from the first n // 2 + 1 of their transform; n is even by default."""
    return _transform(_complex(x, "irfft"), n, axis, norm, inverse=True, onesided=True)[..., 0]


def _lengths(x: ndarray, s: Sequence[int] | None, axes: Axis) -> list[tuple[int, int | None]]:
    """Return (axis, length) pairs of an array whose last axis is real and imaginary part."""
    chosen = normalize_axes(axes, x.ndim - 1)
    if axes is None and s is not None:
        chosen = chosen[len(chosen) - len(s) :]
    if s is not None and len(s) != len(chosen):
        raise ShapeError(f"{len(s)} lengths for {len(chosen)} axes; give one length for each axis")
    return [(at, None if s is None else s[i]) for i, at in enumerate(chosen)]


def _several(x: ndarray, pairs: list[tuple[int, int | None]], norm: str | None, *, inverse: bool) -> ndarray:
    for at, n in pairs:
        x = _transform(x, n, at, norm, inverse=inverse, onesided=False)
    return x


def fftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None, *,
         real: bool = False) -> ndarray:  # fmt: skip
    given = _real(x) if real else _complex(x, "fftn")
    return _several(given, _lengths(given, s, axes)[::-1], norm, inverse=False)


def ifftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> ndarray:
    given = _complex(x, "ifftn")
    return _several(given, _lengths(given, s, axes)[::-1], norm, inverse=True)


def rfftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> ndarray:
    given = _real(x)
    *others, (last, n) = _lengths(given, s, axes)
    return _several(_transform(given, n, last, norm, inverse=False, onesided=True), others[::-1], norm, inverse=False)


def irfftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> ndarray:
    given = _complex(x, "irfftn")
    *others, (last, n) = _lengths(given, s, axes)
    whole = _several(given, others, norm, inverse=True)
    return _transform(whole, n, last, norm, inverse=True, onesided=True)[..., 0]


def fft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None, *,
         real: bool = False) -> ndarray:  # fmt: skip
    return fftn(x, s, axes, norm, real=real)


def ifft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None) -> ndarray:
    return ifftn(x, s, axes, norm)


def rfft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None) -> ndarray:
    return rfftn(x, s, axes, norm)


def irfft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None) -> ndarray:
    return irfftn(x, s, axes, norm)


def fftfreq(n: int, d: float = 1.0) -> ndarray:
    """Return the frequencies of a transform's numbers, in cycles per unit of the spacing d."""
    half = (n - 1) // 2 + 1
    line = operator(
        "Concat", [_core.arange(0, 1, half, "float64"), _core.arange(-(n // 2), 1, n // 2, "float64")], axis=0
    )
    return line / (n * float(d))


def rfftfreq(n: int, d: float = 1.0) -> ndarray:
    return _core.arange(0, 1, n // 2 + 1, "float64") / (n * float(d))


def fftshift(x: ArrayLike, axes: Axis = None) -> ndarray:
    """Return the array with frequency 0 moved to the middle of the axes; give `axes` for a complex array."""
    given = asarray(x)
    chosen = normalize_axes(axes, given.ndim)
    return roll(given, [given.shape[at] // 2 for at in chosen], chosen)


def ifftshift(x: ArrayLike, axes: Axis = None) -> ndarray:
    given = asarray(x)
    chosen = normalize_axes(axes, given.ndim)
    return roll(given, [-(given.shape[at] // 2) for at in chosen], chosen)
