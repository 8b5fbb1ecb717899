"""The document of a stream's highlights, `highlights.json`: intervals, the seconds they are made of, and the counts."""

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.livestream.seconds import SecondCounts
from walle.base.durable_file import write_file

BRIDGE_S = 1  # a gap between two highlights that is not worth a cut
TASKS = ("item", "face", "voice", "highlight")
OPTIONAL_TASKS = ("palm", "article")  # listed where they ran


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The stream that was played: name, length, frames and seconds of sound, and faults.

    Of the frames, `unchanged` and `over_budget` were not analysed. `budget` is the share of a core that the models
    might take, None for any amount, and `cpu_s` what they took, by task.
    """

    source: str
    duration_s: float
    frames: int
    sound_s: float
    unchanged: int = 0
    over_budget: int = 0
    budget: float | None = None
    cpu_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    faults: tuple[str, ...] = ()


def document(
    stream: Stream, seconds: Sequence[Mapping[str, Any]], counts: SecondCounts, *, made_by: str, made_at: str
) -> dict[str, Any]:
    """Return the document; `seconds` are the outputs of the highlight task, in order, one for each second decided.

    `sent_bytes` were sent to the cloud, of which `answered_bytes` gave an answer. `unanswered` counts by reason the
    seconds that had none; one whose request the cloud was too far `away` for has sent nothing.
    """
    asked = [second for second in seconds if second["decided"] != "device"]
    unanswered = collections.Counter(second["why"] for second in asked if second["decided"] == "device alone")
    return {
        "source": stream.source,
        "duration_s": stream.duration_s,
        "highlights": highlights(seconds),
        "seconds": list(seconds),
        "counts": {
            "frames": stream.frames,
            "analysed": stream.frames - stream.unchanged - stream.over_budget,
            "unchanged": stream.unchanged,
            "over_budget": stream.over_budget,
            "sound_s": round(stream.sound_s, 3),
            "budget": stream.budget,
            "cpu_s": round(sum(stream.cpu_s.values()), 3),
            "by_device": sum(second["decided"] != "cloud" for second in seconds),
            "by_cloud": sum(second["decided"] == "cloud" for second in seconds),
            "alone": sum(second["decided"] == "device alone" for second in seconds),
            "sent_bytes": sum(second["sent_bytes"] for second in asked if second["why"] != "away"),
            "answered_bytes": sum(second["sent_bytes"] for second in asked if second["decided"] == "cloud"),
            "unanswered": dict(sorted(unanswered.items())),
            "tasks": [
                {
                    "task": task,
                    "answered": counts.answered.get(task, 0),
                    "dropped": counts.dropped.get(task, 0),
                    "failed": counts.failed.get(task, 0),
                    "cpu_s": round(stream.cpu_s.get(task, 0.0), 3),
                }
                for task in (*TASKS, *(name for name in OPTIONAL_TASKS if name in stream.cpu_s))
            ],
        },
        "faults": list(stream.faults),
        "made_by": made_by,
        "made_at": made_at,
    }


def highlights(seconds: Sequence[Mapping[str, Any]], *, bridge: int = BRIDGE_S) -> list[dict[str, Any]]:
    """Join neighbouring seconds that are highlights; gaps of up to `bridge` seconds belong to the highlight.

    `start` is the first second and `end` the one after the last. `item` is the label of the second with the best
    score that has one, `score` that score, and `decided` says where its seconds were decided.
    """
    groups: list[list[Mapping[str, Any]]] = []
    for second in seconds:
        if not second["highlight"]:
            continue
        if groups and second["second"] - groups[-1][-1]["second"] - 1 <= bridge:
            groups[-1].append(second)
        else:
            groups.append([second])
    found = []
    for group in groups:
        ranked = sorted(group, key=lambda second: -second["score"])
        found.append(
            {
                "start": group[0]["second"],
                "end": group[-1]["second"] + 1,
                "item": next((second["label"] for second in ranked if second["label"]), ""),
                "score": ranked[0]["score"],
                "decided": sorted({second["decided"] for second in group}),
                "thumbnail": "",
                "clip": "",
            }
        )
    return found


def write_document(value: Mapping[str, Any], path: Path) -> None:
    """Write the document whole or not at all."""
    write_file(path, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")
