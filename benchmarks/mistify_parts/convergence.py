"""Steps of training to the same accuracy, with and without the given model's outputs to learn from (Fig. 6b).

A narrow network learns 200 samples of a device from its first weights: by labels alone, or by the loss that adaptation
trains fitted models with. Accuracies are means over seeds; the level to reach is that of the last steps by labels.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.mistify_parts import digits, docstrings
from benchmarks.mistify_parts.workloads import WORKLOADS, given
from walle import nn, np, optim
from walle.adapt.masked.evaluation import Evaluation, accuracy, outputs_of
from walle.adapt.masked.trainer import distilled_loss

_EVERY, _BATCH = 10, 64
_SAMPLES = 200  # data of one device
_LAST = 5  # evaluations whose mean is the level that training by labels comes to
_STUDENTS: dict[str, Callable[[], nn.Module]] = {
    "resnet_digits": lambda: digits.Network(6),
    "resnet_mnist": lambda: digits.Network(6),
    "text": lambda: docstrings.Network(16),
}


def measure_convergence(steps: int, seeds: int) -> list[dict[str, Any]]:
    """Return for each workload the accuracies by step, of both kinds of training, and the steps to the same one."""
    rows = []
    for name in _STUDENTS:
        curves = {}
        for kind in ("labels", "distillation"):
            runs = [_curve(name, seed, steps, distils=kind == "distillation") for seed in range(seeds)]
            curves[kind] = [statistics.mean(one) for one in zip(*runs, strict=True)]
        level = statistics.mean(curves["labels"][-_LAST:])
        rows.append({
            "workload": WORKLOADS[name].title, "level": level, "curves": curves, "every": _EVERY,
            **{f"{kind}_steps": _reached(curve, level) for kind, curve in curves.items()},
        })  # fmt: skip
    return rows


def _curve(name: str, seed: int, steps: int, *, distils: bool) -> list[float]:
    """Return the accuracy on the test data after each few steps."""
    workload = WORKLOADS[name]
    inputs, labels = workload.train()
    local = np.random.default_rng(seed).permutation(len(labels))[:_SAMPLES]
    inputs, labels = inputs[local], labels[local]
    tested, right = workload.test()
    teacher = outputs_of(given(name), (inputs,))
    nn.manual_seed(seed)
    student = _STUDENTS[name]()
    loss = nn.functional.cross_entropy

    def distilled(logits: Any, labels: Any, teacher: Any) -> Any:
        return distilled_loss(loss(logits, labels), logits, teacher)

    step = nn.TrainStep(student, distilled if distils else loss, optim.Adam(lr=workload.learning_rate))
    evaluate, random = Evaluation(student), np.random.default_rng(seed)
    found = []
    for at in range(steps):
        places = random.integers(0, len(inputs), _BATCH)
        step(inputs[places], labels[places], *([teacher[places]] if distils else []))
        if (at + 1) % _EVERY == 0:
            found.append(accuracy(evaluate.of_all((tested,)), right))
    return found


def _reached(curve: list[float], level: float) -> int | None:
    """Return the steps after which the accuracy is at a level; None where it never is."""
    return next((_EVERY * (at + 1) for at, one in enumerate(curve) if one >= level), None)


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each workload."""
    for one in rows:
        ours, theirs = one["distillation_steps"], one["labels_steps"]
        part = f"{ours / theirs:.2f} of them" if ours else "never"
        yield (
            f"{one['workload']}: accuracy {one['level']:.4f} after {theirs} steps by labels, {ours} with the given "
            f"model's outputs: {part}; at the end {one['curves']['labels'][-1]:.4f} and "
            f"{one['curves']['distillation'][-1]:.4f}"
        )
