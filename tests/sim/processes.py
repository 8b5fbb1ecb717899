"""Search for running processes by a marker in their environment."""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

MARKER = "WALLE_TEST_MARKER"


def pids_with(marker: str) -> list[int]:
    """Return the ids of the processes that were started with the marker, zombies left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def processes_with(marker: str) -> list[str]:
    """Return the command lines of these processes."""
    found = []
    for pid in pids_with(marker):
        with contextlib.suppress(OSError):  # the process has ended
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
    return found


def descendants(pids: Iterable[int]) -> set[int]:
    """Return these processes and all that come from them now, whatever their environment."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    left = list(pids)
    while left:
        if (pid := left.pop()) not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def alive(pids: Iterable[int]) -> list[str]:
    """Return the command lines of those of the processes that have not ended, zombies left out."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{pid} {line[:120]}")
    return found


def wait_until_gone(marker: str, limit_s: float = 20.0) -> list[str]:
    """Return the processes that still live after `limit_s`, none as soon as there is none."""
    deadline_s = time.monotonic() + limit_s
    while (left := processes_with(marker)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return left
