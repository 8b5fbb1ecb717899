"""Search of a template in an image."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, evaluate, into_dst
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError

_TINY = 1.1920929e-07  # epsilon of float32


def matchTemplate(
    image_: ImageLike, templ: ImageLike, method: int, result: ImageLike | None = None, mask: None = None
) -> ndarray:
    """Return float32 [rows, columns]: how well the template fits at each place of its upper left corner.

    `method` is one of TM_: it fits best where TM_SQDIFF and TM_SQDIFF_NORMED are least, and the others greatest.
    """
    given, small = as_image(image_), as_image(templ)
    if mask is not None:
        raise UnsupportedError("matchTemplate with a mask is not supported")
    if method not in range(6):
        raise UnsupportedError(f"unknown method {method}; use one of the TM_ constants")
    if given.dtype != small.dtype or given.dtype not in {"uint8", "float32"}:
        raise DTypeError(f"matchTemplate of {given.dtype} and {small.dtype}; give two images of uint8 or of float32")
    if given.ndim != small.ndim or given.shape[2:] != small.shape[2:]:
        raise ShapeError(f"matchTemplate of shapes {given.shape} and {small.shape}; their channels must be equal")
    height, width = small.shape[:2]
    if not (0 < height <= given.shape[0] and 0 < width <= given.shape[1]):
        raise ShapeError(f"a template of {height} by {width} does not fit into {given.shape[0]} by {given.shape[1]}")
    return into_dst(_fit(given, small, method).astype("float32"), result)


def _planes(image: ndarray, shift: ndarray) -> ndarray:
    """Return float32 [1, channels, height, width] less a number for each channel."""
    shifted = (image.reshape(*image.shape[:2], -1).astype("float64") - shift).transpose(2, 0, 1)
    return shifted.reshape(1, *shifted.shape).astype("float32")


def _means(image: ndarray) -> ndarray:
    pixels = image.reshape(image.shape[0] * image.shape[1], -1).astype("float64")
    return pixels.sum(0) * (1 / pixels.shape[0])


def _sums(integral: ndarray, height: int, width: int) -> ndarray:
    """Return the sums over windows from an integral image, [rows, columns, channels]."""
    wide = integral.astype("float64").reshape(*integral.shape[:2], -1)
    return wide[height:, width:] - wide[:-height, width:] - wide[height:, :-width] + wide[:-height, :-width]


def _fit(given: ndarray, small: ndarray, method: int) -> ndarray:
    height, width = small.shape[:2]
    # Both around 0, so that float32 holds the sums: a template less its means has no product with what the image lost.
    means = _means(small)
    covariance = evaluate("Conv", [_planes(given, _means(given)), _planes(small, means)], {})
    fit = covariance.reshape(*covariance.shape[2:]).astype("float64")
    if method == constants.TM_CCOEFF:
        return fit
    sums = _sums(evaluate("ImageIntegral", [given], {}), height, width)
    centred = method == constants.TM_CCOEFF_NORMED
    if not centred:
        fit = fit + (sums * means).sum(2)
    if method == constants.TM_CCORR:
        return fit
    squares = _sums(evaluate("ImageIntegral", [given], {"squared": 1}), height, width).sum(2)
    wide = small.astype("float64").reshape(height * width, -1)
    of_windows, of_template = squares, float((wide * wide).sum())
    if centred:
        of_windows = squares - (sums * sums).sum(2) * (1 / (height * width))
        of_template = float(((wide - means) * (wide - means)).sum())
        if of_template < 2.220446049250313e-16:
            return _core.full(fit.shape, 1, "float64")
    if method in {constants.TM_SQDIFF, constants.TM_SQDIFF_NORMED}:
        apart = squares - fit * 2 + of_template
        fit = _core.where(apart > 0, apart, 0.0)
    if method == constants.TM_SQDIFF:
        return fit
    # As in OpenCV: a window without contrast fits nothing, and rounding does not exceed 1.
    contrast = _core.binary("Greater", of_windows, _core.binary("Minimum", squares * (10 * _TINY), 0.5))
    norms = _core.where(contrast, _core.unary("Sqrt", _core.where(contrast, of_windows, 1.0)), 0.0)
    norms = norms * math.sqrt(of_template)
    size = _core.unary("Abs", fit)
    rounded = _core.where(fit > 0, 1.0, -1.0)
    otherwise = 1.0 if method == constants.TM_SQDIFF_NORMED else 0.0
    bounded = _core.where(size < norms * 1.125, rounded, otherwise)
    return _core.where(size < norms, fit / _core.where(norms > 0, norms, 1.0), bounded)
