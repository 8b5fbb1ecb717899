"""CPU time and resident memory of processes and their descendants, from /proc."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[int]:
    """Return the processes that descend from `pid`, itself first, as far as they live."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            children.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
    return list(_below(pid, children))


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, ()):
        yield from _below(child, children)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on, the process's state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def one_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of the children that it has waited for, 0 if it has ended."""
    with contextlib.suppress(OSError):
        return sum(map(int, _stat(pid)[11:15])) * _TICK_S
    return 0.0


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, of its descendants that live and of those that it has waited for."""
    return sum(map(one_cpu_s, descendants(pid)))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of one process, 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0
