"""Faces by the app's own detector (own_models.py, face); it gives no points."""

import frame
import own_detector

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import walle.np as np

INPUT = own_detector.INPUT


def blob(image: "np.ndarray") -> "tuple[np.ndarray, tuple[float, float]]":
    """Return the model's input [1, 3, 320, 320], and the scales of x and y from the frame to it."""
    small, scale = frame.fitted(image, own_detector.SIDE, own_detector.SIDE)
    return own_detector.blob(small), (scale, scale)


def faces(outputs: "Mapping[str, np.ndarray]", score: float, limit: int) -> "list[dict[str, Any]]":
    """Return at most `limit` candidates, best first, in pixels of the input: {"box", "score", "points": []}."""
    return [{**one, "points": []} for one in own_detector.candidates(outputs, score, limit)]
