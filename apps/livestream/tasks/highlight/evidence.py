"""Evidence of a highlight in one second of a stream: an item in a person's hand, an item, a person, face, voice.

A detector of COCO's classes has no hand, but calls one a person where no more of the body is seen. So a portable item
that a person's box touches counts as held.
"""

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    type Box = Sequence[float]  # left, top, width, height, in pixels

KINDS = ("held", "item", "person", "face", "voice")
_GROWTH = 0.08  # of an item's longer side, by which its box grows before it is looked for what touches it


def frame_evidence(
    items: "Iterable[dict[str, Any]]", size: "Sequence[int]", rule: "dict[str, Any]"
) -> "dict[str, float]":
    """Return the evidence of a frame's items, each 0 to 1, and the label of the held item, or else of the best one.

    `items` are those of the item task; `size` is the frame's height and width. `rule` has `portable` (labels),
    `smallest` (a side, as a share of the frame's), `largest` (area, likewise), `person` (the score from which a person
    counts) and `touch` (the share of the smaller of the two boxes).
    """
    height, width = size
    people = [one for one in items if one["label"] == "person"]
    near = [one["box"] for one in people if one["score"] >= rule["person"]]
    found: dict[str, Any] = {"held": 0.0, "item": 0.0, "person": 0.0, "label": ""}
    for one in people:
        area = one["box"][2] * one["box"][3] / (height * width)
        found["person"] = max(found["person"], one["score"] * min(1.0, 2 * area) ** 0.5)
    for one in items:
        across, down = one["box"][2:]
        is_seen = (
            max(across / width, down / height) >= rule["smallest"] and across * down <= rule["largest"] * height * width
        )
        if one["label"] not in rule["portable"] or not is_seen:
            continue
        if one["score"] > found["item"]:
            found["item"] = one["score"]
            if not found["held"]:
                found["label"] = one["label"]
        if one["score"] > found["held"] and any(_touches(one["box"], person, rule["touch"]) for person in near):
            found["held"], found["label"] = one["score"], one["label"]
    return found


def _touches(item: "Box", person: "Box", share: float) -> bool:
    grown = _GROWTH * max(item[2], item[3])
    left, top = max(item[0] - grown, person[0]), max(item[1] - grown, person[1])
    right = min(item[0] + item[2] + grown, person[0] + person[2])
    bottom = min(item[1] + item[3] + grown, person[1] + person[3])
    smaller = min((item[2] + 2 * grown) * (item[3] + 2 * grown), person[2] * person[3])
    return right > left and bottom > top and (right - left) * (bottom - top) >= share * smaller


def second_evidence(second: "dict[str, Any]", rule: "dict[str, Any]") -> "dict[str, Any]":
    """Return the evidence of a `second` event's contents: the greatest of its frames, its best face and its voice.

    A second without sound, or whose sound was not analysed, has no voice; one without an analysed frame has no more.
    """
    total: dict[str, Any] = dict.fromkeys(KINDS, 0.0)
    total["label"] = ""
    for frame in second["frames"]:
        found = frame_evidence(frame.get("items", ()), frame["size"], rule)
        if (found["held"], found["item"]) > (total["held"], total["item"]):
            total["label"] = found["label"]
        for kind in ("held", "item", "person"):
            total[kind] = max(total[kind], found[kind])
        total["face"] = max([total["face"], *(face["score"] for face in frame.get("faces", ()))])
    total["voice"] = second.get("voice") or 0.0
    return total
