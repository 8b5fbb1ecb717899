"""Geometric transforms: warps by a matrix, remapping by a map, and the matrices themselves."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import (
    ImageLike,
    as_image,
    border_name,
    evaluate,
    into_dst,
    pair,
    scalar,
    to_dtype_of,
    to_sampling_dtype,
)
from walle.engine_ext.cv.sizes import interpolation_name
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_CLOSEST = {"area": "linear", "linear_exact": "linear", "nearest_exact": "nearest"}  # how OpenCV treats them in a warp


def _interpolation(flags: int) -> str:
    name = interpolation_name(flags & constants.INTER_MAX)
    return _CLOSEST.get(name, name)


def _numbers(matrix: Any, rows: int, columns: int, what: str) -> list[float]:
    given = as_image(matrix)
    if given.shape != (rows, columns):
        raise ShapeError(f"{what} takes a matrix of {rows} by {columns}, not {given.shape}")
    return [float(number) for row in given.tolist() for number in row]


def _invert_affine(m: list[float]) -> list[float]:
    a, b, c, d, e, f = m
    determinant = a * e - b * d
    scale = 1 / determinant if determinant else 0.0
    a, b, d, e = e * scale, -b * scale, -d * scale, a * scale
    return [a, b, -a * c - b * f, d, e, -d * c - e * f]


def _invert_three(m: list[float]) -> list[float]:
    a, b, c, d, e, f, g, h, i = m
    cofactors = [e * i - f * h, c * h - b * i, b * f - c * e, f * g - d * i, a * i - c * g, c * d - a * f,
                 d * h - e * g, b * g - a * h, a * e - b * d]  # fmt: skip
    determinant = a * cofactors[0] + b * cofactors[3] + c * cofactors[6]
    return [number / determinant for number in cofactors] if determinant else [0.0] * 9


def _warp(
    op: str,
    src: ImageLike,
    matrix: list[float],
    dsize: tuple[int, int],
    dst: ImageLike | None,
    flags: int,
    border: int,
    value: Any,
) -> ndarray:
    given = as_image(src)
    width, height = (given.shape[1], given.shape[0]) if dsize is None or tuple(dsize) == (0, 0) else pair(dsize)
    attributes = {
        "matrix": matrix,
        "width": width,
        "height": height,
        "interpolation": _interpolation(flags),
        "border": border_name(border),
        "value": scalar(value),
    }
    inputs = [to_sampling_dtype(given)]
    if attributes["border"] == "transparent":
        under = as_image(dst) if dst is not None else _core.full((height, width, *given.shape[2:]), 0, given.dtype)
        inputs.append(to_sampling_dtype(under))
    return into_dst(to_dtype_of(evaluate(op, inputs, attributes), given), dst)


def warpAffine(
    src: ImageLike,
    M: Any,
    dsize: tuple[int, int],
    dst: ImageLike | None = None,
    flags: int = constants.INTER_LINEAR,
    borderMode: int = constants.BORDER_CONSTANT,
    borderValue: float | Sequence[float] = 0,
) -> ndarray:
    """Return the image transformed by a 2 by 3 matrix; with WARP_INVERSE_MAP, `M` maps the result to the image."""
    matrix = _numbers(M, 2, 3, "warpAffine")
    if not flags & constants.WARP_INVERSE_MAP:
        matrix = _invert_affine(matrix)
    return _warp("WarpAffine", src, matrix, dsize, dst, flags, borderMode, borderValue)


def warpPerspective(
    src: ImageLike,
    M: Any,
    dsize: tuple[int, int],
    dst: ImageLike | None = None,
    flags: int = constants.INTER_LINEAR,
    borderMode: int = constants.BORDER_CONSTANT,
    borderValue: float | Sequence[float] = 0,
) -> ndarray:
    """Return the image transformed by a 3 by 3 matrix; with WARP_INVERSE_MAP, `M` maps the result to the image."""
    matrix = _numbers(M, 3, 3, "warpPerspective")
    if not flags & constants.WARP_INVERSE_MAP:
        matrix = _invert_three(matrix)
    return _warp("WarpPerspective", src, matrix, dsize, dst, flags, borderMode, borderValue)


def remap(
    src: ImageLike,
    map1: ImageLike,
    map2: ImageLike | None,
    interpolation: int = constants.INTER_LINEAR,
    dst: ImageLike | None = None,
    borderMode: int = constants.BORDER_CONSTANT,
    borderValue: float | Sequence[float] = 0,
) -> ndarray:
    """Return the image sampled at the coordinates `map1` (x, y), or `map1` (x) and `map2` (y).

    Maps are float32, or int16 pairs with uint16 fractions in 32nds of a pixel, as `convertMaps` returns them.
    """
    given, first = as_image(src), as_image(map1)
    second = None if map2 is None or 0 in as_image(map2).shape else as_image(map2)
    if first.dtype == "int16":
        first, second = _floating_maps(first, second)
    inputs: list[Any] = [to_sampling_dtype(given), first, second]
    attributes = {
        "interpolation": _interpolation(interpolation),
        "border": border_name(borderMode),
        "value": scalar(borderValue),
    }
    if attributes["border"] == "transparent":
        under = as_image(dst) if dst is not None else _core.full((*first.shape[:2], *given.shape[2:]), 0, given.dtype)
        inputs.append(to_sampling_dtype(under))
    return into_dst(to_dtype_of(evaluate("Remap", inputs, attributes), given), dst)


def _floating_maps(first: ndarray, second: ndarray | None) -> tuple[ndarray, None]:
    places = first.astype("float32")
    if second is not None:
        fine = second.astype("int32")
        places[:, :, 0] = places[:, :, 0] + (fine % 32).astype("float32") / 32.0
        places[:, :, 1] = places[:, :, 1] + (fine // 32 % 32).astype("float32") / 32.0
    return places, None


def convertMaps(
    map1: ImageLike,
    map2: ImageLike | None,
    dstmap1type: int = constants.CV_16S,
    nninterpolation: bool = False,
) -> tuple[ndarray, ndarray | None]:
    """Return float32 maps as int16 pairs and uint16 fractions (CV_16S), or any maps as float32 x and y (CV_32F)."""
    first, second = as_image(map1), None if map2 is None or 0 in as_image(map2).shape else as_image(map2)
    if first.dtype == "int16":
        first, second = _floating_maps(first, second)
    x, y = (first[:, :, 0], first[:, :, 1]) if second is None else (first, second)
    if dstmap1type & 7 == constants.CV_32F:
        return x.astype("float32"), y.astype("float32")
    scale = 1.0 if nninterpolation else 32.0
    fine = _core.unary("Round", _core.evaluate("Stack", [x, y], {"axis": 2})[0] * scale).astype("int32")
    if nninterpolation:
        return fine.astype("int16"), None
    parts = fine % 32
    return (fine // 32).astype("int16"), (parts[:, :, 1] * 32 + parts[:, :, 0]).astype("uint16")


def getRectSubPix(image_: ImageLike, patchSize: tuple[int, int], center: tuple[float, float]) -> ndarray:
    """Return the patch of `patchSize` (width, height) around a centre, which may be between pixels."""
    width, height = pair(patchSize)
    left, top = center[0] - (width - 1) / 2, center[1] - (height - 1) / 2
    return _warp(
        "WarpAffine", image_, [1.0, 0.0, left, 0.0, 1.0, top], (width, height), None, 1, constants.BORDER_REPLICATE, 0
    )


def getRotationMatrix2D(center: tuple[float, float], angle: float, scale: float) -> ndarray:
    """Return the 2 by 3 matrix that rotates by `angle` degrees counter-clockwise about `center` and scales."""
    cosine, sine = scale * math.cos(math.radians(angle)), scale * math.sin(math.radians(angle))
    x, y = center
    rows = [[cosine, sine, (1 - cosine) * x - sine * y], [-sine, cosine, sine * x + (1 - cosine) * y]]
    return _core.asarray(rows, "float64")


def invertAffineTransform(M: Any) -> ndarray:
    return _core.asarray(_invert_affine(_numbers(M, 2, 3, "invertAffineTransform")), "float64").reshape(2, 3)


def _points(value: Any, count: int, what: str) -> list[list[float]]:
    given = as_image(value).astype("float64").reshape(-1, 2)
    if given.shape[0] != count:
        raise ShapeError(f"{what} takes {count} points, not {given.shape[0]}")
    return [[float(x), float(y)] for x, y in given.tolist()]


def getAffineTransform(src: Any, dst: Any) -> ndarray:
    """Return the 2 by 3 matrix that maps three points to three others."""
    start, end = _points(src, 3, "getAffineTransform"), _points(dst, 3, "getAffineTransform")
    rows = [_solve([[x, y, 1.0] for x, y in start], [point[axis] for point in end]) for axis in (0, 1)]
    return _core.asarray(rows, "float64")


def getPerspectiveTransform(src: Any, dst: Any, solveMethod: int = constants.DECOMP_LU) -> ndarray:
    """Return the 3 by 3 matrix that maps four points to four others; its last element is 1."""
    start, end = _points(src, 4, "getPerspectiveTransform"), _points(dst, 4, "getPerspectiveTransform")
    rows, right = [], []
    for (x, y), (u, v) in zip(start, end, strict=True):
        rows += [[x, y, 1.0, 0.0, 0.0, 0.0, -x * u, -y * u], [0.0, 0.0, 0.0, x, y, 1.0, -x * v, -y * v]]
        right += [u, v]
    return _core.asarray([*_solve(rows, right), 1.0], "float64").reshape(3, 3)


def _solve(rows: list[list[float]], right: list[float]) -> list[float]:
    """Return the solution of a small linear system, by elimination with partial pivoting."""
    size = len(rows)
    table = [[*row, value] for row, value in zip(rows, right, strict=True)]
    for at in range(size):
        best = max(range(at, size), key=lambda row: abs(table[row][at]))
        if table[best][at] == 0:
            raise ShapeError("the points do not determine a transform; no three of them may be on one line")
        table[at], table[best] = table[best], table[at]
        for row in range(at + 1, size):
            factor = table[row][at] / table[at][at]
            table[row] = [a - factor * b for a, b in zip(table[row], table[at], strict=True)]
    result = [0.0] * size
    for at in reversed(range(size)):
        rest = table[at][size] - sum(table[at][k] * result[k] for k in range(at + 1, size))
        result[at] = rest / table[at][at]
    return result
