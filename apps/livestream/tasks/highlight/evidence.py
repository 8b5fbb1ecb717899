"""Evidence of a highlight in one second of a stream: an article in a person's hand, or an article shown alone.

A highlight needs an article. A person, a face or speech alone is none, so that it adds nothing to the evidence; a
person and a face change what is taken for a presented article.

There are two ways to see either, of which the decision's weights choose. With the item and face tasks alone, `held` is
an article that a person's box touches, since a detector of COCO's classes has no hand but calls one a person, and
`closeup` is an article of COCO's alone. With the tasks palm and article (ADR 26), `handled` is an article near a palm,
and `shown` is how far the frame shows any article in its middle, with nobody there.
"""

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    type Box = Sequence[float]  # left, top, width, height, in pixels
    type Article = dict[str, Any]

_GROWTH = 0.08  # part of an item's longer side by which its box grows before others are tested for touching it
_SUPPORT = 2  # frames of a second in which an article must be seen to count in full
_FINGERS = 1.0  # palms' longer sides by which a palm's box grows on each side to hold the fingers


def frame_evidence(
    items: "Iterable[dict[str, Any]]",
    faces: "Sequence[Box]",
    size: "Sequence[int]",
    rule: "dict[str, Any]",
    palms: "Sequence[dict[str, Any]]" = (),
    article: "dict[str, float] | None" = None,
) -> "dict[str, Any]":
    """Return a frame's evidence, each 0 to 1, and the label of the held article, or else of the best one.

    `held` is the best score of an article that a person touches, `handled` that of an article and the palm that touches
    it, multiplied. `closeup` is the score of an article that is the only subject: no person, no face and no second
    article, in proportion to its area up to `rule["closeup"]` of the frame's. `shown` is the map's centre less its
    border, as far as no person, face or palm is there, and None where the article task did not answer.

    `items` are those of the item task, `faces` boxes, `palms` those of the palm task and `article` is the article
    task's; `size` is the frame's height and width.
    """
    height, width = size
    items = list(items)
    people = [one for one in items if one["label"] == "person"]
    near = [one["box"] for one in people if one["score"] >= rule["person"]]
    articles = [one for one in items if _is_article(one, faces, size, rule)]
    hands = [one for one in palms if not any(_holds_centre(face, one["box"]) for face in faces)]
    found: dict[str, Any] = {"held": 0.0, "closeup": 0.0, "handled": 0.0, "shown": None, "label": ""}
    held = [one for one in articles if any(_touches(one["box"], person, rule["touch"]) for person in near)]
    if best := _best(held):
        found["held"] = best["score"]
    handled = [
        {**one, "score": one["score"] * hand["score"]}
        for hand in hands
        for one in articles
        if _touches(one["box"], _with_fingers(hand["box"]), rule["touch"])
    ]
    if in_hand := _best(handled):
        found["handled"] = in_hand["score"]
    if named := in_hand or best or _best(articles):
        found["label"] = named["label"]
    alone = _best(articles)
    if alone and not people and not faces and all(_holds_centre(alone["box"], one["box"]) for one in articles):
        share = alone["box"][2] * alone["box"][3] / (height * width)
        found["closeup"] = alone["score"] * min(1.0, share / rule["closeup"])
    if article is not None:
        nobody = 0.0 if faces else (1 - _highest(people)) * (1 - _highest(palms))
        found["shown"] = max(0.0, article["centre"] - article["border"]) * nobody
    return found


def second_evidence(second: "dict[str, Any]", rule: "dict[str, Any]") -> "dict[str, Any]":
    """Return the evidence of a `second` event's contents.

    `held`, `closeup` and `handled` are means of the two frames that have most of it, so that what is found in a single
    frame counts half; `shown` is the mean of all frames that have it. `face` and `voice` are not weighed; they are what
    the page shows.
    """
    seen = [
        frame_evidence(
            frame["items"],
            [face["box"] for face in frame.get("faces", ())],
            frame["size"],
            rule,
            frame.get("palms", ()),
            frame.get("article"),
        )
        for frame in second["frames"]
        if "items" in frame
    ]
    total: dict[str, Any] = {kind: _supported([one[kind] for one in seen]) for kind in ("held", "closeup", "handled")}
    shown = [one["shown"] for one in seen if one["shown"] is not None]
    total["shown"] = sum(shown) / len(shown) if shown else 0.0
    best = max(seen, key=lambda one: (one["handled"], one["held"], one["closeup"], one["label"] != ""), default=None)
    total["label"] = best["label"] if best else ""
    total["face"] = max((face["score"] for frame in second["frames"] for face in frame.get("faces", ())), default=0.0)
    total["voice"] = second.get("voice") or 0.0
    return total


def _supported(values: "list[float]") -> float:
    best = sorted(values, reverse=True)[:_SUPPORT]
    return sum(best) / len(best) if best else 0.0


def _highest(found: "Iterable[Article]") -> float:
    return max((one["score"] for one in found), default=0.0)


def _best(articles: "list[Article]") -> "Article | None":
    return max(articles, key=lambda one: one["score"], default=None)


def _is_article(item: "Article", faces: "Sequence[Box]", size: "Sequence[int]", rule: "dict[str, Any]") -> bool:
    """Return whether an item is portable, neither small nor large, and does not cover a face.

    An article in front of a face hides it; where the face is seen, the box is of the person.
    """
    height, width = size
    across, down = item["box"][2:]
    return (
        item["label"] in rule["portable"]
        and max(across / width, down / height) >= rule["smallest"]
        and across * down <= rule["largest"] * height * width
        and not any(_holds_centre(item["box"], face) for face in faces)
    )


def _holds_centre(box: "Box", other: "Box") -> bool:
    across, down = other[0] + other[2] / 2, other[1] + other[3] / 2
    return box[0] <= across <= box[0] + box[2] and box[1] <= down <= box[1] + box[3]


def _with_fingers(palm: "Box") -> "Box":
    grown = _FINGERS * max(palm[2], palm[3])
    return (palm[0] - grown, palm[1] - grown, palm[2] + 2 * grown, palm[3] + 2 * grown)


def _touches(item: "Box", person: "Box", share: float) -> bool:
    """Return whether an item's grown box and a person's share at least `share` of the smaller of the two."""
    grown = _GROWTH * max(item[2], item[3])
    left, top = max(item[0] - grown, person[0]), max(item[1] - grown, person[1])
    right = min(item[0] + item[2] + grown, person[0] + person[2])
    bottom = min(item[1] + item[3] + grown, person[1] + person[3])
    smaller = min((item[2] + 2 * grown) * (item[3] + 2 * grown), person[2] * person[3])
    return right > left and bottom > top and (right - left) * (bottom - top) >= share * smaller
