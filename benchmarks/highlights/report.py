"""Tables, plots and pages of the livestream app's figures."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ROWS = (  # rows of the comparison: key, title, factor, digits
    ("cloud_cpu_ms_per_stream_s", "cloud CPU ms a stream second", 1, 1),
    ("with_onnxruntime_cpu_ms_per_stream_s", "  with ONNX Runtime's models", 1, 1),
    ("cloud_cpu_ms_per_highlight", "cloud CPU ms a highlight", 1, 0),
    ("streams_per_cloud_core", "streams a cloud core can serve", 1, 1),
    ("uploaded_kb_per_stream_minute", "uploaded KB a stream minute", 1, 0),
    ("uploaded_kb_per_highlight", "uploaded KB a highlight", 1, 0),
    ("looked_closer_share", "seconds looked at more closely, %", 100, 1),
    ("pass_rate", "  of them highlights, %", 100, 1),
    ("highlights", "highlights", 1, 0),
    ("precision", "precision by second", 1, 2),
    ("recall", "recall by second", 1, 2),
    ("f1", "F1 by second", 1, 2),
)


def table(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    head = (
        f"{result['machine']}, {result['date']}, load {result['load'][0]:.1f} to {result['load'][1]:.1f};"
        f" Ray {result['versions']['ray']}, ONNX Runtime {result['versions']['onnxruntime']};"
        f" {len(result['clips'])} clips, {result['frames_per_second']} frames a second, {result['rounds']} rounds;"
        f" {result['seconds']:.0f} s"
    )
    lines = [head]
    if "variants" in result:
        lines += ["", *_comparison(result)]
    if result.get("streams"):
        lines += ["", *_streams(result)]
    if "loss" in result:
        lines += ["", *_loss(result["loss"])]
    return "\n".join(lines)


def _comparison(result: dict[str, Any]) -> list[str]:
    names, paper = list(result["variants"]), result["paper"]
    lines = [f"{'':36}" + "".join(f"{name:>24}" for name in names)]
    for key, title, factor, digits in _ROWS:
        cells = (result["variants"][name].get(key) for name in names)
        shown = ("" if cell is None else f"{cell * factor:,.{digits}f}" for cell in cells)
        lines.append(f"{title:36}" + "".join(f"{cell:>24}" for cell in shown))
    for name, saved in result["saved"].items():
        lines.append(
            f"against {name}: cloud CPU a highlight {-saved['cloud_cpu_per_highlight']:+.0%}"
            f" (paper -{paper['cloud_cpu_per_highlight']:.0%}), streams a core {saved['more_streams_per_core']:+.0%}"
            f" (paper: streamers +{paper['more_streams']:.0%}), uploaded bytes {-saved['uploaded_bytes']:+.0%};"
            f" {differing(result['differing_seconds'][name])}"
        )
    lines.append(f"the clips' own files have {result['clips_kb_per_minute']:,.0f} KB a minute")
    lines.append(
        f"sent up by the device: {result['variants'][names[0]]['looked_closer_share']:.1%} of seconds"
        f" (paper {paper['looked_closer_share']:.0%}), of them highlights"
        f" {result['variants'][names[0]]['pass_rate']:.0%} (paper {paper['pass_rate']:.0%})"
    )
    return lines


def differing(by_clip: dict[str, int]) -> str:
    """Return how many seconds two variants decide differently, and of which clips, as text."""
    named = ", ".join(f"{count} of {name}" for name, count in sorted(by_clip.items()))
    return f"{sum(by_clip.values())} seconds decided differently{f' ({named})' if named else ''}"


def _streams(result: dict[str, Any]) -> list[str]:
    titles = ("p50", "p95", "p99", "late", "item", "face", "voice", "lost", "added", "device", "cloud")
    head = (
        "streams at real pace: delay of decisions in s; frames late at the source and triggers dropped by task;"
        " highlight seconds lost and added; cores"
    )
    lines = [
        head,
        f"{'':14}" + "".join(f"{title:>8}" for title in titles),
    ]
    rows = [(f"{row['streams']}", row) for row in result["streams"]]
    if "streams_cloud_only" in result:
        rows.append((f"{result['streams_cloud_only']['streams']} cloud only", result["streams_cloud_only"]))
    for title, row in rows:
        delays = [f"{row['delay_s'].get(key, float('nan')):.2f}" for key in titles[:3]]
        shares = [late_share(row), *(dropped_share(row, task) for task in titles[4:7])]
        shown = ["-" if share is None else f"{share:.1%}" for share in shares]
        lost = f"{row['highlights_lost']}/{row['highlights_at_leisure']}"
        cores = [f"{row[key]:.2f}" for key in ("device_cores", "cloud_cores")]
        cells = [*delays, *shown, lost, str(row["highlights_added"]), *cores]
        lines.append(f"{title:14}" + "".join(f"{cell:>8}" for cell in cells))
    return lines


def late_share(row: dict[str, Any]) -> float:
    """Return the share of sampled frames that the source dropped because they were late."""
    return float(row["late_frames"] / max(row["frames"] + row["late_frames"], 1))


def dropped_share(row: dict[str, Any], task: str) -> float | None:
    """Return the share of a task's triggers that its queue dropped; None where no device has the task."""
    if "tasks" not in row:
        return None
    counts = row["tasks"][task]
    return float(counts["dropped"] / max(sum(counts.values()), 1))


