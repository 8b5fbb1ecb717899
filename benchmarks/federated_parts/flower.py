"""Flower 1.41 as the peer of the figure, in a Python of its own: it pins other packages than Walle."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.federated_parts.clients import BATCH, RATE
from benchmarks.federated_parts.shards import CLIENTS, Setting

VARIABLE = "WALLE_FLOWER_PYTHON"
_MODULE = "benchmarks.federated_parts.flower_side"
_ROOT = Path(__file__).resolve().parents[2]
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
# Options of Flower's strategies, by the names of walle's algorithms.
OPTIONS: dict[str, dict[str, float]] = {
    "fedavg": {},
    "fedadam": {"eta": 0.01, "tau": 1e-3},
    "fedyogi": {"eta": 0.01, "tau": 1e-3},
    "median": {},
    "trimmed-mean": {"beta": 0.2},
}


def flower_python(given: str | None) -> str | None:
    """Return the Python that has Flower: the given one, or that of the environment; None where it has none."""
    python = given or os.environ.get(VARIABLE)
    if python is None:
        return None
    probe = [python, "-c", "import flwr.server, numpy"]
    return python if subprocess.run(probe, check=False, capture_output=True).returncode == 0 else None


def run_flower(python: str, setting: Setting, strategy: str, rounds: int) -> dict[str, Any]:
    """Return Flower's accuracy after each round, and CPU milliseconds of a client-round and of its training.

    Raises:
        CalledProcessError: its process failed.
    """
    arrays: dict[str, Any] = {"test_images": setting.test_images, "test_labels": setting.test_labels}
    for place in range(CLIENTS):
        arrays[f"images{place}"], arrays[f"labels{place}"] = setting.images[place], setting.labels[place]
        arrays[f"orders{place}"] = np.stack([setting.order(place, number) for number in range(1, rounds + 1)])
    arrays |= {f"first {name}": one for name, one in setting.first.items()}
    job = {
        "strategy": strategy,
        "options": OPTIONS[strategy],
        "rounds": rounds,
        "clients": CLIENTS,
        "batch": BATCH,
        "rate": RATE,
    }
    with tempfile.TemporaryDirectory(prefix="walle-flower-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        np.savez(folder / "arrays.npz", **arrays)
        done = subprocess.run(
            [python, "-W", "ignore", "-m", _MODULE, str(folder)],
            cwd=_ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | _ONE_THREAD,
        )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
