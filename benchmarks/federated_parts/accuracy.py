"""Accuracy by round of the algorithms that both sides have, from the same shards, first weights and orders."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.federated_parts.clients import Trainer
from benchmarks.federated_parts.flower import run_flower
from benchmarks.federated_parts.shards import TITLES, make_setting
from walle.federated import Federation, Weights
from walle.federated.aggregation import Aggregator, CoordinateMedian, FedAdam, FedAvg, FedYogi, TrimmedMean


class CorrectedFedAdam(FedAdam):
    """Flower's FedAdam: the first variance is 0, and Adam's correction has one round more than were run."""

    def __init__(self, rate: float) -> None:
        super().__init__(server_lr=rate, first_variance=0.0)
        self._rate = rate

    def begin(self, model: Weights, round_number: int = 0) -> None:
        super().begin(model, round_number)
        self.server_lr = self._rate * math.sqrt(1 - 0.99 ** (round_number + 1)) / (1 - 0.9 ** (round_number + 1))


# Each as Flower has it.
ALGORITHMS: dict[str, Callable[[], Aggregator]] = {
    "fedavg": FedAvg,
    "fedadam": lambda: CorrectedFedAdam(0.01),
    "fedyogi": lambda: FedYogi(server_lr=0.01, first_variance=0.0),
    "median": CoordinateMedian,
    "trimmed-mean": lambda: TrimmedMean(0.2),
}


def measure_accuracy(
    data: list[str], algorithms: list[str], rounds: int, seeds: int, python: str | None
) -> list[dict[str, Any]]:
    """Return a row for each data set, algorithm and seed, with Flower's accuracies where it is there."""
    rows = []
    for name in data:
        for seed in range(seeds):
            setting = make_setting(name, seed)
            for algorithm in algorithms:
                trainer = Trainer(setting)
                federation = Federation(trainer.first(), trainer.clients(), ALGORITHMS[algorithm](), seed=seed)
                ours = [trainer.accuracy(one.model) for one in federation.run(rounds)]
                row: dict[str, Any] = {"data": name, "seed": seed, "algorithm": algorithm, "walle": ours}
                if python is not None:
                    row["flower"] = run_flower(python, setting, algorithm, rounds)["accuracy"]
                rows.append(row)
    return rows


def largest_difference(rows: list[dict[str, Any]]) -> float | None:
    """Return the largest difference between both sides' accuracies of any round; None without Flower."""
    pairs = [pair for row in rows if "flower" in row for pair in zip(row["walle"], row["flower"], strict=True)]
    return max((abs(ours - theirs) for ours, theirs in pairs), default=None)


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the accuracies as text."""
    made = []
    for row in rows:
        ours, theirs = row["walle"], row.get("flower")
        shown = " ".join(f"{one:.4f}" for one in ours)
        against = "" if theirs is None else f"; Flower: {' '.join(f'{one:.4f}' for one in theirs)}"
        made.append(f"{TITLES[row['data']]}, seed {row['seed']}, {row['algorithm']}: {shown}{against}")
    difference = largest_difference(rows)
    if difference is not None:
        made.append(f"largest difference of any round: {difference:.6f}")
    return made
