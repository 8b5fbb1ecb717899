"""Morphology: the least and the greatest of a window, and what is made of them."""

from __future__ import annotations

from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.arithmetic import subtract
from walle.engine_ext.cv.images import ImageLike, border_name, give, image, one, scalar
from walle.engine_ext.errors import UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_NEVER = 1.7e308  # OpenCV's default value of the border: what lies outside never wins


def _extreme(
    given: ndarray, mode: str, kernel: Any, anchor: tuple[int, int], iterations: int, border: int, value: Any
) -> ndarray:
    window = None if kernel is None else image(kernel)
    if window is not None and window.size == 0:
        window = None
    width, height = (3, 3) if window is None else (window.shape[1], window.shape[0] if window.ndim > 1 else 1)
    attributes: dict[str, Any] = {"mode": mode, "border": border_name(border)}
    if value is not None and abs(scalar(value)[0]) < _NEVER:
        attributes["value"] = scalar(value)
    at_x, at_y = (width // 2 if anchor[0] < 0 else anchor[0]), (height // 2 if anchor[1] < 0 else anchor[1])
    form = None if window is None else [int(one != 0) for one in window.ravel().tolist()]
    if form is None or all(form):  # a rectangle many times is a larger one
        attributes |= {
            "width": width + (iterations - 1) * (width - 1),
            "height": height + (iterations - 1) * (height - 1),
            "anchor_x": at_x * iterations,
            "anchor_y": at_y * iterations,
        }
        return one("Morphology", [given], attributes) if iterations else given.copy()
    attributes |= {"width": width, "height": height, "anchor_x": at_x, "anchor_y": at_y, "form": form}
    for _ in range(iterations):
        given = one("Morphology", [given], attributes)
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
    """Return the least of the kernel's window about every pixel; a kernel of None is 3 by 3."""
    return give(_extreme(image(src), "least", kernel, anchor, iterations, borderType, borderValue), dst)


def dilate(
    src: ImageLike,
    kernel: Any,
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    iterations: int = 1,
    borderType: int = constants.BORDER_CONSTANT,
    borderValue: float | Sequence[float] | None = None,
) -> ndarray:
    """Return the greatest of the kernel's window about every pixel; a kernel of None is 3 by 3."""
    return give(_extreme(image(src), "greatest", kernel, anchor, iterations, borderType, borderValue), dst)


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
    """Return what the MORPH_ constant `op` names: erosion, dilation, opening, closing, gradient, top hat, black hat."""
    given = image(src)

    def least(of: ndarray) -> ndarray:
        return _extreme(of, "least", kernel, anchor, iterations, borderType, borderValue)

    def greatest(of: ndarray) -> ndarray:
        return _extreme(of, "greatest", kernel, anchor, iterations, borderType, borderValue)

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
            raise UnsupportedError(f"no morphology of number {op}; MORPH_HITMISS is not there")
    return give(result, dst)
