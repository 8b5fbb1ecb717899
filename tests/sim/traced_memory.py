"""Memory of Python objects that a piece of code allocates, as tracemalloc counts it."""

import contextlib
import gc
import time
import tracemalloc
from collections.abc import Iterator

from walle.engine_ext.vm.memory_tracing import busy_interpreters

_WAIT_S = 60.0


@contextlib.contextmanager
def traced_memory() -> Iterator[None]:
    """Trace until the end of the block, in which `tracemalloc.get_traced_memory()` has the bytes and their peak.

    VMs of earlier tests may still end in this process, or wait for the garbage collector: they are waited for.
    """
    until = time.monotonic() + _WAIT_S
    while busy_interpreters() and time.monotonic() < until:
        gc.collect()
        time.sleep(0.05)
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
