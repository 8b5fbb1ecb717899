"""Scores of the app's highlights: the labelled clips are played through a real device and cloud.

    python -m apps.livestream.evaluate --clips FOLDER [--models own|public] [--models-dir DIR]
        [--set tuning|test|all] [--json]

Clips are played without a pace, so that no frame is dropped and a run can be repeated. Scores are by second (precision,
recall, F1) and by interval (average precision at an IoU of 0.5), with 95 % bootstrap intervals over blocks of five
seconds, and the calibration of the scores.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from apps.livestream.media import open_source
from apps.livestream.player import Decision, Player
from apps.livestream.quality import intervals, labels, scores
from apps.livestream.studio import Studio
from apps.livestream.task_files import Models, add_model_options, chosen_models
from walle.device import Device
from walle.vm import shared_empty

FRAMES_PER_SECOND = 4


@dataclasses.dataclass(frozen=True, slots=True)
class ClipResult:
    """A clip, and what was decided about each of its seconds; a second without a decision counts as none."""

    clip: labels.Clip
    decisions: tuple[Decision, ...]

    def answers(self) -> list[bool]:
        found = {each.second: bool(each.output and each.output["highlight"]) for each in self.decisions}
        return [found.get(second, False) for second in range(self.clip.seconds)]

    def confidences(self) -> list[float]:
        found = {each.second: each.output["score"] if each.output else 0.0 for each in self.decisions}
        return [found.get(second, 0.0) for second in range(self.clip.seconds)]


async def play(device: Device, path: Path, *, frames_per_second: float = FRAMES_PER_SECOND) -> list[Decision]:
    """Play a file without a pace and return the decisions."""
    rate = Fraction(frames_per_second).limit_denominator(1000)
    async with open_source(path, frames_per_second=rate, pace=None, allocate=shared_empty) as source:
        player = Player(device, source, paced=False)
        return [decision async for decision in player.decisions()]


async def play_clips(
    clips: Sequence[labels.Clip],
    folder: Path,
    models: Models,
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[ClipResult]:
    """Play clips, whose files are in `folder`, one after the other on one device."""
    with tempfile.TemporaryDirectory(prefix="walle-livestream-") as work:
        async with Studio(Path(work), models, settings=settings) as studio:
            [device] = studio.devices
            return [ClipResult(clip, tuple(await play(device, _file(folder, clip)))) for clip in clips]


def _file(folder: Path, clip: labels.Clip) -> Path:
    return folder / clip.file


def report(results: Sequence[ClipResult]) -> dict[str, Any]:
    """Return the scores of some clips together."""
    labelled = [label for each in results for label in each.clip.labels("highlight")]
    answered = [answer for each in results for answer in each.answers()]
    confidences = [value for each in results for value in each.confidences()]
    blocks = [block for each in results for block in scores.blocks_of(each.clip.labels("highlight"), each.answers())]
    counted = scores.count(labelled, answered)
    decisions = [decision for each in results for decision in each.decisions]
    outputs = [decision.output for decision in decisions if decision.output is not None]
    found: dict[str, Any] = {"seconds": len(labelled), **dataclasses.asdict(counted)}
    for name in ("precision", "recall", "f1"):
        low, high = scores.interval(blocks, lambda counts, name=name: getattr(counts, name), random.Random(1))  # type: ignore[misc]
        found[name] = {"value": round(getattr(counted, name), 3), "low": round(low, 3), "high": round(high, 3)}
    moments = [
        (
            intervals.intervals(each.clip.labels("highlight"), bridge=1),
            intervals.intervals(each.answers(), each.confidences(), bridge=1),
        )
        for each in results
    ]
    found["average_precision"] = round(intervals.average_precision(moments), 3)
    found["calibration_error"] = round(scores.calibration_error(labelled, confidences), 3)
    found["reliability"] = [dataclasses.asdict(each) for each in scores.reliability(labelled, confidences)]
    found["sent_to_cloud"] = round(sum(output["decided"] == "cloud" for output in outputs) / max(len(outputs), 1), 3)
    found["sent_bytes"] = sum(output["sent_bytes"] for output in outputs)
    found["undecided"] = len(decisions) - len(outputs)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score the app's highlights on labelled clips.")
    parser.add_argument("--clips", type=Path, required=True, help="folder with the clips of labels.json")
    add_model_options(parser)
    parser.add_argument("--set", choices=("tuning", "test", "all"), default="all", dest="chosen")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    clips = [
        clip
        for clip in labels.read_labels(labels.LABELS)
        if options.chosen == "all" or clip.is_test == (options.chosen == "test")
    ]
    results = asyncio.run(play_clips(clips, options.clips, chosen_models(options)))
    found = {}
    for name, is_test in (("tuning", False), ("test", True)):
        if chosen := [each for each in results if each.clip.is_test == is_test]:
            found[name] = report(chosen)
    found["by_clip"] = {each.clip.name: report([each]) for each in results}
    sys.stdout.write(json.dumps(found, indent=None if options.json else 1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
