"""Clients of the figure on `walle.nn`: a network of one hidden layer, SGD over the client's samples."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.federated_parts.shards import CLASSES, HIDDEN, Setting
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
            orders = self.setting.order(place, number)
            model.load_into(self.module)
            anchors = self._proximal.anchors(model) if self._proximal else []
            begin = time.process_time()
            for order in orders:
                for start in range(0, len(order), BATCH):
                    places = np.asarray(order[start : start + BATCH])
                    self._step(images[places], labels[places], *anchors)
            self.cpu_s += time.process_time() - begin
            self.runs += 1
            return Trained(Weights.of_module(self.module), len(given))

        return train

    def accuracy(self, model: Weights) -> float:
        """Return the part of the test images that the model names correctly."""
        model.load_into(self.module)
        images, labels = self._test
        return float((self.module(images).argmax(1) == labels).astype("float32").mean())
