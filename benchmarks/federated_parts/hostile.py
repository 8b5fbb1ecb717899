"""Accuracy with 30 % drop-outs and 10 % hostile clients, by aggregator, against FedAvg with neither.

Hostile clients learn 9 - digit, send their update with its sign flipped, or send ten times their update. The measure is
the mean accuracy after each of the last rounds, since single rounds vary by several points.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.federated_parts.clients import Trainer
from benchmarks.federated_parts.shards import CLIENTS, TITLES, Setting, make_setting
from walle.federated import Federation
from walle.federated.aggregation import Aggregator, CoordinateMedian, FedAvg, MultiKrum, NormBound, TrimmedMean
from walle.federated.simulation import Poison, flip_sign, scale_by

ATTACKS = ("label flip", "sign flip", "scaled by 10")
HOSTILE = CLIENTS // 10
DROP_OUTS = 0.3
AGGREGATORS: dict[str, Callable[[], Aggregator]] = {
    "fedavg": FedAvg,
    "norm-bound": NormBound,
    "median": CoordinateMedian,
    "trimmed-mean": lambda: TrimmedMean(0.15),
    "multi-krum": lambda: MultiKrum(HOSTILE),
}
_POISONS: dict[str, Poison] = {"sign flip": flip_sign, "scaled by 10": scale_by(10.0)}
_LAST = 5  # rounds of the measure


def measure_hostile(data: list[str], labels: list[int], rounds: int, seeds: int) -> list[dict[str, Any]]:
    """Return a row for each data set and number of labels: the clean accuracy, and points lost by attack and algorithm.

    `labels` are the numbers of labels of a client; 0 shares the images out at random.
    """
    rows = []
    for name in data:
        for count in labels:
            clean, dropped = [], []
            points: dict[str, dict[str, list[float]]] = {
                attack: {kind: [] for kind in AGGREGATORS} for attack in ATTACKS
            }
            for seed in range(seeds):
                setting = make_setting(name, seed, count)
                clean.append(_accuracy(setting, FedAvg(), rounds))
                dropped.append(_accuracy(setting, FedAvg(), rounds, drop_outs=DROP_OUTS) - clean[-1])
                for attack in ATTACKS:
                    for kind, make in AGGREGATORS.items():
                        found = _accuracy(setting, make(), rounds, drop_outs=DROP_OUTS, attack=attack)
                        points[attack][kind].append(100 * (found - clean[-1]))
            rows.append(
                {
                    "data": name,
                    "labels": count,
                    "clean": statistics.mean(clean),
                    "drop_outs": 100 * statistics.mean(dropped),
                    "points": {
                        attack: {kind: statistics.mean(each) for kind, each in by_kind.items()}
                        for attack, by_kind in points.items()
                    },
                }
            )
    return rows


def _accuracy(
    setting: Setting, aggregator: Aggregator, rounds: int, *, drop_outs: float = 0.0, attack: str = ""
) -> float:
    """Return the mean accuracy of the last rounds; the hostile clients depend on the setting's seed alone."""
    trainer = Trainer(setting)
    drawn = np.random.default_rng([setting.seed, 1]).permutation(CLIENTS)[:HOSTILE]
    hostile = [f"c{place:02}" for place in drawn] if attack else []
    poison = _POISONS.get(attack)
    federation = Federation(
        trainer.first(),
        trainer.clients(hostile if attack == "label flip" else ()),
        aggregator,
        seed=setting.seed,
        drop_outs=drop_outs,
        poisons=dict.fromkeys(hostile, poison) if poison else {},
    )
    outcomes = federation.run(rounds)
    return statistics.mean(trainer.accuracy(one.model) for one in outcomes[-_LAST:])


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the points as a table."""
    made = []
    for row in rows:
        of = f"{row['labels']} labels a client" if row["labels"] else "images at random"
        made.append(
            f"{TITLES[row['data']]}, {of}: FedAvg {row['clean']:.4f}; with 30 % drop-outs {row['drop_outs']:+.1f}"
            " points; with 10 % hostile too:"
        )
        made.append(f"  {'':14}" + "".join(f"{kind:>14}" for kind in AGGREGATORS))
        for attack, by_kind in row["points"].items():
            made.append(f"  {attack:14}" + "".join(f"{by_kind[kind]:+14.1f}" for kind in AGGREGATORS))
    return made
