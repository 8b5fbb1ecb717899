"""Objects by NanoDet-m, an anchor-free detector in the manner of FCOS (models.toml, det_nanodet).

Each cell of the grids of strides 8, 16 and 32 has a score for each class, and for each side of the box the
distribution of its distance over 0..7 strides, as logits; the distance is its expectation (Generalized Focal Loss).
"""

import boxes
import cells
import frame
from labels import LABELS  # noqa: F401 -- names of this detector's classes

import walle.cv as cv
import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SIDE = 320
INPUT = "input.1"
BINS = 8  # bins of a distance
_MEAN = (103.53, 116.28, 123.675)
_STD = (57.375, 57.12, 58.395)


def blob(small: "np.ndarray") -> "np.ndarray":
    """Return the model's input [1, 3, 320, 320] of an image that fits into 320 x 320."""
    made = cv.dnn.blobFromImage(frame.padded(small, SIDE, SIDE), mean=_MEAN)
    return made / np.asarray(_STD, dtype="float32").reshape(1, 3, 1, 1)


def objects(outputs: "Mapping[str, np.ndarray]", score: float, overlap: float, limit: int) -> "list[dict[str, Any]]":
    """Return the objects, best first, in pixels of the input: {"box", "score", "class"}.

    A cell stands for its best class only. At most `limit` candidates are compared.
    """
    best = [np.max(outputs[f"cls_pred_stride_{stride}"][0], axis=1) for stride in cells.STRIDES]
    values = np.concatenate(best)
    found = [_object(outputs, place, float(values[place])) for place in boxes.strongest(values, score, limit)]
    return boxes.best_by_class(found, overlap)


def _object(outputs: "Mapping[str, np.ndarray]", place: int, score: float) -> "dict[str, Any]":
    stride, cell = cells.cell(place, SIDE)
    row, column = divmod(cell, SIDE // stride)
    logits = outputs[f"dis_pred_stride_{stride}"][0, cell].reshape(4, BINS)
    shares = np.exp(logits - np.max(logits, axis=1).reshape(4, 1))
    expected = np.sum(shares * np.arange(BINS, dtype="float32"), axis=1) / np.sum(shares, axis=1)
    left, top, right, bottom = (distance * stride for distance in expected.tolist())
    x, y = (column + 0.5) * stride, (row + 0.5) * stride
    return {
        "box": (x - left, y - top, left + right, top + bottom),
        "score": score,
        "class": int(np.argmax(outputs[f"cls_pred_stride_{stride}"][0, cell])),
    }
