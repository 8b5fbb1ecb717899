"""CPU milliseconds of a client-round: codec, round and aggregation with training, beside the bare training loop."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.federated_parts.clients import Trainer
from benchmarks.federated_parts.flower import run_flower
from benchmarks.federated_parts.shards import CLIENTS, TITLES, make_setting
from walle.federated import Federation
from walle.federated.aggregation import FedAvg


def measure_cost(data: list[str], rounds: int, times: int, python: str | None) -> list[dict[str, Any]]:
    """Return for each data set the least CPU time of a client-round of each side, and that of its bare loop.

    Both sides take turns, `times` times. What is made once (plans, orders of samples) is made before.
    """
    rows = []
    for name in data:
        setting = make_setting(name, 0)
        trainer = Trainer(setting)
        _walle(trainer, rounds)
        ours, theirs = [], []
        for _ in range(times):
            ours.append(_walle(trainer, rounds))
            if python is not None:
                found = run_flower(python, setting, "fedavg", rounds)
                theirs.append((found["client_round_ms"], found["training_ms"]))
        row: dict[str, Any] = {"data": name, "walle": min(ours)}
        if theirs:
            row["flower"] = min(theirs)
        rows.append(row)
    return rows


def _walle(trainer: Trainer, rounds: int) -> tuple[float, float]:
    """Return CPU milliseconds of a client-round, and of its training alone."""
    federation = Federation(trainer.first(), trainer.clients(), FedAvg())
    trained_s = trainer.cpu_s
    begin = time.process_time()
    federation.run(rounds)
    whole_s, runs = time.process_time() - begin, rounds * CLIENTS
    return whole_s / runs * 1e3, (trainer.cpu_s - trained_s) / runs * 1e3


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the costs as text."""
    made = []
    for row in rows:
        for side in ("walle", "flower"):
            if side in row:
                whole, bare = row[side]
                made.append(
                    f"{TITLES[row['data']]}, {side}: {whole:.2f} ms of CPU a client-round, {bare:.2f} ms of them"
                    f" training, {whole - bare:.2f} ms the rest"
                )
    return made
