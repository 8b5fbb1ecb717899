"""Whether a frame has changed since the last one that was analysed: their thumbnails of 32 x 18 grey values.

The measure is the largest difference of a cell, in grey levels of 255: a small object changes few cells by much, noise
and compression all cells by little.
"""

import walle.cv as cv
import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

WIDTH, HEIGHT = 32, 18


def thumbnail(small: "np.ndarray") -> bytes:
    """Return the grey values of an image, scaled by areas to 32 x 18."""
    grey = cv.cvtColor(cv.resize(small, (WIDTH, HEIGHT), interpolation=cv.INTER_AREA), cv.COLOR_BGR2GRAY)
    return memoryview(grey).tobytes()


def difference(one: bytes, other: bytes) -> int:
    """Return the largest difference of a cell."""
    a, b = (np.frombuffer(values, dtype="uint8").astype("int32") for values in (one, other))
    return int(np.max(np.abs(a - b)))


def is_same(last: "dict[str, Any]", seen: "dict[str, Any]", unchanged: int) -> bool:
    """Return whether a frame looks like the last analysed one: of its size, and no cell more than `unchanged` away."""
    return last.get("size") == seen["size"] and difference(last["thumbnail"], seen["thumbnail"]) <= unchanged
