"""Accuracy by budgets of operations, memory and latency, against networks narrower everywhere (Mistify, Fig. 8).

Those are trained by the same rule: the same goals, one after another, batches and teacher, each as long as its cut has
added loss. Latency is that of §4.1, for the rates of a small device.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.mistify_parts.workloads import WORKLOADS, job, whole_costs

EVEN = "narrower everywhere"
COSTS = ("operations", "memory", "latency")
UNITS = {"operations": "multiply-adds", "memory": "bytes", "latency": "s"}
COMPUTE, BANDWIDTH = "2 GFLOP", "100 MB"
_ALGORITHMS = {"morphnet": "morphnet", "chamnet": "chamnet", "slimmable": "slimmable", EVEN: "even.py:Even"}
_RANGE = {"operations": (1 / 38, 1 / 1.27), "memory": (1 / 24, 1 / 1.27), "latency": (1 / 30, 1 / 1.27)}
_NEARLY = 0.05  # part of the accuracy that may be lost (§8.4)


def measure_front(
    workload: str, algorithms: Sequence[str], steps: int, goals: int = 10, seeds: int = 2, costs: Sequence[str] = COSTS
) -> list[dict[str, Any]]:
    """Return for each cost the budgets and, by algorithm, each goal's accuracies by seed, and CPU seconds of a run.

    `seeds` are those of the first cost; the others have one.
    """
    from walle.adapt.adaptation import adapt

    found = []
    for cost in costs:
        accuracies: dict[str, list[list[float]]] = {}
        seconds: dict[str, float] = {}
        steps_of: dict[str, float] = {}
        own_seeds = seeds if cost == COSTS[0] else 1
        for name in (*algorithms, EVEN):
            own = job(workload, _goals(workload, cost, goals), steps, _ALGORITHMS[name], _hardware(cost))
            runs = []
            begin = time.process_time()
            for seed in range(own_seeds):
                with tempfile.TemporaryDirectory() as folder:
                    runs.append(adapt(dataclasses.replace(own, seed=seed), Path(folder), measure_latency=False))
            seconds[name] = (time.process_time() - begin) / own_seeds
            steps_of[name] = sum(one.steps for run in runs for one in run.fitted) / own_seeds
            accuracies[name] = [[run.fitted[at].costs["accuracy"] for run in runs] for at in range(goals)]
        found.append({
            "workload": WORKLOADS[workload].title, "cost": cost, "whole": runs[0].whole, "seconds": seconds,
            "steps": steps_of,
            "budgets": [goal.budgets[cost] for goal in own.goals], "accuracies": accuracies,
        })  # fmt: skip
    return found


def _goals(workload: str, cost: str, goals: int) -> str:
    least, most = _RANGE[cost]
    whole = _latency_s(workload) if cost == "latency" else whole_costs(workload)[cost]
    least = max(least, WORKLOADS[workload].least)
    return f"[goals.scale]\n{cost} = {{from = {whole * least}, to = {whole * most}, steps = {goals}}}"


def _hardware(cost: str) -> str:
    return f'hardware = {{compute = "{COMPUTE}", bandwidth = "{BANDWIDTH}"}}' if cost == "latency" else ""


def _latency_s(workload: str) -> float:
    from walle.adapt.costs.hardware import Hardware
    from walle.adapt.goals.quantity import quantity

    hardware = Hardware.of_rates(quantity(COMPUTE, "FLOP", "compute"), quantity(BANDWIDTH, "B", "bandwidth"))
    whole = whole_costs(workload)
    return hardware.latency_s(whole["operations"], whole["memory"])


def draw(found: list[dict[str, Any]], out: Path) -> None:
    """Write a picture with a plot for each workload and cost: `mistify_front.png`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, places = plt.subplots(len(found), 1, figsize=(7, 3.2 * len(found)), squeeze=False)
    for axes, one in zip(places[:, 0], found, strict=True):
        for name, own in one["accuracies"].items():
            means = [statistics.mean(accuracies) for accuracies in own]
            bars = [
                [mean - min(accuracies) for mean, accuracies in zip(means, own, strict=True)],
                [max(accuracies) - mean for mean, accuracies in zip(means, own, strict=True)],
            ]
            axes.errorbar(one["budgets"], means, bars, marker="s" if name == EVEN else "o", ms=3, capsize=2, label=name)
        axes.axhline(one["whole"]["accuracy"], color="#9ca3af", ls=":")
        axes.set_xscale("log")
        axes.set_title(one["workload"])
        axes.set_xlabel(f"budget of {one['cost']} ({UNITS[one['cost']]})")
        axes.set_ylabel("accuracy")
        axes.legend()
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "mistify_front.png", dpi=120)
    plt.close(figure)


def lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of each cost, who is above the narrower networks, and the most operations saved."""
    for one in found:
        names = list(one["accuracies"])
        yield f"{one['workload']}, accuracy by {one['cost']}; the given network {one['whole']['accuracy']:.4f}"
        yield "    share of whole  " + "".join(f"{name:>21}" for name in names)
        for at, budget in enumerate(one["budgets"]):
            yield f"    {budget / one['whole'][one['cost']]:15.3f}  " + "".join(
                f"{statistics.mean(one['accuracies'][name][at]):21.4f}" for name in names
            )
        for name in names[:-1]:
            above = differences(one, name)
            yield (
                f"    {name}: above {EVEN} at {sum(x > 0 for x in above)}, equal at {sum(x == 0 for x in above)}, "
                f"below at {sum(x < 0 for x in above)} budgets, at worst {min(above):+.2%}; mean "
                f"{statistics.mean(above):+.2%}; {one['steps'][name]:.0f} steps (theirs {one['steps'][EVEN]:.0f}), "
                f"{one['seconds'][name]:.1f} CPU s"
            )
        if one["cost"] == "operations":
            for name in names:
                yield f"    {name}: {saved(one, name):.1f} times fewer operations at less than {_NEARLY:.0%} lost"


def differences(one: dict[str, Any], name: str) -> list[float]:
    """Return by budget how much more accurate an algorithm is than networks narrower everywhere."""
    pairs = zip(one["accuracies"][name], one["accuracies"][EVEN], strict=True)
    return [statistics.mean(ours) - statistics.mean(theirs) for ours, theirs in pairs]


def saved(one: dict[str, Any], name: str) -> float:
    """Return the largest quotient of the given network's cost and a budget at which little accuracy is lost."""
    least = (1 - _NEARLY) * one["whole"]["accuracy"]
    enough = [
        one["whole"][one["cost"]] / budget
        for budget, own in zip(one["budgets"], one["accuracies"][name], strict=True)
        if statistics.mean(own) >= least
    ]
    return max(enough, default=1.0)
