"""Updates as whole numbers of fixed steps, whose sum modulo 2**32 is exact: the vectors of secure aggregation.

Source: Bonawitz et al., Federated Learning with Autotuned Communication-Efficient Secure Aggregation (2019), section 2
(quantisation to a ring); Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism (ICML 2021), section 4
(the norm after rounding). Every client counts the same in a sum; weights would have to be values of the vector.
Departure: rounding is to the nearest step, and the norm's bound takes the worst case of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from walle import np
from walle.errors import ConfigError
from walle.federated.privacy.clipping import UpdateValueError

_MOST_SUM = (1 << 31) - 1  # greatest sum of the clients' numbers: the ring has 32 bits, one of them for the sign


class StepNoise(Protocol):
    """Noise of whole numbers, such as `noise.DiscreteGaussianNoise`."""

    def draw(self, count: int) -> Any:
        """Return a flat int64 array."""


@dataclass(frozen=True)
class EncodedUpdate:
    """An update in fixed steps.

    Noise that was limited is not Gaussian: with `range_for` that happens too rarely to count against delta.
    """

    vector: Any  # flat uint32 array, the arrays in the order of their names
    limited_values: int  # values that noise took beyond the range, and that were set to its end


def range_for(max_norm: float, deviation: float = 0.0) -> float:
    """Return the limit of values that have room for noise: one of 10**11 of them leaves it at most.

    Args:
        max_norm: norm to which updates are clipped; no value is greater.
        deviation: that of one client's noise.
    """
    return max_norm + 7 * deviation


class FixedPoint:
    """Encoding of the arrays of one model: values within [-limit, limit] in 2**bits - 1 steps.

    Args:
        shapes: shape of each array by name; every client has the same.
        limit: greatest magnitude of a value, with its noise: see `range_for`.
        bits: of each client's value, 2 to 31.
        clients: the most whose vectors are added.

    Raises:
        ConfigError: an argument is out of bounds, or the sum of the clients' values could overflow.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], limit: float, bits: int, clients: int) -> None:
        if not (math.isfinite(limit) and limit > 0):
            raise ConfigError(f"limit {limit} of an update's values; give a positive number")
        if not 2 <= bits <= 31 or clients < 1:
            raise ConfigError(f"{bits} bits, {clients} clients; give 2 to 31 bits and at least one client")
        self.most = (1 << (bits - 1)) - 1
        if clients * self.most > _MOST_SUM:
            most_bits = (_MOST_SUM // clients + 1).bit_length()
            raise ConfigError(f"the sum of {clients} values of {bits} bits does not fit 32 bits; {most_bits} bits do")
        self.shapes = {name: tuple(shapes[name]) for name in sorted(shapes)}
        self.values = sum(math.prod(shape) for shape in self.shapes.values())
        self.limit = limit
        self.step = limit / self.most
        self.clients = clients

    def norm_bound(self, max_norm: float) -> float:
        """Return the greatest L2 norm, in steps, of an encoded update whose own norm is at most `max_norm`.

        Rounding moves each value by at most half a step; noise must be in proportion to this bound.
        """
        return max_norm / self.step + math.sqrt(self.values) / 2

    def encode(self, arrays: Mapping[str, Any], noise: StepNoise | None = None) -> EncodedUpdate:
        """Return the update as whole steps modulo 2**32, with the noise on each value.

        Raises:
            UpdateValueError: an array is missing, has another shape or values that are not finite or beyond the limit.
        """
        for name in arrays.keys() ^ self.shapes.keys():
            raise UpdateValueError(name, "is not one of the model's" if name in arrays else "is missing")
        flat = [self._steps(name, arrays[name]) for name in self.shapes]
        whole = np.concatenate(flat) if flat else np.zeros((0,), "int64")
        limited = 0
        if noise is not None:
            whole = whole + noise.draw(self.values)
            limited = int(np.count_nonzero(np.abs(whole) > self.most))
            whole = np.minimum(np.maximum(whole, -self.most), self.most)
        return EncodedUpdate(whole.astype("int32").view("uint32"), limited)

    def _steps(self, name: str, given: Any) -> Any:
        array = np.asarray(given)
        if tuple(array.shape) != self.shapes[name]:
            raise UpdateValueError(name, f"has shape {tuple(array.shape)}, not {self.shapes[name]}")
        wide = array.astype("float64").reshape(-1)
        if not bool(np.all(np.isfinite(wide))):
            raise UpdateValueError(name, "has NaN or infinite values")
        if wide.size and float(np.max(np.abs(wide))) > self.limit * (1 + 1e-6):
            raise UpdateValueError(name, f"has values beyond {self.limit:g}; clip the update before it is encoded")
        steps = np.rint(wide / self.step).astype("int64")
        return np.minimum(np.maximum(steps, -self.most), self.most)

    def decode(self, total: Any) -> dict[str, Any]:
        """Return the sum of the clients' arrays, float32, from the sum of their vectors."""
        values = (np.asarray(total).view("int32").astype("float64") * self.step).astype("float32")
        arrays, start = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            arrays[name] = values[start : start + size].reshape(shape)
            start += size
        return arrays
