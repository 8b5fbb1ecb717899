"""Share of article in the middle and at the edge of a frame: `{"article": {"centre", "border"}, "second", "pts_ms"}`.

The model gives a map: for each cell of the frame the probability that it shows a portable article, of 238 classes of
ImageNet. `centre` is the mean of the cells in the middle, `border` of those at the edge: a room that is full of
articles has both, a presented one only the first.
"""

import article_map
import frame
from settings import settings

import walle.cv as cv
import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context, Trigger


def preprocess(ctx: "Context", trigger: "Trigger") -> "dict[str, Any]":
    """Return the model's input [1, 3, side, side] and the frame's times; the aspect ratio is not kept."""
    contents = trigger["event"]["contents"]
    image, side = frame.checked_frame(contents), settings(ctx)["side"]
    # By areas where the frame is larger, so that small things do not fall between the pixels.
    how = cv.INTER_AREA if image.shape[0] > side else cv.INTER_LINEAR
    small = cv.resize(image, (side, side), interpolation=how)
    return {
        "blob": cv.dnn.blobFromImage(small, 1 / 128, mean=(127, 127, 127), swapRB=True),
        "times": frame.times(contents),
    }


def execute(ctx: "Context", x: "dict[str, Any]") -> "dict[str, Any]":
    """Return the output: the map's centre and border."""
    found = ctx.session("map").run({"image": x["blob"]})["articles"]
    centre, border = article_map.centre_and_border(np.reshape(found, found.shape[2:]).tolist())
    return {**x["times"], "article": {"centre": round(centre, 4), "border": round(border, 4)}}
