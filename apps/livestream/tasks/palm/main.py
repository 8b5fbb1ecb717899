"""Palms of hands in a frame: `{"palms": [{"box": [left, top, width, height], "score"}], "second", "pts_ms"}`.

Boxes are in pixels of the frame, best first; that of a palm is without the fingers.
"""

import boxes
import frame
import palms
from settings import settings

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context, Trigger


def preprocess(ctx: "Context", trigger: "Trigger") -> "dict[str, Any]":
    """Return the detector's input, its place in the frame, and the frame's size and times."""
    contents = trigger["event"]["contents"]
    image = frame.checked_frame(contents)
    blob, place = palms.blob(image)
    return {"blob": blob, "place": place, "size": image.shape[:2], "times": frame.times(contents)}


def execute(ctx: "Context", x: "dict[str, Any]") -> "dict[str, Any]":
    """Return the output: the palms, best first."""
    limits = settings(ctx)
    outputs = ctx.session("detector").run({"image": x["blob"]})
    found = palms.palms(outputs, limits["score"], limits["candidates"])
    chosen = boxes.kept([one["box"] for one in found], [one["score"] for one in found], limits["overlap"])
    scale, left, top = x["place"]
    height, width = x["size"]
    result = []
    for one in [found[k] for k in chosen[: limits["palms"]]]:
        x0, y0, across, down = one["box"]
        box = ((x0 - left) / scale, (y0 - top) / scale, across / scale, down / scale)
        result.append({"box": boxes.clipped(box, width, height), "score": round(one["score"], 4)})
    return {**x["times"], "palms": result}
