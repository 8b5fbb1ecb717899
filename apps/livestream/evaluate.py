"""Scores of the app's highlights: the labelled clips are played through a real device and cloud.

    python -m apps.livestream.evaluate --clips FOLDER... [--models own|public] [--models-dir DIR]
        [--set tuning|judging|test|fresh|unseen|stills|all] [--bands] [--plot FILE.png] [--json]

Clips are played without a pace, so that no frame is dropped and a run can be repeated. Scores are by second (precision,
recall, F1) and by interval (average precision at an IoU of 0.5), with 95 % bootstrap intervals, the calibration of the
scores, and what went to the cloud. `--bands` sends every second to the cloud, and says what would come of smaller
shares. `--plot` draws the calibration and the thresholds, and writes a page beside the picture.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from apps.livestream.media import open_source
from apps.livestream.player import Decision, Player
from apps.livestream.quality import derived, intervals, labels, plots, scores
from apps.livestream.quality.bands import Evidence, bands
from apps.livestream.quality.clip_files import ClipFiles, find_clips
from apps.livestream.studio import Studio
from apps.livestream.task_files import Models, add_model_options, chosen_models, settings_of
from walle.device import Device
from walle.vm import shared_empty

FRAMES_PER_SECOND = 4
PATIENT: Mapping[str, Any] = {"timeout_ms": 30_000}  # a busy machine changes no decision
NEVER_SURE: Mapping[str, Mapping[str, Any]] = {"highlight": {**PATIENT, "sure": [-1.0, 2.0]}}
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


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

    def evidence(self) -> list[Evidence]:
        """Return the evidence and label of each decided second; sound may be longer than its video."""
        truth = self.clip.labels("highlight")
        return [
            Evidence(each.output["evidence"], truth[each.second])
            for each in self.decisions
            if each.output is not None and each.second < len(truth)
        ]


async def play(device: Device, path: Path, *, frames_per_second: float = FRAMES_PER_SECOND) -> list[Decision]:
    """Play a file without a pace and return the decisions."""
    rate = Fraction(frames_per_second).limit_denominator(1000)
    async with open_source(path, frames_per_second=rate, pace=None, allocate=shared_empty) as source:
        player = Player(device, source, paced=False)
        return [decision async for decision in player.decisions()]


async def play_clips(
    clips: Sequence[labels.Clip],
    files: ClipFiles,
    models: Models,
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[ClipResult]:
    """Play the clips that have a file, one after the other on one device."""
    results = []
    with tempfile.TemporaryDirectory(prefix="walle-livestream-") as work:
        async with Studio(Path(work), models, settings=settings) as studio:
            [device] = studio.devices
            for clip in clips:
                if (path := files.paths.get(clip.name)) is None:
                    continue
                results.append(ClipResult(clip, tuple(await play(device, derived.playable(clip, path, Path(work))))))
    return results


def report(results: Sequence[ClipResult]) -> dict[str, Any]:
    """Return the scores of some clips together."""
    labelled = [label for each in results for label in each.clip.labels("highlight")]
    answered = [answer for each in results for answer in each.answers()]
    confidences = [value for each in results for value in each.confidences()]
    blocks = [block for each in results for block in scores.blocks_of(each.clip.labels("highlight"), each.answers())]
    counted = scores.count(labelled, answered)
    found: dict[str, Any] = {"seconds": len(labelled), **dataclasses.asdict(counted)}
    for name in ("precision", "recall", "f1"):
        low, high = scores.interval(blocks, lambda counts, name=name: getattr(counts, name), random.Random(1))  # type: ignore[misc]
        found[name] = {"value": round(getattr(counted, name), 3), "low": round(low, 3), "high": round(high, 3)}
    parts = [
        part
        for each in results
        for part in intervals.parts(each.clip.labels("highlight"), each.answers(), each.confidences(), bridge=1)
    ]
    low, high = intervals.bootstrap(parts, random.Random(1))
    precision = intervals.average_precision(parts)
    found["average_precision"] = {"value": round(precision, 3), "low": round(low, 3), "high": round(high, 3)}
    found["calibration_error"] = round(scores.calibration_error(labelled, confidences), 3)
    found["reliability"] = [dataclasses.asdict(each) for each in scores.reliability(labelled, confidences)]
    found["thresholds"] = [
        {"threshold": threshold, "recall": round(each.recall, 3), "precision": round(each.precision, 3)}
        for threshold in THRESHOLDS
        for each in [scores.count(labelled, [value >= threshold for value in confidences])]
    ]
    return {**found, **_cloud([decision for each in results for decision in each.decisions])}


def _cloud(decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return what the cloud decided, and `passed`: the share of it that became highlights (paper: 15 % of 12 %)."""
    outputs = [decision.output for decision in decisions if decision.output is not None]
    sent = [output for output in outputs if output["decided"] == "cloud"]
    return {
        "sent_to_cloud": round(len(sent) / max(len(outputs), 1), 3),
        "passed_by_cloud": round(sum(output["highlight"] for output in sent) / len(sent), 3) if sent else None,
        "without_answer": sum(output["decided"] == "device alone" for output in outputs),
        "sent_bytes": sum(output["sent_bytes"] for output in outputs),
        "undecided": len(decisions) - len(outputs),
    }


def add_clip_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name clips and models."""
    parser.add_argument(
        "--clips", type=Path, required=True, nargs="+", metavar="FOLDER", help="folders with the files of labels.json"
    )
    add_model_options(parser)


def clips_of(folders: Sequence[Path], chosen: Collection[str]) -> tuple[list[labels.Clip], ClipFiles]:
    """Return the clips of the chosen sets and their files; absent ones are named on standard error.

    Raises:
        ConfigError: no clip of the sets is there, or one has another content.
    """
    clips = [clip for clip in labels.read_labels(labels.LABELS) if clip.set in chosen]
    files = find_clips(clips, folders)
    for line in files.absences():
        sys.stderr.write(line + "\n")
    return clips, files


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score the app's highlights on labelled clips.")
    add_clip_options(parser)
    parser.add_argument("--set", choices=(*labels.SETS, "all"), default="all", dest="chosen")
    parser.add_argument("--bands", action="store_true", help="send every second; score smaller shares from that")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw calibration and thresholds")
    parser.add_argument("--json", action="store_true", help="on one line")
    options = parser.parse_args(arguments)
    clips, files = clips_of(options.clips, labels.SETS if options.chosen == "all" else (options.chosen,))
    models = chosen_models(options)
    results = asyncio.run(
        play_clips(clips, files, models, settings=NEVER_SURE if options.bands else {"highlight": PATIENT})
    )
    decision = settings_of("highlight", models)
    found: dict[str, Any] = {"absent": [clip.name for clip in files.absent]}
    for name in labels.SETS:
        chosen = [each for each in results if each.clip.set == name]
        if chosen and options.bands:
            evidence = [row for each in chosen for row in each.evidence()]
            found[name] = [dataclasses.asdict(band) for band in bands(evidence, decision["device"], decision["cloud"])]
        elif chosen:
            found[name] = report(chosen)
    if not options.bands:
        found["by_clip"] = {each.clip.name: report([each]) for each in results}
        if options.plot is not None:
            plots.draw({name: found[name] for name in labels.SETS if name in found}, options.plot)
    sys.stdout.write(json.dumps(found, indent=None if options.json else 1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
