"""Weights of filters: Gaussian, derivatives, Gabor, and structuring elements."""

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import pair
from walle.engine_ext.errors import ShapeError, UnsupportedError

# OpenCV's weights of small windows without a sigma.
_SMALL = {
    1: [1.0],
    3: [0.25, 0.5, 0.25],
    5: [0.0625, 0.25, 0.375, 0.25, 0.0625],
    7: [0.03125, 0.109375, 0.21875, 0.28125, 0.21875, 0.109375, 0.03125],
    9: [4 / 256, 13 / 256, 30 / 256, 51 / 256, 60 / 256, 51 / 256, 30 / 256, 13 / 256, 4 / 256],
}


_CACHE_SIZE = 64
_known: dict[tuple[object, ...], list[float]] = {}  # a bounded cache of weights


def _remember(key: tuple[object, ...], weights: list[float]) -> list[float]:
    if len(_known) >= _CACHE_SIZE:
        _known.clear()
    _known[key] = weights
    return weights


def gaussian_weights(size: int, sigma: float) -> list[float]:
    if size < 1 or size % 2 == 0:
        raise ShapeError(f"a Gaussian window of {size}; the size must be odd and positive")
    if sigma <= 0 and size in _SMALL:
        return _SMALL[size]
    wide = sigma if sigma > 0 else 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    weights = [math.exp(-0.5 * ((i - (size - 1) / 2) / wide) ** 2) for i in range(size)]
    total = sum(weights)
    return [weight / total for weight in weights]


def fixed_gaussian_weights(size: int, sigma: float, total: int) -> list[float]:
    """Return a Gaussian window as integers that sum to `total`."""
    key = ("gaussian", size, sigma, total)
    return _known.get(key) or _remember(key, in_fixed_point(gaussian_weights(size, sigma), total))


def in_fixed_point(weights: list[float], total: int) -> list[float]:
    """Return symmetric weights as integers that sum to `total`; rounding errors are carried inward."""
    half = len(weights) // 2
    left, rest = [], 0.0
    for weight in weights[:half]:
        target = weight * total + rest
        left.append(float(round(target)))
        rest = target - left[-1]
    return [*left, total - 2 * sum(left), *reversed(left)]


def derivative_weights(order: int, size: int) -> list[float]:
    """Return a binomial window differentiated `order` times, as in Sobel's operator."""
    key = ("derivative", order, size)
    return _known.get(key) or _remember(key, _differentiate(order, size))


def _differentiate(order: int, size: int) -> list[float]:
    if size == 1 and order > 0:
        size = 3
    if size % 2 == 0 or not 1 <= size <= 31 or order >= size:
        raise ShapeError(
            f"a derivative of order {order} with a window of {size}; the window must be odd and greater than the order"
        )
    weights = [1.0]
    for step in [1.0] * (size - order - 1) + [-1.0] * order:
        weights = [b + step * a for a, b in zip([*weights, 0.0], [0.0, *weights], strict=True)]
    return weights


def getGaussianKernel(ksize: int, sigma: float, ktype: int = constants.CV_64F) -> ndarray:
    """Return the weights as one column."""
    return _core.asarray(gaussian_weights(ksize, sigma), _floating(ktype)).reshape(-1, 1)


def getDerivKernels(
    dx: int,
    dy: int,
    ksize: int,
    kx: None = None,
    ky: None = None,
    normalize: bool = False,
    ktype: int = constants.CV_32F,
) -> tuple[ndarray, ndarray]:
    """Return the weights along x and along y as columns; `ksize` -1 takes Scharr's weights."""
    columns = []
    for order in (dx, dy):
        weights = scharr_weights(order) if ksize <= 0 else derivative_weights(order, ksize)
        if normalize:
            scale = (1 / 32 if order == 0 else 1.0) if ksize <= 0 else 1 / 2 ** (len(weights) - order - 1)
            weights = [weight * scale for weight in weights]
        columns.append(_core.asarray(weights, _floating(ktype)).reshape(-1, 1))
    return columns[0], columns[1]


def scharr_weights(order: int) -> list[float]:
    if order not in {0, 1}:
        raise ShapeError(f"Scharr's operator of order {order}; its order is 1, along x or along y")
    return [3.0, 10.0, 3.0] if order == 0 else [-1.0, 0.0, 1.0]


def getGaborKernel(
    ksize: tuple[int, int],
    sigma: float,
    theta: float,
    lambd: float,
    gamma: float,
    psi: float = math.pi / 2,
    ktype: int = constants.CV_64F,
) -> ndarray:
    """Return a wave of length `lambd` under a Gaussian, rotated by `theta`; `ksize` is (width, height)."""
    width, height = pair(ksize)
    cosine, sine, tall = math.cos(theta), math.sin(theta), sigma / gamma
    reach_x = width // 2 if width > 0 else round(max(abs(3 * sigma * cosine), abs(3 * tall * sine)))
    reach_y = height // 2 if height > 0 else round(max(abs(3 * sigma * sine), abs(3 * tall * cosine)))
    rows = []
    for y in range(reach_y, -reach_y - 1, -1):
        row = []
        for x in range(reach_x, -reach_x - 1, -1):
            along, across = x * cosine + y * sine, -x * sine + y * cosine
            fall = math.exp(-0.5 * (along / sigma) ** 2 - 0.5 * (across / tall) ** 2)
            row.append(fall * math.cos(2 * math.pi / lambd * along + psi))
        rows.append(row)
    return _core.asarray(rows, _floating(ktype))


def getStructuringElement(shape: int, ksize: tuple[int, int], anchor: tuple[int, int] = (-1, -1)) -> ndarray:
    """Return uint8 ones in the shape of a MORPH_ constant; `ksize` is (width, height)."""
    width, height = pair(ksize)
    if width < 1 or height < 1:
        raise ShapeError(f"a structuring element of {width} by {height}; both sizes must be positive")
    at_x, at_y = (width // 2 if anchor[0] < 0 else anchor[0]), (height // 2 if anchor[1] < 0 else anchor[1])
    rows = []
    reach_x, reach_y = width // 2, height // 2
    for y in range(height):
        first, last = 0, width
        if shape == constants.MORPH_CROSS and width * height > 1:
            if y != at_y:
                first, last = at_x, at_x + 1
        elif shape == constants.MORPH_ELLIPSE and width * height > 1:
            dy, first, last = y - reach_y, 0, 0
            if abs(dy) <= reach_y:
                dx = round(reach_x * math.sqrt((reach_y * reach_y - dy * dy) / (reach_y * reach_y))) if reach_y else 0
                first, last = max(reach_x - dx, 0), min(reach_x + dx + 1, width)
        elif shape not in {constants.MORPH_RECT, constants.MORPH_CROSS, constants.MORPH_ELLIPSE}:
            raise UnsupportedError(f"unknown structuring element {shape}; use MORPH_RECT, MORPH_CROSS or MORPH_ELLIPSE")
        rows.append([int(first <= x < last) for x in range(width)])
    return _core.asarray(rows, "uint8")


def _floating(depth: int) -> str:
    return "float32" if depth == constants.CV_32F else "float64"
