"""The web page of a stream's highlights: one HTML file beside its thumbnails, for a browser, from a file or a server.

Timeline, curves and marks are SVG made here, so that the page says the same without scripts; a script adds the cursor,
the keys and, where the browser can play the video, its playback.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

_FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 1000, 160  # size of the curves, in the units of the SVG
PLACES = {"device": "on the device", "cloud": "in the cloud", "device alone": "on the device, without the cloud"}
CURVES = (("score", "highlight"), ("held", "item in hand"), ("face", "face"), ("voice", "voice"))
# Where the tasks palm and article ran, their evidence is what the decision weighs.
CURVES_WITH_ARTICLES = (
    ("score", "highlight"), ("handled", "item near a palm"), ("shown", "article in the middle, nobody there"),
    ("face", "face"), ("voice", "voice"),
)  # fmt: skip


def write_page(document: Mapping[str, Any], folder: Path, *, video: str = "") -> Path:
    """Write index.html for the document of `highlights.json` into `folder`; return its path.

    `video` is the address of the video as the page sees it, empty where it cannot be played (a webcam).
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FileSystemLoader(_FOLDER), trim_blocks=True
    )
    environment.filters["clock"] = clock
    environment.filters["number"] = "{:,}".format
    decided = document["seconds"]
    if not document["counts"]["sound_s"]:  # a voice of 0 was not heard
        decided = [{**second, "evidence": {**second["evidence"], "voice": None}} for second in decided]
    seconds = timeline(decided)
    curves = CURVES_WITH_ARTICLES if "article" in {row["task"] for row in document["counts"]["tasks"]} else CURVES
    page = environment.get_template("page.html.j2").render(
        document=document,
        count=len(seconds),
        marks=[len(seconds) * part // 4 for part in range(5)] if len(seconds) >= 4 else [0, len(seconds)],
        places=PLACES,
        video=video,
        width=WIDTH,
        height=HEIGHT,
        curves=[{"name": name, "label": label, "path": curve_path(seconds, name)} for name, label in curves],
        has_curve={name: any(value_of(second, name) is not None for second in seconds) for name, _ in curves},
        data=script_json(
            {"seconds": seconds, "highlights": document["highlights"], "places": PLACES, "evidence": curves[1:]}
        ),
        style=(_FOLDER / "page.css").read_text("utf-8"),
        script=(_FOLDER / "page.js").read_text("utf-8"),
    )
    path = folder / "index.html"
    path.write_text(page, "utf-8")
    return path


def clock(seconds: float) -> str:
    """Return a time of a stream as 1:02:03 or 2:03."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def timeline(decided: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
    """Return the seconds by their number, from 0 on; None for those that were not decided."""
    found: list[Mapping[str, Any] | None] = [None] * (decided[-1]["second"] + 1 if decided else 0)
    for second in decided:
        found[second["second"]] = second
    return found


def value_of(second: Mapping[str, Any] | None, name: str) -> float | None:
    """Return a curve's value at a second, 0 to 1; None where the stream has none."""
    if second is None:
        return None
    value: float | None = second["score"] if name == "score" else second["evidence"].get(name)
    return value


def curve_path(seconds: Sequence[Mapping[str, Any] | None], name: str) -> str:
    """Return a curve as SVG path data: steps of a second each, and a gap where there is no value."""
    parts, drawing, last = list[str](), False, float(HEIGHT)
    for number, second in enumerate(seconds):
        value = value_of(second, name)
        if value is None:
            drawing = False
            continue
        left, right = (round(WIDTH * place / len(seconds), 2) for place in (number, number + 1))
        top = round(HEIGHT * (1 - min(max(value, 0.0), 1.0)), 2)
        parts.append(f"M{left} {top}H{right}" if not drawing else f"V{top}H{right}" if top != last else f"H{right}")
        drawing, last = True, top
    return "".join(parts)


def script_json(value: object) -> str:
    """Return JSON that may stand in a script element: no text in it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")
