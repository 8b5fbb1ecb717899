"""Report of cut models over traces: a table, a picture of mean latencies, and a page."""

import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path

from benchmarks.split_parts.networks import Network
from benchmarks.split_parts.replay import Replay

_CONTESTED = 0.02  # share of moments that each fixed choice wins at least
_COLOURS = {"all here": "#2563eb", "all there": "#10b981", "chosen": "#f97316", "oracle": "#111827"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A network on a device and links of a kind."""

    network: str
    slower: float
    kind: str
    replay: Replay

    @property
    def is_contested(self) -> bool:
        """Return whether each of both fixed choices is the better one in some of the moments."""
        wins = sum(here < there for here, there in zip(self.replay.here, self.replay.there, strict=True))
        return _CONTESTED <= wins / len(self.replay.here) <= 1 - _CONTESTED


def summary(cells: Sequence[Cell]) -> tuple[float, float]:
    """Return the share of moments no slower than the better fixed choice, and the mean of cells' means over the
    oracle's.
    """
    moments = sum(len(one.replay.chosen) for one in cells)
    share = sum(one.replay.share * len(one.replay.chosen) for one in cells) / moments
    return share, sum(one.replay.over_oracle for one in cells) / len(cells)


def table(networks: Sequence[Network], cells: Sequence[Cell]) -> str:
    """Return the report as text."""
    lines = ["networks (times: least CPU ms of one thread here)"]
    for one in networks:
        errors = ", ".join(f"{way} {100 * error:.1f} %" for way, error in one.prediction_error.items())
        exact = max((cut.error for cut in one.cuts if cut.error is not None), default=0.0)
        rounded = max((cut.quantised_error for cut in one.cuts if cut.quantised_error is not None), default=0.0)
        lines.append(
            f"{one.name}, {one.weights} weights: {one.cuts[-1].device_ms:.1f} ms; {one.cut_count} cuts,"
            f" {len(one.cuts)} timed; error of a part's predicted time, share of the whole: {errors or 'none cut'};"
            f" outputs differ by {exact:.1e}, in int8 by {rounded:.1e}"
        )
    head = (
        f"{'':28}{'device':>7}{'link':>8}{'share':>8}{'/oracle':>9}{'chosen':>9}{'here':>9}{'there':>10}{'oracle':>9}"
    )
    lines.append(f"{head}   choices (mean ms; there: its median)")
    for cell in cells:
        own = cell.replay
        choices = ", ".join(f"{where} {count}" for where, count in sorted(own.choices.items()))
        means = [sum(one) / len(one) for one in (own.chosen, own.here, own.oracle)]
        there = sorted(own.there)[len(own.there) // 2]
        lines.append(
            f"{cell.network:28}{cell.slower:6g}×{cell.kind[:7]:>8}{100 * own.share:7.1f}%{own.over_oracle:9.3f}"
            f"{means[0]:9.1f}{means[1]:9.1f}{there:10.1f}{means[2]:9.1f}"
            f"   {choices}; late {own.late}, probes {own.probes}"
        )
    for name, some in (("all", cells), ("contested", [one for one in cells if one.is_contested])):
        if some:
            share, over = summary(some)
            worst = min(some, key=lambda one: one.replay.share)
            lines.append(
                f"{name}, {len(some)} cells: {100 * share:.1f} % of moments no slower than the better of both fixed"
                f" choices; mean over the oracle's {over:.3f}; worst cell {worst.network}, {worst.slower:g}×,"
                f" {worst.kind}: {100 * worst.replay.share:.1f} %; a choice that knows the link of the second before"
                f" exactly: {100 * sum(one.replay.informed_share for one in some) / len(some):.1f} %"
            )
    return "\n".join(lines)


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Draw median and mean latencies: a panel for each network, lower is faster."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(one.network for one in cells))
    figure, axes = plt.subplots(len(names), 1, figsize=(12, 2.8 * len(names)), squeeze=False, layout="constrained")
    for name, axis in zip(names, axes[:, 0], strict=True):
        own = [one for one in cells if one.network == name]
        for at, (label, colour) in enumerate(_COLOURS.items()):
            medians = [_median(_series(one.replay)[label]) for one in own]
            axis.bar([place + 0.2 * at for place in range(len(own))], medians, width=0.19, color=colour, label=label)
        axis.set_yscale("log")
        axis.set_ylabel("median ms")
        axis.set_title(name, fontsize=10)
        axis.set_xticks([place + 0.3 for place in range(len(own))], [f"{one.slower:g}× {one.kind[:12]}" for one in own])
    axes[0, 0].legend(ncols=4, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _series(one: Replay) -> dict[str, list[float]]:
    return {"all here": one.here, "all there": one.there, "chosen": one.chosen, "oracle": one.oracle}


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def page(text: str, picture: Path, path: Path) -> None:
    """Write a page with the picture and the table."""
    body = f'<h1>A model cut between device and cloud</h1><img src="{picture.name}"><pre>{html.escape(text)}</pre>'
    path.write_text(f"<!doctype html><meta charset=utf-8><title>Cut models</title><body>{body}", encoding="utf-8")
