"""Adaptation of one model to many goals: time against one by one, accuracy, the tree of goals (Mistify, NSDI'21).

Parts: "tree", building and growing a tree of 1,000 random goals of four constraints, and its passes beside the fewest
chains; "collective", the CPU time of 10 and of 100 goals together against each alone, which a sample of them stands
for, and their accuracies (Fig. 6a, Tables 2 and 5); "workloads", both for ten goals by each algorithm and network;
"front", accuracy by budgets of operations, memory and latency, against networks narrower everywhere that are trained
by the same rule (Fig. 8); "convergence", steps to the same accuracy with other models' outputs (Fig. 6b); "effort",
lines and files that a user touches (Table 5); "branches", parameters that branches add and the time to switch (Table
4); "latency", predicted and measured latencies of goals; "tuning", devices that learn from peers' models (Table 3, Fig.
7). Networks learn scikit-learn's digits, MNIST-5k and texts of Python's library. Pictures and a page are written to
out/. Seeds are fixed. All but "tree", "branches"
and "latency", which measure time, are measured two at a time, each in a process of its own.

    walle figures mistify -- [--quick] [--parts tree,collective,...] [--goals 10,100] [--json]
"""

import argparse
import functools
import json
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.headline import print_headline  # noqa: E402  # the path must be set first
from benchmarks.mistify_parts import branches, collective, convergence, effort, front, latency, tuning  # noqa: E402

_PARTS = ("tree", "collective", "workloads", "front", "convergence", "effort", "branches", "latency", "tuning")
_BESIDE_OTHERS = ("front", "workloads", "tuning", "convergence", "collective", "effort")  # the longest first
# Networks and algorithms beside the first ones, ten goals each.
_WORKLOADS = (
    ("resnet_digits", "chamnet"), ("resnet_digits", "slimmable"), ("mobilenet_digits", "morphnet"),
    ("resnet_mnist", "morphnet"), ("text", "morphnet"),
)  # fmt: skip
_FRONTS = {"resnet_digits": ("morphnet", "chamnet", "slimmable"), "resnet_mnist": ("morphnet",), "text": ("morphnet",)}
_QUICK_FRONT = {"text": ("morphnet",)}
_AT_ONCE = 2  # parts


def measure_tree(goals: int = 1000, constraints: int = 4) -> dict[str, float]:
    """Return milliseconds to build a tree, microseconds to insert a goal, and the passes of its ways and chains."""
    from walle import np
    from walle.adapt import GoalTree

    draw = random.Random(5)
    rows = np.asarray([[draw.random() for _ in range(constraints)] for _ in range(goals)], "float64")
    builds, inserts = [], []
    for _ in range(21):
        begin = time.perf_counter()
        tree = GoalTree(rows)
        builds.append(time.perf_counter() - begin)
    for _ in range(201):
        row = np.asarray([draw.random() for _ in range(constraints)], "float64")
        begin = time.perf_counter()
        tree.insert(row)
        inserts.append(time.perf_counter() - begin)
    tree = GoalTree(rows)
    begin = time.perf_counter()
    chains = tree.chains()
    return {
        "build_ms": statistics.median(builds) * 1e3,
        "insert_us": statistics.median(inserts) * 1e6,
        "leaves": len(tree.paths()),
        "chains": len(chains),
        "chains_ms": (time.perf_counter() - begin) * 1e3,
    }


