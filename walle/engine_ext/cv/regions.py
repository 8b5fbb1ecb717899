"""Distances from the background, and regions of one colour."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, depth_name, evaluate, into_dst, pair, scalar
from walle.engine_ext.errors import ShapeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence

_METRICS = {constants.DIST_L1: "l1", constants.DIST_L2: "l2", constants.DIST_C: "c"}


def distanceTransform(
    src: ImageLike,
    distanceType: int,
    maskSize: int,
    dst: ImageLike | None = None,
    dstType: int = constants.CV_32F,
) -> ndarray:
    """Return the distance of each pixel of a uint8 image from the nearest pixel that is 0, as float32.

    `DIST_MASK_PRECISE` is exact; the masks of 3 and 5 are near, and exact for DIST_L1 and DIST_C.
    """
    if distanceType not in _METRICS:
        raise UnsupportedError(f"unknown distance {distanceType}; use DIST_L1, DIST_L2 or DIST_C")
    size = maskSize if distanceType == constants.DIST_L2 else constants.DIST_MASK_3
    found = evaluate("DistanceTransform", [as_image(src)], {"metric": _METRICS[distanceType], "size": size})
    if dstType != constants.CV_32F:
        found = _core.binary("Minimum", found, 255.0).astype(depth_name(dstType, "float32"))
    return into_dst(found, dst)


def floodFill(
    image_: ImageLike,
    mask: ImageLike | None,
    seedPoint: tuple[int, int],
    newVal: float | Sequence[float],
    loDiff: float | Sequence[float] = 0,
    upDiff: float | Sequence[float] = 0,
    flags: int = 4,
) -> tuple[int, ndarray, ndarray, tuple[int, int, int, int]]:
    """Paint the region around a seed in place; return its pixels, the image, the mask, and (left, top, width, height).

    A pixel belongs to the region if each channel is at most `loDiff` below and `upDiff` above that of a neighbour in
    it, or with FLOODFILL_FIXED_RANGE that of the seed. `mask` has two rows and columns more than the image; the fill
    does not enter where it is not 0, and writes 1 there, or bits 8 to 15 of `flags`. Its border becomes 1, as OpenCV's.
    """
    canvas = as_image(image_)
    height, width = canvas.shape[:2]
    edged = _core.full((height + 2, width + 2), 0, "uint8") if mask is None else as_image(mask)
    if edged.shape != (height + 2, width + 2) or edged.dtype != "uint8":
        raise ShapeError(f"a mask of {edged.dtype} {list(edged.shape)}; give uint8 [{height + 2}, {width + 2}]")
    channels = canvas.shape[2] if canvas.ndim == 3 else 1
    x, y = pair(seedPoint)
    attributes = {
        "x": x,
        "y": y,
        "low": scalar(loDiff)[:channels],
        "high": scalar(upDiff)[:channels],
        "fixed": int(bool(flags & constants.FLOODFILL_FIXED_RANGE)),
        "eight": int(flags & 255 == 8),
    }
    edged[0] = edged[-1] = edged[:, 0] = edged[:, -1] = 1
    inner = edged[1:-1, 1:-1]
    reached = evaluate("FloodRegion", [canvas.reshape(height, width, channels), inner.copy()], attributes)
    rows, columns = _core.evaluate("NonZero", [reached], {})[0]
    if rows.size == 0:
        return 0, canvas, edged, (0, 0, 0, 0)
    inside = reached != 0
    if not flags & constants.FLOODFILL_MASK_ONLY:
        shaped = inside.reshape(height, width, 1) if canvas.ndim == 3 else inside
        colour = scalar(newVal)[:channels] if canvas.ndim == 3 else scalar(newVal)[0]
        canvas[...] = _core.where(shaped, _core.asarray(colour, "float64").astype(canvas.dtype), canvas)
    inner[...] = _core.where(inside, _core.asarray((flags >> 8) & 255 or 1, "uint8"), inner)
    left, top = int(columns.min()), int(rows.min())
    return int(rows.size), canvas, edged, (left, top, int(columns.max()) - left + 1, int(rows.max()) - top + 1)
