"""IPV features (§7.1): made on devices, against made in the cloud from raw events of all users, over the same visits.

For the generator's visits and for each real log that is found:

- bytes a visit: raw events and feature as compact JSON, encoding, and what crosses the tunnel (frames after zstd,
  before TLS) for the encoding with its keys and for the raw events in the batches of an eager SDK. Each upload travels
  alone.
- devices: real stream engine, task VM, feature store and tunnel over loopback, the cloud's server and ingest in another
  process; page exit to feature, and to the cloud's disk; CPU a feature on the device and in the cloud.
- cloud only: `ipv_pipelines/cloud.py` says what is real (join, CPU, results) and what is simulated (clock, delays).
  "eager" and "patient" are two settings of it: less delay, or fewer wrong features.
- ranking: share of the items that held-out users put in the cart among ten ranked by encodings, beside the ten most
  popular.

    python benchmarks/ipv.py [--visits 10000] [--logs ../shared/data/events] [--out out] [--json]
"""

import argparse
import asyncio
import html
import itertools
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from apps.ipv.generator import event_bytes
from apps.ipv.gru import forward
from apps.ipv.logs import LOGS, UserVisit, generated_visits, logged_visits, open_log
from apps.ipv.make_encoder import SEED, trained_weights
from apps.ipv.ranking import EncodedVisit, fitted_ranking, hit_rate
from apps.ipv.training_data import is_held_out, make_examples, task_module
from benchmarks.headline import print_headline
from benchmarks.ipv_pipelines.cloud import PLANS, overlapping, run_cloud, sdk_batches
from benchmarks.ipv_pipelines.device import by_user, run_devices, upload_raw
from benchmarks.ipv_pipelines.receiver import Receiver
from walle.pipeline.events.event import Event
from walle.pipeline.stream.events import Events

VISITS_EACH = 50  # visits of a generated user
RAW_VISITS = 2_000  # visits whose raw events are uploaded


