"""Steps of tuning to the same accuracy, with and without other models' outputs to learn from (Fig. 6b).

A device's narrow network learns 200 samples from its first weights until its loss stops falling: by labels alone, with
the given model's outputs, or with those of four devices' networks, which have learned 200 other samples each (§5.1).
Accuracies are means over seeds, smoothed over a few epochs; the level to reach is that of the last epochs by labels.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.mistify_parts import digits, docstrings
from benchmarks.mistify_parts.workloads import WORKLOADS, given
from walle import nn, np
from walle.adapt.dataset import Dataset
from walle.adapt.masked.evaluation import Evaluation, accuracy
from walle.adapt.tuning.distillation import Tuner, TuningOptions, model_file

_SAMPLES, _PEERS = 200, 4
_SMOOTHED = 5  # epochs of a mean
_NEARLY = 0.99  # part of the accuracy that labels come to, whose steps are shown too
KINDS = ("labels", "given model", f"{_PEERS} peers")
_STUDENTS: dict[str, Callable[[], nn.Module]] = {
    "resnet_digits": lambda: digits.Network(6),
    "resnet_mnist": lambda: digits.Network(6),
    "text": lambda: docstrings.Network(16),
}


def measure_convergence(seeds: int, most_epochs: int = 200) -> list[dict[str, Any]]:
    """Return for each workload the accuracies by epoch of each kind of tuning, and the steps to the same accuracy."""
    rows = []
    for name in _STUDENTS:
        by_seed = [_curves(name, seed, most_epochs) for seed in range(seeds)]
        steps = by_seed[0][0]
        curves = {kind: _smoothed([curves[kind] for _, curves in by_seed]) for kind in KINDS}
        level = curves["labels"][-1]
        rows.append({
            "workload": WORKLOADS[name].title, "level": level, "curves": curves, "epoch_steps": steps,
            "steps": {kind: _reached(curve, level, steps) for kind, curve in curves.items()},
            "nearly": {kind: _reached(curve, _NEARLY * level, steps) for kind, curve in curves.items()},
        })  # fmt: skip
    return rows


def _curves(name: str, seed: int, most_epochs: int) -> tuple[int, dict[str, list[float]]]:
    """Return the steps of an epoch, and by kind the accuracy on the test data after each epoch."""
    workload = WORKLOADS[name]
    inputs, labels = workload.train()
    order = np.random.default_rng(seed).permutation(len(labels))
    parts = [order[at * _SAMPLES : (at + 1) * _SAMPLES] for at in range(1 + _PEERS)]
    own, *others = (Dataset((inputs[part],), labels[part]) for part in parts)
    peers = [_tuned(name, data, seed + 100 * (at + 1), most_epochs) for at, data in enumerate(others)]
    teachers = dict(zip(KINDS, ([], [model_file(given(name), own)], peers), strict=True))
    found: dict[str, list[float]] = {}
    for kind, files in teachers.items():
        tuner, curve = _watched(name, own, seed, most_epochs)
        tuner.train_with(files)
        found[kind] = curve
    return tuner.steps // len(curve), found


def _tuned(name: str, data: Dataset, seed: int, most_epochs: int) -> bytes:
    """Return the file of a network that has learned a device's data."""
    nn.manual_seed(seed)
    tuner = Tuner(_STUDENTS[name](), data, TuningOptions(max_epochs=most_epochs, seed=seed))
    tuner.train()
    return model_file(tuner.model, data)


def _watched(name: str, data: Dataset, seed: int, most_epochs: int) -> tuple[Tuner, list[float]]:
    """Return a tuner of first weights, and a list that gets its accuracy on the test data after each epoch."""
    tested, right = WORKLOADS[name].test()
    nn.manual_seed(seed)
    student = _STUDENTS[name]()
    evaluate = Evaluation(student)
    curve: list[float] = []
    tuner = Tuner(
        student, data, TuningOptions(max_epochs=most_epochs, seed=seed),
        on_epoch=lambda: curve.append(accuracy(evaluate.of_all((tested,)), right)),
    )  # fmt: skip
    return tuner, curve


def _smoothed(curves: list[list[float]]) -> list[float]:
    """Return means of curves, those that ended before at their last value, over a few epochs."""
    longest = max(map(len, curves))
    full = [[*curve, *itertools.repeat(curve[-1], longest - len(curve))] for curve in curves]
    means = [statistics.mean(one) for one in zip(*full, strict=True)]
    return [statistics.mean(means[max(0, at + 1 - _SMOOTHED) : at + 1]) for at in range(longest)]


def _reached(curve: list[float], level: float, epoch_steps: int) -> int | None:
    """Return the steps after which the accuracy is at a level; None where it never is."""
    return next((epoch_steps * (at + 1) for at, one in enumerate(curve) if one >= level), None)


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each workload and kind."""
    for one in rows:
        theirs = one["steps"]["labels"]
        nearly = one["nearly"]
        yield (
            f"{one['workload']}: accuracy {one['level']:.4f} after {theirs} steps by labels, {_NEARLY:.0%} of it after "
            f"{nearly['labels']}"
        )
        for kind in KINDS[1:]:
            ours = one["steps"][kind]
            part = f"{ours} steps, {ours / theirs:.2f} of them" if ours else "never"
            near = f"{nearly[kind]}, {nearly[kind] / nearly['labels']:.2f}" if nearly[kind] else "never"
            yield (
                f"    with the outputs of the {kind}: {part} ({_NEARLY:.0%}: {near}); at the end "
                f"{one['curves'][kind][-1]:.4f}"
            )
