"""A model cut between device and cloud (Neurosurgeon): the choice at each moment against fixed ones and the oracle.

MobileNetV2, ResNet-18 and BERT-small (4 layers, 512 wide, 128 words) have seeded weights; the livestream's detector is
the published NanoDet where a folder of models has it, else Table 1's detector with seeded weights. Both parts of each
cut are run here, their times of the device multiplied by 1, 4 and 16, and pass the link of each second of a trace at
its bandwidth and round trip. Inputs pass as the model's file takes them. Traces are seeded (benchmarks/split_parts/
traces.py); --traces FOLDER takes recorded ones. The chooser knows measurements of earlier seconds only.

    walle figures split -- [--seconds 600] [--seed 2026] [--cuts 40] [--networks resnet18] [--traces DIR]
                           [--models-dir DIR] [--json]
"""

import argparse
import dataclasses
import json
import platform
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.headline import print_headline  # noqa: E402  # the path must be set first
from benchmarks.links.shape import LinkShape  # noqa: E402
from benchmarks.split_parts import networks, report, traces  # noqa: E402
from benchmarks.split_parts.replay import replay  # noqa: E402
from walle.model_files import ModelFolder, default_folder  # noqa: E402

_SLOWER = (1.0, 4.0, 16.0)


def measured(options: argparse.Namespace) -> list[networks.Network]:
    """Return the networks with the times of their parts."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = networks.write(folder, ModelFolder(options.models_dir or default_folder()))
        for network, (path, weights) in written.items():
            if options.networks and not any(network.startswith(one) for one in options.networks.split(",")):
                continue
            print(f"split: timing {network}", file=sys.stderr, flush=True)
            found.append(networks.measure(network, path, weights, folder / "parts", most_cuts=options.cuts))
    if not found:
        sys.exit(f"split: no network is named {options.networks}; known are: {', '.join(written)}")
    return found


def links(options: argparse.Namespace, network: str, slower: float) -> dict[str, list[LinkShape]]:
    if options.traces is not None:
        return {name: one[: options.seconds] for name, one in traces.recorded(options.traces).items()}
    return {
        name: traces.seeded(kind, options.seconds, f"{options.seed} {network} {slower} {name}")
        for name, kind in traces.KINDS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of cut models over bandwidth traces.")
    parser.add_argument("--seconds", type=int, default=600, help="moments of each trace")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--cuts", type=int, default=40, help="most cuts of a network that are timed")
    parser.add_argument("--networks", default="", help="names or their beginnings; by default all")
    parser.add_argument("--traces", type=Path, help="folder of recorded traces: lines of seconds and Mbit/s")
    parser.add_argument("--models-dir", type=Path, help="folder of published models, of `walle model get`")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    timed = measured(options)
    cells = [
        report.Cell(network.name, slower, name, replay(network, shapes, slower))
        for network in timed
        for slower in _SLOWER
        for name, shapes in links(options, network.name, slower).items()
    ]
    text = report.table(timed, cells)
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    picture = out / "split.png"
    report.plot(cells, picture)
    report.page(text, picture, out / "split.html")
    share, over_oracle = report.summary(cells)
    if options.json:
        rows = [
            {"network": one.network, "slower": one.slower, "link": one.kind, "share": one.replay.share,
             "over_oracle": one.replay.over_oracle, "choices": one.replay.choices, "late": one.replay.late,
             "probes": one.replay.probes, "contested": one.is_contested}
            for one in cells
        ]  # fmt: skip
        machine = platform.processor() or platform.machine()
        report_ = {"machine": machine, "share": share, "over_oracle": over_oracle, "cells": rows}
        print(json.dumps(report_ | {"networks": [dataclasses.asdict(one) for one in timed]}, indent=1))
        return
    print(text, f"picture: {picture}, page: {out / 'split.html'}", sep="\n")
    what = (
        f"{len(timed)} networks, devices of 1, 4, 16 times our time, {'recorded' if options.traces else 'seeded'} links"
    )
    print_headline(
        f"moments no slower than the better of all here and all there, {what}",
        unit="%",
        better="higher",
        ours=100 * share,
    )
    print_headline(f"mean latency over the oracle's, {what}", unit="x", better="lower", ours=over_oracle)


if __name__ == "__main__":
    main()