async def measure(visits: Sequence[UserVisit], seed: int) -> dict[str, Any]:
    """Return the figures of one set of visits."""
    ipv_feature = task_module("features").ipv_feature
    events = by_user(visits)
    sizes = np.asarray([
        (sum(map(event_bytes, visit)), len(json.dumps(ipv_feature(Events(visit)), separators=(",", ":"))))
        for _, visit in visits
    ])  # fmt: skip
    result: dict[str, Any] = {
        "visits": len(visits),
        "users": len(events),
        "events_per_visit": sum(len(visit) for _, visit in visits) / len(visits),
        "raw_bytes": float(sizes[:, 0].mean()),
        "feature_bytes": float(sizes[:, 1].mean()),
        "encoding_bytes": 128,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in ("encodings", "raw"):
            (Path(folder) / name).mkdir()
        result["device"] = await _devices(events, Path(folder) / "encodings")
        result |= await _raw(visits, Path(folder) / "raw")
        shared = overlapping(events, random.Random(seed))
        result["cloud"] = {}
        for plan in PLANS:
            run = run_cloud(shared, plan, Path(folder), seed)
            result["cloud"][plan.name] = {
                "latency_ms": _percentiles(run.feature_ms),
                "cpu_ms": run.cpu_s * 1000 / run.visits,
                "missing": run.missing,
                "wrong": run.wrong,
                "error_rate": (run.missing + run.wrong) / run.visits,
            }
    result["ranking"] = _ranking(visits)
    return result


async def _devices(events: dict[str, list[Event]], folder: Path) -> dict[str, Any]:
    async with Receiver(folder) as receiver:
        before = await receiver.counts()
        run = await run_devices(events.items(), receiver, folder)
        after = await receiver.counts()
    if after["uploads"] != run.visits - run.failed:
        raise RuntimeError(f"{run.visits} visits, {run.failed} failed, but {after['uploads']} uploads arrived")
    return {
        "latency_ms": _percentiles(run.feature_ms),
        "to_cloud_ms": _percentiles(run.cloud_ms),
        "cpu_ms": run.cpu_s * 1000 / run.visits,
        "cloud_cpu_ms": (after["cpu_s"] - before["cpu_s"]) * 1000 / run.visits,
        "wire_bytes": after["bytes_in"] / run.visits,
        "errors": run.failed,
    }


async def _raw(visits: Sequence[UserVisit], folder: Path) -> dict[str, Any]:
    """Upload the raw events of some users, at most about RAW_VISITS visits, and return bytes and CPU a visit."""
    chosen: dict[str, list[Event]] = {}
    counted = 0
    for _, theirs in itertools.groupby(sorted(visits, key=lambda each: each[0]), key=lambda each: each[0]):
        if counted < RAW_VISITS:
            listed = list(theirs)
            counted += len(listed)
            chosen |= by_user(listed)
    batches = [(user, [batch for _, _, batch in sdk_batches(theirs, PLANS[0])]) for user, theirs in chosen.items()]
    async with Receiver(folder) as receiver:
        before = await receiver.counts()
        sent, device_cpu_s = await upload_raw(batches, receiver, folder)
        after = await receiver.counts()
    return {
        "raw_uploads_per_visit": sent / counted,
        "raw_wire_bytes": after["bytes_in"] / counted,
        "raw_device_cpu_ms": device_cpu_s * 1000 / counted,
        "raw_receipt_cpu_ms": (after["cpu_s"] - before["cpu_s"]) * 1000 / counted,
    }


def _ranking(visits: Sequence[UserVisit]) -> dict[str, float]:
    weights = {name: np.asarray(value, np.float32) for name, value in trained_weights().items()}
    encoded = []
    for (user, visit), example in zip(visits, make_examples(visits), strict=True):
        state = forward(weights, example.rows[None])[-1][0]
        clicks = (event.contents for event in visit if event.contents.get("action") == "add_cart")
        carted = tuple(str(click["item_id"]) for click in clicks if click.get("item_id"))
        encoded.append(EncodedVisit(user, visit[0].ts_ms, state.astype("<f4").tobytes(), carted))
    ranking = fitted_ranking([visit for visit in encoded if not is_held_out(visit.user)])
    scores = hit_rate(ranking, [visit for visit in encoded if is_held_out(visit.user)])
    return scores | {"popularity_weight": ranking.popularity_weight}


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    mean, (p50, p99) = float(np.mean(values)), np.percentile(values, [50, 99])
    return {"mean": mean, "p50": float(p50), "p99": float(p99)}


def table(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    lines = []
    for name, part in result["sets"].items():
        device, ranking = part["device"], part["ranking"]
        sizes = f"{part['raw_bytes']:,.0f} raw -> {part['feature_bytes']:,.0f} feature -> 128 encoding"
        uploads = f"{part['raw_uploads_per_visit']:.1f} uploads"
        wire = f"{part['raw_wire_bytes']:,.0f} raw events ({uploads}) -> {device['wire_bytes']:,.0f} encoding with keys"
        ranked = f"{ranking['encodings']:.1%} by encodings, {ranking['popularity']:.1%} by popularity"
        lines += [
            f"{name}: {part['visits']:,} visits of {part['users']:,} users, {part['events_per_visit']:.1f} events each",
            f"  bytes a visit: {sizes}",
            f"  on the wire: {wire}",
            f"  carted items among ten ranked, of {ranking['items']:.0f}: {ranked}",
            _HEAD,
            _row("devices", device["latency_ms"], device["cpu_ms"], device["cloud_cpu_ms"], device["errors"], part),
            f"  {'  and on disk there':20}{_three(device['to_cloud_ms'])}",
        ]
        for plan, cloud in part["cloud"].items():
            receipt_ms = part["raw_receipt_cpu_ms"] + cloud["cpu_ms"]
            errors = cloud["missing"] + cloud["wrong"]
            named = f"cloud only, {plan}"
            lines.append(_row(named, cloud["latency_ms"], part["raw_device_cpu_ms"], receipt_ms, errors, part))
        lines.append("")
    lines.append(f"Measured in {result['seconds']:.0f} s on {result['machine']}, load {result['load'][0]:.1f}.")
    lines.append("The latency of cloud only is on a simulated clock: see benchmarks/ipv_pipelines/cloud.py.")
    return "\n".join(lines)


_HEAD = f"  {'exit to feature, ms':20}{'mean':>11}{'p50':>11}{'p99':>11}{'CPU ms: device':>16}{'cloud':>8}{'errors':>9}"


def _row(
    name: str, latency_ms: dict[str, float], cpu_ms: float, cloud_cpu_ms: float, errors: int, part: dict[str, Any]
) -> str:
    rate = f"({errors / part['visits']:.2%})"
    return f"  {name:20}{_three(latency_ms)}{cpu_ms:>16.2f}{cloud_cpu_ms:>8.2f}{errors:>9,} {rate}"


def _three(values: dict[str, float]) -> str:
    return "".join(f"{values[key]:>11,.1f}" if values else f"{'-':>11}" for key in ("mean", "p50", "p99"))


def draw(result: dict[str, Any], folder: Path) -> None:
    """Write ipv.png and ipv.html into `folder`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(result["sets"])
    figure, (sizes, latency) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    series: dict[str, Iterable[float]] = {
        "raw events": [part["raw_bytes"] for part in result["sets"].values()],
        "raw on the wire": [part["raw_wire_bytes"] for part in result["sets"].values()],
        "feature": [part["feature_bytes"] for part in result["sets"].values()],
        "encoding on the wire": [part["device"]["wire_bytes"] for part in result["sets"].values()],
        "encoding": [128.0 for _ in names],
    }
    _bars(sizes, names, series, "bytes a visit")
    delays: dict[str, Iterable[float]] = {
        "devices": [part["device"]["latency_ms"]["mean"] for part in result["sets"].values()],
        "devices, to the cloud's disk": [part["device"]["to_cloud_ms"]["mean"] for part in result["sets"].values()],
    }
    for plan in PLANS:
        delays[f"cloud only, {plan.name}"] = [
            part["cloud"][plan.name]["latency_ms"].get("mean", 0.0) for part in result["sets"].values()
        ]
    _bars(latency, names, delays, "ms from page exit to feature, mean")
    figure.savefig(folder / "ipv.png", dpi=120)
    plt.close(figure)
    head = "<!doctype html><meta charset=utf-8><title>IPV</title><img src=ipv.png style='width:100%'>"
    (folder / "ipv.html").write_text(f"{head}<pre>{html.escape(table(result))}</pre>", "utf-8")


def _bars(axes: Any, names: Sequence[str], series: dict[str, Iterable[float]], label: str) -> None:
    width = 0.8 / len(series)
    for number, (title, values) in enumerate(series.items()):
        axes.bar(np.arange(len(names)) + number * width, list(values), width, label=title)
    short = [name.replace("_events", "").removesuffix("_a") for name in names]
    axes.set_xticks(np.arange(len(names)) + 0.4 - width / 2, short, fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=10_000, help="of the generator")
    parser.add_argument("--logs", type=Path, default=Path("../shared/data/events"), help="folder of real logs")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=Path("out"), help="where ipv.json, ipv.png and ipv.html go")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.visits < VISITS_EACH:
        sys.exit(f"ipv: give {VISITS_EACH} visits or more")
    started_s = time.monotonic()
    users = options.visits // VISITS_EACH
    sets = {"generated": asyncio.run(measure(list(generated_visits(options.seed, users, VISITS_EACH)), options.seed))}
    for name in LOGS:
        if (options.logs / name).is_file():
            visits = list(logged_visits(open_log(options.logs, name)))
            sets[name.partition(".")[0]] = asyncio.run(measure(visits, options.seed))
    result: dict[str, Any] = {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}",
        "load": os.getloadavg(),
        "seconds": time.monotonic() - started_s,
        "sets": sets,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ipv.json").write_text(json.dumps(result, indent=1), "utf-8")
    draw(result, options.out)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(table(result))
    print_headlines(result["sets"]["generated"])


def print_headlines(part: dict[str, Any]) -> None:
    """Print the latency of a feature and what crosses the network, of the generated visits."""
    delays: dict[str, float | str] = {
        f"cloud only, {plan} (simulated delays)": cloud["latency_ms"].get("mean", "failed: it made no feature")
        for plan, cloud in part["cloud"].items()
    }
    what = "page exit to feature on the device, mean"
    print_headline(what, unit="ms", better="lower", ours=part["device"]["latency_ms"]["mean"], peers=delays)
    print_headline(
        "bytes on the wire for a page visit, encoding with its keys",
        unit="B",
        better="lower",
        ours=part["device"]["wire_bytes"],
        peers={"raw events": part["raw_wire_bytes"]},
    )


if __name__ == "__main__":
    main()
