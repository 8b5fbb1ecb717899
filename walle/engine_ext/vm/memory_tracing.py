"""Guard between `tracemalloc` and the VMs of this process: at any time only one of the two works.

CPython's tracemalloc keeps one table for all interpreters, which the GIL of one of them is to protect. A VM with a GIL
of its own breaks it, and the process ends with SIGSEGV. VMs in a VM host are in another process.
"""

import _tracemalloc
import functools
import sys
from collections.abc import Callable

from walle.engine_ext import _core
from walle.errors import VMError


def check_untraced() -> None:
    """Raise VMError where tracemalloc traces this process, which then cannot run VMs."""
    if _tracemalloc.is_tracing():
        raise VMError(
            "tracemalloc traces the memory of this process, and would crash it at a VM's first allocations; "
            "call tracemalloc.stop() first, or give `host` a VmHost"
        )


def busy_interpreters() -> int:
    """Return how many of this process's interpreters a VM has, those of abandoned calls included."""
    counts = _core.vm_counts()
    return int(counts["threads"]) - int(counts["idle"]) - _core.vm_retired_threads()


def guard_tracemalloc() -> None:
    """Make `tracemalloc.start` raise VMError while this process has VMs."""
    _tracemalloc.start = guarded = _guarded(_tracemalloc.start)
    if (module := sys.modules.get("tracemalloc")) is not None:
        module.start = guarded  # type: ignore[attr-defined]


def _guarded(start: Callable[[int], None]) -> Callable[..., None]:
    @functools.wraps(start)
    def guarded(nframe: int = 1, /) -> None:
        if busy := busy_interpreters():
            raise VMError(
                f"tracemalloc would crash this process, in which {busy} VM{'s are' if busy > 1 else ' is'} open; "
                "close the VMs first (VM.wait_closed), or run tasks in a VM host"
            )
        start(nframe)

    return guarded
