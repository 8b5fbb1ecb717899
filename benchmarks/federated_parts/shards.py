"""Data of the figure: images of digits in shards of few labels, first weights, and the order of each client's samples.

The first images train, in random order; the last test. Sorted by label and cut into as many shards as there are clients
times `labels`, each client has `labels` shards (McMahan et al., AISTATS 2017, section 3). Every number comes from one
seed, and is a NumPy array, so that both sides of the figure have the same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

CLIENTS = 20
EPOCHS = 2
HIDDEN = 64
CLASSES = 10
_TRAINED_ON = {"digits": 1500, "mnist": 4000}
TITLES = {"digits": "scikit-learn's digits", "mnist": "MNIST-5k, 14 by 14"}


@dataclass(frozen=True)
class Setting:
    """A data set in shards. `labels` 0 shares the images out at random."""

    name: str
    images: tuple[Any, ...]  # float32 (samples, pixels) by client
    labels: tuple[Any, ...]  # int64 (samples) by client
    test_images: Any
    test_labels: Any
    first: dict[str, Any]  # float32 arrays of the network
    seed: int

    def order(self, client: int, number: int) -> Any:
        """Return the places of a client's samples in a round, (epochs, samples)."""
        random = np.random.default_rng([self.seed, client, number])
        return np.stack([random.permutation(len(self.labels[client])) for _ in range(EPOCHS)])


def make_setting(name: str, seed: int, labels: int = 2) -> Setting:
    """Return the setting of a data set: "digits" or "mnist"."""
    images, targets = _images(name)
    random = np.random.default_rng(seed)
    order = random.permutation(len(targets))
    train, test = order[: _TRAINED_ON[name]], order[_TRAINED_ON[name] :]
    if labels:
        train = train[np.argsort(targets[train], kind="stable")]
        pieces = np.array_split(train, CLIENTS * labels)
        drawn = random.permutation(len(pieces)).reshape(CLIENTS, labels)
        parts = [np.concatenate([pieces[place] for place in row]) for row in drawn]
    else:
        parts = np.array_split(train, CLIENTS)
    return Setting(
        name,
        tuple(images[part] for part in parts),
        tuple(targets[part] for part in parts),
        images[test],
        targets[test],
        _first_weights(images.shape[1], random),
        seed,
    )


def _first_weights(inputs: int, random: np.random.Generator) -> dict[str, Any]:
    """Return weights and biases, uniform within 1 / sqrt(inputs), as PyTorch begins."""
    found = {}
    for name, wide, narrow in (("0", inputs, HIDDEN), ("2", HIDDEN, CLASSES)):
        bound = wide**-0.5
        found[f"{name}.weight"] = random.uniform(-bound, bound, (narrow, wide)).astype("float32")
        found[f"{name}.bias"] = random.uniform(-bound, bound, narrow).astype("float32")
    return found


@functools.cache
def _images(name: str) -> tuple[Any, Any]:
    """Return images (samples, pixels) from 0 to 1, and labels."""
    if name == "mnist":
        from benchmarks.mistify_parts.mnist import images_and_labels

        images, labels = images_and_labels()
        return np.asarray(images).reshape(len(labels), -1), np.asarray(labels)
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    rows, labels = load_digits(return_X_y=True)
    return (rows / 16.0).astype("float32"), labels.astype("int64")
