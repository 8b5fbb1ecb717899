"""Adaptation of one model to many goals: time against one by one, accuracy, the tree of goals (Mistify, NSDI'21).

Parts: "tree", building and growing a tree of 1,000 random goals of four constraints, and its passes beside the fewest
chains; "collective", the CPU time of 10 and of 100 goals together against each alone, which a sample of them stands
for, and their accuracies (Fig. 6a, Tables 2 and 5); "front", accuracy by operations against the same network made
narrower everywhere (Fig. 8); "algorithms", both for ten goals by each algorithm; "branches", parameters that branches
add and the time to switch (Table 4); "latency", predicted and measured latencies of goals; "tuning", devices that
learn from peers' models (Table 3, Fig. 7). The networks learn scikit-learn's digits. A picture and a page are written
to out/.

Narrower networks are not trained as adapted ones: from their first weights, by labels alone, for the 300 steps of the
given model and --steps more. A goal of a chain also has the steps of those before it, and learns from the given model's
outputs.

    walle figures mistify -- [--parts tree,collective,front,algorithms,branches,latency,tuning] [--json]
"""

import argparse
import dataclasses
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.headline import print_headline  # noqa: E402  # the path must be set first
from benchmarks.mistify_parts import algorithms, branches, latency, tuning  # noqa: E402

_PARTS = ("tree", "collective", "front", "algorithms", "branches", "latency", "tuning")
_LEAST, _MOST = 20e3, 600e3  # multiply-adds, of the network's 763,520
_WIDTHS = (4, 5, 6, 8, 11, 14)


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


