"""Resident memory of this process, and its peak since a chosen moment (Linux)."""

import ctypes
import gc
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"  # what /proc/PID/clear_refs takes to set the peak to the present size


def release_free_memory() -> None:
    """Give memory that nothing uses back to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak() -> None:
    """Set the peak to the present resident memory.

    Raises:
        OSError: the kernel does not allow it.
    """
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


def resident_bytes(*, peak: bool = False) -> int:
    """Return the bytes that are resident, or that were at the peak since `reset_peak`.

    Raises:
        RuntimeError: the kernel does not tell.
    """
    field = "VmHWM:" if peak else "VmRSS:"
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024  # the kernel counts in KiB
    raise RuntimeError(f"{_STATUS} has no {field}")
