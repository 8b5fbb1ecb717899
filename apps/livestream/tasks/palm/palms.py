"""Input and output of MediaPipe's palm detector (models.toml, palm_mediapipe), an SSD with square anchors.

Its anchors are the cells of two grids: 2 for each cell of 8 x 8 pixels, then 6 for each of 16 x 16, rows first. A box
is the distance of its centre from the cell's, its width and its height, in pixels of the input.
"""

import math

import boxes
import frame

import walle.cv as cv

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import walle.np as np

SIDE = 192
_GRIDS = ((8, 2), (16, 6))  # pixels of a cell, anchors in it
_FAR = 60.0  # a logit whose probability is 0 or 1


def blob(image: "np.ndarray") -> "tuple[np.ndarray, tuple[float, int, int]]":
    """Return the input [1, 3, 192, 192], with the frame in its middle, and the frame's scale, left and top there."""
    small, scale = frame.fitted(image, SIDE, SIDE)
    height, width = small.shape[:2]
    left, top = (SIDE - width) // 2, (SIDE - height) // 2
    whole = cv.copyMakeBorder(
        small, top, SIDE - height - top, left, SIDE - width - left, cv.BORDER_CONSTANT, value=(0, 0, 0)
    )
    return cv.dnn.blobFromImage(whole, 1 / 255, swapRB=True), (scale, left, top)


def palms(outputs: "Mapping[str, np.ndarray]", score: float, limit: int) -> "list[dict[str, Any]]":
    """Return at most `limit` candidates, best first, in pixels of the input: {"box", "score"}."""
    logits, rows = outputs["scores"].reshape(-1), outputs["boxes"][0]
    found = []
    for place in boxes.strongest(logits, math.log(score / (1 - score)), limit):
        x, y = centre(place)
        across, down, width, height = rows[place, :4].tolist()
        logit = min(_FAR, float(logits[place]))
        box = (x + across - width / 2, y + down - height / 2, width, height)
        found.append({"box": box, "score": 1 / (1 + math.exp(-logit))})
    return found


def centre(place: int) -> "tuple[float, float]":
    """Return the centre of an anchor's cell, in pixels of the input.

    Raises:
        IndexError: the grids have fewer anchors.
    """
    for pixels, anchors in _GRIDS:
        across = SIDE // pixels
        count = across * across * anchors
        if place < count:
            row, column = divmod(place // anchors, across)
            return (column + 0.5) * pixels, (row + 0.5) * pixels
        place -= count
    raise IndexError(place)
