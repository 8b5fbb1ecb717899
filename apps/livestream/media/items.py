"""Frames and chunks of sound, as a source delivers them, and the buffers that they are in."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 16_000  # hertz, of delivered sound

Image = npt.NDArray[np.uint8]  # [height, width, 3], blue, green, red
Samples = npt.NDArray[np.float32]
# Returns a writable, contiguous buffer of that shape and dtype ("uint8" or "float32"); called in the decoding thread.
Allocate = Callable[[tuple[int, ...], str], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A picture. `image` is uint8 [height, width, 3], blue, green, red, contiguous: `allocate`'s buffer, or an array.

    `pts_ms` is its presentation time in milliseconds after the beginning of the source.
    """

    pts_ms: int
    image: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Sound:
    """A chunk of sound. `samples` is float32 [n], mono, 16 kHz, full scale -1 to 1: `allocate`'s buffer, or an array.

    `pts_ms` is the time of its first sample in milliseconds after the beginning of the source.
    """

    pts_ms: int
    samples: Any


Item = Frame | Sound


def fill(allocate: Allocate | None, values: npt.NDArray[Any]) -> Any:
    """Return a buffer of `allocate` that has these values; without it, they themselves if they are contiguous.

    Raises:
        TypeError: the buffer is read-only or of another size.
    """
    if allocate is None:
        return np.ascontiguousarray(values)
    buffer = allocate(values.shape, values.dtype.name)
    target = np.frombuffer(buffer, values.dtype)
    if target.size != values.size or not target.flags.writeable:
        fault = "is read-only" if target.size == values.size else f"has {target.size} elements"
        raise TypeError(
            f"the buffer that allocate{(values.shape, values.dtype.name)} gave {fault};"
            " it must return a writable, contiguous one of that shape and dtype"
        )
    np.copyto(target.reshape(values.shape), values)
    return buffer