def measure_collective(goals: int, sample: int, steps: int, algorithm: str = "morphnet") -> dict[str, Any]:
    """Return CPU seconds of all goals in one run, those of a run for each, and the accuracies of a sample."""
    from walle.adapt.adaptation import adapt

    job = _job(goals, steps, algorithm)
    own_s = min(_overhead_s(job) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        together = adapt(job, Path(folder) / "together", measure_latency=False)
        together_s = time.process_time() - begin
        chosen = [round(at * (goals - 1) / max(sample - 1, 1)) for at in range(sample)]
        alone, alone_s = {}, []
        for at in chosen:
            begin = time.process_time()
            own_job = dataclasses.replace(job, goals=(job.goals[at],))
            outcome = adapt(own_job, Path(folder) / str(at), measure_latency=False)
            alone_s.append(time.process_time() - begin)
            alone[job.goals[at].name] = outcome.fitted[0].costs
    costs = {one.goal: one.costs for one in together.fitted}
    pairs = [(name, costs[name]["accuracy"], one["accuracy"]) for name, one in alone.items()]
    return {
        "goals": goals,
        "passes": together.passes,
        "together_s": together_s - own_s,
        "alone_s": goals * statistics.mean(one - own_s for one in alone_s),
        "accuracies": pairs,
        "lost": statistics.mean(1 - ours / theirs for _, ours, theirs in pairs),
        "most_lost": max(1 - ours / theirs for _, ours, theirs in pairs),
        "front": [(one["operations"], one["accuracy"]) for one in costs.values()],
        "whole": together.whole,
        "steps": [one.steps for one in together.fitted],
    }


def measure_narrow(steps: int) -> list[tuple[float, float]]:
    """Return operations and accuracy of narrower networks, each trained from its first weights by labels alone."""
    from benchmarks.mistify_parts import digits
    from walle.adapt.costs.formula import CostFormula
    from walle.adapt.masked.evaluation import Evaluation, accuracy
    from walle.adapt.structure.network import find_structure

    images, labels = digits.test()
    found = []
    for width in _WIDTHS:
        network = digits.trained(width, steps)
        operations = CostFormula(find_structure(network, [images[:2]]), None).whole()["operations"]
        found.append((operations, accuracy(Evaluation(network)(images), labels)))
    return found


def _measure_algorithms(sample: int, steps: int) -> dict[str, Any]:
    """Return ten goals by each algorithm, and narrower networks that are trained by labels alone."""
    from benchmarks.mistify_parts.algorithms import compared
    from walle.adapt.algorithms import ALGORITHMS

    budgets = [goal.budgets["operations"] for goal in _job(10, steps, "morphnet").goals]
    return compared({name: measure_collective(10, sample, steps, name) for name in ALGORITHMS}, budgets, steps + 300)


def _job(goals: int, steps: int, algorithm: str) -> Any:
    from walle.adapt.goals.config import parse_config

    text = f"""
        model = "digits.py:make"
        data = {{train = "digits.py:train", test = "digits.py:test"}}
        training = {{steps = {steps}, learning_rate = 0.002}}
        algorithm = {{name = "{algorithm}"}}
        [goals.scale]
        operations = {{from = {_LEAST}, to = {_MOST}, steps = {goals}}}
    """
    folder = Path(__file__).parent / "mistify_parts"
    return parse_config(text, folder, "goals", is_json=False)[0]


def _overhead_s(job: Any) -> float:
    """Return the CPU seconds that each run takes to train the model, which was to be given."""
    from walle.adapt.source import load_model

    begin = time.process_time()
    load_model(job.model, job.folder)
    return time.process_time() - begin


def _picture(result: dict[str, Any], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for one in result.get("collective", []):
        axes.plot(*zip(*one["front"], strict=True), "o", ms=3, label=f"{one['goals']} goals adapted together")
    if "front" in result:
        axes.plot(*zip(*result["front"]["narrow"], strict=True), "s-", label="narrower everywhere, trained by labels")
    axes.set_xscale("log")
    axes.set_xlabel("multiply-adds of one image")
    axes.set_ylabel("accuracy")
    if axes.has_data():
        axes.legend()
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "mistify.png", dpi=150)
    plt.close(figure)
    rows = "".join(
        f"<tr><td>{one['goals']}<td>{one['together_s']:.1f}<td>{one['alone_s']:.1f}"
        f"<td>{one['together_s'] / one['alone_s']:.2%}<td>{one['lost']:.2%}"
        for one in result.get("collective", [])
    )
    (out / "mistify.html").write_text(
        "<!doctype html><meta charset=utf-8><title>Adaptation</title><img src=mistify.png alt='accuracy by operations'>"
        f"<table><tr><th>goals<th>together, s<th>one by one, s<th>share<th>accuracy lost{rows}</table>\n"
    )


def _print(result: dict[str, Any]) -> None:
    if "tree" in result:
        one = result["tree"]
        print(
            f"tree of 1,000 goals of 4 constraints: {one['build_ms']:.2f} ms; a goal more: {one['insert_us']:.1f} us; "
            f"{one['leaves']:.0f} leaves, {one['chains']:.0f} chains in {one['chains_ms']:.1f} ms"
        )
    for one in result.get("collective", []):
        print(
            f"{one['goals']} goals: {one['together_s']:.1f} CPU s together in {one['passes']} passes, "
            f"{one['alone_s']:.1f} one by one: {one['together_s'] / one['alone_s']:.2%}; accuracy lost "
            f"{one['lost']:.2%} on average, {one['most_lost']:.2%} at most"
        )
        for name, ours, theirs in one["accuracies"]:
            print(f"    {name:10} {ours:.4f}  alone {theirs:.4f}")
    for operations, ours, narrow in result.get("front", {}).get("pairs", []):
        print(f"    {operations:9.0f} multiply-adds: adapted {ours:.4f}, narrower everywhere {narrow:.4f}")
    if "algorithms" in result:
        print("\n".join(algorithms.lines(result["algorithms"])))
    print("\n".join(branches.describe(result.get("branches", []))))
    print("\n".join(latency.lines(result.get("latency", []))))
    if "tuning" in result:
        tuning.print_tuning(result["tuning"])


def main() -> None:
    """Measure the parts and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(_PARTS))
    parser.add_argument("--goals", default="10,100", help="numbers of goals that are adapted together")
    parser.add_argument("--sample", type=int, default=7, help="goals that are adapted alone too")
    parser.add_argument("--steps", type=int, default=300, help="training steps of a model that is adapted alone")
    parser.add_argument("--seeds", type=int, default=24, help="fleets of devices that tune")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := sorted(set(parts) - set(_PARTS)):
        parser.error(f"unknown part {unknown[0]!r}; known are {', '.join(_PARTS)}")
    result: dict[str, Any] = {}
    if "tree" in parts:
        result["tree"] = measure_tree()
    if "collective" in parts:
        result["collective"] = [measure_collective(int(one), args.sample, args.steps) for one in args.goals.split(",")]
    if "front" in parts and result.get("collective"):
        most = result["collective"][0]
        narrow = measure_narrow(args.steps + 300)
        adapted = sorted(most["front"])
        pairs = [
            (operations, max(accuracy for cost, accuracy in adapted if cost <= operations), other)
            for operations, other in narrow
            if adapted[0][0] <= operations
        ]
        result["front"] = {"narrow": narrow, "pairs": pairs}
    if "algorithms" in parts:
        result["algorithms"] = _measure_algorithms(args.sample, args.steps)
    if "branches" in parts:
        result["branches"] = branches.measure(args.steps)
    if "latency" in parts:
        result["latency"] = latency.measure()
    if "tuning" in parts:
        result["tuning"] = tuning.measure(args.seeds)
        tuning.draw(result["tuning"], args.out)
    if result.keys() & {"collective", "front", "algorithms"}:
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
