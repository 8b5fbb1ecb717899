"""Learning rates of the trainings of the app's models."""

import math


def rate_at(done: float, most: float) -> float:
    """Return the learning rate when a share of the training is done: a warm-up, then a cosine."""
    return most * min(1.0, done / 0.03 + 0.01) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, done))) + 1e-6
