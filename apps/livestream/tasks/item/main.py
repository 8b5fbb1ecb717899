"""Items of a frame, and which item of the gallery the best one is.

    {"items": [{"box": [left, top, width, height], "label", "score"}],   best first, in pixels of the frame
     "match": {"box", "label", "score", "name", "likeness", "margin"} or None,
     "reused": bool, "second", "pts_ms"}

`match` is the best item that is not ignored, and the name in the gallery that it is most like. A frame that has not
changed since the last analysed one is not analysed: its answer is that one's, with `reused`. The state has the last
analysed frame's thumbnail and answer.
"""

import changes
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
    """Return the frame with the detector's input, or only its times if it has not changed."""
    contents = trigger["event"]["contents"]
    image, detector = frame.checked_frame(contents), item_detector(ctx)
    small, scale = frame.fitted(image, detector.SIDE, detector.SIDE)
    seen = {"thumbnail": changes.thumbnail(small), "size": list(image.shape[:2])}
    x = {"times": frame.times(contents), "seen": seen}
    if ctx.state and changes.is_same(ctx.state["seen"], seen, settings(ctx)["unchanged"]):
        return x
    return {**x, "image": image, "scale": scale, "blob": detector.blob(small)}


def execute(ctx: "Context", x: "dict[str, Any]") -> "dict[str, Any]":
    """Return the times, and the answer unless it is the last one's: items and match."""
    if "blob" not in x:
        return {"times": x["times"]}
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
    return {"times": x["times"], "seen": x["seen"], "answer": {"items": items, "match": match}}


def postprocess(ctx: "Context", y: "dict[str, Any]") -> "dict[str, Any]":
    """Return the answer, and keep it with its frame's thumbnail."""
    reused = "answer" not in y
    if not reused:
        ctx.state = {"seen": y["seen"], "answer": y["answer"]}
    return {**y["times"], **ctx.state["answer"], "reused": reused}


def cropped(image: "np.ndarray", box: "list[float]") -> "np.ndarray | None":
    """Return the image in a box; None if that has no pixel."""
    left, top, width, height = box
    crop = image[int(top) : round(top + height), int(left) : round(left + width)]
    return crop if crop.shape[0] and crop.shape[1] else None


def embedding(ctx: "Context", crop: "np.ndarray") -> "np.ndarray":
    """Return the embedding [256] of an image of an item, uint8 [height, width, 3] in BGR."""
    blob = cv.dnn.blobFromImage(crop, 1 / 127.5, (CROP, CROP), (127.5, 127.5, 127.5), True)
    return ctx.session("embedder").run({"image": blob})["embedding"].reshape(-1)
