"""Models of several branches (Mistify, §6 and Table 4): parameters that they add, and the time to switch.

A switch is the first run of a branch after runs of another, less a later run of it. The peer is what a device does
without branches: open the file of another model, and run it once.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

# Numbers of branches, each with the limit of parameters that they add; the paper's five add 1.33.
_CASES = ((3, 0.6), (5, 0.6), (5, 1.33))
_ROUNDS, _STEADY = 60, 5
_LOADS = 15
_RATE = 2e-3


def measure(steps: int) -> list[dict[str, Any]]:
    """Return a row for each network and number of branches: parameters, accuracies, microseconds of a switch."""
    from benchmarks.mistify_parts import digits
    from benchmarks.mistify_parts.workloads import given
    from walle import nn
    from walle.adapt.branches.build import BranchSettings, make_branches
    from walle.adapt.dataset import Dataset
    from walle.adapt.goals.config import Training

    train, test = digits.train(), digits.test()
    learnt, tested = (Dataset((images,), labels) for images, labels in (train, test))
    rows = []
    for name, model in (("ResNet", given("resnet_digits")), ("MobileNet", given("mobilenet_digits"))):
        for count, added in _CASES:
            with tempfile.TemporaryDirectory() as folder:
                path, other = Path(folder) / "branches.walle", Path(folder) / "other.walle"
                settings = BranchSettings(count, added, Training(steps=steps, learning_rate=_RATE))
                made = make_branches(model, learnt, tested, path, settings)
                nn.to_walle(model, other, test[0][:1])
                rows.append(
                    {
                        "network": f"{name}-b{count}",
                        "added": made.added,
                        "costs": [one.operations / made.operations for one in made.branches],
                        "accuracy": made.accuracy,
                        "accuracies": [one.accuracy for one in made.branches],
                        **_switches(path, count, test[0][:1]),
                        "load_us": _loads(other, test[0][:1]),
                    }
                )
    return rows


def _switches(path: Path, count: int, image: Any) -> dict[str, float]:
    """Return microseconds of a switch and of a run, and the page faults of all switches, after each branch has run."""
    from walle import np
    from walle.engine_ext.session import Module

    module = Module(path)
    inputs = [{"x": image, "branch": np.asarray(at, "int64")} for at in range(count)]

    def run_us(branch: int) -> float:
        begin = time.perf_counter()
        module.run(inputs[branch])
        return (time.perf_counter() - begin) * 1e6

    for branch in range(count):
        run_us(branch)
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    differences, steady = [], []
    faults = 0
    for _ in range(_ROUNDS):
        for one, other in pairs:
            for _ in range(_STEADY):
                run_us(one)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            first = run_us(other)
            faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
            later = statistics.median(run_us(other) for _ in range(_STEADY))
            differences.append(first - later)
            steady.append(later)
    return {
        "switch_us": statistics.median(differences),
        "switch_p95_us": statistics.quantiles(differences, n=20)[-1],
        "run_us": statistics.median(steady),
        "faults": faults / len(differences),
    }


def _loads(path: Path, image: Any) -> float:
    """Return microseconds to open another model and to run it once, less a later run."""
    from walle.engine_ext.session import Session

    times = []
    for _ in range(_LOADS):
        begin = time.perf_counter()
        session = Session(path)
        session.run({"x": image})
        opened = time.perf_counter()
        session.run({"x": image})
        times.append((opened - begin - (time.perf_counter() - opened)) * 1e6)
    return statistics.median(times)


def describe(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each row."""
    return [
        f"{one['network']:13} {one['added']:+.0%} parameters; switch {one['switch_us']:.1f} us (95 %: "
        f"{one['switch_p95_us']:.1f}), {one['faults']:.2f} page faults, another file {one['load_us']:.0f} us, "
        f"a run {one['run_us']:.0f} us; accuracy by operations "
        + ", ".join(f"{cost:.2f}: {found:.4f}" for cost, found in zip(one["costs"], one["accuracies"], strict=True))
        for one in rows
    ]
