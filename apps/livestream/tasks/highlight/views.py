"""A closer look at a frame, in the cloud: the detector over the whole, four overlapping parts, and the mirror image.

The detector sees 320 x 320 pixels of whatever it gets, so an item that is small in the frame is seen better in a part.
"""

import boxes
import frame
from item_detector import item_detector

import walle.cv as cv

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    import walle.np as np
    from walle.task import Context

SCORE = 0.25
OVERLAP = 0.6
CANDIDATES = 100
PART = 0.6  # part of each side


def items(ctx: "Context", image: "np.ndarray") -> "list[dict[str, Any]]":
    """Return the items of an image uint8 [height, width, 3] in all views, as the item task describes them."""
    height, width = image.shape[:2]
    across, down = round(PART * width), round(PART * height)
    found = _seen(ctx, image, 0, 0)
    for one in _seen(ctx, cv.flip(image, 1), 0, 0):
        left, top, side, other = one["box"]
        found.append({**one, "box": [width - left - side, top, side, other]})
    for top in (0, height - down):
        for left in (0, width - across):
            found += _seen(ctx, image[top : top + down, left : left + across], left, top)
    kept: list[dict[str, Any]] = []
    for label in sorted({one["label"] for one in found}):
        same = [one for one in found if one["label"] == label]
        chosen = boxes.kept([tuple(one["box"]) for one in same], [one["score"] for one in same], OVERLAP)
        kept += [same[k] for k in chosen]
    return sorted(kept, key=lambda one: -one["score"])


def _seen(ctx: "Context", view: "np.ndarray", left: int, top: int) -> "list[dict[str, Any]]":
    detector = item_detector(ctx)
    small, scale = frame.fitted(view, detector.SIDE, detector.SIDE)
    outputs = ctx.session("detector").run({detector.INPUT: detector.blob(small)})
    found = []
    for one in detector.objects(outputs, SCORE, OVERLAP, CANDIDATES):
        sides = [side / scale for side in one["box"]]
        box = [sides[0] + left, sides[1] + top, *sides[2:]]
        found.append({"box": box, "label": detector.LABELS[one["class"]], "score": round(one["score"], 4)})
    return found
