"""Straight lines in an image, by votes."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv.images import ImageLike, as_image
from walle.engine_ext.errors import UnsupportedError


def HoughLines(
    image_: ImageLike,
    rho: float,
    theta: float,
    threshold: int,
    lines: None = None,
    srn: float = 0,
    stn: float = 0,
    min_theta: float = 0,
    max_theta: float = math.pi,
) -> ndarray | None:
    """Return float32 [lines, 1, 2] of distance and angle, most votes first; None if there is no line.

    The image is uint8; a line has more than `threshold` of its pixels that are not 0.
    """
    if srn or stn:
        raise UnsupportedError("HoughLines by several scales (srn, stn) is not supported; leave them 0")
    steps = {"rho": float(rho), "theta": float(theta), "min_theta": float(min_theta), "max_theta": float(max_theta)}
    found = _core.evaluate("HoughLines", [as_image(image_)], {**steps, "threshold": int(threshold)}, 2)[0]
    return found.reshape(-1, 1, 2) if found.shape[0] else None


def HoughLinesP(
    image_: ImageLike,
    rho: float,
    theta: float,
    threshold: int,
    lines: None = None,
    minLineLength: float = 0,
    maxLineGap: float = 0,
) -> ndarray | None:
    """Return segments, int32 [segments, 4] of x, y, x, y; None if there is none.

    A line needs `threshold` votes. Its segments are at least `minLineLength` long on one axis, and have gaps of at most
    `maxLineGap` pixels.
    """
    numbers = {"rho": float(rho), "theta": float(theta), "threshold": int(threshold)}
    lengths = {"length": round(minLineLength), "gap": round(maxLineGap)}
    found = _core.evaluate("HoughSegments", [as_image(image_)], {**numbers, **lengths}, 1)[0]
    return found if found.shape[0] else None
