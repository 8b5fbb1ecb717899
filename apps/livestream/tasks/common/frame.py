"""A frame of the stream, as an event brings it: checked, and fitted into a model's input."""

import walle.cv as cv

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    import walle.np as np

MAX_SIDE = 8192


def checked_frame(contents: "dict[str, Any]") -> "np.ndarray":
    """Return the image of a frame's contents: uint8 [height, width, 3], BGR.

    Raises:
        ValueError: there is none, or it has another form.
    """
    image = contents.get("image")
    shape = getattr(image, "shape", None)
    if image is None or shape is None:
        raise ValueError("a frame's contents need `image`, an array uint8 [height, width, 3] in BGR")
    if str(image.dtype) != "uint8" or len(shape) != 3 or shape[2] != 3:
        raise ValueError(f"a frame's image must be uint8 [height, width, 3], is {image.dtype} {list(shape)}")
    if not (0 < shape[0] <= MAX_SIDE and 0 < shape[1] <= MAX_SIDE):
        raise ValueError(f"a frame's sides must be 1 to {MAX_SIDE} pixels, are {shape[1]} x {shape[0]}")
    checked: np.ndarray = image
    return checked


def times(contents: "dict[str, Any]") -> "dict[str, Any]":
    """Return the fields that say which frame it is, those that it has: `second` and `pts_ms`."""
    return {key: contents[key] for key in ("second", "pts_ms") if type(contents.get(key)) is int}


def fitted(image: "np.ndarray", width: int, height: int) -> "tuple[np.ndarray, float]":
    """Return the image scaled into width x height, and the scale (bilinear, its aspect ratio is kept)."""
    rows, columns = image.shape[:2]
    scale = min(width / columns, height / rows)
    size = (min(width, max(1, round(columns * scale))), min(height, max(1, round(rows * scale))))
    return (image if size == (columns, rows) else cv.resize(image, size)), scale


def padded(image: "np.ndarray", width: int, height: int) -> "np.ndarray":
    """Return the image at the top left of a black one of width x height."""
    rows, columns = image.shape[:2]
    if (columns, rows) == (width, height):
        return image
    return cv.copyMakeBorder(image, 0, height - rows, 0, width - columns, cv.BORDER_CONSTANT, value=(0, 0, 0))