def _picture(result: dict[str, Any], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    together = [*result.get("collective", []), *result.get("workloads", [])]
    for one in together:
        label = f"{one['workload']}, {one['algorithm']}, {one['goals']} goals"
        axes.plot(*zip(*one["front"], strict=True), "o-", ms=3, lw=0.7, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("multiply-adds of one sample")
    axes.set_ylabel("accuracy")
    if axes.has_data():
        axes.legend(fontsize=7)
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "mistify.png", dpi=150)
    plt.close(figure)
    rows = "".join(
        f"<tr><td>{one['workload']}<td>{one['algorithm']}<td>{one['goals']}<td>{one['together_s']:.1f}"
        f"<td>{one['alone_s']:.1f}<td>{one['together_s'] / one['alone_s']:.2%}<td>{one['lost']:.2%}"
        for one in together
    )
    text = "\n".join(front.lines(result.get("front", [])))
    drawing = "<img src=mistify_front.png alt='accuracy by budgets'>" if text else ""
    (out / "mistify.html").write_text(
        "<!doctype html><meta charset=utf-8><title>Adaptation</title><img src=mistify.png alt='accuracy by operations'>"
        "<table><tr><th>network, data<th>algorithm<th>goals<th>together, s<th>one by one, s<th>share<th>accuracy lost"
        f"{rows}</table>{drawing}<pre>{text}</pre>\n"
    )


def _print(result: dict[str, Any]) -> None:
    if "tree" in result:
        one = result["tree"]
        print(
            f"tree of 1,000 goals of 4 constraints: {one['build_ms']:.2f} ms; a goal more: {one['insert_us']:.1f} us; "
            f"{one['leaves']:.0f} leaves, {one['chains']:.0f} chains in {one['chains_ms']:.1f} ms"
        )
    for one in [*result.get("collective", []), *result.get("workloads", [])]:
        print("\n".join(collective.lines(one)))
    for part, lines in (("front", front.lines), ("convergence", convergence.lines), ("effort", effort.lines)):
        if part in result:
            print("\n".join(lines(result[part])))
    print("\n".join(branches.describe(result.get("branches", []))))
    print("\n".join(latency.lines(result.get("latency", []))))
    if "tuning" in result:
        tuning.print_tuning(result["tuning"])
    print("CPU s: " + ", ".join(f"{part} {one:.0f}" for part, one in result["cpu_s"].items()))


def _measured(parts: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements of the parts, and the seconds of CPU that each took."""
    measure = functools.partial(_measure, args)
    with multiprocessing.get_context("spawn").Pool(_AT_ONCE) as pool:  # an error or Ctrl-C ends its processes
        found = list(pool.imap_unordered(measure, [part for part in _BESIDE_OTHERS if part in parts]))
    found += map(measure, [part for part in parts if part not in _BESIDE_OTHERS])
    return {"cpu_s": {part: cpu_s for part, _, cpu_s in found}} | {part: one for part, one, _ in found}


def _measure(args: argparse.Namespace, part: str) -> tuple[str, Any, float]:
    """Return a part, its measurement, and the seconds of CPU that it took."""
    quick = args.quick
    goals = [int(one) for one in (args.goals or ("10" if quick else "10,100")).split(",")]
    sample = args.sample or (2 if quick else 5)
    kinds = _WORKLOADS[-1:] if quick else _WORKLOADS
    fronts = _QUICK_FRONT if quick else _FRONTS
    costs = front.COSTS[:1] if quick else front.COSTS
    seeds = 1 if quick else 2
    measures: dict[str, Callable[[], Any]] = {
        "tree": measure_tree,
        "collective": lambda: [collective.measure_collective(one, sample, args.steps) for one in goals],
        "workloads": lambda: [
            collective.measure_collective(10, min(sample, 3), args.steps, algorithm, workload)
            for workload, algorithm in kinds
        ],
        "front": lambda: [
            one
            for workload, names in fronts.items()
            for one in front.measure_front(workload, names, args.steps, seeds=seeds, costs=costs)
        ],
        "convergence": lambda: convergence.measure_convergence(1 if quick else 3),
        "effort": lambda: effort.measure_effort(adapts=not quick),
        "branches": lambda: branches.measure(args.steps // 5 if quick else args.steps),
        "latency": latency.measure,
        "tuning": lambda: tuning.measure(args.seeds or (1 if quick else 8)),
    }
    begin = time.process_time()
    return part, measures[part](), time.process_time() - begin


def main() -> None:
    """Measure the parts and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(_PARTS))
    parser.add_argument("--goals", help="numbers of goals that are adapted together; default 10,100")
    parser.add_argument("--sample", type=int, help="goals that are adapted alone too; default 5")
    parser.add_argument("--steps", type=int, default=300, help="training steps of a model that is adapted alone")
    parser.add_argument("--seeds", type=int, help="fleets of devices that tune; default 8")
    parser.add_argument("--quick", action="store_true", help="fewer goals, seeds and networks, in about two minutes")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := sorted(set(parts) - set(_PARTS)):
        parser.error(f"unknown part {unknown[0]!r}; known are {', '.join(_PARTS)}")
    result = _measured(parts, args)
    if "tuning" in parts:
        tuning.draw(result["tuning"], args.out)
    if "front" in parts:
        front.draw(result["front"], args.out)
    if result.keys() & {"collective", "workloads", "front"}:
        _picture(result, args.out)
    print(json.dumps(result)) if args.json else _print(result)
    if "tree" in result:
        print_headline(
            "tree of 1,000 adaptation goals of four constraints", unit="ms", better="lower",
            ours=result["tree"]["build_ms"], peers={"Mistify (paper)": 37.0},
        )  # fmt: skip
    for one in result.get("collective", [])[-1:]:
        print_headline(
            f"time of {one['goals']} adaptation goals, share of one by one", unit="%", better="lower",
            ours=100 * one["together_s"] / one["alone_s"],
        )  # fmt: skip
    for one in result.get("latency", []):
        print_headline(
            f"latency of goals of the {one['network']} network predicted by timed steps, largest error", unit="%",
            better="lower", ours=100 * one["errors"]["steps"][-1],
        )  # fmt: skip
    if rows := result.get("branches"):
        slowest = max(rows, key=lambda one: one["switch_us"])
        print_headline(
            f"switch of the branch of a {slowest['network']}, beyond a run", unit="us", better="lower",
            ours=max(slowest["switch_us"], 0.0), peers={"open another file": slowest["load_us"]},
        )  # fmt: skip


if __name__ == "__main__":
    main()
