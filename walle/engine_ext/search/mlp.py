"""Fully-connected network of ReLUs and its training by Adam on a masked error (Mulder et al., §4.2, Table 2)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from walle.engine_ext import np
from walle.errors import ConfigError

_FEWEST_STEPS_PER_EPOCH = 16  # fewer samples are trained on in smaller batches
_SMALLEST_BATCH = 16
_FEWEST_EPOCHS, _MOST_EPOCHS = 30, 120
_PASSES = _MOST_EPOCHS * 20_000  # samples that are passed through the network, all epochs together
_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # Adam's usual ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Length and speed of training.

    Departures from the paper: the learning rate begins at 2e-3, not 1e-3, and falls to 0 along half a cosine over
    `epochs`. By default these are 120, fewer above 20,000 samples, so that training takes no longer, and at least 30.
    An error of a log time counts as its square up to `error_limit` and linearly beyond (Huber 1964), so that outliers
    matter little; `math.inf` is the paper's squared error. Training ends early after `patience` epochs without an
    improvement of the held-out error. `batch_size` is the largest batch; an epoch has at least 16 batches, where there
    are samples enough.
    """

    epochs: int | None = None
    patience: int = 40
    batch_size: int = 1024
    learning_rate: float = 2e-3
    weight_decay: float = 1e-5
    error_limit: float = 0.1

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value!r}; give at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate={self.learning_rate!r}; give a positive number")
        if not self.error_limit > 0:
            raise ConfigError(f"error_limit={self.error_limit!r}; give a positive number, or inf")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay={self.weight_decay!r}; give 0 or a positive number")

    def epochs_for(self, samples: int) -> int:
        """Return the epochs of training on this many samples."""
        if self.epochs is not None:
            return self.epochs
        return max(_FEWEST_EPOCHS, min(_MOST_EPOCHS, _PASSES // max(1, samples)))

    def batch_for(self, samples: int) -> int:
        """Return the samples of a batch: at most `batch_size`, fewer where an epoch would have few batches."""
        return min(self.batch_size, samples, max(_SMALLEST_BATCH, samples // _FEWEST_STEPS_PER_EPOCH))


@dataclass(frozen=True, slots=True)
class Targets:
    """Inputs `x` (n, inputs), numbers to be learned `y` (n, outputs) and `defined` (n, outputs), 1 or 0; float32."""

    x: np.ndarray
    y: np.ndarray
    defined: np.ndarray

    def __len__(self) -> int:
        return self.x.shape[0]

    def take(self, rows: np.ndarray) -> "Targets":
        """Return these rows."""
        return Targets(self.x[rows], self.y[rows], self.defined[rows])


class Mlp:
    """Network of layers `x @ weight + bias`, with a ReLU between two of them.

    Its parameters are one vector, so that an optimizer's step is a few operations on vectors; `weights` and `biases`
    are views of it.
    """

    def __init__(self, sizes: Sequence[int], parameters: np.ndarray) -> None:
        self.sizes, self.parameters = tuple(sizes), parameters
        self.weights: list[np.ndarray] = []
        self.biases: list[np.ndarray] = []
        at = 0
        for rows, columns in pairwise(self.sizes):
            self.weights.append(parameters[at : at + rows * columns].reshape(rows, columns))
            at += rows * columns
            self.biases.append(parameters[at : at + columns])
            at += columns

    @classmethod
    def drawn(cls, sizes: Sequence[int], rng: np.random.Generator) -> "Mlp":
        """Return a network of random weights (He et al. 2015), whose last layer is 0: so are its outputs."""
        mlp = cls(sizes, np.zeros((sum(rows * columns + columns for rows, columns in pairwise(sizes)),), "float32"))
        for weight in mlp.weights[:-1]:
            weight[...] = rng.standard_normal(weight.shape) * math.sqrt(2 / weight.shape[0])
        return mlp

    def copy(self) -> "Mlp":
        return Mlp(self.sizes, self.parameters.copy())

    def hidden(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs of the last hidden layer, or `x` where the network has none."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = np.maximum(x @ weight + bias, 0.0)
        return x

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs (n, outputs) for inputs (n, inputs), float32."""
        return self.hidden(x) @ self.weights[-1] + self.biases[-1]

    def gradient(self, targets: Targets, error_limit: float = math.inf) -> np.ndarray:
        """Return the gradient of the mean squared error over all defined targets, as one vector.

        Beyond `error_limit` errors count linearly.
        """
        layers = [targets.x]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            layers.append(np.maximum(layers[-1] @ weight + bias, 0.0))
        error = layers[-1] @ self.weights[-1] + self.biases[-1] - targets.y
        if error_limit < math.inf:
            error = np.clip(error, -error_limit, error_limit)
        upper = error * targets.defined * (2 / max(1.0, float(targets.defined.sum())))
        parts = []
        for layer, weight in zip(reversed(layers), reversed(self.weights), strict=True):
            parts += [upper.sum(axis=0), (layer.T @ upper).reshape(-1)]
            if layer is not targets.x:
                upper = (upper @ weight.T) * (layer > 0)
        return np.concatenate(parts[::-1])


def mean_error(mlp: Mlp, targets: Targets) -> float:
    """Return the mean absolute error over all defined targets."""
    error = np.abs(mlp.outputs(targets.x) - targets.y) * targets.defined
    return float(error.sum()) / max(1.0, float(targets.defined.sum()))


def train(
    mlp: Mlp,
    targets: Targets,
    schedule: Schedule,
    rng: np.random.Generator,
    *,
    held_out: Targets | None = None,
    last_epoch: int | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> tuple[Mlp, int]:
    """Return the network of the epoch with the least mean absolute error on `held_out`, and that epoch.

    It is epoch 0 where training improves nothing: `mlp` unchanged. Without `held_out` it is `last_epoch`.
    """
    batch, epochs = schedule.batch_for(len(targets)), schedule.epochs_for(len(targets))
    steps = -(-len(targets) // batch)
    current = mlp.copy()
    best, best_epoch, least = mlp, 0, math.inf if held_out is None else mean_error(mlp, held_out)
    adam = _Adam(current.parameters, schedule)
    for epoch in range(1, 1 + (epochs if last_epoch is None else last_epoch)):
        order = rng.permutation(len(targets))
        for step in range(steps):
            part = targets.take(order[step * batch : (step + 1) * batch])
            done = (epoch - 1 + step / steps) / epochs
            gradient = current.gradient(part, schedule.error_limit)
            adam.step(gradient, schedule.learning_rate * (1 + math.cos(math.pi * done)) / 2)
        if held_out is None:
            best, best_epoch = current, epoch
            continue
        error = mean_error(current, held_out)
        if error < least:
            best, best_epoch, least = current.copy(), epoch, error
        if on_epoch is not None:
            on_epoch(epoch, error)
        if epoch - best_epoch >= schedule.patience:
            break
    return best, best_epoch


class _Adam:
    """Adam (Kingma and Ba 2015) with weight decay added to the gradient, as PyTorch's."""

    def __init__(self, parameters: np.ndarray, schedule: Schedule) -> None:
        self._parameters, self._decay = parameters, schedule.weight_decay
        self._mean, self._square = np.zeros_like(parameters), np.zeros_like(parameters)
        self._steps = 0

    def step(self, gradient: np.ndarray, learning_rate: float) -> None:
        """Move the parameters, in place."""
        self._steps += 1
        gradient += self._parameters * self._decay
        self._mean *= _BETAS[0]
        self._mean += gradient * (1 - _BETAS[0])
        gradient *= gradient
        self._square *= _BETAS[1]
        self._square += gradient * (1 - _BETAS[1])
        size = learning_rate / (1 - _BETAS[0] ** self._steps)
        spread = np.sqrt(self._square * (1 / (1 - _BETAS[1] ** self._steps))) + _EPSILON
        self._parameters -= self._mean * size / spread
