"""Faces by YuNet: scores, boxes and five points on grids of strides 8, 16 and 32 (models.toml, face_yunet)."""

import math

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
INPUT = "input"
_MAX_LOG_SIZE = 8.0  # exp(8) strides are wider than any frame; a hostile frame must not overflow


def blob(image: "np.ndarray") -> "tuple[np.ndarray, tuple[float, float]]":
    """Return the model's input [1, 3, 320, 320], and the scales of x and y from the frame to it."""
    small, scale = frame.fitted(image, SIDE, SIDE)
    return cv.dnn.blobFromImage(frame.padded(small, SIDE, SIDE)), (scale, scale)


def faces(outputs: "Mapping[str, np.ndarray]", score: float, limit: int) -> "list[dict[str, Any]]":
    """Return at most `limit` candidates, best first, in pixels of the input: {"box", "score", "points"}."""
    parts = [
        (np.clip(outputs[f"cls_{s}"], 0, 1) * np.clip(outputs[f"obj_{s}"], 0, 1)).reshape(-1) for s in cells.STRIDES
    ]
    values = np.sqrt(np.concatenate(parts))
    found = []
    for place in boxes.strongest(values, score, limit):
        stride, cell = cells.cell(place, SIDE)
        row, column = divmod(cell, SIDE // stride)
        x, y, log_width, log_height = outputs[f"bbox_{stride}"][0, cell].tolist()
        points = outputs[f"kps_{stride}"][0, cell].tolist()
        width = math.exp(min(log_width, _MAX_LOG_SIZE)) * stride
        height = math.exp(min(log_height, _MAX_LOG_SIZE)) * stride
        found.append(
            {
                "box": ((column + x) * stride - width / 2, (row + y) * stride - height / 2, width, height),
                "score": float(values[place]),
                "points": [((column + points[2 * k]) * stride, (row + points[2 * k + 1]) * stride) for k in range(5)],
            }
        )
    return found
