"""Objects by the app's own detectors, anchor-free in the manner of FCOS (own_models.py, detector).

Each cell has a score for each class, and the distances of a box's sides from its centre, in pixels.
"""

import boxes
import cells
import frame

import walle.cv as cv
import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SIDE = 320
INPUT = "image"
LABELS = ("person", "bottle", "cup", "cell phone", "book", "article")  # labels of items; a hand is a person


def blob(small: "np.ndarray") -> "np.ndarray":
    """Return the model's input [1, 3, 320, 320] of an image that fits into 320 x 320."""
    return cv.dnn.blobFromImage(frame.padded(small, SIDE, SIDE), 1 / 127.5, mean=(127.5, 127.5, 127.5))


def candidates(outputs: "Mapping[str, np.ndarray]", score: float, limit: int) -> "list[dict[str, Any]]":
    """Return at most `limit` candidates, best first, in pixels of the input: {"box", "score", "class"}.

    A cell stands for its best class only.
    """
    scores, distances = outputs["scores"][0], outputs["distances"][0]
    values = np.max(scores, axis=1)
    found = []
    for place in boxes.strongest(values, score, limit):
        stride, cell = cells.cell(place, SIDE)
        row, column = divmod(cell, SIDE // stride)
        left, top, right, bottom = distances[place].tolist()
        box = ((column + 0.5) * stride - left, (row + 0.5) * stride - top, left + right, top + bottom)
        found.append({"box": box, "score": float(values[place]), "class": int(np.argmax(scores[place]))})
    return found


def objects(outputs: "Mapping[str, np.ndarray]", score: float, overlap: float, limit: int) -> "list[dict[str, Any]]":
    """Return the objects, best first, in pixels of the input: {"box", "score", "class"}."""
    return boxes.best_by_class(candidates(outputs, score, limit), overlap)
