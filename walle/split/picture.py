"""Picture of latency by cut: device, transfer and cloud stacked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from walle.split.chooser import Latency, named
from walle.split.cut import Cut

_COLOURS = {"device": "#2563eb", "transfer": "#f97316", "cloud": "#10b981"}


def draw(cuts: Sequence[Cut], found: Sequence[Latency], best: int, title: str, path: Path) -> None:
    """Write a PNG of the latencies of all cuts, in the order of the model's nodes.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 4.5), layout="constrained")
    places = range(len(cuts))
    bottoms = [0.0] * len(cuts)
    for part, colour in _COLOURS.items():
        heights = [getattr(one, f"{part}_ms") for one in found]
        axes.bar(places, heights, bottom=bottoms, width=0.9, color=colour, label=part)
        bottoms = [low + high for low, high in zip(bottoms, heights, strict=True)]
    axes.plot(
        best,
        bottoms[best],
        marker="v",
        color="black",
        linestyle="",
        label=f"{named(cuts, best)}: {bottoms[best]:.1f} ms",
    )
    axes.set_xticks([0, len(cuts) - 1], [named(cuts, at) for at in (0, len(cuts) - 1)])
    axes.set_ylabel("latency, ms")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)
