"""The cost of a CPU budget in recall: the labelled tuning clips are played with one budget after the other.

    python -m apps.livestream.budget_curve --clips FOLDER... [--models-dir DIR] [--out FOLDER] [--budgets 0.04,0.01]

Prints a table and writes budget_curve.json, .png and .html into the folder, `out` by default. The clips are played
without a pace on one device, with the same tasks; the first run, which is not counted, loads the models. CPU time is
that of the models' runs, as the device measures it, for each second of stream; a budget of 0.01 is one hundredth of a
core. A budget begins with four seconds' worth saved, so what short clips take is above it: the curve is over what was
taken.
"""

import argparse
import asyncio
import collections
import dataclasses
import html
import json
import sys
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from apps.livestream.evaluate import FRAMES_PER_SECOND, ClipResult, clips_of, report
from apps.livestream.frame_choice import Choice
from apps.livestream.media import open_source
from apps.livestream.player import Player
from apps.livestream.quality import derived, labels
from apps.livestream.quality.clip_files import ClipFiles
from apps.livestream.studio import Studio
from walle.device import Device
from walle.errors import ConfigError
from walle.model_files import ModelFolder, default_folder
from walle.vm import shared_empty

BUDGETS = (None, 0.04, 0.03, 0.02, 0.015, 0.01, 0.0075, 0.005)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Scores of the clips under one budget, None for any amount. `cpu_share` is what the models took of a core."""

    budget: float | None
    cpu_share: float
    frames: dict[str, int]  # by `Choice`
    recall: dict[str, float]  # value, and low and high of its 95 % interval
    precision: dict[str, float]
    f1: dict[str, float]


async def measure(
    clips: Sequence[labels.Clip], files: ClipFiles, models: ModelFolder, budgets: Sequence[float | None]
) -> list[Point]:
    """Return a point for each budget; each clip has a file."""
    with tempfile.TemporaryDirectory(prefix="walle-livestream-") as work:
        played = [(clip, derived.playable(clip, files.paths[clip.name], Path(work))) for clip in clips]
        async with Studio(Path(work), models) as studio:
            [device] = studio.devices
            await _play_all(device, played[:1], None)
            return [await _play_all(device, played, budget) for budget in budgets]


async def _play_all(device: Device, clips: Sequence[tuple[labels.Clip, Path]], budget: float | None) -> Point:
    results, frames, cpu_s = list[ClipResult](), collections.Counter[str](), 0.0
    for clip, path in clips:
        rate = Fraction(FRAMES_PER_SECOND)
        async with open_source(path, frames_per_second=rate, allocate=shared_empty) as source:
            player = Player(device, source, paced=False, budget=budget)
            results.append(ClipResult(clip, tuple([decision async for decision in player.decisions()])))
        frames.update({choice.value: count for choice, count in player.chooser.counts.items()})
        cpu_s += sum(player.chooser.cpu_s.values())
    found = report(results)
    return Point(
        budget=budget,
        cpu_share=cpu_s / sum(clip.seconds for clip, _ in clips),
        frames={choice.value: frames[choice.value] for choice in Choice},
        **{name: found[name] for name in ("recall", "precision", "f1")},
    )


def table(points: Sequence[Point]) -> str:
    """Return the points as a table in Markdown."""
    lines = ["| budget | CPU taken | analysed, unchanged, over budget | recall | precision | F1 |", "| ---: " * 6 + "|"]
    for each in points:
        budget = "none" if each.budget is None else f"{100 * each.budget:g} %"
        frames = ", ".join(map(str, each.frames.values()))
        shares = " | ".join(f"{one['value']:.2f}" for one in (each.recall, each.precision, each.f1))
        lines.append(f"| {budget} | {100 * each.cpu_share:.2f} % | {frames} | {shares} |")
    return "\n".join(lines)


def write(points: Sequence[Point], folder: Path) -> None:
    """Write budget_curve.json, .png and .html into the folder."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    rows = [dataclasses.asdict(each) for each in points]
    (folder / "budget_curve.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    ordered = sorted(points, key=lambda each: each.cpu_share)
    taken = [100 * each.cpu_share for each in ordered]
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, colour, line in (("recall", "#0b5cad", "-"), ("f1", "#b4410e", "--"), ("precision", "#6b3fa0", ":")):
        values = [getattr(each, name) for each in ordered]
        axes.plot(
            taken, [one["value"] for one in values], line, color=colour, marker="o", label=name.replace("f1", "F1")
        )
        if name == "recall":
            low, high = ([one[end] for one in values] for end in ("low", "high"))
            axes.fill_between(taken, low, high, color=colour, alpha=0.12, label="recall, 95 % interval")
    axes.set(xlabel="CPU time of the models, % of one core", ylabel="by second of the tuning clips", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "budget_curve.png", dpi=120)
    plt.close(figure)
    head = "<!doctype html><html lang=en><meta charset=utf-8><title>Cost of a CPU budget</title>"
    image = (
        '<img src=budget_curve.png alt="Recall, F1 and precision over the CPU time of the models" style="width:100%">'
    )
    page = f"{head}<h1>Cost of a CPU budget</h1>{image}<pre>{html.escape(table(points))}</pre>"
    (folder / "budget_curve.html").write_text(page, "utf-8")


def parse_budgets(text: str) -> list[float | None]:
    """Return the budgets of a list such as "none,0.04,0.01".

    Raises:
        ConfigError: one of them is not a number above 0.
    """
    found = list[float | None]()
    for each in text.split(","):
        try:
            budget = None if each.strip() == "none" else float(each)
        except ValueError:
            budget = 0.0
        if budget is not None and not 0 < budget <= 64:
            raise ConfigError(f"budget {each.strip()!r}: give shares of a core, above 0 and up to 64, or none")
        found.append(budget)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure what a CPU budget costs in recall, on the tuning clips.")
    parser.add_argument(
        "--clips", type=Path, required=True, nargs="+", metavar="FOLDER", help="folders with the files of labels.json"
    )
    parser.add_argument("--models-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out"), help="where budget_curve.json, .png and .html go")
    parser.add_argument("--budgets", type=parse_budgets, default=BUDGETS, help="shares of a core, as none,0.04,0.01")
    options = parser.parse_args(arguments)
    tuning, files = clips_of(options.clips, ("tuning",))
    clips = [clip for clip in tuning if clip.name in files.paths]
    models = ModelFolder(options.models_dir or default_folder())
    points = asyncio.run(measure(clips, files, models, options.budgets))
    write(points, options.out)
    sys.stdout.write(table(points) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
