"""Arrays in memory that a device shares with its VM hosts, so that they reach every task without a copy (ADR 20)."""

from collections.abc import Sequence

from walle.engine_ext import _core


def shared_empty(shape: int | Sequence[int], dtype: _core.dtype | str) -> _core.ndarray:
    """Return an array with arbitrary contents, which events take to tasks in a VM host without a copy.

    NumPy and other libraries write into it by the buffer protocol, such as `numpy.asarray(frame)`. Take a new array for
    each frame, and do not write to it after its event: its memory is used again for a later array of the size once the
    app and all tasks have released it. At most 32 MiB wait for that.

    Arrays below 64 KiB, and those of a system without such memory (Linux before 5.1, macOS), are ordinary ones.

    Raises:
        MemoryError: there is not enough memory.
        EngineError: the shape or the dtype is wrong.
    """
    return _core.shared_empty(shape, dtype)


def shared_memory_counts() -> dict[str, int]:
    """Return the counts of this process's shared buffers: `in_use`, `free`, their `bytes`, and `created` so far."""
    return _core.shared_buffer_counts()
