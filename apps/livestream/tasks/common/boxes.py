"""Boxes of a detector: the strongest candidates, suppression of those that overlap, clipping to the frame."""

import walle.cv as cv
import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    type Box = tuple[float, float, float, float]  # left, top, width, height

_APART = 10_000.0  # boxes of different classes are moved so far that they do not overlap


def strongest(scores: "np.ndarray", threshold: float, limit: int) -> "list[int]":
    """Return the indices of the scores [n] above the threshold, best first, at most `limit`.

    The limit bounds the time of a frame that looks like an object everywhere. Equal scores keep their order.
    """
    places: list[int] = np.nonzero(scores > threshold)[0].tolist()
    values: list[float] = scores[np.asarray(places, dtype="int64")].tolist() if places else []
    order = sorted(range(len(places)), key=lambda k: -values[k])
    return [places[k] for k in order[:limit]]


def kept(boxes: "Sequence[Box]", scores: "Sequence[float]", overlap: float) -> "list[int]":
    """Return the indices of the boxes that no better one covers by more than `overlap` (intersection over union)."""
    if not boxes:
        return []
    # A threshold below every score: the candidates were chosen already.
    indices: list[int] = cv.dnn.NMSBoxes([list(box) for box in boxes], list(scores), -1.0, overlap).tolist()
    return indices


def best_by_class(found: "Sequence[dict[str, Any]]", overlap: float) -> "list[dict[str, Any]]":
    """Return the objects {"box", "score", "class"} that no better one of the same class covers."""
    moved = [(one["box"][0] + one["class"] * _APART, *one["box"][1:]) for one in found]
    return [found[k] for k in kept(moved, [one["score"] for one in found], overlap)]


def clipped(box: "Box", width: int, height: int) -> "list[float]":
    """Return the part of a box that is in the frame, in tenths of a pixel."""
    left, top = min(max(box[0], 0.0), width), min(max(box[1], 0.0), height)
    right, bottom = min(max(box[0] + box[2], left), width), min(max(box[1] + box[3], top), height)
    return [round(left, 1), round(top, 1), round(right - left, 1), round(bottom - top, 1)]
