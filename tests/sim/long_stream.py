"""Two hours of a livestream through a device and its cloud, whose memory must not grow, and whose seconds all count.

    python -m tests.sim.long_stream [--seconds 7200] [--minutes M] [--clips FOLDER] [--models-dir FOLDER]

The clips are played behind one another in an order that a seed chooses again for each turn, as fast as the device
decides; the cloud is a process of its own. Memory is read every ten seconds of stream: of the device's process, of its
VM host, of the cloud and of the cloud's VM hosts. It fails if a second is missing, if more than `--undecided` were not
decided (a machine that stops the program stops runs by their deadlines), or if the median of the last quarter is more
than `--growth` times that of the second one: the first has caches that fill. `--minutes` ends it early, as the result
says. It writes long_stream.json, .png and .html into --out.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apps.livestream.player import Player
from apps.livestream.quality.labels import LABELS, Clip, read_labels
from apps.livestream.studio import Studio
from benchmarks.highlights import processes, report
from benchmarks.highlights.clip_loop import ClipLoop, present
from benchmarks.highlights.cloud_process import CloudProcess
from walle.model_files import ModelFileError, ModelFolder, default_folder

_MAX_UNDECIDED = 20  # undecided seconds whose reasons are kept
EVERY_S = 10  # seconds of the stream between two readings of memory
PARTS = ("device", "device's VM host", "cloud", "cloud's VM hosts")


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """Resident MB of each of PARTS, at a second of the stream."""

    second: int
    megabytes: tuple[float, ...]


def shuffled(clips: Sequence[Clip], rng: random.Random) -> Iterator[Clip]:
    """Yield all clips in random order, again and again."""
    while True:
        yield from rng.sample(clips, len(clips))


def read_memory(second: int, cloud_pid: int) -> Reading:
    cloud = processes.descendants(cloud_pid)
    hosts = set(processes.descendants(os.getpid())) - {os.getpid(), *cloud}
    groups = ([os.getpid()], hosts, [cloud_pid], set(cloud) - {cloud_pid})
    return Reading(second, tuple(sum(map(processes.resident_bytes, group)) / 1e6 for group in groups))


def bytes_below(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def growth(readings: Sequence[Reading]) -> dict[str, dict[str, float]]:
    """Return the median MB of each part in each quarter of the stream, and the last quarter's over the second's."""
    quarter = len(readings) // 4
    found = {}
    for number, part in enumerate(PARTS):
        values = [one.megabytes[number] for one in readings]
        medians = [statistics.median(values[k * quarter : (k + 1) * quarter]) for k in range(4)]
        found[part] = {
            **{f"quarter_{k + 1}": round(value, 1) for k, value in enumerate(medians)},
            "growth": round(medians[3] / medians[1], 4),
            "first_to_last": round(medians[3] / medians[0], 4),
        }
    return found


async def play(clips: Sequence[Clip], options: argparse.Namespace) -> dict[str, Any]:
    """Play the stream and return counts, memory and times; a second that is missing fails at once."""
    readings: list[Reading] = []
    decided = collections.Counter[str]()
    undecided: list[str] = []
    started_s, loads = time.monotonic(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="walle-long-stream-") as work:
        models = ModelFolder(options.models_dir or default_folder())
        async with Studio(Path(work), models, cloud=CloudProcess) as studio:
            stream = ClipLoop(
                options.clips, shuffled(clips, random.Random(options.seed)), seconds=options.seconds, pace=None
            )
            source: Any = stream
            player = Player(studio.devices[0], source, paced=False)
            started_s = time.monotonic()
            expected = 0
            async with contextlib.aclosing(player.decisions()) as decisions:
                async for decision in decisions:
                    assert decision.second == expected, f"second {expected} is missing: {decision.second} came"
                    if decision.output is None:
                        undecided.append(f"second {expected}: {decision.why}")
                        del undecided[_MAX_UNDECIDED:]
                    decided[decision.output["decided"] if decision.output else "undecided"] += 1
                    expected += 1
                    if expected % EVERY_S == 0:
                        readings.append(read_memory(expected, studio.cloud.pid))
                    if expected % 300 == 0:
                        loads.append(os.getloadavg()[0])
                        took_s = time.monotonic() - started_s
                        shown = ", ".join(f"{value:.0f}" for value in readings[-1].megabytes)
                        sys.stderr.write(f"{expected} s of stream in {took_s:.0f} s; MB: {shown}\n")
                    if time.monotonic() - started_s > 60 * options.minutes:
                        break
            counts = player.builder.counts
            disk_bytes = await asyncio.to_thread(bytes_below, Path(work))
    return {
        "stream_s": expected,
        "took_s": round(time.monotonic() - started_s, 1),
        "frames": player.frames,
        "wanted_s": options.seconds,
        "decided": dict(decided),
        "undecided": undecided,
        "answered": counts.answered,
        "dropped": counts.dropped,
        "failed": counts.failed,
        "disk_mb": round(disk_bytes / 1e6, 1),
        "load": [round(statistics.median(loads), 1), round(max(loads), 1)],
        "memory": growth(readings),
        "readings": [[one.second, *(round(value, 2) for value in one.megabytes)] for one in readings],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=7200, help="of stream")
    parser.add_argument("--clips", type=Path, default=Path("../shared/data/video"), help="folder of the labelled clips")
    parser.add_argument("--models-dir", type=Path, help="folder of published models, of `walle model get`")
    parser.add_argument("--growth", type=float, default=1.05, help="most growth of memory, last quarter over second")
    parser.add_argument("--undecided", type=int, default=0, help="most seconds that may have no decision")
    parser.add_argument("--minutes", type=float, default=math.inf, help="longest time that it may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    clips = present(read_labels(LABELS), options.clips)
    if not clips:
        sys.exit(f"long_stream: none of the clips of {LABELS.name} is in {options.clips}; give their folder by --clips")
    if options.seconds < 8 * EVERY_S:
        sys.exit(f"long_stream: give {8 * EVERY_S} seconds or more")
    try:
        found = asyncio.run(play(clips, options))
    except ModelFileError as error:
        sys.exit(f"long_stream: {error}")
    report.write_memory(found, PARTS, options.out)
    sys.stdout.write(json.dumps({key: value for key, value in found.items() if key != "readings"}, indent=1) + "\n")
    grown = {part: row["growth"] for part, row in found["memory"].items() if row["growth"] > options.growth}
    lost = found["decided"].get("undecided", 0)
    assert lost <= options.undecided, f"{lost} seconds were not decided: {found['undecided'][:3]}"
    assert not grown, f"memory grew by more than {options.growth:g} times: {grown}"


if __name__ == "__main__":
    main()
