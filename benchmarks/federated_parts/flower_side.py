"""Flower's side of the figure: its server, client manager and strategies, in a Python that has Flower and NumPy.

Clients are in this process, without a network: `fit` gets Flower's serialized parameters, trains the network of the
figure in NumPy, and returns serialized parameters. Prints one line of JSON.

    PYTHON -m benchmarks.federated_parts.flower_side FOLDER

FOLDER has job.json (strategy, rounds, rate, batch) and arrays.npz, written by `flower.py`.
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import (
    FedAdam,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Strategy,
)

from benchmarks.federated_parts.numpy_network import NAMES, accuracy, train


class LocalClient(ClientProxy):
    """A client of this process."""

    def __init__(self, place: int, arrays: Any, job: dict[str, Any]) -> None:
        super().__init__(f"c{place:02}")
        self._images, self._labels = arrays[f"images{place}"], arrays[f"labels{place}"]
        self._orders = arrays[f"orders{place}"]
        self._job = job
        self.cpu_s = 0.0

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:  # noqa: ARG002 -- Flower's
        assert group_id is not None
        weights = parameters_to_ndarrays(ins.parameters)
        weights = [one.astype("float32") for one in weights]  # FedAdam and FedYogi send float64
        orders = self._orders[group_id - 1]
        begin = time.process_time()
        trained = train(weights, self._images, self._labels, orders, self._job["batch"], self._job["rate"])
        self.cpu_s += time.process_time() - begin
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(trained), len(self._labels), {})

    def get_properties(self, *_: Any) -> Any:
        raise NotImplementedError

    get_parameters = evaluate = reconnect = get_properties


def strategy(name: str, first: Any, clients: int, options: dict[str, Any], evaluate: Any) -> Strategy:
    """Return the strategy, which samples all clients for training and none for evaluation."""
    kinds = {
        "fedavg": FedAvg,
        "fedadam": FedAdam,
        "fedyogi": FedYogi,
        "median": FedMedian,
        "trimmed-mean": FedTrimmedAvg,
    }
    return kinds[name](
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_evaluate_clients=0,
        min_available_clients=clients,
        evaluate_fn=evaluate,
        initial_parameters=first,
        **options,
    )


def main() -> None:
    """Run the job of a folder."""
    logging.disable(logging.CRITICAL)
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    with np.load(folder / "arrays.npz") as file:
        arrays = dict(file)
    clients = [LocalClient(place, arrays, job) for place in range(job["clients"])]
    manager = SimpleClientManager()
    for one in clients:
        manager.register(one)
    found: list[float] = []
    evaluated_s = 0.0

    def evaluate(number: int, weights: list[Any], _config: Any) -> None:
        nonlocal evaluated_s
        begin = time.process_time()
        if number:
            found.append(accuracy(weights, arrays["test_images"], arrays["test_labels"]))
        evaluated_s += time.process_time() - begin

    first = ndarrays_to_parameters([arrays[f"first {name}"] for name in NAMES])
    server = Server(
        client_manager=manager,
        strategy=strategy(job["strategy"], first, job["clients"], job["options"], evaluate),
    )
    server.set_max_workers(1)
    begin = time.process_time()
    server.fit(num_rounds=job["rounds"], timeout=None)
    cpu_s = time.process_time() - begin - evaluated_s
    runs = job["rounds"] * job["clients"]
    trained_s = sum(one.cpu_s for one in clients)
    print(json.dumps({"accuracy": found, "client_round_ms": cpu_s / runs * 1e3, "training_ms": trained_s / runs * 1e3}))


if __name__ == "__main__":
    main()
