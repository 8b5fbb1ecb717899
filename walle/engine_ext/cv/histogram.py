"""Histograms: counting, comparing and equalising an image's tones."""

from __future__ import annotations

import math

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.arrange import copyMakeBorder
from walle.engine_ext.cv.images import ImageLike, as_image, evaluate, into_dst, pair, to_dtype_of
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence


def calcHist(
    images: Sequence[ImageLike],
    channels: Sequence[int],
    mask: ImageLike | None,
    histSize: Sequence[int],
    ranges: Sequence[float],
    hist: ImageLike | None = None,
    accumulate: bool = False,
) -> ndarray:
    """Return float32 counts of one channel [bins], or of two or three channels together [bins, bins, ...].

    The bins of a range are equally wide; its upper bound is excluded.
    """
    if len(channels) != len(histSize) or len(ranges) != 2 * len(channels) or not 1 <= len(channels) <= 3:
        raise ShapeError("calcHist takes one to three channels, and for each a size and a range of two numbers")
    if len(channels) == 1 and histSize[0] == 256 and tuple(ranges) == (0, 256) and as_image(images[0]).dtype == "uint8":
        picture, channel = _channel(images, channels[0])
        counts = evaluate("ImageHistogram", [picture, None if mask is None else as_image(mask)], {"channel": channel})
    else:
        counts = _counts(images, channels, mask, histSize, ranges)
    result = counts.astype("float32").reshape(tuple(histSize))
    if accumulate and hist is not None:
        result = result + as_image(hist)
    return into_dst(result, hist)


def _channel(images: Sequence[ImageLike], number: int) -> tuple[ndarray, int]:
    for one_of in images:
        picture = as_image(one_of)
        count = picture.shape[2] if picture.ndim == 3 else 1
        if number < count:
            return picture, number
        number -= count
    raise ShapeError("calcHist of a channel that does not exist; channels are counted over all images")


def _counts(
    images: Sequence[ImageLike],
    channels: Sequence[int],
    mask: ImageLike | None,
    sizes: Sequence[int],
    ranges: Sequence[float],
) -> ndarray:
    cell, valid = _cells(images, channels, sizes, ranges)
    if mask is not None:
        valid = valid & (as_image(mask).ravel() != 0)
    total = math.prod(sizes)
    cells = _core.where(valid, cell, total)
    # In sorted order, a cell's count is the distance from its first element to the next cell's.
    ordered, _, _, counts = _core.evaluate("Unique", [cells], {"sorted": 1}, 4)
    result = _core.full((total + 1,), 0, "int64")
    result[ordered] = counts
    return result[:total]


def equalizeHist(src: ImageLike, dst: ImageLike | None = None) -> ndarray:
    """Return one channel of uint8 with its histogram equalised."""
    given = as_image(src)
    if given.dtype != "uint8" or given.shape[2:] not in {(), (1,)}:
        raise DTypeError(f"equalizeHist takes one channel of uint8, not {given.dtype} of shape {given.shape}")
    table = evaluate("EqualizingTable", [evaluate("ImageHistogram", [given], {})], {})
    return into_dst(evaluate("ImageLookup", [given, table], {}), dst)


def _cells(
    images: Sequence[ImageLike], channels: Sequence[int], sizes: Sequence[int], ranges: Sequence[float]
) -> tuple[ndarray, ndarray]:
    """Return the bin of each pixel, counted over all channels, and whether it is inside the ranges."""
    cell: ndarray | None = None
    valid: ndarray | None = None
    for axis, number in enumerate(channels):
        picture, channel = _channel(images, number)
        values = (picture[:, :, channel] if picture.ndim == 3 else picture).astype("float64").ravel()
        low, high, size = float(ranges[2 * axis]), float(ranges[2 * axis + 1]), sizes[axis]
        bin_of = _core.unary("Floor", values * (size / (high - low)) - low * (size / (high - low))).astype("int64")
        inside = (values >= low) & (values < high) & (bin_of < size)
        valid = inside if valid is None else valid & inside
        cell = bin_of if cell is None else cell * size + bin_of
    assert cell is not None
    assert valid is not None
    return cell, valid


