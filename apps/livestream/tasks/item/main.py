"""Items of a frame, and which item of the gallery the best one is.

    {"items": [{"box": [left, top, width, height], "label", "score"}],   best first, in pixels of the frame
     "match": {"box", "label", "score", "name", "likeness", "margin"} or None,
     "second", "pts_ms"}

`match` is the best item that is not ignored, and the name in the gallery that it is most like. Each frame that comes is
analysed: which frames are worth it is the app's choice (frame_choice.py).
"""

import frame
import gallery
from boxes import clipped
from item_detector import item_detector
from settings import settings

import walle.cv as cv

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    import walle.np as np
    from walle.task import Context, Trigger

CROP = 128  # side of the embedder's input


def preprocess(ctx: "Context", trigger: "Trigger") -> "dict[str, Any]":
    """Return the frame with the detector's input."""
    contents = trigger["event"]["contents"]
    image, detector = frame.checked_frame(contents), item_detector(ctx)
    small, scale = frame.fitted(image, detector.SIDE, detector.SIDE)
    return {"times": frame.times(contents), "image": image, "scale": scale, "blob": detector.blob(small)}


def execute(ctx: "Context", x: "dict[str, Any]") -> "dict[str, Any]":
    """Return the output: items and match, and the frame's times."""
    limits, detector, image, scale = settings(ctx), item_detector(ctx), x["image"], x["scale"]
    outputs = ctx.session("detector").run({detector.INPUT: x["blob"]})
    found = detector.objects(outputs, limits["score"], limits["overlap"], limits["candidates"])
    items = [
        {
            "box": clipped(tuple(side / scale for side in one["box"]), image.shape[1], image.shape[0]),
            "label": detector.LABELS[one["class"]],
            "score": round(one["score"], 4),
        }
        for one in found
    ]
    best = next((one for one in items if one["label"] not in limits["ignored"]), None)
    match = None
    known = gallery.gallery(ctx)
    if best is not None and known.names and (crop := cropped(image, best["box"])) is not None:
        named = known.best(embedding(ctx, crop))
        match = {**best, **named} if named else None
    return {**x["times"], "items": items, "match": match}


def cropped(image: "np.ndarray", box: "list[float]") -> "np.ndarray | None":
    """Return the image in a box; None if that has no pixel."""
    left, top, width, height = box
    crop = image[int(top) : round(top + height), int(left) : round(left + width)]
    return crop if crop.shape[0] and crop.shape[1] else None


def embedding(ctx: "Context", crop: "np.ndarray") -> "np.ndarray":
    """Return the embedding [256] of an image of an item, uint8 [height, width, 3] in BGR."""
    blob = cv.dnn.blobFromImage(crop, 1 / 127.5, (CROP, CROP), (127.5, 127.5, 127.5), True)
    return ctx.session("embedder").run({"image": blob})["embedding"].reshape(-1)
