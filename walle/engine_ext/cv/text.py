"""Text in images, in a stroke font of Walle's own."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.drawing import polylines
from walle.engine_ext.cv.images import ImageLike, as_image, pair
from walle.engine_ext.errors import UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence

# Characters from space to ~ on a grid: strokes, and in each the points as digits x and y. Capitals go from y 0 to 6, x
# from 0 to 4; y 2 is the height of small letters, 8 the depth of their tails.
_GLYPHS = [
    "",
    "20-24 26-26",
    "10-12 30-32",
    "10-16 30-36 02-42 04-44",
    "42-31-11-02-13-33-44-35-15-04 20-26",
    "06-40 00-10-11-01-00 35-45-46-36-35",
    "46-11-20-31-05-16-26-44",
    "20-22",
    "30-21-25-36",
    "10-21-25-16",
    "21-25 12-34 14-32",
    "21-25 03-43",
    "25-26-17",
    "03-43",
    "26-25",
    "06-40",
    "10-30-41-45-36-16-05-01-10 23-23",
    "11-20-26 16-36",
    "01-10-30-41-42-06-46",
    "01-10-30-41-42-33-23 33-44-45-36-16-05",
    "36-30-04-44",
    "40-00-02-32-43-45-36-16-05",
    "40-20-02-05-16-36-45-44-33-13-04",
    "00-40-16",
    "13-02-01-10-30-41-42-33-13-04-05-16-36-45-44-33",
    "42-33-13-02-01-10-30-41-44-26-06",
    "22-23 25-26",
    "22-23 25-26-17",
    "41-03-45",
    "02-42 04-44",
    "01-43-05",
    "01-10-30-41-42-23-24 26-26",
    "34-24-14-13-22-32-34-44-43-41-30-10-01-05-16-36",
    "06-20-46 14-34",
    "00-30-41-42-33-03 33-44-45-36-06-00",
    "41-30-10-01-05-16-36-45",
    "00-20-42-44-26-06-00",
    "40-00-06-46 03-33",
    "40-00-06 03-33",
    "41-30-10-01-05-16-36-45-43-23",
    "00-06 40-46 03-43",
    "10-30 16-36 20-26",
    "40-45-36-16-05",
    "00-06 40-03-46",
    "00-06-46",
    "06-00-23-40-46",
    "06-00-46-40",
    "10-30-41-45-36-16-05-01-10",
    "06-00-30-41-42-33-03",
    "10-30-41-45-36-16-05-01-10 24-46",
    "06-00-30-41-42-33-03 23-46",
    "41-30-10-01-02-13-33-44-45-36-16-05",
    "00-40 20-26",
    "00-05-16-36-45-40",
    "00-26-40",
    "00-16-23-36-40",
    "00-46 40-06",
    "00-23-40 23-26",
    "00-40-06-46",
    "30-10-16-36",
    "00-46",
    "10-30-36-16",
    "02-20-42",
    "07-47",
    "10-21",
    "12-32-43-46-16-05-14-44",
    "00-06-36-45-43-32-02",
    "42-12-03-05-16-46",
    "40-46-16-05-03-12-42",
    "04-44-43-32-12-03-05-16-36",
    "40-30-21-26 12-32",
    "42-12-03-05-16-46 42-47-38-08",
    "00-06 03-12-32-43-46",
    "22-26 20-20",
    "32-37-28-18 30-30",
    "00-06 32-04-36",
    "20-25-36",
    "06-02-12-23-26 23-32-43-46",
    "02-06 03-12-32-43-46",
    "12-32-43-45-36-16-05-03-12",
    "02-08 02-32-43-45-36-06",
    "42-48 42-12-03-05-16-46",
    "02-06 04-12-32",
    "42-12-03-14-34-45-36-06",
    "10-15-26-36 02-32",
    "02-05-16-36-45 42-46",
    "02-26-42",
    "02-16-24-36-42",
    "02-46 42-06",
    "02-26 42-18-08",
    "02-42-06-46",
    "30-21-22-13-24-25-36",
    "20-28",
    "10-21-22-33-24-25-16",
    "04-13-33-42",
]
_UNIT = 3.5  # pixels of a step of the grid at scale 1: capitals are 21 pixels high, as OpenCV's
_ADVANCE, _CAPITAL, _TAIL = 6, 6, 2  # steps of the grid
_SIZES = {constants.FONT_HERSHEY_PLAIN: 9 / 21, constants.FONT_HERSHEY_COMPLEX_SMALL: 15 / 21}
_FONTS = range(8)


def _step(fontFace: int, fontScale: float) -> float:
    if fontFace & ~constants.FONT_ITALIC not in _FONTS:
        raise UnsupportedError(f"unknown font {fontFace}; use one of the FONT_ constants")
    return _UNIT * _SIZES.get(fontFace & ~constants.FONT_ITALIC, 1.0) * float(fontScale)


def getTextSize(text: str, fontFace: int, fontScale: float, thickness: int) -> tuple[tuple[int, int], int]:
    """Return (width, height) of the text above its base line, and the depth of tails below it."""
    step = _step(fontFace, fontScale)
    width = round(len(text) * _ADVANCE * step + thickness)
    return (width, round(_CAPITAL * step + (thickness + 1) / 2)), round(_TAIL * step + thickness * 0.5)


def putText(
    img: ImageLike,
    text: str,
    org: tuple[int, int],
    fontFace: int,
    fontScale: float,
    color: float | Sequence[float],
    thickness: int = 1,
    lineType: int = 8,
    bottomLeftOrigin: bool = False,
) -> ndarray:
    """Write text, whose base line begins at `org`, in place; a character that is not ASCII becomes a question mark.

    Every font has the same shapes; FONT_HERSHEY_PLAIN and COMPLEX_SMALL are smaller, FONT_ITALIC leans.
    """
    step, (x, y) = _step(fontFace, fontScale), pair(org)
    lean = 0.25 if fontFace & constants.FONT_ITALIC else 0.0
    up = -1 if bottomLeftOrigin else 1
    strokes = []
    for place, letter in enumerate(text):
        glyph = _GLYPHS[ord(letter) - 32 if " " <= letter <= "~" else ord("?") - 32]
        for stroke in glyph.split():
            points = []
            for at in stroke.split("-"):
                right, down = place * _ADVANCE + int(at[0]), int(at[1]) - _CAPITAL
                points.append([round(x + (right - lean * down) * step), round(y + down * step * up)])
            strokes.append(_core.asarray(points, "int32"))
    canvas = as_image(img)
    return polylines(canvas, strokes, False, color, thickness, lineType) if strokes else canvas
