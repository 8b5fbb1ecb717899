"""Input and output of networks, as in OpenCV's `dnn`: images to blobs and back, suppression of boxes."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.images import ImageLike, as_image, evaluate, pair, scalar
from walle.engine_ext.cv.sizes import resize
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def blobFromImage(
    image_: ImageLike,
    scalefactor: float = 1.0,
    size: tuple[int, int] = (0, 0),
    mean: float | Sequence[float] = 0,
    swapRB: bool = False,
    crop: bool = False,
    ddepth: int = constants.CV_32F,
) -> ndarray:
    """Return float32 [1, channels, height, width]: (image - mean) * scalefactor, resized to `size` (width, height)."""
    return blobFromImages([image_], scalefactor, size, mean, swapRB, crop, ddepth)


def blobFromImages(
    images: Sequence[ImageLike],
    scalefactor: float = 1.0,
    size: tuple[int, int] = (0, 0),
    mean: float | Sequence[float] = 0,
    swapRB: bool = False,
    crop: bool = False,
    ddepth: int = constants.CV_32F,
) -> ndarray:
    """Return the images as one array [images, channels, height, width]; `crop` keeps the aspect ratio."""
    blobs = [_one(as_image(picture), scalefactor, pair(size), scalar(mean), swapRB, crop, ddepth) for picture in images]
    return evaluate("Stack", blobs, {"axis": 0}) if len(blobs) > 1 else blobs[0].reshape(1, *blobs[0].shape)


def _one(
    given: ndarray, scale: float, size: tuple[int, int], mean: list[float], swapped: bool, crop: bool, ddepth: int
) -> ndarray:
    width, height = size if size != (0, 0) else (given.shape[1], given.shape[0])
    if crop and (given.shape[1], given.shape[0]) != (width, height):
        factor = max(width / given.shape[1], height / given.shape[0])
        given = resize(given, None, fx=factor, fy=factor)
        top, left = (given.shape[0] - height) // 2, (given.shape[1] - width) // 2
        given = given[top : top + height, left : left + width]
    elif (given.shape[1], given.shape[0]) != (width, height):
        given = resize(given, (width, height))
    channels = given.shape[2] if given.ndim == 3 else 1
    planes = given.reshape(height, width, channels).transpose(2, 0, 1)
    if swapped and channels >= 3:
        order = [2, 1, 0, *range(3, channels)]
        planes = evaluate("Gather", [planes, _core.asarray(order, "int64")], {"axis": 0})
    if ddepth == constants.CV_8U:
        return planes.copy()
    planes = planes.astype("float32")
    if any(mean):  # the mean is in the blob's order of channels
        planes = planes - _core.asarray(mean[:channels], "float32").reshape(-1, 1, 1)
    return planes * float(scale) if scale != 1 else planes


def imagesFromBlob(blob_: ImageLike) -> tuple[ndarray, ...]:
    """Return the images [height, width, channels] of a blob."""
    given = as_image(blob_)
    return tuple(given[k].transpose(1, 2, 0).copy() for k in range(given.shape[0]))


def NMSBoxes(
    bboxes: Any, scores: Any, score_threshold: float, nms_threshold: float, eta: float = 1.0, top_k: int = 0
) -> ndarray:
    """Return the int32 indices of the boxes (left, top, width, height) that are kept, best first.

    A box is kept if its score is above the threshold and its intersection over union with every better one is at most
    `nms_threshold`. `eta` below 1 lowers that bound with each box that is kept.

    """
    boxes: list[list[float]] = as_image(bboxes).astype("float64").reshape(-1, 4).tolist()
    values: list[float] = as_image(scores).astype("float64").ravel().tolist()
    if len(boxes) != len(values):
        raise ShapeError(f"NMSBoxes of {len(boxes)} boxes with {len(values)} scores; give one score for each box")
    order = sorted((k for k, value in enumerate(values) if value > score_threshold), key=lambda k: -values[k])
    kept: list[int] = []
    bound = nms_threshold
    for k in order[:top_k] if top_k > 0 else order:
        if all(_overlap(boxes[k], boxes[better]) <= bound for better in kept):
            kept.append(k)
            if eta < 1 and bound > 0.5:
                bound *= eta
    return _core.asarray(kept, "int32") if kept else _core.full((0,), 0, "int32")


def _overlap(a: list[float], b: list[float]) -> float:
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    both = max(width, 0.0) * max(height, 0.0)
    either = a[2] * a[3] + b[2] * b[3] - both
    return both / either if either > 0 else 1.0


class dnn:  # noqa: N801 -- OpenCV's name
    """`cv.dnn`: the same functions, where OpenCV has them. Networks run in a `walle.Session`."""

    blobFromImage = staticmethod(blobFromImage)  # noqa: N815
    blobFromImages = staticmethod(blobFromImages)  # noqa: N815
    imagesFromBlob = staticmethod(imagesFromBlob)  # noqa: N815
    NMSBoxes = staticmethod(NMSBoxes)
