"""Contours: finding, measuring and simplifying them; boxes around points, connected components, moments."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, evaluate
from walle.engine_ext.errors import ShapeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_MODES = {
    constants.RETR_EXTERNAL: "external",
    constants.RETR_LIST: "list",
    constants.RETR_CCOMP: "ccomp",
    constants.RETR_TREE: "tree",
}
type Rect = tuple[tuple[float, float], tuple[float, float], float]


def findContours(
    image_: ImageLike,
    mode: int,
    method: int,
    contours: None = None,
    hierarchy: None = None,
    offset: tuple[int, int] = (0, 0),
) -> tuple[tuple[ndarray, ...], ndarray | None]:
    """Return the contours of the pixels that are not 0, and their hierarchy; None if there is no contour.

    The image is uint8. A contour is int32 [points, 1, 2]. The hierarchy is int32 [1, contours, 4]: the indices of the
    next and the previous contour, the first child and the parent; -1 for none.

    """
    if mode not in _MODES:
        raise UnsupportedError(f"unknown contour mode {mode}; use RETR_EXTERNAL, RETR_LIST, RETR_CCOMP or RETR_TREE")
    if method not in {constants.CHAIN_APPROX_NONE, constants.CHAIN_APPROX_SIMPLE}:
        raise UnsupportedError(f"unknown contour method {method}; use CHAIN_APPROX_NONE or CHAIN_APPROX_SIMPLE")
    attributes = {"mode": _MODES[mode], "simple": int(method == constants.CHAIN_APPROX_SIMPLE)}
    points, ends, links = _core.evaluate("FindContours", [as_image(image_)], attributes, 3)
    if tuple(offset) != (0, 0):
        points = points + _core.asarray(list(offset), "int32")
    found, begin = [], 0
    for end in ends.tolist():
        found.append(points[begin:end].reshape(-1, 1, 2))
        begin = end
    return tuple(found), links.reshape(1, -1, 4) if found else None


def _points(value: Any) -> ndarray:
    """Return the points as float64 [count, 2]."""
    given = as_image(value)
    if given.size == 0:
        return _core.full((0, 2), 0, "float64")
    if given.shape[-1] != 2:
        raise ShapeError(f"points of shape {given.shape}; give pairs (x, y)")
    return given.reshape(-1, 2).astype("float64")


def _next(points: ndarray) -> ndarray:
    return evaluate("Concat", [points[1:], points[:1]], {"axis": 0})


def contourArea(contour: Any, oriented: bool = False) -> float:
    """Return the area of a polygon; if `oriented`, it is negative for one of the two directions."""
    points = _points(contour)
    if points.shape[0] == 0:
        return 0.0
    after = _next(points)
    area = float((points[:, 0] * after[:, 1] - points[:, 1] * after[:, 0]).sum()) / 2
    return area if oriented else abs(area)


def arcLength(curve: Any, closed: bool) -> float:
    points = _points(curve)
    if points.shape[0] < 2:
        return 0.0
    step = _next(points) - points
    lengths = _core.unary("Sqrt", (step * step).sum(1))
    return float((lengths if closed else lengths[:-1]).sum())


def boundingRect(array: Any) -> tuple[int, int, int, int]:
    """Return the upright box (left, top, width, height) around points, or around the nonzero pixels of one channel."""
    given = as_image(array)
    if given.ndim == 2 and given.shape[1] != 2 and given.dtype == "uint8":
        rows, columns = _core.evaluate("NonZero", [given], {})[0]
        if rows.size == 0:
            return 0, 0, 0, 0
        left, right, top, bottom = int(columns.min()), int(columns.max()), int(rows.min()), int(rows.max())
        return left, top, right - left + 1, bottom - top + 1
    points = _points(given)
    if points.shape[0] == 0:
        return 0, 0, 0, 0
    low, high = points.min(0).tolist(), points.max(0).tolist()
    left, top = math.floor(low[0]), math.floor(low[1])
    return left, top, math.floor(high[0]) - left + 1, math.floor(high[1]) - top + 1


def _picked(given: Any, places: ndarray) -> ndarray:
    source = as_image(given).reshape(-1, 2)
    return source[places].reshape(-1, 1, 2)


def convexHull(points: Any, hull: None = None, clockwise: bool = False, returnPoints: bool = True) -> ndarray:
    """Return the corners of the convex hull of points, [corners, 1, 2], or their indices, int32 [corners, 1]."""
    places = evaluate("ConvexHull", [_points(points)], {"clockwise": int(clockwise)})
    return _picked(points, places) if returnPoints else places.astype("int32").reshape(-1, 1)


def approxPolyDP(curve: Any, epsilon: float, closed: bool, approxCurve: None = None) -> ndarray:
    """Return a curve of fewer points that is within `epsilon` of every point (Douglas and Peucker)."""
    places = evaluate("ApproximatePolygon", [_points(curve)], {"epsilon": float(epsilon), "closed": int(closed)})
    return _picked(curve, places)


def isContourConvex(contour: Any) -> bool:
    points = _points(contour)
    step = _next(points) - points
    after = _next(step)
    turns = step[:, 0] * after[:, 1] - step[:, 1] * after[:, 0]
    return bool((turns >= 0).all()) or bool((turns <= 0).all())


def minAreaRect(points: Any) -> Rect:
    """Return the box of least area around points: centre (x, y), (width, height), angle in degrees from 0 to 90."""
    hull: list[list[float]] = _points(convexHull(points)).tolist()
    if not hull:
        return (0.0, 0.0), (0.0, 0.0), 0.0
    if len(hull) <= 2:
        (x, y), (u, v) = hull[0], hull[-1]
        return (
            ((x + u) / 2, (y + v) / 2),
            (math.hypot(u - x, v - y), 0.0),
            math.degrees(math.atan2(v - y, u - x)) % 90 or 0.0,
        )
    best: tuple[float, Rect] | None = None
    for (x, y), (u, v) in zip(hull, hull[1:] + hull[:1], strict=True):
        length = math.hypot(u - x, v - y)
        cosine, sine = (u - x) / length, (v - y) / length
        along = [px * cosine + py * sine for px, py in hull]
        across = [py * cosine - px * sine for px, py in hull]
        width, height = max(along) - min(along), max(across) - min(across)
        if best is None or width * height < best[0]:
            middle, aside = (max(along) + min(along)) / 2, (max(across) + min(across)) / 2
            centre = (middle * cosine - aside * sine, middle * sine + aside * cosine)
            best = (width * height, (centre, (width, height), math.degrees(math.atan2(sine, cosine))))
    assert best is not None
    centre, (width, height), angle = best[1]
    turns = math.ceil(angle / 90) - 1  # turns the angle into (0, 90]
    angle -= 90 * turns
    return centre, (width, height) if turns % 2 == 0 else (height, width), angle


def boxPoints(box: Rect, points: None = None) -> ndarray:
    """Return the corners of a rotated box as float32 [4, 2]."""
    (x, y), (width, height), angle = box
    cosine, sine = math.cos(math.radians(angle)) / 2, math.sin(math.radians(angle)) / 2
    first = (x - sine * height - cosine * width, y + cosine * height - sine * width)
    second = (x + sine * height - cosine * width, y - cosine * height - sine * width)
    return _core.asarray(
        [first, second, (2 * x - first[0], 2 * y - first[1]), (2 * x - second[0], 2 * y - second[1])], "float32"
    )


def connectedComponents(
    image_: ImageLike,
    labels: None = None,
    connectivity: int = 8,
    ltype: int = constants.CV_32S,
) -> tuple[int, ndarray]:
    """Return the number of components and their int32 labels; the background is component 0."""
    found = evaluate("ConnectedComponents", [as_image(image_)], {"connectivity": connectivity})
    return int(found.max()) + 1, found


def connectedComponentsWithStats(
    image_: ImageLike,
    labels: None = None,
    stats: None = None,
    centroids: None = None,
    connectivity: int = 8,
    ltype: int = constants.CV_32S,
) -> tuple[int, ndarray, ndarray, ndarray]:
    """Return count, labels, int32 [count, 5] (left, top, width, height, area) and float64 centroids [count, 2]."""
    count, found = connectedComponents(image_, None, connectivity, ltype)
    boxes, centres = _core.evaluate("ComponentStatistics", [found], {}, 2)
    return count, found, boxes, centres


def moments(array: Any, binaryImage: bool = False) -> dict[str, float]:
    """Return the moments up to the third order: spatial (m), central (mu), normalised central (nu).

    They are those of an image of one channel, or of the polygon of int32 or float32 points, pairs (x, y).
    """
    given = as_image(array)
    if given.shape[-1] == 2 and given.dtype in {"int32", "float32"}:
        found = evaluate("PolygonMoments", [_points(given)], {}).tolist()
        m = {(p, q): float(found[p][q]) for p, q in _ORDERS}
    elif given.ndim == 2:
        mass = (given != 0).astype("float64") if binaryImage else given.astype("float64")
        x, y = (_core.arange(0, 1, size, "float64") for size in (given.shape[1], given.shape[0]))
        columns = [mass.dot(x**power) if power else mass.sum(1) for power in range(4)]
        m = {(p, q): float((columns[p] * (y**q if q else 1.0)).sum()) for p, q in _ORDERS}
    else:
        raise ShapeError(f"moments takes an image of one channel, or int32 or float32 points, not {given.shape}")
    result = {f"m{p}{q}": m[p, q] for p, q in _ORDERS}
    total = m[0, 0]
    cx, cy = (m[1, 0] / total, m[0, 1] / total) if total else (0.0, 0.0)
    for p, q in _ORDERS:
        if p + q < 2:
            continue
        central = sum(
            math.comb(p, i) * math.comb(q, j) * (-cx) ** (p - i) * (-cy) ** (q - j) * m[i, j]
            for i in range(p + 1)
            for j in range(q + 1)
        )
        result[f"mu{p}{q}"] = central
        result[f"nu{p}{q}"] = central / total ** (1 + (p + q) / 2) if total else 0.0
    return result


_ORDERS: Sequence[tuple[int, int]] = ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (0, 3))
