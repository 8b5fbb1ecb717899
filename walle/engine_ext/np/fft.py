"""`walle.np.fft`: Fourier transforms: complex64 for float32 and less, complex128 for float64 and wide integers.

They are computed in float64 and rounded once. `norm` is backward (the inverse divides by the length), ortho (both
divide by its root) or forward.
"""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.base import asarray, normalize_axes, operator
from walle.engine_ext.np.manipulation import roll

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from walle.engine_ext.np.likes import ArrayLike, Axis

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip


def fft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    """Return the transform of n numbers along an axis: the first n, or all, followed by zeros where there are fewer."""
    return _core.fourier(x, n, axis, norm, False, False)


def ifft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    return _core.fourier(x, n, axis, norm, True, False)


def rfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    """Return the first n // 2 + 1 numbers of the transform of real numbers; the rest are their conjugates."""
    return _core.fourier(x, n, axis, norm, False, True)


def irfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    """Return `n` real numbers from the first n // 2 + 1 of their transform; n is even by default."""
    return _core.fourier(x, n, axis, norm, True, True)


_OPPOSITE = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def hfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    """Return the transform, `n` real numbers, of a signal that is its own conjugate reversed, from its first half."""
    return _core.fourier(asarray(x).conj(), n, axis, _OPPOSITE.get(norm, norm), True, True)


def ihfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> ndarray:
    """Return the first half of the signal whose transform is `x`, real numbers."""
    return _core.fourier(x, n, axis, _OPPOSITE.get(norm, norm), False, True).conj()


def _lengths(x: ndarray, s: Sequence[int] | None, axes: Axis) -> list[tuple[int, int | None]]:
    """Return (axis, length) pairs, the last axis to transform last; a length of -1 is the axis' own."""
    chosen = normalize_axes(axes, x.ndim)
    if axes is None and s is not None:
        chosen = chosen[len(chosen) - len(s) :]
    if s is not None and len(s) != len(chosen):
        raise ShapeError(f"{len(s)} lengths for {len(chosen)} axes; give one length for each axis")
    return [(at, None if s is None or s[i] == -1 else s[i]) for i, at in enumerate(chosen)]


def _several(x: ndarray, pairs: list[tuple[int, int | None]], norm: str | None, *, inverse: bool) -> ndarray:
    for at, n in pairs:
        x = _core.fourier(x, n, at, norm, inverse, False)
    return x


def _at_least_one(pairs: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    if not pairs:
        raise ShapeError("a Fourier transform of real numbers over no axes; give one axis or more")
    return pairs


def fftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> ndarray:
    given = asarray(x)
    return _several(given, _lengths(given, s, axes)[::-1], norm, inverse=False)


def ifftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> ndarray:
    given = asarray(x)
    return _several(given, _lengths(given, s, axes)[::-1], norm, inverse=True)


def rfftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> ndarray:
    given = asarray(x)
    *others, (last, n) = _at_least_one(_lengths(given, s, axes))
    return _several(rfft(given, n, last, norm), others[::-1], norm, inverse=False)


def irfftn(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None) -> ndarray:
    given = asarray(x)
    *others, (last, n) = _at_least_one(_lengths(given, s, axes))
    return irfft(_several(given, others, norm, inverse=True), n, last, norm)


def fft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None) -> ndarray:
    return fftn(x, s, axes, norm)


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
    """Return the array with frequency 0 moved to the middle of the axes."""
    given = asarray(x)
    chosen = normalize_axes(axes, given.ndim)
    return roll(given, [given.shape[at] // 2 for at in chosen], chosen)


def ifftshift(x: ArrayLike, axes: Axis = None) -> ndarray:
    given = asarray(x)
    chosen = normalize_axes(axes, given.ndim)
    return roll(given, [-(given.shape[at] // 2) for at in chosen], chosen)
