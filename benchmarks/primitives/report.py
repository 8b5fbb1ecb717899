"""Report of the search figure: rows beside the paper's, a picture and a page."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.primitives.accuracy import ALL, Regret
from benchmarks.primitives.selection import Selected
from benchmarks.primitives.transfer import Transferred

# The paper's times of model and PBQP in ms, and of profiling on an Intel Core i9-9900K in s (Table 1).
PAPER_TIMES = {
    "AlexNet": (43.6, 66),
    "VGG-11": (327, 720),
    "VGG-19": (673, 2052),
    "GoogLeNet": (177, 182),
    "ResNet-18": (119, 242),
    "ResNet-34": (194, 494),
}
PAPER_ERROR = "Fig. 4, Intel: network below 2 % for most primitives, a line far above"
PAPER_TRANSFER = "Fig. 6: 10 % of the samples within 2 points of training from scratch; below 5 % substantial errors"
PAPER_INCREASE = "Fig. 5: +0.39 % on average, +1.1 % at worst"


class Report(NamedTuple):
    """All rows of one run; `errors` and `regrets` are by model, `transfers` by the two backends' names."""

    facts: Mapping[str, Any]
    regrets: Mapping[str, Regret]
    errors: Mapping[str, Mapping[str, float]]
    transfers: Mapping[str, Sequence[Transferred]]
    networks: Sequence[Selected]


def plain(report: Report) -> dict[str, Any]:
    """Return the report as values for JSON."""
    return {
        "facts": dict(report.facts),
        "regrets": {name: one._asdict() for name, one in report.regrets.items()},
        "errors": {name: dict(one) for name, one in report.errors.items()},
        "transfers": {name: [one._asdict() for one in rows] for name, rows in report.transfers.items()},
        "networks": [one._asdict() for one in report.networks],
    }


def table(report: Report) -> str:
    lines = [f"{key}: {value}" for key, value in report.facts.items()]
    lines += ["", "Pick regret over the test layers that have a choice: the predicted best against the measured best"]
    lines.append(f"{'':22s}{'mean':>9s}{'p99':>9s}{'worst':>9s}{'layers':>8s}")
    for name, one in report.regrets.items():
        lines.append(f"{name:22s}{_percent(one.mean)}{_percent(one.p99)}{_percent(one.worst)}{one.layers:8d}")
    lines += ["", f"Median relative absolute error by class of primitives ({PAPER_ERROR})"]
    classes = list(next(iter(report.errors.values())))
    lines.append(f"{'':22s}" + "".join(f"{_short(name):>16s}" for name in classes))
    for name, errors in report.errors.items():
        lines.append(f"{name:22s}" + "".join(f"{100 * errors[one]:14.2f} %" for one in classes))
    for name, rows in report.transfers.items():
        lines += ["", f"Transfer {name}: error and mean regret on the target ({PAPER_TRANSFER})"]
        lines.append(f"{'samples':>22s}{'':>14s}{'error':>9s}{'regret':>9s}")
        for row in rows:
            count = f"{100 * row.fraction:g} % = {row.samples}"
            lines.append(f"{count:>22s}{row.how:>14s}{_percent(row.error)}{_percent(row.regret)}")
    if report.networks:
        lines += ["", f"Networks: selection by predicted against by measured times ({PAPER_INCREASE})"]
        heads = f"{'layers':>8s}{'model':>10s}{'PBQP':>9s}{'paper':>9s}{'profiling':>11s}{'paper':>9s}"
        columns = f"{'measured':>11s}{'increase':>10s}{'other picks':>13s}{'in latency':>12s}{'own plan':>10s}"
        lines.append(f"{'':12s}{heads}{columns}")
    for net in report.networks:
        paper_ms, paper_s = PAPER_TIMES[net.network]
        times = f"{net.model_ms:7.2f} ms{net.pbqp_ms:6.2f} ms{paper_ms:6.0f} ms{net.profiling_s:9.1f} s{paper_s:7.0f} s"
        gain = f"{net.measured_us / 1e3:8.2f} ms{_percent(net.increase):>10s}{net.differing:13d}"
        runs = f"{_percent(net.latency_increase):>12s}{_percent(net.planned_increase)}"
        lines.append(f"{net.network:12s}{net.layers:8d}{times}{gain}{runs}")
    if report.networks:
        for what, increases in (
            ("increase", [net.increase for net in report.networks]),
            ("in latency", [net.latency_increase for net in report.networks]),
            ("own plan, in latency", [net.planned_increase for net in report.networks]),
        ):
            mean = sum(increases) / len(increases)
            lines.append(f"{what}: mean {_percent(mean).strip()}, worst {_percent(max(increases)).strip()}")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:7.2f} %"


