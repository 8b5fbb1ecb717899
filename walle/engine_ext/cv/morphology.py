"""Morphology: erosion, dilation and their combinations."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.arithmetic import bitwise_and, bitwise_not, subtract
from walle.engine_ext.cv.images import ImageLike, as_image, border_name, evaluate, into_dst, scalar
from walle.engine_ext.errors import DTypeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_DEFAULT_BORDER = 1.7e308  # OpenCV's default border value: pixels outside never win


class _Window:
    """A kernel with its anchor, border and number of iterations, as the operator's attributes."""

    def __init__(self, kernel: Any, anchor: tuple[int, int], iterations: int, border: int, value: Any) -> None:
        window = None if kernel is None else as_image(kernel)
        if window is not None and window.size == 0:
            window = None
        width, height = (
            (3, 3) if window is None else (window.shape[1], window.shape[0]) if window.ndim > 1 else (1, window.size)
        )
        at_x, at_y = (width // 2 if anchor[0] < 0 else anchor[0]), (height // 2 if anchor[1] < 0 else anchor[1])
        self.times = iterations
        self.attributes: dict[str, Any] = {
            "border": border_name(border),
            "width": width,
            "height": height,
            "anchor_x": at_x,
            "anchor_y": at_y,
        }
        if value is not None and abs(scalar(value)[0]) < _DEFAULT_BORDER:
            self.attributes["value"] = scalar(value)
        form = None if window is None else (window if window.dtype == "uint8" else window != 0).tobytes()
        if form is not None and 0 in form:
            self.attributes["form"] = list(form)
        elif iterations > 1:  # repeating a rectangle is one pass of a larger rectangle
            self.times = 1
            self.attributes |= {
                "width": width + (iterations - 1) * (width - 1),
                "height": height + (iterations - 1) * (height - 1),
                "anchor_x": at_x * iterations,
                "anchor_y": at_y * iterations,
            }

    def least(self, given: ndarray) -> ndarray:
        return self._extreme(given, "least")

    def greatest(self, given: ndarray) -> ndarray:
        return self._extreme(given, "greatest")

    def _extreme(self, given: ndarray, mode: str) -> ndarray:
        if self.times <= 0:
            return given.copy()
        for _ in range(self.times):
            given = evaluate("Morphology", [given], {**self.attributes, "mode": mode})
        return given


def erode(
    src: ImageLike,
    kernel: Any,
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    iterations: int = 1,
    borderType: int = constants.BORDER_CONSTANT,
    borderValue: float | Sequence[float] | None = None,
) -> ndarray:
    """Return the least pixel under the kernel around every pixel; a kernel of None is 3 by 3."""
    return into_dst(_Window(kernel, anchor, iterations, borderType, borderValue).least(as_image(src)), dst)


def dilate(
    src: ImageLike,
    kernel: Any,
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    iterations: int = 1,
    borderType: int = constants.BORDER_CONSTANT,
    borderValue: float | Sequence[float] | None = None,
) -> ndarray:
    """Return the greatest pixel under the kernel around every pixel; a kernel of None is 3 by 3."""
    return into_dst(_Window(kernel, anchor, iterations, borderType, borderValue).greatest(as_image(src)), dst)


def morphologyEx(
    src: ImageLike,
    op: int,
    kernel: Any,
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    iterations: int = 1,
    borderType: int = constants.BORDER_CONSTANT,
    borderValue: float | Sequence[float] | None = None,
) -> ndarray:
    """Return the image after the operation of a MORPH_ constant.

    Erosion, dilation, opening, closing, gradient, top hat, black hat, or hit-or-miss (one channel of uint8): 255 where
    the image is white under the kernel's 1 and black under its -1.

    """
    given = as_image(src)
    if op == constants.MORPH_HITMISS:
        return into_dst(_hit_or_miss(given, as_image(kernel), anchor, iterations, borderType, borderValue), dst)
    window = _Window(kernel, anchor, iterations, borderType, borderValue)
    least, greatest = window.least, window.greatest
    match op:
        case constants.MORPH_ERODE:
            result = least(given)
        case constants.MORPH_DILATE:
            result = greatest(given)
        case constants.MORPH_OPEN:
            result = greatest(least(given))
        case constants.MORPH_CLOSE:
            result = least(greatest(given))
        case constants.MORPH_GRADIENT:
            result = subtract(greatest(given), least(given))
        case constants.MORPH_TOPHAT:
            result = subtract(given, greatest(least(given)))
        case constants.MORPH_BLACKHAT:
            result = subtract(least(greatest(given)), given)
        case _:
            raise UnsupportedError(f"unknown morphology {op}; use one of the MORPH_ constants")
    return into_dst(result, dst)


def _hit_or_miss(
    given: ndarray, kernel: ndarray, anchor: tuple[int, int], iterations: int, border: int, value: Any
) -> ndarray:
    if given.dtype != "uint8" or given.shape[2:] not in {(), (1,)}:
        raise DTypeError(f"MORPH_HITMISS takes one channel of uint8, not {given.dtype} of shape {given.shape}")
    if not bool((kernel != 0).any()):
        return given.copy()
    found = _core.full(given.shape, 255, "uint8")
    for of, sign in ((given, 1), (bitwise_not(given), -1)):
        asked = (kernel == sign).astype("uint8")
        if bool(asked.any()):
            found = bitwise_and(found, _Window(asked, anchor, iterations, border, value).least(of))
    return found
