"""Clients of the figure on `walle.nn`: a network of one hidden layer, SGD over the client's samples."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from benchmarks.federated_parts.shards import CLASSES, CLIENTS, HIDDEN, Setting
from walle import nn, np, optim
from walle.federated import ProximalLoss, Trained, Weights
from walle.federated.simulation import Client

BATCH = 16
RATE = 0.2


class Trainer:
    """One network that trains for each client in turn; the plans of its steps serve all of them.

    `cpu_s` is the CPU time of training alone, from weights in the network to other weights in it, and `runs` counts
    the clients that trained.
    """

    def __init__(self, setting: Setting, mu: float = 0.0) -> None:
        pixels = setting.images[0].shape[1]
        self.setting = setting
        self.module = nn.Sequential(nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        self._proximal = ProximalLoss(nn.functional.cross_entropy, self.module, mu) if mu else None
        loss: Any = self._proximal or nn.functional.cross_entropy
        self._step = nn.TrainStep(self.module, loss, optim.SGD(lr=RATE))
        self._images = [np.asarray(one) for one in setting.images]
        self._test = np.asarray(setting.test_images), np.asarray(setting.test_labels)
        self._orders: dict[tuple[int, int], Any] = {}
        self.cpu_s = 0.0
        self.runs = 0

    def first(self) -> Weights:
        """Return the first global model."""
        return Weights.of_arrays(self.setting.first)

    def client(self, place: int, *, flips_labels: bool = False) -> Client:
        """Return the training function of a client; a hostile one may learn 9 - digit."""
        given = self.setting.labels[place]
        labels = np.asarray(CLASSES - 1 - given if flips_labels else given)
        images = self._images[place]

        def train(model: Weights, number: int) -> Trained:
            orders = self._orders_of(place, number)
            model.load_into(self.module)
            anchors = self._proximal.anchors(model) if self._proximal else []
            begin = time.process_time()
            for order in orders:
                for places in order:
                    self._step(images[places], labels[places], *anchors)
            self.cpu_s += time.process_time() - begin
            self.runs += 1
            return Trained(Weights.of_module(self.module), len(given))

        return train

    def clients(self, flips_labels: Iterable[str] = ()) -> dict[str, Client]:
        """Return all clients by name; those of `flips_labels` learn other labels."""
        names = [f"c{place:02}" for place in range(CLIENTS)]
        return {name: self.client(place, flips_labels=name in flips_labels) for place, name in enumerate(names)}

    def _orders_of(self, place: int, number: int) -> Any:
        """Return the places of each batch of each epoch; kept, so that drawing them is not measured twice."""
        if (place, number) not in self._orders:
            self._orders[place, number] = [
                [np.asarray(order[start : start + BATCH]) for start in range(0, len(order), BATCH)]
                for order in self.setting.order(place, number)
            ]
        return self._orders[place, number]

    def accuracy(self, model: Weights) -> float:
        """Return the part of the test images that the model names correctly."""
        model.load_into(self.module)
        images, labels = self._test
        return float((self.module(images).argmax(1) == labels).astype("float32").mean())
