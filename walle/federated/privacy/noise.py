"""Gaussian noise on updates, from a keystream that nobody can predict: floats, or whole numbers for secure aggregation.

Central privacy without a trusted server: each of n clients adds the n-th part of the variance, and the server sees only
the sum (secure aggregation). `clients` is the least number in a sum, so that drop-outs never leave too little noise;
corrupt clients know their own noise and are not counted. Without secure aggregation the server sees each update under
its small part of the noise, and the epsilon of the budget holds only against those who see the model.

Source: Abadi et al., Deep Learning with Differential Privacy (CCS 2016), algorithm 1; Canonne, Kamath and Steinke, The
Discrete Gaussian for Differential Privacy (NeurIPS 2020), algorithms 2 and 3; Kairouz, Liu and Steinke, The Distributed
Discrete Gaussian Mechanism (ICML 2021): the sum of n such variables is close to one of n times the variance.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from walle import np
from walle.errors import ConfigError
from walle.federated.privacy.keystream import KEY_BYTES, Keystream

_CHUNK = 1 << 18  # numbers made at a time: temporary arrays do not grow with the model
_MOST_STEPS = float(1 << 28)  # limit of a discrete deviation: 32 bits have no room for more


def _part(multiplier: float, norm: float, clients: int) -> float:
    """Return the standard deviation of one client's part of the noise of a sum."""
    if not (math.isfinite(multiplier) and multiplier > 0 and math.isfinite(norm) and norm > 0 and clients >= 1):
        raise ConfigError(
            f"noise multiplier {multiplier}, norm {norm}, {clients} clients; give positive ones, at least 1 client"
        )
    return multiplier * norm / math.sqrt(clients)


class GaussianNoise:
    """Noise of standard deviation multiplier x norm / sqrt(clients) on each value of an update.

    Floats: the last bits of a noisy float can tell more than the formula says (Mironov, CCS 2012). Where that matters,
    use secure aggregation, whose noise is of whole numbers.

    Args:
        multiplier: noise multiplier of the round, the sum's deviation in norms.
        max_norm: limit to which updates are clipped.
        clients: least number of updates in a sum; 1 for the whole noise.
        random_bytes: source of the key; for tests alone another one than the operating system's.

    Raises:
        ConfigError: an argument is not positive.
    """

    def __init__(
        self,
        multiplier: float,
        max_norm: float,
        *,
        clients: int = 1,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.deviation = _part(multiplier, max_norm, clients)
        self._stream = Keystream(random_bytes(KEY_BYTES))

    def add(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays with noise on each value, as float32."""
        return {name: self._noisy(np.asarray(array)) for name, array in arrays.items()}

    def _noisy(self, array: Any) -> Any:
        noise = self.draw(array.size).reshape(tuple(array.shape))
        return (array.astype("float64") + noise).astype("float32")

    def draw(self, count: int) -> Any:
        """Return a flat float64 array of Gaussian numbers."""
        sizes = [min(_CHUNK, count - start) for start in range(0, count, _CHUNK)]
        return np.concatenate([np.zeros((0,), "float64"), *(self._chunk(size) for size in sizes)])

    def _chunk(self, count: int) -> Any:
        """Return Gaussian numbers made in pairs (Box and Muller, 1958)."""
        half = (count + 1) // 2
        radius = self.deviation * np.sqrt(-2.0 * np.log(_uniform(self._stream, half)))
        angle = 2.0 * math.pi * _uniform(self._stream, half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


class DiscreteGaussianNoise:
    """Whole numbers of the discrete Gaussian distribution of deviation multiplier x norm / sqrt(clients), in steps.

    Departure from Canonne et al.: coins of probability exp(-x) compare 53 random bits with a float64 instead of being
    exact. That changes the distribution of n numbers by at most n x 2**-46, to be added to delta.

    Args:
        multiplier: noise multiplier of the round.
        norm_bound: greatest norm of an encoded update in steps (`FixedPoint.norm_bound`).
        clients: least number of updates in a sum.
        random_bytes: source of the key.

    Raises:
        ConfigError: an argument is not positive, or the deviation is over 2**28 steps.
    """

    def __init__(
        self,
        multiplier: float,
        norm_bound: float,
        *,
        clients: int = 1,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.deviation = _part(multiplier, norm_bound, clients)
        if self.deviation > _MOST_STEPS:
            raise ConfigError(f"noise of {self.deviation:g} steps; at most {_MOST_STEPS:g}: encode with fewer bits")
        self._scale = math.floor(self.deviation) + 1  # scale of the Laplace distribution that is drawn from first
        self._stream = Keystream(random_bytes(KEY_BYTES))

    def draw(self, count: int) -> Any:
        """Return a flat int64 array."""
        parts, missing = [np.zeros((0,), "int64")], count
        while missing > 0:
            part = self._candidates(min(2 * missing + 64, _CHUNK))[:missing]
            parts.append(part)
            missing -= part.size
        return np.concatenate(parts)

    def _candidates(self, count: int) -> Any:
        """Return the accepted ones of n draws of a discrete Laplace distribution (algorithm 3)."""
        drawn = self._laplace(count)
        variance = self.deviation * self.deviation
        excess = np.abs(drawn).astype("float64") - variance / self._scale
        accepted = _uniform(self._stream, drawn.size) <= np.exp(-(excess * excess) / (2.0 * variance))
        return drawn[accepted]

    def _laplace(self, count: int) -> Any:
        """Return discrete Laplace numbers of probability in proportion to exp(-|x| / scale) (algorithm 2)."""
        rest = self._below_scale(count)
        kept = rest[_uniform(self._stream, rest.size) <= np.exp(rest.astype("float64") / -float(self._scale))]
        whole = np.floor(-np.log(_uniform(self._stream, kept.size))).astype("int64")
        size = kept + whole * self._scale
        is_negative = (self._stream.words(size.size) & 1) == 1
        signed = np.where(is_negative, -size, size)
        return signed[~(is_negative & (size == 0))]  # zero has one sign

    def _below_scale(self, count: int) -> Any:
        """Return at most `count` whole numbers from 0 to below the scale, each as likely as the others."""
        words = (self._stream.words(count, "uint64") >> 1).astype("int64")
        bound = (1 << 63) // self._scale * self._scale
        return words[words < bound] % self._scale if bound < 1 << 63 else words % self._scale


def _uniform(stream: Keystream, count: int) -> Any:
    """Return float64 numbers from 2**-53 to 1, both included."""
    return ((stream.words(count, "uint64") >> 11).astype("float64") + 1.0) * 2.0**-53
