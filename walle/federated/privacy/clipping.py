"""Clipping of an update: its L2 norm over all arrays together is limited before noise is added.

Source: Abadi et al., Deep Learning with Differential Privacy (CCS 2016), algorithm 1; McMahan et al., Learning
Differentially Private Recurrent Language Models (ICLR 2018), section 2.2 (flat clipping of a client's update).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from walle import np
from walle.errors import ConfigError, PipelineError

_ROUNDING = 1e-6  # margin below the limit, above the rounding of float32


class UpdateValueError(PipelineError):
    """An array of an update that cannot be used. `array` is its name, `reason` why."""

    def __init__(self, array: str, reason: str) -> None:
        super().__init__(f"array {array!r} of the update {reason}")
        self.array = array
        self.reason = reason


@dataclass(frozen=True)
class ClippedUpdate:
    """An update whose norm is at most the limit."""

    arrays: dict[str, Any]  # float32, in the given shapes
    norm_before: float
    factor: float  # multiplier of all values, 1.0 for an update that was within the limit


def clip_update(arrays: Mapping[str, Any], max_norm: float) -> ClippedUpdate:
    """Return the update scaled so that the L2 norm over all its values is at most `max_norm`.

    The limit also holds for the float32 values that come back, because privacy depends on it: the values are scaled to
    a millionth below the limit.

    Raises:
        UpdateValueError: an array has another dtype than a float, or values that are not finite.
        ConfigError: `max_norm` is not a positive number.
    """
    if not (math.isfinite(max_norm) and max_norm > 0):
        raise ConfigError(f"limit {max_norm} of an update's norm; give a positive number")
    wide = {name: _checked(name, given) for name, given in arrays.items()}
    norm = l2_norm(wide)
    limit = max_norm * (1 - _ROUNDING)
    factor = 1.0 if norm <= limit else limit / norm
    scaled = {name: (array * factor).astype("float32") for name, array in wide.items()}
    return ClippedUpdate(scaled, norm, factor)


def l2_norm(arrays: Mapping[str, Any]) -> float:
    """Return the L2 norm over all values of finite arrays, computed in float64 without overflow."""
    wide = [array.astype("float64") for array in arrays.values() if array.size]
    greatest = max((float(np.max(np.abs(array))) for array in wide), default=0.0)
    if not greatest:
        return 0.0
    return greatest * math.sqrt(sum(float(np.sum(np.square(array / greatest))) for array in wide))


def _checked(name: str, given: Any) -> Any:
    array = np.asarray(given)
    if not str(array.dtype).startswith("float"):
        raise UpdateValueError(name, f"has dtype {array.dtype}; an update has floats only")
    if not bool(np.all(np.isfinite(array))):
        raise UpdateValueError(name, "has NaN or infinite values; it is refused whole")
    return array.astype("float64")
