"""Highlights of a livestream: device and cloud together against cloud only, streams side by side, and a lost cloud.

On the app's labelled clips, with its public models; where those are not fetched, on two clips that the app draws, with
its own small models:

- collaboration: all clips without a pace, in rounds that take turns. `together` is the app: the device decides what it
  is sure of, and the cloud, a process of its own, the rest. `cloud only` sends each frame as JPEG and all sound to a
  Ray actor, where the same tasks decide with the same settings: small models first, the closer look where they are
  unsure.
  `cloud only, all closer` is the same with a closer look at every second. CPU time is that of the cloud's processes
  alone; Ray's own are counted apart. docs/adr/0026-reference-apps.md says why it is a fair baseline.
- streams: N streams at real pace, each a device of this process (they share its VM host), beside the cloud's process on
  the same machine. A frame that the source cannot deliver within half a second is dropped, and counted as late; each
  task drops its oldest frames or sounds when its queue is full.
- loss: one stream at real pace that sends every second up, whose cloud is killed and started again.

    python benchmarks/livestream.py [--clips DIR] [--models own|public] [--models-dir DIR] [--streams 1,2,5,10,20]
        [--seconds 12] [--json]

The hand-over of a request to the cloud's models beside Ray Serve: `walle figures inference_batching`. Two hours of
stream with flat memory: `make soak-livestream`.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import onnxruntime  # noqa: E402  # the path must be set first
import ray  # noqa: E402

from apps.livestream.fit_decision import drawn_clips  # noqa: E402
from apps.livestream.own_models import OwnModels  # noqa: E402
from apps.livestream.quality.labels import LABELS, Clip, read_labels  # noqa: E402
from apps.livestream.studio import Studio  # noqa: E402
from apps.livestream.task_files import Models, choose_models  # noqa: E402
from benchmarks.headline import print_headline  # noqa: E402
from benchmarks.highlights import collaboration, engines, many_streams, processes, report  # noqa: E402
from benchmarks.highlights.baseline import EVERY_SECOND, Baseline, RayCluster  # noqa: E402
from benchmarks.highlights.clip_loop import FRAMES_PER_SECOND, present  # noqa: E402
from benchmarks.highlights.cloud_process import CloudProcess  # noqa: E402
from walle.cli import event_loop  # noqa: E402
from walle.model_files import ModelFileError, ModelFolder, default_folder  # noqa: E402

PAPER = {  # §7.1
    "cloud_cpu_per_highlight": 0.87,
    "more_streams": 1.23,
    "looked_closer_share": 0.12,
    "pass_rate": 0.15,
}
CLIPS = Path("../shared/data/video")
_DRAWN_SEEDS = (3, 4)
PARTS = ("collaboration", "streams", "loss")
VARIANTS = ("together", "cloud only", "cloud only, all closer")


async def compare(
    studio: Studio, folder: Path, models: Models, clips: Sequence[Clip], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of the collaboration, and of the streams side by side, those that were asked for."""
    device_pids = set(processes.descendants(os.getpid())) - set(processes.descendants(studio.cloud.pid))
    found: dict[str, Any] = {}
    async with (
        RayCluster() as cluster,
        Baseline(folder / "first", models, {}) as first,
        Baseline(folder / "closer", models, EVERY_SECOND) as closer,
    ):
        baselines = {VARIANTS[1]: first, VARIANTS[2]: closer}

        async def play(name: str, chosen: Sequence[Clip]) -> collaboration.Pass:
            if name in baselines:
                return await collaboration.play_in_cloud(baselines[name], chosen, options.clips)
            return await collaboration.play_together(studio.devices[0], studio.cloud, chosen, options.clips)

        for name in VARIANTS:
            await play(name, clips[:1])  # warm
        if "collaboration" in options.parts:
            before = {name: await baseline.runs() for name, baseline in baselines.items()}
            passes, ray_ms = await rounds(play, cluster, baselines, clips, options.rounds)
            found = variants(passes, clips, options.clips) | {"ray_processes_cpu_ms_per_stream_s": ray_ms}
            each_ms = {}
            if isinstance(models, ModelFolder):  # the app's own models are not ONNX files
                each_ms = found["model_cpu_ms"] = engines.model_ms(folder / "engines", models, options.rounds * 10)
            seconds = options.rounds * sum(clip.seconds for clip in clips)
            for name, baseline in baselines.items():
                after, row = await baseline.runs(), found["variants"][name]
                runs = {key: (value - before[name][key]) / seconds for key, value in after.items()}
                row["model_runs_per_stream_s"] = runs
                if each_ms:
                    row["with_onnxruntime_cpu_ms_per_stream_s"] = engines.with_onnxruntime(
                        row["cloud_cpu_ms_per_stream_s"], runs, each_ms
                    )
        else:
            note("the decisions at leisure")
            passes = {name: [await play(name, clips)] for name in VARIANTS[:2]}
        if "streams" in options.parts and options.streams:
            leisure = {name: collaboration.answers(passes[name][0].decided) for name in VARIANTS[:2]}
            found["streams"] = await streams(studio, clips, options, leisure[VARIANTS[0]], device_pids)
            count = options.streams[-1]
            note(f"{count} streams at real pace, cloud only")
            found["streams_cloud_only"] = await many_streams.on_baseline(
                first, clips, options.clips, streams=count, seconds=options.seconds, at_leisure=leisure[VARIANTS[1]]
            )
    return found


