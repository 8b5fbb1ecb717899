"""Faces by UltraFace: scores and boxes whose corners are shares of the frame's sides (models.toml, face_ultraface)."""

import boxes

import walle.cv as cv

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import walle.np as np

WIDTH, HEIGHT = 320, 240
INPUT = "input"


def blob(image: "np.ndarray") -> "tuple[np.ndarray, tuple[float, float]]":
    """Return the model's input [1, 3, 240, 320], and the scales of x and y from the frame to it."""
    rows, columns = image.shape[:2]
    made = cv.dnn.blobFromImage(image, 1 / 128, (WIDTH, HEIGHT), (127, 127, 127), True)
    return made, (WIDTH / columns, HEIGHT / rows)


def faces(outputs: "Mapping[str, np.ndarray]", score: float, limit: int) -> "list[dict[str, Any]]":
    """Return at most `limit` candidates, best first, in pixels of the input: {"box", "score", "points": []}."""
    values = outputs["scores"][0, :, 1]
    found = []
    for place in boxes.strongest(values, score, limit):
        left, top, right, bottom = outputs["boxes"][0, place].tolist()
        box = (left * WIDTH, top * HEIGHT, (right - left) * WIDTH, (bottom - top) * HEIGHT)
        found.append({"box": box, "score": float(values[place]), "points": []})
    return found
