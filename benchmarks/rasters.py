"""Rasters before and after merging, and the time that merging saves (§4.1), on the benchmark networks.

The networks are ONNX files with a `manifest.json` of their inputs in the same folder; those of benchmarks/engine.py
that are missing are written with seeded random weights. Each is loaded twice, with merging and without; rounds
alternate between the two, so that other load affects both. Renames cost nothing in either.

    python benchmarks/rasters.py [FOLDER] [--models resnet18,din] [--rounds 9] [--json]
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.fig10 import networks
from benchmarks.headline import print_headline
from walle.engine_ext import _core
from walle.engine_ext.conversion import convert_bytes


def inputs_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Return inputs of the manifest's shapes: floats between 0 and 1, indices 0 and 1."""
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, 2, shape) if dtype == "int64" else rng.random(shape, dtype=np.float32)
        for name, (shape, dtype) in entry["inputs"].items()
    }


def timed(session: _core.Session, inputs: dict[str, Any]) -> float:
    start = time.perf_counter()
    session.run(inputs)
    return (time.perf_counter() - start) * 1e3


def report(model: Path, inputs: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return one network's counts and median times in milliseconds. Raises EngineError."""
    data = convert_bytes(onnx.load(model))
    plain, merged = (_core.Session(data, "auto", merging=merging) for merging in (False, True))
    expected, found = plain.run(inputs), merged.run(inputs)
    for name in expected:  # merging changes movements only, so results are equal
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(expected[name]))
    times = [(timed(plain, inputs), timed(merged, inputs)) for _ in range(rounds)]
    before, after = plain.plan() or {}, merged.plan() or {}
    plain_ms, merged_ms = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "model": model.stem,
        "rasters_made": after["rasters_made"],
        "rasters_run_unmerged": before["rasters_left"],
        "rasters_run_merged": after["rasters_left"],
        "steps_unmerged": len(before["ops"]),
        "steps_merged": len(after["ops"]),
        "arena_kib_unmerged": before["arena_bytes"] // 1024,
        "arena_kib_merged": after["arena_bytes"] // 1024,
        "plan_ms": round(after["plan_ms"], 3),
        "run_ms_unmerged": round(plain_ms, 3),
        "run_ms_merged": round(merged_ms, 3),
        "saved_ms": round(plain_ms - merged_ms, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/networks"), help="default: %(default)s")
    parser.add_argument("--models", default="", help="names, separated by commas; default: all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    manifest_path = options.folder / "manifest.json"
    given = list(json.loads(manifest_path.read_bytes())) if manifest_path.exists() else []
    known = list(dict.fromkeys([*networks.NETWORKS, *given]))
    names = options.models.split(",") if options.models else known
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"rasters: no network {', '.join(unknown)}; known are: {', '.join(known)}")
    networks.write(options.folder, [name for name in names if name in networks.NETWORKS])
    manifest = json.loads(manifest_path.read_bytes())
    rows = [report(options.folder / f"{name}.onnx", inputs_of(manifest[name]), options.rounds) for name in names]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'model':16s}{'made':>6s}{'unmerged':>10s}{'merged':>8s}{'ms':>10s}{'merged ms':>11s}{'saved ms':>10s}")
    for row in rows:
        counts = f"{row['rasters_made']:6d}{row['rasters_run_unmerged']:10d}{row['rasters_run_merged']:8d}"
        times = f"{row['run_ms_unmerged']:10.2f}{row['run_ms_merged']:11.2f}{row['saved_ms']:10.2f}"
        print(f"{row['model']:16s}{counts}{times}")
    row = rows[0]
    print_headline(
        f"{row['model']}, random weights, a run with merged rasters",
        unit="ms",
        better="lower",
        ours=row["run_ms_merged"],
        peers={"without merging": row["run_ms_unmerged"]},
    )


if __name__ == "__main__":
    main()
