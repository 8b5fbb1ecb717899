"""Report of Fig. 12: delays over size beside the paper's, as a table, a plot and a page."""

import html
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# §7.2 and Fig. 12: averages over 364 million uploads, on the devices and networks of Taobao's users.
PAPER_MS = {3_000: 250.0, 30_000: 450.0}


def quantiles(times_ms: Sequence[float]) -> dict[str, float]:
    """Return count, mean, p50, p90, p99 and the largest."""
    ordered = sorted(times_ms)
    found = {"count": len(ordered), "mean": statistics.mean(ordered)}
    for percent in (50, 90, 99):
        found[f"p{percent}"] = ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
    return {key: round(value, 1) for key, value in (found | {"max": ordered[-1]}).items()}


def table(found: dict[str, Any]) -> str:
    lines = [
        f"link: {found['link']} ({found['model']}); {found['congestion_control']}, Linux {found['kernel']}",
        "    size  uploads   acknowledged: mean     p50     p90     p99     max   arrived: p50     p99   paper",
    ]
    for row in found["sizes"]:
        acked, arrived = row["acknowledged_ms"], row["arrived_ms"]
        paper = f"{row['paper_mean_ms']:8.0f}" if row["paper_mean_ms"] else ""
        lines.append(
            f"{row['size_bytes'] / 1000:5g} KB{acked['count']:9d}{acked['mean']:21.0f}{acked['p50']:8.0f}"
            f"{acked['p90']:8.0f}{acked['p99']:8.0f}{acked['max']:8.0f}{arrived['p50']:15.0f}{arrived['p99']:8.0f}{paper}"
        )
    asked, trip_ms = found["requests_ms"], found["round_trip_ms"]
    if asked:
        lines.append(
            f"requests of 200 B while the outbox drains: {asked['count']}, p50 {asked['p50']:.0f},"
            f" p90 {asked['p90']:.0f}, p99 {asked['p99']:.0f} ms"
            f" ({asked['p99'] / trip_ms:.1f} round trips of {trip_ms:.0f} ms),"
            f" {found['uploaded_kb_per_s']:.0f} KB/s of uploads a device meanwhile"
        )
    lines += [f"sysctl: {found['sysctls']}"] * bool(found["sysctls"])
    lines.append(
        "acknowledged: from before the feature is put to its acknowledgement, stored durably at both ends;"
        " arrived: from put to receipt in the cloud. The paper gives averages."
    )
    return "\n".join(lines)


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw delays over size, and the counts below them."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sizes = [row["size_bytes"] / 1000 for row in found["sizes"]]
    figure, (delays, counts) = plt.subplots(
        2, 1, figsize=(8, 7), sharex=True, layout="constrained", height_ratios=[3, 1]
    )
    for key, style in (("mean", "k--"), ("p50", "o-"), ("p90", "s-"), ("p99", "^-")):
        delays.plot(sizes, [row["acknowledged_ms"][key] for row in found["sizes"]], style, label=f"acknowledged, {key}")
    paper = [(size / 1000, delay_ms) for size, delay_ms in PAPER_MS.items()]
    delays.plot(*zip(*paper, strict=True), "r*", markersize=13, linestyle="none", label="paper, mean")
    delays.set_xscale("log")
    delays.set_ylim(bottom=0)
    delays.set_ylabel("delay, ms")
    delays.set_title(found["link"], fontsize="small")
    delays.legend()
    counts.bar(sizes, [row["acknowledged_ms"]["count"] for row in found["sizes"]], [0.3 * size for size in sizes])
    counts.set_ylabel("uploads")
    counts.set_xlabel("size of the feature, KB")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def page(found: dict[str, Any], picture: Path, path: Path) -> None:
    """Write an HTML page of the table and the picture, which is in the same folder."""
    path.write_text(
        "<!doctype html><meta charset=utf-8><title>Tunnel delays</title>"
        "<style>body{font:15px/1.45 system-ui,sans-serif;margin:2rem}img{max-width:100%}pre{overflow-x:auto}</style>"
        f"<h1>Delay of uploads over their size (Fig. 12)</h1><img src={picture.name!r} alt='delays'>"
        f"<pre>{html.escape(table(found))}</pre>\n",
        encoding="utf-8",
    )
