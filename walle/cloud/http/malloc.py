"""Settings of the allocator and of the garbage collection of a process that holds many TLS connections."""

import ctypes
import gc

_M_MMAP_THRESHOLD = -3  # constant of glibc's malloc.h
# uvloop and aiofastnet reserve this for each connection, or a little more; asyncio's buffer is filled with zeros, and
# gains nothing.
_TLS_BUFFER_BYTES = 256 << 10


def map_tls_buffers() -> bool:
    """Let glibc map each TLS buffer of a connection by itself; return False with another C library.

    A connection uses a few KB of its buffer. The pages of a mapping that were never touched take no memory. glibc
    raises its threshold for mappings after the first buffer is freed: later ones come from the heap, whose pages were
    used. Setting the threshold keeps it where it is. Measured with 1,000 connections on uvloop: 23 KiB each in place of
    46. Call it once, at the start of a gateway's process: larger arrays of tasks are then mapped too, at the cost of a
    system call each.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _TLS_BUFFER_BYTES) == 1


def keep_what_is_loaded() -> None:
    """Take what the program holds now out of Python's cyclic garbage collection until the process exits.

    For a server that has started: else each full collection walks through all modules, which takes a cloud 80 ms in
    which it answers nobody, and whoever makes many connections decides when it is due.
    """
    gc.collect()
    gc.freeze()
