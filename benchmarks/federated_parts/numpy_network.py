"""The figure's network in NumPy: weights are lists of float32 arrays in the order of NAMES."""

from typing import Any

import numpy as np

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
_FLOAT = np.float32


def train(weights: list[Any], images: Any, labels: Any, orders: Any, batch: int, rate: float) -> list[Any]:
    """Return the weights after SGD on the mean cross entropy, as `walle.nn` and PyTorch define it."""
    first, first_bias, second, second_bias = (one.copy() for one in weights)
    for order in orders:
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            x = images[places]
            hidden = np.maximum(x @ first.T + first_bias, 0)
            scores = hidden @ second.T + second_bias
            scores -= scores.max(1, keepdims=True)
            slope = np.exp(scores)
            slope /= slope.sum(1, keepdims=True)
            slope[np.arange(len(places)), labels[places]] -= 1
            slope /= _FLOAT(len(places))
            below = (slope @ second) * (hidden > 0)
            second -= _FLOAT(rate) * (slope.T @ hidden)
            second_bias -= _FLOAT(rate) * slope.sum(0)
            first -= _FLOAT(rate) * (below.T @ x)
            first_bias -= _FLOAT(rate) * below.sum(0)
    return [first, first_bias, second, second_bias]


def accuracy(weights: list[Any], images: Any, labels: Any) -> float:
    first, first_bias, second, second_bias = weights
    scores = np.maximum(images @ first.T + first_bias, 0) @ second.T + second_bias
    return float((scores.argmax(1) == labels).mean())
