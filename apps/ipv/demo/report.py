"""A run's record on disk: `report.json`, the coverage curve as `coverage.png`, and `report.html` that shows both."""

import json
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl

from apps.ipv.demo.record import DemoRecord

mpl.use("Agg")

_PAGE = Path(__file__).with_name("report.html.j2")


def write(record: DemoRecord, folder: Path) -> list[Path]:
    """Write the three files into `folder` (made if absent) and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("report.json", "coverage.png", "report.html")]
    paths[0].write_text(json.dumps(record.to_json(), indent=1))
    _plot(record, paths[1])
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_PAGE.read_text())
    paths[2].write_text(page.render(record=record))
    return paths


def _plot(record: DemoRecord, path: Path) -> None:
    from matplotlib import pyplot as plt

    times = [sample.t_s for sample in record.samples]
    versions = sorted({version for sample in record.samples for version in sample.active if version})
    colours = {"v1": "#1f6f8b", "v2": "#d1495b"}
    figure, (coverage, failures) = plt.subplots(
        2, 1, figsize=(10, 6), sharex=True, height_ratios=[3, 1], layout="constrained"
    )
    for version in versions:
        counts = [sample.active.get(version, 0) for sample in record.samples]
        coverage.step(times, counts, where="post", label=version, color=colours.get(version), linewidth=2)
    reach = [sample.share * record.devices for sample in record.samples]
    coverage.step(times, reach, where="post", label="may reach", color="#999999", linestyle=":")
    coverage.set_ylabel("devices")
    coverage.set_ylim(0, record.devices * 1.25)
    coverage.legend(loc="center right", frameon=False)
    coverage.set_title(f"Active versions on {record.devices} devices")
    # Marks are numbered as in the page's list; their text would not fit.
    for number, mark in enumerate(record.marks, 1):
        coverage.axvline(mark.t_s, color="#dddddd", linewidth=0.8, zorder=0)
        level = record.devices * (1.04 + 0.05 * (number % 4))
        coverage.text(mark.t_s, level, str(number), fontsize=8, color="#555555", ha="center")
    failures.plot(times, _failure_rates(record), color="#d1495b")
    failures.set_ylabel("failed runs")
    failures.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    failures.set_ylim(bottom=0)
    failures.set_xlabel("seconds since the fleet was up")
    for axes in (coverage, failures):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _failure_rates(record: DemoRecord) -> list[float]:
    """Return the share of failed runs between each sample and the one about two seconds before it."""
    rates: list[float] = []
    start = 0
    for index, sample in enumerate(record.samples):
        while sample.t_s - record.samples[start].t_s > 2.0:
            start += 1
        before: Any = record.samples[start] if start < index else None
        runs = sample.runs - (before.runs if before else 0)
        failed = sample.failed - (before.failed if before else 0)
        rates.append(failed / runs if runs else 0.0)
    return rates
