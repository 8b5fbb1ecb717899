"""Rearranged images: rotated, flipped, with borders, split into channels, joined; movements for the raster only."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, border_name, evaluate, into_dst, scalar
from walle.engine_ext.errors import ShapeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def flip(src: ImageLike, flipCode: int, dst: ImageLike | None = None) -> ndarray:
    """Return the image flipped vertically (0), horizontally (1), or both (-1)."""
    given = as_image(src)
    given = given[:, ::-1] if flipCode > 0 else given[::-1] if flipCode == 0 else given[::-1, ::-1]
    return into_dst(given.copy(), dst)


def _swap_axes(given: ndarray) -> ndarray:
    return given.transpose((1, 0, *range(2, given.ndim)))


def transpose(src: ImageLike, dst: ImageLike | None = None) -> ndarray:
    """Return the image with rows and columns swapped."""
    return into_dst(_swap_axes(as_image(src)).copy(), dst)


def rotate(src: ImageLike, rotateCode: int, dst: ImageLike | None = None) -> ndarray:
    """Return the image rotated by a ROTATE_ constant."""
    given = as_image(src)
    if rotateCode == constants.ROTATE_90_CLOCKWISE:
        turned = _swap_axes(given)[:, ::-1]
    elif rotateCode == constants.ROTATE_180:
        turned = given[::-1, ::-1]
    elif rotateCode == constants.ROTATE_90_COUNTERCLOCKWISE:
        turned = _swap_axes(given)[::-1]
    else:
        raise UnsupportedError(f"unknown rotation {rotateCode}; use one of the ROTATE_ constants")
    return into_dst(turned.copy(), dst)


_PAD_MODES = {"replicate": "edge", "reflect101": "reflect", "reflect": "symmetric", "wrap": "wrap"}


def copyMakeBorder(
    src: ImageLike,
    top: int,
    bottom: int,
    left: int,
    right: int,
    borderType: int,
    dst: ImageLike | None = None,
    value: float | Sequence[float] = 0,
) -> ndarray:
    """Return the image with a border of the given rows and columns."""
    given = as_image(src)
    border = border_name(borderType)
    if min(top, bottom, left, right) < 0:
        raise ShapeError(f"a border of {top}, {bottom}, {left} and {right}; the widths must not be negative")
    if border == "constant":
        rest = [0] * (given.ndim - 2)
        pads = _core.asarray([top, left, *rest, bottom, right, *rest], "int64")
        numbers = scalar(value)[: given.shape[2] if given.ndim == 3 else 1]
        alike = len(set(numbers)) == 1
        fill = _core.asarray(numbers[0] if alike else 0, given.dtype)
        result = evaluate("Pad", [given, pads, fill], {"mode": "constant"})
        if not alike:
            height, width = given.shape[:2]
            colour = _core.asarray(numbers, given.dtype)
            for strip in (result[:top], result[top + height :], result[:, :left], result[:, left + width :]):
                if strip.size:
                    strip[...] = colour
        return into_dst(result, dst)
    if border not in _PAD_MODES:
        raise UnsupportedError("copyMakeBorder with BORDER_TRANSPARENT is not supported; use another BORDER_ constant")
    rest = [0] * (given.ndim - 2)
    widths = [top, left, *rest, bottom, right, *rest]
    if max(top, bottom) > given.shape[0] and max(left, right) > given.shape[1]:  # axis by axis: fewer regions
        given = evaluate("Pad", [given], {"pads": [top, 0, *rest, bottom, 0, *rest], "mode": _PAD_MODES[border]})
        widths = [0, left, *rest, 0, right, *rest]
    return into_dst(evaluate("Pad", [given], {"pads": widths, "mode": _PAD_MODES[border]}), dst)


def split(m: ImageLike) -> tuple[ndarray, ...]:
    """Return each channel as an image."""
    given = as_image(m)
    if given.ndim == 2:
        return (given.copy(),)
    planes = evaluate("Transpose", [given], {"perm": [2, 0, 1]})
    return tuple(planes[channel] for channel in range(given.shape[2]))


def merge(mv: Sequence[ImageLike], dst: ImageLike | None = None) -> ndarray:
    """Return one image with these channels."""
    parts = [as_image(part) for part in mv]
    return into_dst(evaluate("Concat", [part.reshape((*part.shape[:2], -1)) for part in parts], {"axis": 2}), dst)


def hconcat(src: Sequence[ImageLike], dst: ImageLike | None = None) -> ndarray:
    """Return the images side by side."""
    return into_dst(evaluate("Concat", [as_image(part) for part in src], {"axis": 1}), dst)


def vconcat(src: Sequence[ImageLike], dst: ImageLike | None = None) -> ndarray:
    """Return the images below each other."""
    return into_dst(evaluate("Concat", [as_image(part) for part in src], {"axis": 0}), dst)


def repeat(src: ImageLike, ny: int, nx: int, dst: ImageLike | None = None) -> ndarray:
    given = as_image(src)
    return into_dst(evaluate("Tile", [given, _core.asarray([ny, nx, *[1] * (given.ndim - 2)], "int64")], {}), dst)


def copyTo(src: ImageLike, mask: ImageLike | None, dst: ImageLike | None = None) -> ndarray:
    """Return `dst`, or a black image without one, with the pixels of `src` where the mask is not 0."""
    given = as_image(src)
    under: Any = _core.full(given.shape, 0, given.dtype) if dst is None else as_image(dst)
    if mask is None:
        return into_dst(given.copy(), dst)
    chosen = as_image(mask) != 0
    if chosen.ndim < given.ndim:
        chosen = chosen.reshape((*chosen.shape, 1))
    return into_dst(_core.where(chosen, given, under), dst)
