"""Features between a base and its branches: the array that a part of a model gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from walle import nn, np

_FLOATS = ("float32", "float64")


def features_of(base: nn.Module, inputs: Sequence[Any]) -> Any | None:
    """Return what a part gives for two samples; None where its first axis is not the batch, or it gives no numbers."""
    found = np.asarray(base(*(one[:2] for one in inputs)))
    if found.ndim < 2 or found.shape[0] != 2 or str(found.dtype) not in _FLOATS:
        return None
    return found
