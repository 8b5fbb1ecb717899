"""Faces of a frame: `{"faces": [{"box": [left, top, width, height], "score", "points"}], "second", "pts_ms"}`.

Boxes and points are in pixels of the frame. The five points are the right and the left eye, the nose and the right and
left corner of the mouth, as the person has them; only YuNet gives them. The detector and its thresholds are settings.
"""

import boxes
import frame
import own_face
import ultraface
import yunet
from settings import settings

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context, Trigger

DETECTORS = {"yunet": yunet, "ultraface": ultraface, "own": own_face}


def preprocess(ctx: "Context", trigger: "Trigger") -> "dict[str, Any]":
    """Return the detector's input, its scales from the frame, and the frame's size and times."""
    contents = trigger["event"]["contents"]
    image = frame.checked_frame(contents)
    blob, scales = _detector(ctx).blob(image)
    return {"blob": blob, "scales": scales, "size": image.shape[:2], "times": frame.times(contents)}


def execute(ctx: "Context", x: "dict[str, Any]") -> "dict[str, Any]":
    """Return the same with the detector's outputs in place of its input."""
    outputs = ctx.session("detector").run({_detector(ctx).INPUT: x["blob"]})
    return {"outputs": outputs, "scales": x["scales"], "size": x["size"], "times": x["times"]}


def postprocess(ctx: "Context", y: "dict[str, Any]") -> "dict[str, Any]":
    """Return the faces, best first."""
    limits = settings(ctx)[settings(ctx)["detector"]]
    found = _detector(ctx).faces(y["outputs"], limits["score"], limits["candidates"])
    chosen = boxes.kept([one["box"] for one in found], [one["score"] for one in found], limits["overlap"])
    return {**y["times"], "faces": [_in_frame(found[k], y["scales"], y["size"]) for k in chosen]}


def _detector(ctx: "Context") -> "Any":
    name = settings(ctx).get("detector")
    if name not in DETECTORS:
        raise ValueError(f"setting detector is {name!r}, must be one of {', '.join(DETECTORS)}")
    return DETECTORS[name]


def _in_frame(face: "dict[str, Any]", scales: "tuple[float, float]", size: "tuple[int, int]") -> "dict[str, Any]":
    across, down = scales
    left, top, width, height = face["box"]
    return {
        "box": boxes.clipped((left / across, top / down, width / across, height / down), size[1], size[0]),
        "score": round(face["score"], 4),
        "points": [[round(x / across, 1), round(y / down, 1)] for x, y in face["points"]],
    }
