"""Goals that are adapted in one run against a run for each: CPU time and accuracy (Fig. 6a, Tables 2 and 5)."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.mistify_parts.workloads import WORKLOADS, job, whole_costs

_LEAST, _MOST = 1 / 38, 1 / 1.27  # budgets, as parts of the given network's multiply-adds


def goals_of(name: str, goals: int, cost: str = "operations") -> str:
    """Return the table of a number of goals, whose budgets of a cost are in equal ratios."""
    whole = whole_costs(name)[cost]
    least = max(_LEAST, WORKLOADS[name].least)
    return f"[goals.scale]\n{cost} = {{from = {whole * least}, to = {whole * _MOST}, steps = {goals}}}"


def measure_collective(
    goals: int, sample: int, steps: int, algorithm: str = "morphnet", workload: str = "resnet_digits"
) -> dict[str, Any]:
    """Return CPU seconds of all goals in one run, those of a run for each, and the accuracies of a sample."""
    from walle.adapt.adaptation import adapt

    all_of = job(workload, goals_of(workload, goals), steps, algorithm)
    _warm()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        together = adapt(all_of, Path(folder) / "together", measure_latency=False)
        together_s = time.process_time() - begin
        chosen = [round(at * (goals - 1) / max(sample - 1, 1)) for at in range(sample)]
        alone, alone_s = {}, []
        for at in chosen:
            begin = time.process_time()
            outcome = adapt(
                dataclasses.replace(all_of, goals=(all_of.goals[at],)), Path(folder) / str(at), measure_latency=False
            )
            alone_s.append(time.process_time() - begin)
            alone[all_of.goals[at].name] = outcome.fitted[0].costs
    costs = {one.goal: one.costs for one in together.fitted}
    pairs = [(name, costs[name]["accuracy"], one["accuracy"]) for name, one in alone.items()]
    return {
        "workload": WORKLOADS[workload].title,
        "algorithm": algorithm,
        "goals": goals,
        "passes": together.passes,
        "together_s": together_s,
        "alone_s": goals * statistics.mean(alone_s),
        "accuracies": pairs,
        "lost": statistics.mean(1 - ours / theirs for _, ours, theirs in pairs),
        "most_lost": max(1 - ours / theirs for _, ours, theirs in pairs),
        "front": [(one["operations"], one["accuracy"]) for one in costs.values()],
        "whole": together.whole,
        "steps": [one.steps for one in together.fitted],
    }


def _warm() -> None:
    """Import what a run imports, which must not count for the first one alone."""
    import matplotlib.pyplot as plt

    plt.close(plt.figure())


def lines(one: dict[str, Any]) -> Iterator[str]:
    """Yield a line for the goals of a workload, and one for each that was also adapted alone."""
    yield (
        f"{one['workload']}, {one['algorithm']}, {one['goals']} goals: {one['together_s']:.1f} CPU s together in "
        f"{one['passes']} passes, {one['alone_s']:.1f} one by one: {one['together_s'] / one['alone_s']:.2%}; accuracy "
        f"lost {one['lost']:.2%} on average, {one['most_lost']:.2%} at most"
    )
    for name, ours, theirs in one["accuracies"]:
        yield f"    {name:10} {ours:.4f}  alone {theirs:.4f}"
