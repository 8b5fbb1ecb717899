"""Report of Fig. 10: ratios to the best peer and their geometric mean, a table, a plot and a page."""

import html
import math
from pathlib import Path
from typing import Any

from benchmarks.fig10.engines import ENGINES

_COLUMNS = (
    ("", 18), ("CPU ms", 10), ("wall ms", 10), ("least", 10), ("x best", 8), ("% peak", 8), ("load ms", 9),
    ("first ms", 10), ("search", 8), ("MiB", 7), ("error", 9),
)  # fmt: skip

# threads → network → label → figures or {"failed": reason}
type Results = dict[int, dict[str, dict[str, dict[str, Any]]]]


def precision_of(label: str) -> str:
    engine = ENGINES.get(label.partition("@")[0])
    return engine.precision if engine is not None else "float32"


def ours(label: str) -> bool:
    return label.startswith("walle")


def best_peer(row: dict[str, dict[str, Any]], precision: str, key: str) -> tuple[str, float] | None:
    """Return the fastest peer at a precision, and its time; None if no peer ran."""
    times = [
        (result[key], label)
        for label, result in row.items()
        if not ours(label) and precision_of(label) == precision and key in result
    ]
    return (min(times)[1], min(times)[0]) if times else None


def ratios(results: Results, key: str = "cpu_ms") -> list[dict[str, Any]]:
    """Return, for each thread count and row of ours, the ratios to the best peer's time by network, and their mean."""
    found = []
    for threads, networks in results.items():
        labels = sorted({label for row in networks.values() for label in row if ours(label)})
        for label in labels:
            shares = {}
            for name, row in networks.items():
                peer = best_peer(row, precision_of(label), key)
                if peer is not None and key in row.get(label, {}):
                    shares[name] = {"ratio": row[label][key] / peer[1], "peer": peer[0]}
            if shares:
                mean = math.exp(sum(math.log(one["ratio"]) for one in shares.values()) / len(shares))
                found.append({"threads": threads, "engine": label, "by": key, "networks": shares, "mean": mean})
    return found


def revisions(results: Results, key: str = "cpu_ms") -> list[dict[str, Any]]:
    """Return, for each row, the ratio to the same engine at another revision (`label@revision`), by network."""
    found = []
    for threads, networks in results.items():
        for other in sorted({label for row in networks.values() for label in row if "@" in label}):
            label = other.partition("@")[0]
            both = {
                name: row for name, row in networks.items() if key in row.get(label, {}) and key in row.get(other, {})
            }
            shares = {name: row[label][key] / row[other][key] for name, row in both.items()}
            found.append({"threads": threads, "engine": label, "against": other, "networks": shares})
    return found


def peak_share(entry: dict[str, Any], result: dict[str, Any], gflops: float) -> float:
    """Return the direct algorithm's operations per CPU second over a core's peak; Winograd may exceed 1."""
    return float(entry["flops"] / (result["cpu_ms"] * 1e6) / gflops)


def table(results: Results, manifest: dict[str, Any], gflops: float) -> str:
    lines = []
    for threads, networks in results.items():
        lines += [
            f"{threads} thread{'s' if threads > 1 else ''}",
            "".join(f"{title:>{width}s}" for title, width in _COLUMNS),
        ]
        for name, row in networks.items():
            entry = manifest[name]
            lines.append(f"{name} ({entry['flops'] / 1e9:.3f} GFLOP, {entry['params'] / 1e6:.2f} M parameters)")
            for label, result in row.items():
                if "failed" in result:
                    lines.append(f"  {label:16s}  {result['failed']}")
                    continue
                peer = best_peer(row, precision_of(label), "cpu_ms")
                times = f"{result['cpu_ms']:10.3f}{result['wall_ms']:10.3f}{result['min_ms']:10.3f}"
                ratio = "" if peer is None else f"{result['cpu_ms'] / peer[1]:.2f}"
                share = f"{100 * peak_share(entry, result, gflops):.0f}"
                search = "" if result["search_ms"] is None else f"{result['search_ms']:.1f}"
                start = f"{result['load_ms']:9.1f}{result['first_ms']:10.2f}{search:>8s}"
                end = f"{result['memory_mib']:7.0f}{result['error']:9.1e}"
                lines.append(f"  {label:16s}{times}{ratio:>8s}{share:>8s}{start}{end}")
        lines.append("")
    for one in (*ratios(results), *ratios(results, "wall_ms")):
        kind = "CPU" if one["by"] == "cpu_ms" else "wall"
        shares = ", ".join(f"{name} {share['ratio']:.2f} ({share['peer']})" for name, share in one["networks"].items())
        what = f"{one['engine']}, {one['threads']} thread(s), {kind} time"
        peers = f"to the best {precision_of(one['engine'])} peer's"
        lines.append(f"{what} {peers}: {shares}; geometric mean {one['mean']:.3f}")
    for one in revisions(results):
        shares = ", ".join(f"{name} {share:.3f}" for name, share in one["networks"].items())
        lines.append(f"{one['engine']}, {one['threads']} thread(s), CPU time to {one['against']}: {shares}")
    return "\n".join(lines)


def plot(results: Results, path: Path) -> None:
    """Draw the engines' CPU times relative to the best peer: one panel for each thread count; lower is faster."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(results), 1, figsize=(13, 4.2 * len(results)), squeeze=False, layout="constrained")
    for (threads, networks), axis in zip(results.items(), axes[:, 0], strict=True):
        labels = list(dict.fromkeys(label for row in networks.values() for label in row))
        width = 0.8 / max(1, len(labels))
        for i, label in enumerate(labels):
            heights = [_relative(row, label, _peer_precision(networks)) for row in networks.values()]
            places = [place + (i - (len(labels) - 1) / 2) * width for place in range(len(networks))]
            axis.bar(places, heights, width, label=label, color=f"C{i % 10}", edgecolor="black", linewidth=0.4)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(networks)), list(networks))
        axis.set_yscale("log", base=2)
        axis.set_ylabel(f"CPU time, best {_peer_precision(networks)} peer = 1")
        axis.set_title(f"{threads} thread{'s' if threads > 1 else ''}; lower is faster, no bar: it does not run")
        axis.legend(ncols=5, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _peer_precision(networks: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the precision of the peers that times are relative to: float32 if such a peer ran."""
    found = {precision_of(label) for row in networks.values() for label in row if not ours(label)}
    return "float32" if "float32" in found or not found else min(found)


def _relative(row: dict[str, dict[str, Any]], label: str, precision: str) -> float:
    peer = best_peer(row, precision, "cpu_ms")
    result = row.get(label, {})
    return result["cpu_ms"] / peer[1] if peer is not None and "cpu_ms" in result else math.nan


def page(text: str, facts: str, picture: Path, path: Path) -> None:
    """Write an HTML page of the table and the picture, which is in the same folder."""
    path.write_text(
        "<!doctype html><meta charset=utf-8><title>Engines</title>"
        "<style>body{font:15px/1.45 system-ui,sans-serif;margin:2rem}img{max-width:100%}pre{overflow-x:auto}</style>"
        f"<h1>Engines (Fig. 10)</h1><p>{html.escape(facts)}</p><img src={picture.name!r} alt='CPU times'>"
        f"<pre>{html.escape(text)}</pre>\n",
        encoding="utf-8",
    )