async def rounds(
    play: Callable[[str, Sequence[Clip]], Awaitable[collaboration.Pass]],
    cluster: RayCluster,
    baselines: Mapping[str, Baseline],
    clips: Sequence[Clip],
    count: int,
) -> tuple[dict[str, list[collaboration.Pass]], dict[str, float]]:
    """Play all clips in each variant, in turns; return the passes, and the CPU ms of Ray's own processes."""
    passes: dict[str, list[collaboration.Pass]] = {name: [] for name in VARIANTS}
    actors = {baseline.pid for baseline in baselines.values()}
    ray_ms = dict.fromkeys(baselines, 0.0)
    for number in range(count):
        for name in VARIANTS[:: 1 if number % 2 == 0 else -1]:
            ray_s = cluster.cpu_s(besides=actors)
            passes[name].append(await play(name, clips))
            if name in ray_ms:
                spent_s = cluster.cpu_s(besides=actors) - ray_s
                ray_ms[name] += 1000 * spent_s / sum(clip.seconds for clip in clips) / count
            note(f"round {number + 1}, {name}: {passes[name][-1].used.at_s:.0f} s")
    return passes, ray_ms


def variants(passes: dict[str, list[collaboration.Pass]], clips: Sequence[Clip], folder: Path) -> dict[str, Any]:
    rows = {name: collaboration.summary(found, clips) for name, found in passes.items()}
    mine = passes[VARIANTS[0]][0].decided
    return {
        "clips_kb_per_minute": sum((folder / clip.file).stat().st_size for clip in clips)
        * 0.06 / sum(clip.seconds for clip in clips),
        "variants": rows,
        "saved": {name: collaboration.saved(rows[VARIANTS[0]], rows[name]) for name in VARIANTS[1:]},
        "differing_seconds": {
            name: collaboration.differing(mine, passes[name][0].decided) for name in VARIANTS[1:]
        },
    }  # fmt: skip


async def streams(
    studio: Studio,
    clips: Sequence[Clip],
    options: argparse.Namespace,
    at_leisure: many_streams.Answers,
    device_pids: Collection[int],
) -> list[dict[str, Any]]:
    rows = []
    for count in options.streams:
        note(f"{count} streams at real pace")
        rows.append(
            await many_streams.on_devices(
                studio.devices[:count],
                studio.cloud,
                clips,
                options.clips,
                seconds=options.seconds,
                at_leisure=at_leisure,
                device_pids=device_pids,
            )
        )
    return rows


def with_most_highlights(clips: Sequence[Clip], count: int) -> list[Clip]:
    """Return the clips with the largest share of labelled highlights, in their order; all of them for a count of 0."""
    shares = {clip.name: sum(clip.labels("highlight")) / clip.seconds for clip in clips}
    chosen = sorted(shares, key=shares.__getitem__, reverse=True)[: count or None]
    return [clip for clip in clips if clip.name in chosen]


async def measure(clips: Sequence[Clip], models: Models, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="walle-livestream-") as work:
        folder = Path(work)
        if {"collaboration", "streams"} & options.parts:
            count = max(options.streams, default=1) if "streams" in options.parts else 1
            note(f"starting a cloud and {count} devices")
            async with Studio(folder / "studio", models, devices=count, cloud=CloudProcess) as studio:
                found |= await compare(studio, folder, models, clips, options)
        if "loss" in options.parts:
            note("a stream whose cloud is killed and started again")
            seconds = options.loss_seconds
            async with Studio(folder / "loss", models, settings=EVERY_SECOND, cloud=CloudProcess) as studio:
                found["loss"] = await many_streams.through_a_loss(
                    studio.devices[0],
                    studio.cloud,
                    clips,
                    options.clips,
                    seconds=seconds,
                    lost_at=seconds // 3,
                    back_at=seconds // 2,
                )
    return found


def note(text: str) -> None:
    sys.stderr.write(f"livestream: {text}\n")
    sys.stderr.flush()


def numbers(text: str) -> list[int]:
    """Return the numbers of "1,2,5", in order; of an empty text none."""
    found = sorted({int(part) for part in text.split(",") if part.strip()})
    if found and not 1 <= found[0] <= found[-1] <= 50:
        raise ValueError(text)
    return found


def parts(text: str) -> set[str]:
    """Return the parts of "streams,loss"."""
    found = {part.strip() for part in text.split(",")}
    if not found <= set(PARTS):
        raise ValueError(text)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=Path, help=f"folder of the labelled clips; by default {CLIPS}")
    parser.add_argument("--most", type=int, default=0, help="clips to play, those with the most highlights; 0: all")
    parser.add_argument("--models", choices=("own", "public"), help="by default the public ones if they are all there")
    parser.add_argument("--models-dir", type=Path, help="folder of published models, of `walle model get`")
    parser.add_argument("--rounds", type=int, default=2, help="of the collaboration")
    parser.add_argument("--streams", type=numbers, default=[1, 2, 5, 10, 20], help="numbers of streams; '' for none")
    parser.add_argument("--seconds", type=int, default=12, help="of each number of streams")
    parser.add_argument("--loss-seconds", type=int, default=24, help="of the stream whose cloud is killed")
    parser.add_argument("--parts", type=parts, default=set(PARTS), help=f"by default {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where livestream.json, .png and .html go")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if min(options.rounds, options.seconds, options.loss_seconds // 6) < 1:
        sys.exit("livestream: --rounds and --seconds must be at least 1, --loss-seconds at least 6")
    given, is_drawn = options.clips, False
    with tempfile.TemporaryDirectory(prefix="walle-clips-") as drawn:
        try:
            asked = options.models or ("public" if options.models_dir else None)
            models = choose_models(asked, ModelFolder(options.models_dir or default_folder()))
            note(f"with {models.why}")
            options.clips = given or CLIPS
            clips = present(read_labels(LABELS), options.clips)
            if given and not clips:
                sys.exit(f"livestream: none of the clips of {LABELS.name} is in {given}; give their folder by --clips")
            if not clips or (given is None and isinstance(models.models, OwnModels)):
                options.clips, is_drawn = Path(drawn), True
                note("drawing two clips: the app's own models are for these, or the labelled clips are not there")
                clips = drawn_clips(options.clips, _DRAWN_SEEDS)
            clips = with_most_highlights(clips, options.most)
            begin_s, load = time.monotonic(), os.getloadavg()[0]
            measured = event_loop.run(measure(clips, models.models, options))
        except ModelFileError as error:
            sys.exit(f"livestream: {error}")
    result: dict[str, Any] = {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "versions": {"ray": ray.__version__, "onnxruntime": onnxruntime.__version__},
        "clips": [clip.name for clip in clips],
        "models": "own" if isinstance(models.models, OwnModels) else "public",
        "are_clips_drawn": is_drawn,
        "frames_per_second": FRAMES_PER_SECOND,
        "rounds": options.rounds,
        "paper": PAPER,
        **measured,
    }
    result |= {"load": [load, os.getloadavg()[0]], "seconds": time.monotonic() - begin_s}
    report.write(result, options.out)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(report.table(result))
    print_headlines(result)


def print_headlines(result: dict[str, Any]) -> None:
    """Print the cloud's load for each highlight, or of a part that was measured without it."""
    models = "public models" if result["models"] == "public" else "the app's own small models"
    count, kind = len(result["clips"]), "drawn" if result["are_clips_drawn"] else "labelled"
    clips = f"{count} {kind} clip{'s' if count > 1 else ''}, {models}"
    if "variants" in result:
        rows = result["variants"]
        each, key, saved_key = "highlight", "cloud_cpu_ms_per_highlight", "cloud_cpu_per_highlight"
        if not all(row["highlights"] for row in rows.values()):
            each, key, saved_key = "second", "cloud_cpu_ms_per_stream_s", "cloud_cpu_per_stream_s"
        print_headline(
            f"CPU time of the cloud for a {each}, {clips}",
            unit="ms",
            better="lower",
            ours=rows[VARIANTS[0]][key],
            peers={f"{name} (Ray)": rows[name][key] for name in VARIANTS[1:]},
        )
        saved = result["saved"][VARIANTS[2]][saved_key]
        what = f"load of the cloud saved for a {each} against {VARIANTS[2]}, {clips}"
        print_headline(what, unit="%", better="higher", ours=100 * saved)
    elif result.get("streams"):
        row = result["streams"][-1]
        what = f"from a second's end to its decision, p99, {row['streams']} streams at real pace, {clips}"
        print_headline(what, unit="s", better="lower", ours=row["delay_s"]["p99"])
    elif "loss" in result:
        what = f"from a second's end to its decision while the cloud is lost, median, {clips}"
        print_headline(what, unit="s", better="lower", ours=result["loss"]["delay_s"]["p50"])


if __name__ == "__main__":
    main()
