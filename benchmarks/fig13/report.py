"""Report of Fig. 13: coverage over time beside the paper's points, the load, and the cost of a bad version."""

import html
from pathlib import Path
from typing import Any

PAPER = "7 min for the 6 million that are online, about 4 million of them in the last minute; 19 min for 22 million"
PAPER_POINTS = ((6.0, 2e6), (7.0, 6e6), (19.0, 22e6))  # minutes and devices by the text; its curve is not read off
_PAPER_DEVICES = 22_000_000


def _minutes(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds / 60:.1f} min"


def table(found: dict[str, Any]) -> str:
    fleet = found["fleet"]
    lines = [
        f"{fleet['devices']:,d} devices, {fleet['online']:,d} online at a time; seed {fleet['seed']}",
        f"simulated in {found['took_s']:.0f} s with {found['peak_gb']:.1f} GB of memory",
        f"paper, §7.3: {PAPER}",
        *_coverage_lines(found["cases"][0], found["load"]),
        *_cost_lines(found["cases"][1:], fleet["devices"]),
    ]
    return "\n".join(lines + (_real_lines(found["real"]) if "real" in found else []))


def _coverage_lines(good: dict[str, Any], load: dict[str, Any]) -> list[str]:
    head = f"{'stage':12s}{'from':>10s}{'covered':>14s}   devices that the gate counted before it"
    steps = [
        f"{step['stage'][:10]:12s}{step['at_s']:8.0f} s{step['covered']:14,d}{step['gate_devices']:12,d}"
        for step in good["steps"]
    ]
    online, last, most = _minutes(good["online_covered_s"]), good["last_minute"], _minutes(good["most_s"])
    covered = f"online devices covered after {online}, {last:,d} in the last minute; 99 % of the fleet after {most}"
    asked, pulls = load["requests_per_s"], load["most_pulls_per_s"]
    return ["", head, *steps, covered, f"{asked:,d} requests a second, {pulls:,d} pulls in the busiest second"]


def _cost_lines(cases: list[dict[str, Any]], devices: int) -> list[str]:
    head = f"{'bad version':22s}{'beta':>5s}{'end':>13s}{'stopped':>10s}{'had it':>10s}"
    lines = ["", f"{head}{'of the fleet':>14s}{'left in 60 s':>14s}{'all left':>11s}"]
    for case in cases:
        line = (
            f"{case['name']:22s}{case['beta']:5d}{case['state']:>13s}{case['stopped_s']:8.0f} s{case['covered']:10,d}"
        )
        share, left = case["covered"] / devices, case["left_60_s"]
        lines.append(f"{line}{share:14.4%}{left:14,d}{_minutes(case['all_left_s']):>11s}")
    return [*lines, "left in 60 s: of those that had it; the others were offline. A paused release takes nothing back."]


def _real_lines(real: dict[str, Any]) -> list[str]:
    lines = [
        "",
        f"{real['devices']:,d} real devices over HTTP, {real['speed']:g} times as fast, and the same fleet simulated",
        f"{'stage':12s}{'real':>10s}{'simulated':>12s}",
    ]
    for stage, real_s, simulated_s in real["stages"]:
        lines.append(f"{stage[:10]:12s}{real_s:8.0f} s{simulated_s:10.0f} s")
    lines.append(f"largest difference of the shares that are covered: {real['gap']:.1%} of the fleet")
    late = f"late by {real['late_ms']['p50']:g} ms (p50), {real['late_ms']['p99']:g} ms (p99)"
    lines.append(f"{real['requests']:,d} requests, {late}, {real['most_waiting']:,d} waiting for a connection at most")
    lines.append(f"{real['reports']:,d} reports, {real['pulled_mb']:.0f} MB pulled, {len(real['wrong'])} wrong answers")
    lines.append(f"{real['cpu_s']:.1f} s of the cloud's CPU time in {real['wall_s']:.0f} s")
    return lines


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw coverage, the first step's share of a bad version, and the load."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    count = found["fleet"]["devices"]
    figure, (coverage, bad, load) = plt.subplots(3, 1, figsize=(8, 11), layout="constrained", height_ratios=[3, 2, 2])
    good = found["cases"][0]
    minutes = [second / 60 for second in found["times_s"]]
    coverage.plot(minutes, [one / 1e6 for one in good["curve"]], label=f"simulated, {count:,d} devices")
    for step in good["steps"]:
        coverage.axvline(step["at_s"] / 60, color="0.85", linewidth=1, zorder=0)
        place = coverage.get_xaxis_transform()
        coverage.text(step["at_s"] / 60, 0.98, step["stage"][:9], rotation=90, va="top", fontsize=7, transform=place)
    if real := found.get("real"):
        scale = count / real["devices"] / 1e6
        times = [second / 60 for second in real["times_s"]]
        coverage.plot(
            times, [one * scale for one in real["real_curve"]], "C1", label="real devices over HTTP, scaled up"
        )
        coverage.plot(
            times, [one * scale for one in real["simulated_curve"]], "C1--", label="the same fleet, simulated"
        )
    if count == _PAPER_DEVICES:
        points = [(minute, devices / 1e6) for minute, devices in PAPER_POINTS]
        coverage.plot(*zip(*points, strict=True), "r*", markersize=13, linestyle="none", label="paper's text")
    coverage.set_ylabel("devices covered, millions")
    coverage.legend(loc="center right")
    for case in found["cases"][1:]:
        has = [got - left for got, left in zip(case["curve"], case["left_curve"], strict=True)]
        bad.plot(minutes, has, label=f"{case['name']}, beta {case['beta']}: {case['state']}")
    bad.set_ylabel("devices that have\na bad version")
    bad.legend()
    load.plot(minutes, found["load"]["requests"], label="requests with a profile, a second")
    load.plot(minutes, found["load"]["pulls"], label="pulls, a second")
    load.set_ylabel("a second")
    load.set_xlabel("minutes since the release began")
    load.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def page(found: dict[str, Any], picture: Path, path: Path) -> None:
    """Write an HTML page of the table and the picture, which is in the same folder."""
    path.write_text(
        "<!doctype html><meta charset=utf-8><title>Release over a fleet</title>"
        "<style>body{font:15px/1.45 system-ui,sans-serif;margin:2rem}img{max-width:100%}pre{overflow-x:auto}</style>"
        f"<h1>A release over a fleet (Fig. 13)</h1><img src={picture.name!r} alt='coverage over time'>"
        f"<pre>{html.escape(table(found))}</pre>\n",
        encoding="utf-8",
    )