class CLAHE:
    """Equalization by tiles, in which no tone counts more than `clipLimit` times the mean; for uint8 of one channel."""

    def __init__(self, clipLimit: float = 40.0, tileGridSize: tuple[int, int] = (8, 8)) -> None:
        self.setClipLimit(clipLimit)
        self.setTilesGridSize(tileGridSize)

    def apply(self, src: ImageLike, dst: ImageLike | None = None) -> ndarray:
        given = as_image(src)
        if given.dtype != "uint8" or given.ndim != 2:
            raise DTypeError(f"CLAHE takes uint8 [height, width], not {given.dtype} of shape {given.shape}")
        columns, rows = self._tiles
        padded = given
        if given.shape[0] % rows or given.shape[1] % columns:  # OpenCV adds to both sides where one does not divide
            bottom, right = rows - given.shape[0] % rows, columns - given.shape[1] % columns
            padded = copyMakeBorder(given, 0, bottom, 0, right, constants.BORDER_REFLECT_101)
        attributes = {"rows": rows, "columns": columns, "limit": self._limit}
        return into_dst(evaluate("EqualizeTiles", [given, padded], attributes), dst)

    def setClipLimit(self, clipLimit: float) -> None:
        self._limit = float(clipLimit)

    def getClipLimit(self) -> float:
        return self._limit

    def setTilesGridSize(self, tileGridSize: tuple[int, int]) -> None:
        self._tiles = pair(tileGridSize)
        if min(self._tiles) < 1:
            raise ShapeError(f"{self._tiles} tiles; give at least one column and one row")

    def getTilesGridSize(self) -> tuple[int, int]:
        return self._tiles


def createCLAHE(clipLimit: float = 40.0, tileGridSize: tuple[int, int] = (8, 8)) -> CLAHE:
    return CLAHE(clipLimit, tileGridSize)


def calcBackProject(
    images: Sequence[ImageLike],
    channels: Sequence[int],
    hist: ImageLike,
    ranges: Sequence[float],
    scale: float,
    dst: ImageLike | None = None,
) -> ndarray:
    """Return the count of each pixel's bin in `hist` times `scale`, in the image's dtype; 0 outside the ranges."""
    counts = as_image(hist).astype("float64")
    sizes = [size for axis, size in enumerate(counts.shape) if axis < len(channels)]
    first = as_image(images[0])
    cells, inside = _cells(images, channels, sizes, ranges)
    found = _core.where(inside, counts.ravel()[_core.where(inside, cells, 0)] * float(scale), 0.0)
    return into_dst(to_dtype_of(found.reshape(*first.shape[:2]), first), dst)


def compareHist(H1: ImageLike, H2: ImageLike, method: int) -> float:
    """Return the similarity or distance of two histograms by a HISTCMP_ method."""
    a, b = as_image(H1).astype("float64"), as_image(H2).astype("float64")
    if a.shape != b.shape:
        raise ShapeError(f"compareHist of shapes {a.shape} and {b.shape}; they must be equal")
    count = int(a.size)
    tiny = 2.220446049250313e-16

    def total(of: ndarray) -> float:
        return float(of.sum())

    match method:
        case constants.HISTCMP_CORREL:
            sum_a, sum_b = total(a), total(b)
            top = total(a * b) - sum_a * sum_b / count
            bottom = (total(a * a) - sum_a**2 / count) * (total(b * b) - sum_b**2 / count)
            return top / math.sqrt(bottom) if abs(bottom) > tiny else 1.0
        case constants.HISTCMP_CHISQR | constants.HISTCMP_CHISQR_ALT:
            below = a if method == constants.HISTCMP_CHISQR else a + b
            some = _core.unary("Abs", below) > tiny
            part = _core.where(some, (a - b) * (a - b) / _core.where(some, below, 1.0), 0.0)
            return total(part) * (1 if method == constants.HISTCMP_CHISQR else 2)
        case constants.HISTCMP_INTERSECT:
            return total(_core.binary("Minimum", a, b))
        case constants.HISTCMP_BHATTACHARYYA:
            scale = total(a) * total(b)
            scale = 1 / math.sqrt(scale) if abs(scale) > 1.1920929e-7 else 1.0
            return math.sqrt(max(1 - total(_core.unary("Sqrt", a * b)) * scale, 0.0))
        case constants.HISTCMP_KL_DIV:
            some = _core.unary("Abs", a) > tiny
            below = _core.where(_core.unary("Abs", b) > tiny, b, 1e-10)
            return total(_core.where(some, a * _core.unary("Log", _core.where(some, a / below, 1.0)), 0.0))
        case _:
            raise UnsupportedError(f"unknown comparison {method}; use one of the HISTCMP_ constants")
