"""Thresholds: fixed, from the histogram, and adaptive; edges by Canny."""

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.filters import GaussianBlur, Sobel, boxFilter
from walle.engine_ext.cv.images import ImageLike, as_image, evaluate, into_dst
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError

_OPS = {
    constants.THRESH_BINARY: "binary",
    constants.THRESH_BINARY_INV: "binary_inv",
    constants.THRESH_TRUNC: "truncate",
    constants.THRESH_TOZERO: "to_zero",
    constants.THRESH_TOZERO_INV: "to_zero_inv",
}


def threshold(
    src: ImageLike, thresh: float, maxval: float, type: int, dst: ImageLike | None = None
) -> tuple[float, ndarray]:
    """Return the threshold and the image after it; THRESH_OTSU and THRESH_TRIANGLE compute it for one uint8 channel."""
    given = as_image(src)
    op = _OPS.get(type & constants.THRESH_MASK)
    if op is None:
        raise UnsupportedError(f"unknown threshold type {type}; use the THRESH_ constants")
    bound = float(thresh)
    if type & (constants.THRESH_OTSU | constants.THRESH_TRIANGLE):
        if given.dtype != "uint8" or given.shape[2:] not in {(), (1,)}:
            raise DTypeError(
                f"THRESH_OTSU and THRESH_TRIANGLE take one channel of uint8, not {given.dtype} of shape {given.shape}"
            )
        method = "otsu" if type & constants.THRESH_OTSU else "triangle"
        bound = float(evaluate("HistogramBound", [evaluate("ImageHistogram", [given], {})], {"method": method})[0])
    elif given.dtype not in {"float32", "float64"}:
        bound = float(bound // 1)
    source = given if given.dtype != "float64" else given.astype("float32")
    result = evaluate("ImagePointwise", [source], {"op": op, "numbers": [bound, float(maxval), 0.0]})
    return bound, into_dst(result if given.dtype != "float64" else result.astype("float64"), dst)


def adaptiveThreshold(
    src: ImageLike,
    maxValue: float,
    adaptiveMethod: int,
    thresholdType: int,
    blockSize: int,
    C: float,
    dst: ImageLike | None = None,
) -> ndarray:
    """Return `maxValue` where a pixel exceeds the (Gaussian) mean of its block minus `C`, else 0; or inverted."""
    given = as_image(src)
    if given.dtype != "uint8" or given.ndim != 2:
        raise DTypeError(f"adaptiveThreshold takes one channel of uint8, not {given.dtype} of shape {given.shape}")
    if blockSize % 2 == 0 or blockSize < 3:
        raise ShapeError(f"adaptiveThreshold with a block of {blockSize}; the size must be odd and at least 3")
    size = (blockSize, blockSize)
    if adaptiveMethod == constants.ADAPTIVE_THRESH_MEAN_C:
        mean = boxFilter(given, -1, size, borderType=constants.BORDER_REPLICATE)
    elif adaptiveMethod == constants.ADAPTIVE_THRESH_GAUSSIAN_C:
        blurred = GaussianBlur(given.astype("float32"), size, 0, borderType=constants.BORDER_REPLICATE)
        mean = _core.unary("Round", blurred).astype("uint8")
    else:
        raise UnsupportedError(f"unknown adaptive method {adaptiveMethod}; use the ADAPTIVE_THRESH_ constants")
    inverse = thresholdType == constants.THRESH_BINARY_INV
    if not inverse and thresholdType != constants.THRESH_BINARY:
        raise UnsupportedError(
            f"adaptiveThreshold with threshold type {thresholdType}; use THRESH_BINARY or THRESH_BINARY_INV"
        )
    delta = -(-C // 1) if not inverse else C // 1
    attributes = {"op": "not_above" if inverse else "above", "numbers": [-float(delta), float(maxValue), 0.0]}
    return into_dst(evaluate("ImagePointwise", [given, mean], attributes), dst)


def Canny(
    image_: ImageLike,
    threshold1: float,
    threshold2: float,
    edges: ImageLike | None = None,
    apertureSize: int = 3,
    L2gradient: bool = False,
) -> ndarray:
    """Return 255 on edges: gradients above the greater threshold, and those above the lesser connected to them."""
    given = as_image(image_)
    if given.dtype != "uint8":
        raise DTypeError(f"Canny takes uint8, not {given.dtype}")
    if apertureSize not in {3, 5, 7}:
        raise ShapeError(f"Canny with a window of {apertureSize}; use 3, 5 or 7")
    low, high = sorted((float(threshold1), float(threshold2)))
    scale = 1.0
    if apertureSize == 7:  # gradients of this window are scaled down to fit 16 bits
        low, high, scale = low / 16, high / 16, 1 / 16
    gradients = [
        Sobel(given, constants.CV_16S, dx, 1 - dx, None, apertureSize, scale, 0, constants.BORDER_REPLICATE)
        for dx in (1, 0)
    ]
    return into_dst(evaluate("CannyEdges", gradients, {"low": low, "high": high, "squared": int(L2gradient)}), edges)
