"""Decides whether a second is a highlight, on the device where it is sure and in the cloud where it is not.

The app sends a `second` event once the item, face and voice tasks have answered for its frames and its sound:

    {"second", "pts_ms", "voice": probability or None,
     "frames": [{"size": [height, width], "items", "faces", "palms", "article",
                 "image": uint8 [height, width, 3] in BGR}]}

The output says what was decided, where and why:

    {"second", "pts_ms", "highlight": bool, "score", "decided": "device" | "cloud" | "device alone",
     "why": reason of an escalation that failed, "label", "evidence", "sent_bytes"}
"""

import evidence
import views
from decision import probability
from settings import settings

import walle.cv as cv
import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context, Trigger

_QUALITY = 85  # quality of the JPEG that the cloud looks at
SMOOTHED = ("handled", "shown")  # evidence that is the mean of this second and the two before it
_BEFORE = 2


def preprocess(ctx: "Context", trigger: "Trigger") -> "dict[str, Any]":
    """Return the second's evidence and the device's probability, with its images."""
    contents = trigger["event"]["contents"]
    choice = settings(ctx)
    found = evidence.second_evidence(contents, choice["rule"])
    before = ctx.state if ctx.state.get("second") == contents["second"] - 1 else {}
    found["kept"] = min(found["held"], before.get("held", 0.0))
    past = before.get("past", {})  # a version before this one kept none
    recent = {kind: [*past.get(kind, []), found[kind]][-1 - _BEFORE :] for kind in SMOOTHED}
    found |= {kind: sum(values) / len(values) for kind, values in recent.items()}
    pictures = [frame for frame in contents["frames"] if "image" in frame]
    return {
        "second": contents["second"],
        "pts_ms": contents["pts_ms"],
        "evidence": found,
        "past": {kind: values[-_BEFORE:] for kind, values in recent.items()},
        "score": probability(found, choice["device"]),
        "threshold": choice["device"]["threshold"],
        "images": [frame["image"] for frame in pictures],
        "faces": [frame.get("faces", []) for frame in pictures],
    }


def execute(ctx: "Context", x: "dict[str, Any]") -> "dict[str, Any]":
    """Decide. On the device `x` is what `preprocess` made; in the cloud it has `jpegs` in place of `images`."""
    choice = settings(ctx)
    if ctx.place == "cloud":
        return _look_closer(ctx, x, choice)
    answer = {**x, "decided": "device", "why": "", "sent_bytes": 0}
    images = answer.pop("images")
    low, high = choice["sure"]
    if low < x["score"] < high and images:
        jpegs = [_jpeg(image) for image in images]
        try:
            seen = ctx.escalate({**x, "images": None, "jpegs": jpegs}, timeout_ms=choice["timeout_ms"])
        except ctx.EscalationError as error:
            answer |= {"decided": "device alone", "why": error.reason}
        else:
            answer |= {**seen, "decided": "cloud"}
        answer["sent_bytes"] = sum(len(each) for each in jpegs)
    return answer


def postprocess(ctx: "Context", y: "dict[str, Any]") -> "dict[str, Any]":
    """Return the output; keep what was held, and what the means need, for the next second."""
    ctx.state = {"second": y["second"], "held": y["evidence"]["held"], "past": y["past"]}
    found = {kind: round(value, 3) for kind, value in y["evidence"].items() if kind != "label"}
    return {
        "second": y["second"],
        "pts_ms": y["pts_ms"],
        "highlight": y["score"] >= y["threshold"],
        "score": round(y["score"], 4),
        "decided": y["decided"],
        "why": y["why"],
        "label": y["evidence"]["label"],
        "evidence": found,
        "sent_bytes": y["sent_bytes"],
    }


def _look_closer(ctx: "Context", x: "dict[str, Any]", choice: "dict[str, Any]") -> "dict[str, Any]":
    """Return the device's evidence with the cloud's look at held articles, and the probability from both."""
    frames = []
    for data, faces in zip(x["jpegs"], x["faces"], strict=True):
        image = cv.imdecode(np.frombuffer(data, dtype="uint8"), cv.IMREAD_COLOR)
        if image is None:
            raise ValueError("an image of the request is not a JPEG")
        frames.append({"size": image.shape[:2], "items": views.items(ctx, image), "faces": faces})
    seen = evidence.second_evidence({"frames": frames}, choice["rule"])
    found = {**x["evidence"], "look": seen["held"], "label": seen["label"] or x["evidence"]["label"]}
    return {
        "evidence": found,
        "score": probability(found, choice["cloud"]),
        "threshold": choice["cloud"]["threshold"],
    }


def _jpeg(image: "np.ndarray") -> bytes:
    done, data = cv.imencode(".jpg", image, [cv.IMWRITE_JPEG_QUALITY, _QUALITY])
    if not done:
        raise ValueError("the frame cannot be written as JPEG")
    return memoryview(data).tobytes()
