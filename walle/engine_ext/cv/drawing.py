"""Drawing in place, as in OpenCV: shapes become runs of pixels, and the raster writes a colour to them."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv.images import ImageLike, as_image, evaluate, pair, scalar
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

type Colour = float | Sequence[float]
type Point = tuple[int, int]


def _paint(img: ImageLike, spans: ndarray, colour: Colour) -> ndarray:
    canvas = as_image(img)
    channels = canvas.shape[2] if canvas.ndim == 3 else 1
    pixel = _core.asarray(scalar(colour)[:channels], "float64").astype(canvas.dtype)
    _core.fill_spans(canvas, spans, pixel)
    return canvas


def _within(img: ImageLike) -> dict[str, Any]:
    height, width = as_image(img).shape[:2]
    return {"height": height, "width": width}


def _lines(img: ImageLike, points: list[Point], colour: Colour, thickness: int) -> ndarray:
    ends = _core.asarray(points, "int32").reshape(-1, 2)
    return _paint(img, evaluate("LineSpans", [ends], {**_within(img), "thickness": thickness}), colour)


def _shifted(point: Any, shift: int) -> Point:
    x, y = pair(point)
    half = (1 << shift) >> 1
    return (x + half) >> shift, (y + half) >> shift


def line(
    img: ImageLike, pt1: Point, pt2: Point, color: Colour, thickness: int = 1, lineType: int = 8, shift: int = 0
) -> ndarray:
    """Draw a line; LINE_AA is drawn like LINE_8."""
    return _lines(img, [_shifted(pt1, shift), _shifted(pt2, shift)], color, thickness)


def arrowedLine(
    img: ImageLike,
    pt1: Point,
    pt2: Point,
    color: Colour,
    thickness: int = 1,
    line_type: int = 8,
    shift: int = 0,
    tipLength: float = 0.1,
) -> ndarray:
    """Draw a line from `pt1` to `pt2` with a tip of `tipLength` times its length."""
    (x, y), (u, v) = _shifted(pt1, shift), _shifted(pt2, shift)
    size, angle = math.hypot(x - u, y - v) * tipLength, math.atan2(y - v, x - u)
    points = [(x, y), (u, v)]
    for turn in (math.pi / 4, -math.pi / 4):
        points += [(round(u + size * math.cos(angle + turn)), round(v + size * math.sin(angle + turn))), (u, v)]
    return _lines(img, points, color, thickness)


def rectangle(
    img: ImageLike,
    pt1: Any,
    pt2: Any,
    color: Colour | None = None,
    thickness: int = 1,
    lineType: int = 8,
    shift: int = 0,
) -> ndarray:
    """Draw a rectangle, given by two corners or by (left, top, width, height), followed by the colour."""
    if len(pt1) == 4:
        left, top, width, height = (int(number) for number in pt1)
        shade, thickness = pt2, 1 if color is None else int(color)  # type: ignore[arg-type]
        first, last = (left, top), (left + width - 1, top + height - 1)
    else:
        assert color is not None
        shade, first, last = color, _shifted(pt1, shift), _shifted(pt2, shift)
    (x, y), (u, v) = first, last
    corners = [(x, y), (u, y), (u, v), (x, v)]
    if thickness < 0:
        return fillPoly(img, [_core.asarray(corners, "int32")], shade)
    return _lines(img, [corner for k in range(4) for corner in (corners[k], corners[(k + 1) % 4])], shade, thickness)


def circle(
    img: ImageLike, center: Point, radius: int, color: Colour, thickness: int = 1, lineType: int = 8, shift: int = 0
) -> ndarray:
    """Draw a circle; a negative thickness fills it."""
    x, y = _shifted(center, shift)
    if thickness > 1:
        return ellipse(img, (x, y), (radius, radius), 0, 0, 360, color, thickness)
    attributes = {
        **_within(img),
        "x": x,
        "y": y,
        "radius": (radius + ((1 << shift) >> 1)) >> shift,
        "filled": int(thickness < 0),
    }
    return _paint(img, evaluate("CircleSpans", [], attributes), color)


def ellipse2Poly(center: Point, axes: tuple[int, int], angle: int, arcStart: int, arcEnd: int, delta: int) -> ndarray:
    """Return an arc of an ellipse as int32 points [count, 2], one every `delta` degrees."""
    points = _arc(center, axes, angle, arcStart, arcEnd, delta)
    return _core.asarray(points, "int32")


def _arc(center: Point, axes: tuple[int, int], angle: float, start: float, end: float, delta: int) -> list[Point]:
    if delta < 1:
        raise ShapeError(f"an arc in steps of {delta} degrees; `delta` must be positive")
    if start > end:
        start, end = end, start
    while start < 0:
        start, end = start + 360, end + 360
    while end > 360:
        start, end = start - 360, end - 360
    if end - start > 360:
        start, end = 0, 360
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    points: list[Point] = []
    at = start
    while at < end + delta:
        turn = math.radians(min(at, end))
        x, y = axes[0] * math.cos(turn), axes[1] * math.sin(turn)
        point = (round(center[0] + x * cosine - y * sine), round(center[1] + x * sine + y * cosine))
        if not points or points[-1] != point:
            points.append(point)
        at += delta
    return points if len(points) > 1 else [(int(center[0]), int(center[1]))] * 2


def ellipse(
    img: ImageLike,
    center: Point,
    axes: tuple[int, int],
    angle: float,
    startAngle: float,
    endAngle: float,
    color: Colour,
    thickness: int = 1,
    lineType: int = 8,
    shift: int = 0,
) -> ndarray:
    """Draw an arc of an ellipse as a polygon; a negative thickness fills the sector."""
    at, size = _shifted(center, shift), _shifted(axes, shift)
    longest = max(size)
    delta = 5 if longest < 10 else 3 if longest < 60 else 1
    points = _arc(at, size, angle, startAngle, endAngle, delta)
    if thickness < 0:
        if endAngle - startAngle < 360:
            points.append(at)
        return fillPoly(img, [_core.asarray(points, "int32")], color)
    ends = [point for k in range(len(points) - 1) for point in (points[k], points[k + 1])]
    return _lines(img, ends, color, thickness)


def _polygons(pts: Any) -> list[ndarray]:
    if isinstance(pts, (list, tuple)):
        return [as_image(part).reshape(-1, 2).astype("int32") for part in pts]
    given = as_image(pts)
    return (
        [given[k].reshape(-1, 2).astype("int32") for k in range(given.shape[0])]
        if given.ndim == 3
        else [given.astype("int32")]
    )


def polylines(
    img: ImageLike, pts: Any, isClosed: bool, color: Colour, thickness: int = 1, lineType: int = 8, shift: int = 0
) -> ndarray:
    """Draw lines through the points of each polygon."""
    for polygon in _polygons(pts):
        if polygon.shape[0] == 0:
            continue
        first, after = polygon, evaluate("Concat", [polygon[1:], polygon[:1]], {"axis": 0})
        if not isClosed and polygon.shape[0] > 1:
            first, after = first[:-1], after[:-1]
        ends = evaluate("Stack", [first, after], {"axis": 1}).reshape(-1, 2)
        if shift:
            ends = (ends + ((1 << shift) >> 1)) // (1 << shift)
        _paint(img, evaluate("LineSpans", [ends], {**_within(img), "thickness": thickness}), color)
    return as_image(img)


def fillPoly(
    img: ImageLike, pts: Any, color: Colour, lineType: int = 8, shift: int = 0, offset: Point = (0, 0)
) -> ndarray:
    """Fill polygons together by the even-odd rule, edges included."""
    parts = [part for part in _polygons(pts) if part.shape[0]]
    if not parts:
        return as_image(img)
    points, ends, total = evaluate("Concat", parts, {"axis": 0}), [], 0
    if shift:
        points = (points + ((1 << shift) >> 1)) // (1 << shift)
    if tuple(offset) != (0, 0):
        points = points + _core.asarray(list(offset), "int32")
    for part in parts:
        total += part.shape[0]
        ends.append(total)
    return _paint(img, evaluate("PolygonSpans", [points, _core.asarray(ends, "int64")], _within(img)), color)


def fillConvexPoly(img: ImageLike, points: Any, color: Colour, lineType: int = 8, shift: int = 0) -> ndarray:
    return fillPoly(img, [points], color, lineType, shift)


def drawContours(
    image_: ImageLike,
    contours: Sequence[Any],
    contourIdx: int,
    color: Colour,
    thickness: int = 1,
    lineType: int = 8,
    hierarchy: Any = None,
    maxLevel: int = 1 << 30,
    offset: Point = (0, 0),
) -> ndarray:
    """Draw one contour or all (`contourIdx` -1); with a hierarchy, its descendants down to `maxLevel` too."""
    chosen = list(range(len(contours))) if contourIdx < 0 else [contourIdx]
    if hierarchy is not None and contourIdx >= 0:
        chosen = _descendants(as_image(hierarchy).reshape(-1, 4).tolist(), contourIdx, maxLevel)
    move = _core.asarray(list(offset), "int32")
    parts = [as_image(contours[k]).reshape(-1, 2).astype("int32") + move for k in chosen]
    if thickness < 0:
        return fillPoly(image_, parts, color)
    return polylines(image_, parts, True, color, thickness)


def _descendants(links: list[list[int]], first: int, levels: int) -> list[int]:
    found, open_ = [first], [(links[first][2], 1)]
    while open_:
        at, level = open_.pop()
        if at < 0 or level > levels:
            continue
        found.append(at)
        open_ += [(links[at][0], level), (links[at][2], level + 1)]
    return found
