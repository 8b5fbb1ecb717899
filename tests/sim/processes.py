"""Search for running processes by a marker in their environment."""

import time
from pathlib import Path

MARKER = "WALLE_TEST_MARKER"


def processes_with(marker: str) -> list[str]:
    """Return the command lines of the processes that were started with the marker, zombies left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
        except OSError:
            continue
    return found


def wait_until_gone(marker: str, limit_s: float = 20.0) -> list[str]:
    """Return the processes that still live after `limit_s`, none as soon as there is none."""
    deadline_s = time.monotonic() + limit_s
    while (left := processes_with(marker)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return left
