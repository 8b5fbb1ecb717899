"""Tuning of one device's model by its own data and by its peers' models (§5.1)."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walle import nn, np, optim
from walle.adapt.dataset import Dataset
from walle.adapt.masked.evaluation import Evaluation, accuracy
from walle.adapt.tuning.noise import LaplaceNoise
from walle.adapt.tuning.peers import Ensemble
from walle.adapt.tuning.plateau import Plateau
from walle.errors import ConfigError

__all__ = ["Exchange", "Statistics", "Tuner", "TuningOptions", "model_file"]


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """Options of a tuning. Loss and learning rate are the paper's defaults, the temperature is of Hinton et al. 2015.

    An epoch is a pass over the data; training ends after `patience` epochs whose mean loss is not lower by
    `least_gain` than the lowest one, or after `max_epochs`.

    Raises:
        ConfigError: an option is out of range.
    """

    batch: int = 32
    learning_rate: float = 0.001
    temperature: float = 4.0
    patience: int = 20
    least_gain: float = 0.005
    max_epochs: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "learning_rate", "temperature", "patience", "max_epochs"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} {getattr(self, name)}; give a number above 0")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean loss of the last epoch, accuracy on the device's own data, and epochs of a training."""

    loss: float
    accuracy: float
    epochs: int


type Exchange = Callable[[bytes, Statistics], Sequence[bytes]]
"""`exchange(file, statistics)` sends a device's model to the coordinator, and returns files of its peers' models."""


class Tuner:
    """A device's model, its own data, and the steps of the paper's algorithm over them.

    Models of other devices may have other architectures: only their outputs are read. The random numbers of a training
    depend on the seed and on the steps before it. `on_epoch` is called after each pass over the data.

    Raises:
        ConfigError: the labels are not classes.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        options: TuningOptions | None = None,
        on_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.data, self._on_epoch = model, data, on_epoch
        self.options = options or TuningOptions()
        if data.labels.ndim != 1 or str(data.labels.dtype)[0] not in "iu":
            raise ConfigError(f"labels of shape {data.labels.shape} and dtype {data.labels.dtype}; give whole numbers")
        self._labels = data.labels.astype("int64")
        self._evaluation = Evaluation(model)
        self._epochs = 0
        self.steps = 0

    def train(self, data: Dataset | None = None) -> Statistics:
        """Train on the device's data, or on other data, until the loss stops falling (i)."""
        step = nn.TrainStep(self.model.train(), nn.functional.cross_entropy, self._optimizer())
        used = self.data if data is None else data
        return self._train(lambda places, _random: step(*(one[places] for one in used.inputs), self._labels[places]))

    def train_with(self, peers: Sequence[bytes]) -> Statistics:
        """Train on the device's data and towards the mean output of the peers' models (iii).

        The loss is cross-entropy plus the Kullback-Leibler divergence of the model's softened outputs from the mean of
        the peers', times the square of the temperature, which keeps the size of its gradients. Each step skips
        max(n/10, 1) of n peers at random. Without a peer that can be run this is `train`.
        """
        classes = self._evaluation(*(one[:1] for one in self.data.inputs)).shape[-1]
        ensemble = Ensemble(peers, self.data, classes, self.options.temperature)
        if not len(ensemble):
            return self.train()
        warm = self.options.temperature

        def distilled(logits: Any, labels: Any, teacher: Any) -> Any:
            found = nn.functional.log_softmax(logits * (1.0 / warm), -1)
            divergence = nn.functional.kl_div(found, teacher, reduction="batchmean")
            return nn.functional.cross_entropy(logits, labels) + divergence * warm**2

        step = nn.TrainStep(self.model.train(), distilled, self._optimizer())

        def take(places: Any, random: Any) -> Any:
            inputs = (one[places] for one in self.data.inputs)
            return step(*inputs, self._labels[places], ensemble.mean(places, random))

        return self._train(take)

    def run(self, exchange: Exchange, *, rounds: int = 1, noise: LaplaceNoise | None = None) -> Statistics:
        """Take rounds: train alone, send the model, receive those of peers, and train with them (i to iv).

        With noise another model is sent, `noisy_model` (§5.1), which is not differentially private. Rounds end before
        `rounds` of them when the loss with the peers is not lower than in the round before. What `exchange` raises ends
        the round: the model has been trained alone.

        Raises:
            ConfigError: there are no rounds.
        """
        if rounds < 1:
            raise ConfigError(f"{rounds} rounds; give at least 1")
        plateau = Plateau(1, self.options.least_gain)
        for _ in range(rounds):
            done = self.train()
            sent = self.model if noise is None else self.noisy_model(noise)
            done = self.train_with(exchange(model_file(sent, self.data), done))
            if plateau.has_converged(done.loss):
                break
        return done

    def noisy_model(self, noise: LaplaceNoise) -> nn.Module:
        """Return a copy of the model, trained further on the data with noise until it converges, as the paper does.

        The copy begins with weights that were learned from the data without noise: the guarantee of `LaplaceNoise`
        covers only what this training adds, not the model.
        """
        made = Tuner(copy.deepcopy(self.model), self.data, self.options)
        made._epochs, made.steps = self._epochs, self.steps
        made.train(Dataset(noise.add(self.data.inputs), self.data.labels))
        return made.model

    def _optimizer(self) -> Any:
        return optim.Adam(lr=self.options.learning_rate)

    def _train(self, take: Callable[[Any, Any], Any]) -> Statistics:
        options, count = self.options, len(self.data)
        size = min(options.batch, count)
        plateau = Plateau(options.patience, options.least_gain)
        loss, first = 0.0, self._epochs
        while self._epochs < first + options.max_epochs:
            random = np.random.default_rng((options.seed << 32) + self._epochs)
            order = random.permutation(count)
            starts = range(0, count - size + 1, size)
            loss = sum(float(take(order[start : start + size], random)) for start in starts) / len(starts)
            self._epochs += 1
            self.steps += len(starts)
            self._on_epoch()
            if plateau.has_converged(loss):
                break
        logits = self._evaluation.of_all(self.data.inputs)
        return Statistics(loss, accuracy(logits, self._labels), self._epochs - first)


def model_file(model: nn.Module, data: Dataset) -> bytes:
    """Return a model as the contents of a `.walle` file for inference: its graph and weights, no sample.

    The sizes of inputs are those of the data. The first sample only traces the graph.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.walle"
        nn.to_walle(model, path, *(np.zeros_like(one[:2]) for one in data.inputs))
        return path.read_bytes()