def _short(name: str) -> str:
    return name if len(name) <= 15 else f"{name[:14]}."


def plot(report: Report, path: Path) -> None:
    """Draw errors by class, transfer, and the increase of each network."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(17, 4.6), layout="constrained")
    _plot_errors(axes[0], report.errors)
    _plot_transfers(axes[1], report.transfers)
    _plot_networks(axes[2], report.networks)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _plot_errors(axis: Any, errors: Mapping[str, Mapping[str, float]]) -> None:
    width = 0.8 / max(1, len(errors))
    for i, (name, by_class) in enumerate(errors.items()):
        places = [place + (i - (len(errors) - 1) / 2) * width for place in range(len(by_class))]
        axis.bar(places, [100 * error for error in by_class.values()], width, label=name)
    classes = list(next(iter(errors.values())))
    axis.set_xticks(range(len(classes)), classes, rotation=30, ha="right")
    axis.set_yscale("log")
    axis.set_ylabel("median relative error, %")
    axis.set_title("Fig. 4: error by class of primitives")
    axis.legend(fontsize="small")


def _plot_transfers(axis: Any, transfers: Mapping[str, Sequence[Transferred]]) -> None:
    for i, (name, rows) in enumerate(transfers.items()):
        for how, style in (("random", "o-"), ("active", "s--")):
            points = [(100 * row.fraction, 100 * row.error) for row in rows if row.how == how]
            axis.plot(*zip(*points, strict=True), style, color=f"C{i}", label=f"{name}, {how}")
        for row in rows:
            if row.how == "from scratch":
                axis.axhline(100 * row.error, color=f"C{i}", linestyle=":", label=f"{name}, from scratch, all samples")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("samples of the target, %")
    axis.set_ylabel("median relative error, %")
    axis.set_title("Fig. 6: transfer")
    if transfers:
        axis.legend(fontsize="small")


def _plot_networks(axis: Any, networks: Sequence[Selected]) -> None:
    axis.bar([net.network for net in networks], [100 * net.latency_increase for net in networks])
    axis.axhline(0.39, color="black", linestyle=":", label="the paper's mean")
    axis.tick_params(axis="x", rotation=30)
    axis.set_ylabel("excess in latency over the measured selection, %")
    axis.set_title("Fig. 5: selection by predicted times")
    axis.legend(fontsize="small")


def page(text: str, facts: str, picture: Path, path: Path) -> None:
    """Write an HTML page of the table and the picture, which is in the same folder."""
    path.write_text(
        "<!doctype html><meta charset=utf-8><title>Search</title>"
        "<style>body{font:15px/1.45 system-ui,sans-serif;margin:2rem}img{max-width:100%}pre{overflow-x:auto}</style>"
        f"<h1>Learned search (Mulder et al.)</h1><p>{html.escape(facts)}</p><img src={picture.name!r} alt='Search'>"
        f"<pre>{html.escape(text)}</pre>\n",
        encoding="utf-8",
    )


__all__ = ["ALL", "Report", "page", "plain", "plot", "table"]
