"""Arrays in int8 with scales and offsets: a scale for each channel where channels are large, else one for the array."""

from __future__ import annotations

import math
from typing import Any

from walle import np
from walle.engine_ext.nn.partition import ArrayInfo

_LEVELS = 255.0
_LEAST_SCALE = 1e-30
_LEAST_IN_CHANNEL = 64  # elements of a channel, so that its scale and offset add at most an eighth to the bytes
_SCALE_BYTES = 8  # a scale and an offset
_LEAST_BYTES = 256  # smaller arrays pass unchanged


def is_quantisable(info: ArrayInfo) -> bool:
    """Return whether an array passes in int8 where quantisation is asked for."""
    return info.dtype == "float32" and info.size_bytes >= _LEAST_BYTES


def quantised_bytes(info: ArrayInfo) -> int:
    """Return the bytes of an array in int8, with its scales and offsets; of one that is not quantised its own."""
    if not is_quantisable(info):
        return info.size_bytes
    kept = set(range(len(info.shape))) - set(_reduced(info))
    return info.size_bytes // 4 + _SCALE_BYTES * math.prod(info.shape[axis] for axis in kept)


def _reduced(info: ArrayInfo) -> tuple[int, ...]:
    """Return the axes that share a scale: all but a free batch, and a channel of many elements."""
    rank = len(info.shape)
    kept = {0} & info.free
    channel = 1 if rank == 4 else rank - 1  # images have channels first, sequences last
    if rank > 2 and math.prod(info.shape[1:]) >= _LEAST_IN_CHANNEL * info.shape[channel]:
        kept |= {channel}
    return tuple(axis for axis in range(rank) if axis not in kept)


def quantise(array: Any, info: ArrayInfo) -> tuple[Any, Any, Any]:
    """Return int8 levels, float32 scales and float32 offsets, the least value of each part with a scale."""
    axes = _reduced(info)
    low = np.min(array, axes, keepdims=True)
    scale = np.maximum((np.max(array, axes, keepdims=True) - low) / _LEVELS, _LEAST_SCALE)
    levels = np.round((array - low) / scale) - 128.0
    return levels.astype("int8"), scale, low


def dequantise(levels: Any, scale: Any, low: Any) -> Any:
    """Return the float32 array; each value differs by at most half a scale."""
    return (levels.astype("float32") + 128.0) * scale + low
