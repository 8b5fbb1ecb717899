"""Laplacian noise on a device's samples, before the model that it sends is trained on them (§5.1)."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

from walle import np
from walle.errors import ConfigError

_LARGEST_EPSILON = 5.0  # the paper's bound; more hides next to nothing


class LaplaceNoise:
    """Noise of scale (high - low) / epsilon on each value of the samples, which gives each value local differential
    privacy of epsilon: whatever is learned from the noisy samples has it too (Dwork and Roth 2014, 2.1 and 3.3).

    It is per value: a sample of d values has d times epsilon. Labels get no noise. A model that was trained on the
    samples themselves before, as `Tuner.noisy_model`'s was, does not have it.

    Args:
        epsilon: privacy loss of one value, above 0 and below 5.
        low: least value that the data may have, by its declaration; not what was seen in it.
        high: largest one.
        seed: for tests alone: who knows it can remove the noise. By default from the operating system.

    Raises:
        ConfigError: epsilon or the range is out of bounds.
    """

    def __init__(self, epsilon: float, low: float, high: float, *, seed: int | None = None) -> None:
        if not 0 < epsilon < _LARGEST_EPSILON:
            raise ConfigError(f"epsilon {epsilon}; give a number above 0 and below {_LARGEST_EPSILON:g}")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"range from {low} to {high}; give two finite numbers, the lower one first")
        self.low, self.high = low, high
        self.scale = (high - low) / epsilon
        self._random = np.random.default_rng(secrets.randbits(63) if seed is None else seed)

    def add(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arrays with noise on each value, in their dtypes.

        Raises:
            ConfigError: an array has no floats, or a value outside the range, to which the noise would not be enough.
        """
        return tuple(self._noisy(at, one) for at, one in enumerate(inputs))

    def _noisy(self, at: int, given: Any) -> Any:
        dtype = str(given.dtype)
        if not dtype.startswith("float"):
            raise ConfigError(f"input {at} has dtype {dtype}; noise is added to floats only")
        if not bool(np.all((given >= self.low) & (given <= self.high))):
            raise ConfigError(f"input {at} has values outside the range from {self.low:g} to {self.high:g}")
        # The difference of two exponential numbers is a Laplacian one.
        draws = [self._random.exponential(self.scale, given.shape) for _ in range(2)]
        return (given.astype("float64") + (draws[0] - draws[1])).astype(dtype)