def _loss(loss: dict[str, Any]) -> list[str]:
    alone, reasons = loss["places"].get("device alone", 0), loss["reasons"]
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    again = "never" if loss["recovered_s"] is None else f"{loss['recovered_s']:.1f} s after it served again"
    decided = sum(loss["places"].values())
    first = (
        f"cloud killed after second {loss['lost_at']}, started after second {loss['back_at']}:"
        f" {decided} of {loss['seconds']} seconds decided, {loss['places'].get('cloud', 0)} by the cloud,"
        f" {alone} by the device alone ({why}); the cloud decided again {again}"
    )
    return [
        first,
        f"by second (c cloud, a device alone, d device): {loss['by_second']}",
        f"delay of decisions: p50 {loss['delay_s']['p50']:.2f} s, largest {loss['delay_s']['max']:.2f} s",
    ]


def write(result: dict[str, Any], folder: Path) -> None:
    """Write livestream.json, .png and .html into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "livestream.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    plt = _pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    if "variants" in result:
        _bars(axes[0][0], result["variants"], "cloud_cpu_ms_per_stream_s", "cloud CPU ms a stream second")
        _bars(axes[0][1], result["variants"], "uploaded_kb_per_stream_minute", "uploaded KB a stream minute")
    if rows := result.get("streams"):
        counts = [row["streams"] for row in rows]
        for key, style in (("p50", "o-"), ("p95", "s-"), ("p99", "^-")):
            axes[1][0].plot(counts, [row["delay_s"].get(key) for row in rows], style, label=key)
        axes[1][0].set_ylabel("s from the second's end to its decision")
        shares = {task: [100 * (dropped_share(row, task) or 0) for row in rows] for task in ("item", "face", "voice")}
        shares["late at the source"] = [100 * late_share(row) for row in rows]
        shares["highlight seconds lost"] = [
            100 * row["highlights_lost"] / max(row["highlights_at_leisure"], 1) for row in rows
        ]
        for name, values in shares.items():
            axes[1][1].plot(counts, values, "o-", label=name)
        axes[1][1].set_ylabel("% dropped or lost")
        for one in axes[1]:
            one.set_xlabel("streams at real pace")
            one.set_ylim(bottom=0)
            one.legend(frameon=False)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "livestream.png", dpi=110)
    plt.close(figure)
    write_page("Highlights of a livestream", "livestream.png", table(result), folder / "livestream.html")


def _bars(axes: Any, variants: dict[str, Any], key: str, label: str) -> None:
    names = list(variants)
    bars = axes.bar(range(len(names)), [variants[name][key] for name in names], color=["C2", "C0", "C3"])
    axes.bar_label(bars, fmt="{:,.0f}")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(label)


def write_memory(found: dict[str, Any], parts: Sequence[str], folder: Path) -> None:
    """Write a long stream's memory as long_stream.json, .png and .html into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "long_stream.json").write_text(json.dumps(found) + "\n", "utf-8")
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    minutes = [row[0] / 60 for row in found["readings"]]
    for number, part in enumerate(parts, 1):
        axes.plot(minutes, [row[number] for row in found["readings"]], label=part)
    axes.set_xlabel("minutes of stream")
    axes.set_ylabel("resident MB")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=len(parts), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "long_stream.png", dpi=120)
    plt.close(figure)
    shown = {key: value for key, value in found.items() if key != "readings"}
    write_page("Memory over a long stream", "long_stream.png", json.dumps(shown, indent=1), folder / "long_stream.html")


def write_page(title: str, picture: str, text: str, path: Path) -> None:
    """Write an HTML page with a picture, which is in the same folder, and a text below it."""
    style = "body{font:15px/1.45 system-ui,sans-serif;margin:2rem}img{max-width:100%}pre{overflow-x:auto}"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{style}</style>"
        f"<h1>{html.escape(title)}</h1><img src={picture!r} alt='plot'><pre>{html.escape(text)}</pre>\n",
        encoding="utf-8",
    )


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt
