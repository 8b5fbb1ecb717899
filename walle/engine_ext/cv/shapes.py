"""Shapes of points: circles and lines that fit them, the place of a point, likeness by moments."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.contours import convexHull, moments
from walle.engine_ext.cv.images import as_image, into_dst
from walle.engine_ext.errors import ShapeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

type Circle = tuple[tuple[float, float], float]


def _points(value: Any) -> list[tuple[float, float]]:
    given = as_image(value)
    if given.size == 0 or given.shape[-1] != 2:
        raise ShapeError(f"points of shape {given.shape}; give at least one pair (x, y)")
    return [(float(x), float(y)) for x, y in given.reshape(-1, 2).tolist()]


def minEnclosingCircle(points: Any) -> Circle:
    """Return (x, y) and the radius of the least circle that has all points (Welzl, 1991)."""
    hull = _points(as_image(convexHull(as_image(points).astype("float32"))))
    circle: Circle = (hull[0], 0.0)
    for i, p in enumerate(hull):
        if _has(circle, p):
            continue
        circle = (p, 0.0)
        for j, q in enumerate(hull[:i]):
            if _has(circle, q):
                continue
            circle = (((p[0] + q[0]) / 2, (p[1] + q[1]) / 2), math.dist(p, q) / 2)
            for r in hull[:j]:
                if not _has(circle, r):
                    circle = _through(p, q, r)
    return circle[0], circle[1] + 1e-4  # OpenCV's margin: the points themselves are inside


def _has(circle: Circle, point: tuple[float, float]) -> bool:
    return math.dist(circle[0], point) <= circle[1] * (1 + 1e-9) + 1e-9


def _through(p: tuple[float, float], q: tuple[float, float], r: tuple[float, float]) -> Circle:
    bx, by, cx, cy = q[0] - p[0], q[1] - p[1], r[0] - p[0], r[1] - p[1]
    twice = 2 * (bx * cy - by * cx)
    if abs(twice) < 1e-12:  # three points on one line: the circle of the two farthest apart
        a, b = max(((p, q), (p, r), (q, r)), key=lambda two: math.dist(*two))
        return ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2), math.dist(a, b) / 2
    b2, c2 = bx * bx + by * by, cx * cx + cy * cy
    x, y = (cy * b2 - by * c2) / twice, (bx * c2 - cx * b2) / twice
    return (p[0] + x, p[1] + y), math.hypot(x, y)


def fitLine(points: Any, distType: int, param: float, reps: float, aeps: float, line: Any = None) -> ndarray:
    """Return float32 [4, 1]: direction and one point of the line with the least squares of distances (DIST_L2)."""
    if distType != constants.DIST_L2:
        raise UnsupportedError(f"fitLine by distance {distType} is not supported; use DIST_L2")
    found = as_image(points).reshape(-1, 2).astype("float64")
    middle = found.sum(0) * (1 / found.shape[0])
    apart = found - middle
    dx, dy = apart[:, 0], apart[:, 1]
    angle = math.atan2(2 * float((dx * dy).sum()), float((dx * dx).sum()) - float((dy * dy).sum())) / 2
    numbers = [math.cos(angle), math.sin(angle), *middle.tolist()]
    return into_dst(_core.asarray(numbers, "float32").reshape(4, 1), line)


def pointPolygonTest(contour: Any, pt: tuple[float, float], measureDist: bool) -> float:
    """Return 1 inside the polygon, 0 on it, -1 outside; if `measureDist`, its signed distance from the polygon."""
    corners = _points(contour)
    x, y = float(pt[0]), float(pt[1])
    inside, least = False, math.inf
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        length = (bx - ax) ** 2 + (by - ay) ** 2
        at = min(max(((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length, 0.0), 1.0) if length else 0.0
        least = min(least, math.hypot(x - ax - at * (bx - ax), y - ay - at * (by - ay)))
        if (ay > y) != (by > y) and x < ax + (y - ay) / (by - ay) * (bx - ax):
            inside = not inside
    if least == 0:
        return 0.0
    side = 1.0 if inside else -1.0
    return side * least if measureDist else side


def HuMoments(m: Mapping[str, float], hu: Any = None) -> ndarray:
    """Return float64 [7, 1]: the moments of `moments` that do not change with place, size and turn (Hu, 1962)."""
    n20, n11, n02 = m["nu20"], m["nu11"], m["nu02"]
    n30, n21, n12, n03 = m["nu30"], m["nu21"], m["nu12"], m["nu03"]
    s, d, a, b, p, q = n20 + n02, n20 - n02, n30 - 3 * n12, 3 * n21 - n03, n30 + n12, n21 + n03
    numbers = [
        s,
        d * d + 4 * n11 * n11,
        a * a + b * b,
        p * p + q * q,
        a * p * (p * p - 3 * q * q) + b * q * (3 * p * p - q * q),
        d * (p * p - q * q) + 4 * n11 * p * q,
        b * p * (p * p - 3 * q * q) - a * q * (3 * p * p - q * q),
    ]
    return into_dst(_core.asarray(numbers, "float64").reshape(7, 1), hu)


def matchShapes(contour1: Any, contour2: Any, method: int, parameter: float) -> float:
    """Return how much the shapes of two contours or images differ, by a method CONTOURS_MATCH_I1 to I3."""
    one, other = (HuMoments(moments(contour)).reshape(-1).tolist() for contour in (contour1, contour2))
    total = 0.0
    for a, b in zip(one, other, strict=True):
        if abs(a) <= 1e-5 or abs(b) <= 1e-5:
            continue
        la, lb = math.copysign(1, a) * math.log10(abs(a)), math.copysign(1, b) * math.log10(abs(b))
        match method:
            case constants.CONTOURS_MATCH_I1:
                total += abs(1 / lb - 1 / la)
            case constants.CONTOURS_MATCH_I2:
                total += abs(lb - la)
            case constants.CONTOURS_MATCH_I3:
                total = max(total, abs((la - lb) / la))
            case _:
                raise UnsupportedError(f"unknown method {method}; use CONTOURS_MATCH_I1, I2 or I3")
    return total
