"""Small weights and updates of tests."""

from __future__ import annotations

from walle import np
from walle.federated import Layout, Update, Weights

LAYOUT = Layout(("a", "b"), ((2, 2), (1,)))


def weights(*values: float, layout: Layout = LAYOUT) -> Weights:
    """Return weights; one value fills all arrays."""
    numbers = list(values) * (layout.size if len(values) == 1 else 1)
    return Weights(layout, np.asarray(numbers, "float32"))


def update(*values: float, samples: int = 1, round_number: int = 1, layout: Layout = LAYOUT) -> Update:
    return Update(round_number, samples, weights(*values, layout=layout))


def numbers(one: Weights) -> list[float]:
    return [float(value) for value in one.vector.tolist()]
