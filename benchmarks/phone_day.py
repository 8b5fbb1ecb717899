"""A day of one phone: CPU, flash writes, bytes on the wire and memory, of the real device against a real server.

Two days are played: the first 24 hours of a generated shopper, the median of 31 by its events, and the day with most
events of one user in a real log (shop_app_events_a, if the folder of logs has it). Flash is counted as in flash.py:
pages that Linux hands to the disk. The wire is TCP's payload, TLS included. Writes phone_day.json, .png and .html.

    python -m benchmarks.phone_day [--seed 7] [--hours 24] [--sync 1] [--logs FOLDER] [--out FOLDER] [--json]
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import html
import itertools
import json
import multiprocessing
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.ipv.generator import ShoppingEvents
from apps.ipv.logs import open_log
from benchmarks.headline import print_headline
from benchmarks.phone.day import DAY_MS, PhoneDay, play
from walle.pipeline.events.event import Event

_SHOPPERS = 31
LOG = "shop_app_events_a.jsonl.gz"


def generated_day(seed: int, hours: float) -> list[Event]:
    """Return the events of a shopper's first hours, of the one with the median number of them."""

    def first_hours(device: int) -> list[Event]:
        stream = ShoppingEvents(seed, f"device-{device}")
        end_ms = stream.start_ms + hours / 24 * DAY_MS
        return [event for _, event in itertools.takewhile(lambda pair: pair[1].ts_ms < end_ms, stream)]

    return sorted(map(first_hours, range(_SHOPPERS)), key=len)[_SHOPPERS // 2]


def logged_day(path: Path) -> list[Event]:
    """Return the events of the user and day with most events in a log, in the order of their times."""
    days: dict[tuple[str, int], list[Event]] = collections.defaultdict(list)
    for record in open_log(path.parent, path.name).records():
        days[record.stream, record.event.ts_ms // DAY_MS].append(record.event)
    busiest = max(days.values(), key=len)
    return sorted(busiest, key=lambda event: event.ts_ms)


def rows(days: dict[str, PhoneDay]) -> list[tuple[str, list[str]]]:
    """Return the table: a name, and its value for each day."""

    def row(name: str, values: list[float], digits: int = 0) -> tuple[str, list[str]]:
        return name, [f"{value:,.{digits}f}" for value in values]

    all_days = list(days.values())
    ratios = [day.flash_bytes / (day.event_bytes + day.feature_bytes) for day in all_days]
    wire_shares = [(day.total.up_bytes + day.total.down_bytes) / day.event_bytes for day in all_days]
    return [
        ("", list(days)),
        row("sessions", [day.sessions for day in all_days]),
        row("events", [day.events for day in all_days]),
        row("page visits", [day.visits for day in all_days]),
        row("runs that failed", [day.failed for day in all_days]),
        row("uploads at the cloud", [day.uploads for day in all_days]),
        row("bytes of events, KB", [day.event_bytes / 1e3 for day in all_days]),
        row("bytes of features, KB", [day.feature_bytes / 1e3 for day in all_days]),
        row("CPU of the device, s", [day.cpu_s for day in all_days], 2),
        row("CPU per event, us", [1e6 * day.cpu_s / day.events for day in all_days]),
        row("written to flash, MB", [day.flash_bytes / 1e6 for day in all_days], 2),
        row("  per byte of events and features", ratios, 1),
        row("sent on the wire, KB", [day.total.up_bytes / 1e3 for day in all_days], 1),
        row("received on the wire, KB", [day.total.down_bytes / 1e3 for day in all_days], 1),
        row("  per byte of events", wire_shares, 3),
        row("connections", [day.connections for day in all_days]),
        row("peak memory, MiB", [day.peak_memory_bytes / 2**20 for day in all_days]),
    ]  # fmt: skip


def table(days: dict[str, PhoneDay]) -> str:
    width = max(12, *(len(name) + 2 for name in days))
    return "\n".join(f"{name:<36}" + "".join(f"{value:>{width}}" for value in values) for name, values in rows(days))


def draw(days: dict[str, PhoneDay], folder: Path) -> None:
    """Write phone_day.png and phone_day.html into `folder`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name, day in days.items():
        hours = [sample.hour for sample in day.samples]
        series: Sequence[list[float]] = (
            [sample.cpu_s for sample in day.samples],
            [sample.flash_bytes / 1e6 for sample in day.samples],
            [(sample.up_bytes + sample.down_bytes) / 1e3 for sample in day.samples],
        )
        for axis, values in zip(axes, series, strict=True):
            axis.step(hours, values, where="post", marker="o", markersize=3, label=name)
    for axis, label in zip(
        axes, ("CPU s, the harness's clock included", "MB written to flash", "KB on the wire"), strict=True
    ):
        axis.set_xlabel("hour of the day")
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(folder / "phone_day.png", dpi=120)
    plt.close(figure)
    head = "<!doctype html><meta charset=utf-8><title>A day of one phone</title>"
    page = f"{head}<img src=phone_day.png style='width:100%'><pre>{html.escape(table(days))}</pre>"
    (folder / "phone_day.html").write_text(page, "utf-8")


def play_apart(events: list[Event], sync_interval_s: float) -> PhoneDay:
    """Return the costs of a day that is played in a process of its own, whose memory and writes are only its own."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(play, events, sync_interval_s).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--hours", type=float, default=24.0, help="of the generated shopper")
    parser.add_argument("--sync", type=float, default=1.0, help="sync interval of the event journal, in seconds")
    parser.add_argument("--logs", type=Path, default=Path("../shared/data/events"), help="folder of real logs")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the three files go")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    days = {"generated": play_apart(generated_day(options.seed, options.hours), options.sync)}
    if (options.logs / LOG).is_file():
        days["shop_app_events_a"] = play_apart(logged_day(options.logs / LOG), options.sync)
    result: dict[str, Any] = {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}",
        "load": os.getloadavg(),
        "days": {name: dataclasses.asdict(day) | {"cpu_s": day.cpu_s} for name, day in days.items()},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "phone_day.json").write_text(json.dumps(result, indent=1), "utf-8")
    draw(days, options.out)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(table(days))
    day = days["generated"]
    what = f"peak memory of a device's process over {options.hours:g} generated hours"
    print_headline(what, unit="MB", better="lower", ours=day.peak_memory_bytes / 1e6)
    what = f"CPU time of an event over {options.hours:g} generated hours"
    print_headline(what, unit="µs", better="lower", ours=1e6 * day.cpu_s / day.events)


if __name__ == "__main__":
    main()
