"""Device and cloud together against cloud only: the same clips, what was decided, and what it cost the cloud."""

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.livestream.document import highlights
from apps.livestream.player import Decision, Player
from apps.livestream.quality import scores
from apps.livestream.quality.labels import Clip
from benchmarks.highlights.baseline import Baseline
from benchmarks.highlights.clip_loop import ClipLoop
from benchmarks.highlights.cloud_process import CloudProcess, CloudUse
from walle.device import Device

type Decided = dict[str, list[Mapping[str, Any]]]  # outputs of the highlight task by clip, a second each


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """All clips played once without a pace: the decisions, and what the cloud used meanwhile."""

    decided: Decided
    used: CloudUse


async def play_together(device: Device, cloud: CloudProcess, clips: Sequence[Clip], folder: Path) -> Pass:
    """Play the clips, one after the other, on a device with its cloud.

    Raises:
        RuntimeError: a second was not decided.
    """
    before = await cloud.use()
    decided: Decided = {}
    for clip in clips:
        source: Any = ClipLoop(folder, [clip], seconds=clip.seconds, pace=None)
        decided[clip.name] = outputs(clip, [each async for each in Player(device, source, paced=False).decisions()])
    await device.settled()  # what the tasks put out is in the cloud
    return Pass(decided, (await cloud.use()).since(before))


async def play_in_cloud(baseline: Baseline, clips: Sequence[Clip], folder: Path) -> Pass:
    """Play the clips, one after the other, to the baseline.

    Raises:
        RuntimeError: a second was not decided.
    """
    before = await baseline.use()
    decided: Decided = {}
    for clip in clips:
        client = baseline.client(paced=False)
        decided[clip.name] = outputs(clip, await client.play(ClipLoop(folder, [clip], seconds=clip.seconds, pace=None)))
        baseline.sent_bytes += client.sent_bytes
    return Pass(decided, (await baseline.use()).since(before))


def outputs(clip: Clip, decisions: Sequence[Decision]) -> list[Mapping[str, Any]]:
    """Return the outputs of a clip's seconds.

    Raises:
        RuntimeError: a second is missing or was not decided.
    """
    found = [each.output for each in decisions if each.output is not None]
    if [output["second"] for output in found] != list(range(clip.seconds)):
        why = next((each.why for each in decisions if each.output is None), "")
        raise RuntimeError(f"{clip.name}: {len(found)} of {clip.seconds} seconds were decided {why}".strip())
    return found


def summary(passes: Sequence[Pass], clips: Sequence[Clip]) -> dict[str, Any]:
    """Return a variant's figures: medians of what its passes used, and the decisions of the first.

    `highlights` are intervals, as the app's document joins them. `deterministic` says that all passes decided equally.
    """
    decided = passes[0].decided
    seconds = sum(clip.seconds for clip in clips)
    rows = [output for clip in clips for output in decided[clip.name]]
    found = sum(len(highlights(decided[clip.name])) for clip in clips)
    counted = scores.count(
        [label for clip in clips for label in clip.labels("highlight")], [bool(row["highlight"]) for row in rows]
    )
    up = [row for row in rows if row["decided"] == "cloud"]
    cpu_s = statistics.median(one.used.cpu_s for one in passes)
    sent_bytes = statistics.median(one.used.received_bytes for one in passes)
    return {
        "seconds": seconds,
        "highlights": found,
        "cloud_cpu_ms_per_stream_s": 1000 * cpu_s / seconds,
        "cloud_cpu_ms_range": [1000 * act(one.used.cpu_s for one in passes) / seconds for act in (min, max)],
        "cloud_cpu_ms_per_highlight": 1000 * cpu_s / max(found, 1),
        "streams_per_cloud_core": seconds / cpu_s if cpu_s else 0.0,
        "uploaded_kb_per_stream_minute": sent_bytes / 1000 / (seconds / 60),
        "uploaded_kb_per_highlight": sent_bytes / 1000 / max(found, 1),
        "looked_closer_share": len(up) / seconds,
        "pass_rate": sum(bool(row["highlight"]) for row in up) / max(len(up), 1),
        "precision": counted.precision,
        "recall": counted.recall,
        "f1": counted.f1,
        "deterministic": all(answers(one.decided) == answers(decided) for one in passes),
        "wall_s": statistics.median(one.used.at_s for one in passes),
    }


def answers(decided: Decided) -> dict[tuple[str, int], bool]:
    """Return whether each second is a highlight, by clip and second."""
    return {(name, row["second"]): bool(row["highlight"]) for name, rows in decided.items() for row in rows}


def differing(one: Decided, other: Decided) -> dict[str, int]:
    """Return how many seconds two variants decide differently, by clip; clips without any are left out."""
    mine, theirs = answers(one), answers(other)
    return dict(collections.Counter(clip for (clip, second), answer in mine.items() if answer != theirs[clip, second]))


def saved(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """Return what the first variant saves against the second, as the paper counts it: shares, 0.87 is -87 %."""
    return {
        "cloud_cpu_per_highlight": 1 - mine["cloud_cpu_ms_per_highlight"] / theirs["cloud_cpu_ms_per_highlight"],
        "cloud_cpu_per_stream_s": 1 - mine["cloud_cpu_ms_per_stream_s"] / theirs["cloud_cpu_ms_per_stream_s"],
        "more_streams_per_core": mine["streams_per_cloud_core"] / theirs["streams_per_cloud_core"] - 1,
        "uploaded_bytes": 1 - mine["uploaded_kb_per_stream_minute"] / theirs["uploaded_kb_per_stream_minute"],
    }
