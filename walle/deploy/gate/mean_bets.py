"""Sequential test of the mean of bounded observations, by bets. Pure.

Observations are between 0 and 1. A wealth that begins with 1 is multiplied by 1 + λ(x - a) at each of them. Where
their mean, given those before, is `a` or less, it ever reaches 1/α with a probability of at most α, however often it is
looked at (Ville's inequality; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS
B 2024). Nothing else is assumed of them. Several stakes λ share the wealth: for means that are a little above `a`, and
far above it.
"""

import math
from collections.abc import Sequence

_BOLDNESS = 0.98  # part of the stake that could lose everything at one observation


class MeanBets:
    """Evidence that the mean of observations is above `mean`, by bets of these stakes, from 0 to 1 / `mean`."""

    def __init__(self, mean: float, stakes: Sequence[float]) -> None:
        self.mean = mean
        self._stakes = [min(stake, _BOLDNESS / mean) for stake in stakes]
        self._logs = [0.0] * len(stakes)

    def take(self, value: float) -> None:
        """Take an observation from 0 to 1."""
        for index, stake in enumerate(self._stakes):
            self._logs[index] += math.log1p(stake * (value - self.mean))

    @property
    def log(self) -> float:
        """The logarithm of the evidence."""
        top = max(self._logs)
        return top + math.log(math.fsum(math.exp(one - top) for one in self._logs) / len(self._logs))

    def to_plain(self) -> list[float]:
        return list(self._logs)

    def restore(self, plain: Sequence[float]) -> None:
        """Go on from what `to_plain` gave, unless the stakes are others by now."""
        if len(plain) == len(self._logs):
            self._logs = [float(one) for one in plain]


def best_stakes(mean: float, others: Sequence[float]) -> list[float]:
    """Return the stakes against `mean` that grow fastest where observations are 0 or 1, of one of the other means."""
    return [(other - mean) / (mean * (1 - mean)) for other in others]
