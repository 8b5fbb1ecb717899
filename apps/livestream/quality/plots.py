"""Picture and page of an evaluation: the reliability diagram, and recall and precision over the threshold."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw(reports: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a PNG with a column for each report of `evaluate`, and a page of the same name with its numbers."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(reports), figsize=(5 * len(reports), 8), squeeze=False, layout="constrained")
    for column, (name, found) in enumerate(reports.items()):
        diagram, curves = axes[0][column], axes[1][column]
        bins = found["reliability"]
        diagram.plot([0, 1], [0, 1], "k:", label="calibrated")
        diagram.plot([each["confidence"] for each in bins], [each["positive"] for each in bins], "o-", label="measured")
        for each in bins:
            diagram.annotate(str(each["answers"]), (each["confidence"], each["positive"]), fontsize="x-small")
        diagram.set(
            title=f"{name}: {found['seconds']} s, calibration error {found['calibration_error']}",
            xlabel="probability (number: seconds)",
            ylabel="share of highlights",
            xlim=(0, 1),
            ylim=(0, 1),
        )
        diagram.legend(fontsize="small")
        for kind in ("recall", "precision"):
            curves.plot(
                [each["threshold"] for each in found["thresholds"]],
                [each[kind] for each in found["thresholds"]],
                "o-",
                label=kind,
            )
        curves.set(xlabel="threshold", xlim=(0, 1), ylim=(0, 1.02))
        curves.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    path.with_suffix(".html").write_text(
        "<!doctype html><meta charset=utf-8><title>Quality of highlights</title>"
        "<style>body{font:15px/1.45 system-ui,sans-serif;margin:2rem}img{max-width:100%}pre{overflow-x:auto}</style>"
        f"<h1>Quality of highlights</h1><img src={path.name!r} alt='calibration, recall and precision'>"
        f"<pre>{html.escape(json.dumps(reports, indent=1))}</pre>\n",
        encoding="utf-8",
    )
