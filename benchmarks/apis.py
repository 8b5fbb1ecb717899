"""walle.np against NumPy and walle.cv against OpenCV, one thread each: 224 x 224 x 3 and 1000 x 1000 (§4.2).

Each case and its peer are timed alternately, in CPU time of the thread, so that other load affects both; the median of
the rounds is reported. Every result is compared with the peer's before it is timed. The ratio is ours over theirs, so
less than 1 is faster; the last line is the geometric mean.

    python benchmarks/apis.py [--part np] [--only NAME] [--rounds 15] [--json]
"""

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.headline import print_headline

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

CASES = Path(__file__).resolve().parent / "api_cases"
PARTS = ("np", "cv")
LEAST_S = 0.002  # a round repeats a call for at least this long
ROUNDS = 15
_HEADLINES = {"np": "exp", "cv": "resize LINEAR smaller"}  # cases by part


def part_named(name: str) -> ModuleType:
    """Return the module of a part's cases.

    PEER names the library that it is measured against; cases() yields Case tuples; agree() raises if the two results
    differ, and may return their greatest difference.
    """
    spec = importlib.util.spec_from_file_location(f"api_cases_{name}", CASES / f"{name}_cases.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"apis: {CASES / name}_cases.py does not exist")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds(call: Callable[[], Any], times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - start) / times


def calls_per_round(call: Callable[[], Any]) -> int:
    """Return the number of calls per round."""
    call()
    return max(1, math.ceil(LEAST_S / max(seconds(call, 1), 1e-7)))


def compare(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Return the median times of both in s, measured alternately."""
    mine, other = calls_per_round(ours), calls_per_round(theirs)
    rows = [(seconds(ours, mine), seconds(theirs, other)) for _ in range(rounds)]
    return statistics.median(own for own, _ in rows), statistics.median(peer for _, peer in rows)


def measure(part: str, only: str, rounds: int) -> dict[str, Any]:
    module = part_named(part)
    rows = []
    for case in module.cases():
        if only not in f"{case.name} {case.size}":
            continue
        differs = module.agree(case)
        own, peer = compare(case.ours, case.theirs, rounds)
        rows.append({"name": case.name, "size": case.size, "differs": differs, "us": own * 1e6, "peer_us": peer * 1e6,
                     "ratio": own / peer})  # fmt: skip
    mean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows)) if rows else math.nan
    return {"part": part, "peer": module.PEER, "rows": rows, "geometric_mean": mean}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="")
    parser.add_argument("--only", default="", help="only cases whose name and size hold this text")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = [name for name in PARTS if options.part in ("", name) and (CASES / f"{name}_cases.py").exists()]
    results = [measure(part, options.only, options.rounds) for part in parts]
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    if options.json:
        print(json.dumps({"machine": machine, "parts": results}, indent=1))
        return
    for result in results:
        print(f"walle.{result['part']} against {result['peer']}, one thread, CPU time")
        print(f"{'function':28}{'size':>14}{'walle us':>12}{'peer us':>12}{'ratio':>8}")
        for row in sorted(result["rows"], key=lambda row: -row["ratio"]):
            print(f"{row['name']:28}{row['size']:>14}{row['us']:12.1f}{row['peer_us']:12.1f}{row['ratio']:8.2f}")
        print(f"{len(result['rows'])} cases, geometric mean of the ratios {result['geometric_mean']:.2f}\n")
    for result in results:
        rows = result["rows"]
        row = next((row for row in rows if row["name"] == _HEADLINES[result["part"]]), rows[0] if rows else None)
        if row is not None:
            what = f"walle.{result['part']}, {row['name']} of {row['size']}, one thread, CPU time"
            print_headline(what, unit="µs", better="lower", ours=row["us"], peers={result["peer"]: row["peer_us"]})


if __name__ == "__main__":
    main()
