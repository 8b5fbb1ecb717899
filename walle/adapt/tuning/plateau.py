"""Plateau rule: training has converged when its loss stops falling (§5.1, i and iv)."""

from __future__ import annotations

import math


class Plateau:
    """Counts values of a loss since the last one that was lower by `least_gain`; converged after `patience` of them.

    Raises:
        ValueError: patience is below 1, or the gain is negative.
    """

    def __init__(self, patience: int, least_gain: float) -> None:
        if patience < 1 or not least_gain >= 0:
            raise ValueError(f"patience {patience}, least gain {least_gain}: give at least 1, and 0 or more")
        self._patience, self._least_gain = patience, least_gain
        self._best = math.inf
        self._waited = 0

    def has_converged(self, loss: float) -> bool:
        """Take the next value, and return whether the loss has stopped falling. NaN counts as no gain."""
        if loss < self._best - self._least_gain or (math.isinf(self._best) and not math.isnan(loss)):
            self._best = loss
            self._waited = 0
        else:
            self._waited += 1
        return self._waited >= self._patience
