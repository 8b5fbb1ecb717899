"""Filters: correlation, blurs, derivatives, medians, the bilateral filter, pyramids."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import (
    ImageLike,
    as_image,
    border_name,
    depth_name,
    evaluate,
    into_dst,
    pair,
    to_dtype_of,
    to_sampling_dtype,
)
from walle.engine_ext.cv.kernels import derivative_weights, fixed_gaussian_weights, gaussian_weights, scharr_weights
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from typing import Any

_FILTERED = ("uint8", "uint16", "int16", "float32")


def _filtered(op: str, given: ndarray, attributes: dict[str, Any], target: str) -> ndarray:
    """Return a filter's result, computed in a dtype that its kernels support; float64 is computed in float32."""
    source = given if given.dtype in _FILTERED else given.astype("float32")
    direct = target if target in _FILTERED else "float32"
    if (source.dtype == "uint16" and direct == "int16") or (source.dtype == "int16" and direct in {"uint8", "uint16"}):
        source = source.astype("float32")
    result = evaluate(op, [source], {**attributes, "to": direct})
    return result if direct == target else result.astype(target)


def _weights(kernel: Any) -> list[float]:
    return [float(weight) for weight in as_image(kernel).astype("float64").ravel().tolist()]


def filter2D(
    src: ImageLike,
    ddepth: int,
    kernel: Any,
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    delta: float = 0,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the correlation with `kernel` [height, width]."""
    given, window = as_image(src), as_image(kernel)
    if window.ndim == 1:
        window = window.reshape(-1, 1)
    attributes = {
        "kernel": _weights(window),
        "kernel_width": window.shape[1],
        "anchor_x": anchor[0],
        "anchor_y": anchor[1],
        "delta": float(delta),
        "border": border_name(borderType),
    }
    return into_dst(_filtered("ImageFilter", given, attributes, depth_name(ddepth, given.dtype)), dst)


def sepFilter2D(
    src: ImageLike,
    ddepth: int,
    kernelX: Any,
    kernelY: Any,
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    delta: float = 0,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the correlation with `kernelX` along x and `kernelY` along y."""
    given = as_image(src)
    attributes = {"anchor_x": anchor[0], "anchor_y": anchor[1], "delta": float(delta)}
    return into_dst(
        _separable(
            given, _weights(kernelX), _weights(kernelY), depth_name(ddepth, given.dtype), borderType, attributes
        ),
        dst,
    )


def _separable(
    given: ndarray, x: list[float], y: list[float], target: str, border: int, extra: dict[str, Any]
) -> ndarray:
    attributes = {"kernel_x": x, "kernel_y": y, "border": border_name(border), **extra}
    return _filtered("SeparableFilter", given, attributes, target)


_FRACTIONS = {"uint8": 8, "uint16": 16}  # bits of a Gaussian's weights, as in OpenCV


def GaussianBlur(
    src: ImageLike,
    ksize: tuple[int, int],
    sigmaX: float = 0,
    dst: ImageLike | None = None,
    sigmaY: float = 0,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the image blurred by a Gaussian; the size of a window of 0 follows from its sigma."""
    given = as_image(src)
    width, height = pair(ksize)
    sigma_y = sigmaY if sigmaY > 0 else sigmaX
    reach = 3 if given.dtype == "uint8" else 4
    if width <= 0 and sigmaX > 0:
        width = round(sigmaX * reach * 2 + 1) | 1
    if height <= 0 and sigma_y > 0:
        height = round(sigma_y * reach * 2 + 1) | 1
    if width <= 0 or height <= 0:
        raise ShapeError("GaussianBlur needs a window (width, height) of odd numbers, or a sigma greater than 0")
    sigma_x, sigma_y = max(sigmaX, 0.0), max(sigma_y, 0.0)
    bits = _FRACTIONS.get(given.dtype)
    if bits is None:
        x, y = gaussian_weights(width, sigma_x), gaussian_weights(height, sigma_y)
        return into_dst(_separable(given, x, y, given.dtype, borderType, {}), dst)
    x, y = fixed_gaussian_weights(width, sigma_x, 1 << bits), fixed_gaussian_weights(height, sigma_y, 1 << bits)
    return into_dst(_separable(given, x, y, given.dtype, borderType, {"bits": 2 * bits}), dst)


def boxFilter(
    src: ImageLike,
    ddepth: int,
    ksize: tuple[int, int],
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    normalize: bool = True,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the mean of a window, or its sum unless `normalize`."""
    return into_dst(_box(as_image(src), ddepth, ksize, anchor, normalize, borderType, squared=False), dst)


def sqrBoxFilter(
    src: ImageLike,
    ddepth: int,
    ksize: tuple[int, int],
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    normalize: bool = True,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the mean (or the sum) of the squares of a window; the dtype is float32 unless `ddepth` is given."""
    depth = constants.CV_32F if ddepth < 0 else ddepth
    return into_dst(_box(as_image(src), depth, ksize, anchor, normalize, borderType, squared=True), dst)


def blur(
    src: ImageLike,
    ksize: tuple[int, int],
    dst: ImageLike | None = None,
    anchor: tuple[int, int] = (-1, -1),
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the mean of a window (width, height)."""
    return into_dst(_box(as_image(src), -1, ksize, anchor, True, borderType, squared=False), dst)


def _box(
    given: ndarray,
    ddepth: int,
    ksize: tuple[int, int],
    anchor: tuple[int, int],
    normalize: bool,
    border: int,
    *,
    squared: bool,
) -> ndarray:
    width, height = pair(ksize)
    target = depth_name(ddepth, given.dtype)
    attributes = {
        "width": width,
        "height": height,
        "anchor_x": anchor[0],
        "anchor_y": anchor[1],
        "normalize": int(normalize),
        "squared": int(squared),
        "border": border_name(border),
    }
    source = to_sampling_dtype(given)
    brightest = 255 if source.dtype == "uint8" else 65535
    if source.dtype != "float32" and width * height * (brightest**2 if squared else brightest) >= 1 << 31:
        source = source.astype("float32")  # integer sums have 32 bits
    direct = target if target in {source.dtype, "float32"} else "float32"
    result = evaluate("BoxFilter", [source], {**attributes, "to": direct})
    if direct == target:
        return result
    return result.astype(target) if target == "float64" else _core.unary("Round", result).astype(target)


def medianBlur(src: ImageLike, ksize: int, dst: ImageLike | None = None) -> ndarray:
    """Return the median of a square window; its size is 3 or 5, for uint8 any odd number."""
    return into_dst(
        evaluate("MedianFilter", [as_image(src)], {"size": int(ksize)}) if ksize != 1 else as_image(src).copy(), dst
    )


def bilateralFilter(
    src: ImageLike,
    d: int,
    sigmaColor: float,
    sigmaSpace: float,
    dst: ImageLike | None = None,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the mean of a disc of diameter `d`, weighted by spatial and colour distance, which preserves edges."""
    colour, space = (sigma if sigma > 0 else 1.0 for sigma in (sigmaColor, sigmaSpace))
    attributes = {
        "radius": max(round(space * 1.5) if d <= 0 else d // 2, 1),
        "sigma_color": float(colour),
        "sigma_space": float(space),
        "border": border_name(borderType),
    }
    return into_dst(evaluate("BilateralFilter", [as_image(src)], attributes), dst)


def Sobel(
    src: ImageLike,
    ddepth: int,
    dx: int,
    dy: int,
    dst: ImageLike | None = None,
    ksize: int = 3,
    scale: float = 1,
    delta: float = 0,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the derivative of orders `dx` and `dy`; `ksize` -1 takes Scharr's weights."""
    given = as_image(src)
    if ksize <= 0:
        x, y = scharr_weights(dx), scharr_weights(dy)
    else:
        x, y = derivative_weights(dx, ksize), derivative_weights(dy, ksize)
    if scale != 1:
        x, y = ([weight * scale for weight in x], y) if dx == 0 else (x, [weight * scale for weight in y])
    return into_dst(_separable(given, x, y, depth_name(ddepth, given.dtype), borderType, {"delta": float(delta)}), dst)


def Scharr(
    src: ImageLike,
    ddepth: int,
    dx: int,
    dy: int,
    dst: ImageLike | None = None,
    scale: float = 1,
    delta: float = 0,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the first derivative along x or along y by Scharr's 3 by 3 weights."""
    return Sobel(src, ddepth, dx, dy, dst, -1, scale, delta, borderType)


def spatialGradient(
    src: ImageLike,
    dx: ImageLike | None = None,
    dy: ImageLike | None = None,
    ksize: int = 3,
    borderType: int = constants.BORDER_DEFAULT,
) -> tuple[ndarray, ndarray]:
    """Return the first derivatives along x and along y, int16."""
    sizes = {"ksize": ksize, "borderType": borderType}
    return Sobel(src, constants.CV_16S, 1, 0, dx, **sizes), Sobel(src, constants.CV_16S, 0, 1, dy, **sizes)


def Laplacian(
    src: ImageLike,
    ddepth: int,
    dst: ImageLike | None = None,
    ksize: int = 1,
    scale: float = 1,
    delta: float = 0,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the sum of the second derivatives along x and along y."""
    given = as_image(src)
    target = depth_name(ddepth, given.dtype)
    if ksize in {1, 3}:
        weights = (
            [0.0, 1.0, 0.0, 1.0, -4.0, 1.0, 0.0, 1.0, 0.0]
            if ksize == 1
            else [2.0, 0.0, 2.0, 0.0, -8.0, 0.0, 2.0, 0.0, 2.0]
        )
        attributes = {
            "kernel": [weight * scale for weight in weights],
            "kernel_width": 3,
            "delta": float(delta),
            "border": border_name(borderType),
        }
        return into_dst(_filtered("ImageFilter", given, attributes, target), dst)
    twice, flat = derivative_weights(2, ksize), derivative_weights(0, ksize)
    total = _separable(given, twice, flat, "float32", borderType, {}) + _separable(
        given, flat, twice, "float32", borderType, {}
    )
    total = total * float(scale) + float(delta)
    like = _core.full((1,), 0, target)
    return into_dst(total if target == "float32" else to_dtype_of(total, like), dst)


_PYRAMID = [1.0, 4.0, 6.0, 4.0, 1.0]


def pyrDown(
    src: ImageLike,
    dst: ImageLike | None = None,
    dstsize: tuple[int, int] | None = None,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the image blurred, at half its width and height; odd sizes are rounded up."""
    given = as_image(src)
    half = ((given.shape[1] + 1) // 2, (given.shape[0] + 1) // 2)
    if dstsize is not None and tuple(dstsize) not in {half, (0, 0)}:
        raise ShapeError(f"pyrDown of shape {given.shape} to size {dstsize}; the result has size {half}")
    if given.dtype == "uint8":
        return into_dst(_separable(given, _PYRAMID, _PYRAMID, "uint8", borderType, {"bits": 8, "stride": 2}), dst)
    weights = [weight / 16 for weight in _PYRAMID]
    exact = "float32" if given.dtype in {"uint16", "int16"} else given.dtype
    return into_dst(_half_up(_separable(given, weights, weights, exact, borderType, {"stride": 2}), given), dst)


def _half_up(exact: ndarray, like: ndarray) -> ndarray:
    """Return an exact float32 result in the integer dtype of `like`, halves rounded up."""
    return exact if exact.dtype == like.dtype else _core.unary("Floor", exact + 0.5).astype(like.dtype)


def pyrUp(
    src: ImageLike,
    dst: ImageLike | None = None,
    dstsize: tuple[int, int] | None = None,
    borderType: int = constants.BORDER_DEFAULT,
) -> ndarray:
    """Return the image at twice its width and height, smoothly interpolated."""
    given = as_image(src)
    height, width = given.shape[:2]
    if dstsize is not None and tuple(dstsize) not in {(2 * width, 2 * height), (0, 0)}:
        raise ShapeError(
            f"pyrUp of shape {given.shape} to size {dstsize}; the result has size {(2 * width, 2 * height)}"
        )
    attributes = {"width": 2 * width, "height": 2 * height, "interpolation": "pyramid"}
    source = given if given.dtype == "uint8" else given.astype("float32")
    result = evaluate("ImageResize", [source], attributes)
    return into_dst(_half_up(result, given) if given.dtype in {"uint16", "int16"} else to_dtype_of(result, given), dst)
