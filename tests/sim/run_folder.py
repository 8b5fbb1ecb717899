"""Folder that the processes of one test run share, such as for a server that one of them starts and all of them use.

It is in memory where there is room: on a disk, servers' files cost more time than the tests that need them. Each
process that asks for it is a member until it ends. A keeper process waits for the last member, however that one ends,
then ends the processes that were given a path in the folder, and removes it.
"""

import contextlib
import fcntl
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PREFIX: Final = "walle-run-"
_RUN: Final = "PYTEST_XDIST_TESTRUNUID"  # variable that the workers of a run, and what they start, have in common
_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 4 << 30
_END_S: Final = 5.0  # time that a process has to end by itself


@functools.cache
def run_folder() -> Path:
    """Return the folder that all workers of this test run share; without workers, this process and its children."""
    name = PREFIX + (os.environ.get(_RUN) or secrets.token_hex(8))[:16]
    folder = _parent(name) / name
    while not _join(folder):
        pass
    return folder


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Keep other processes of the run out of the blocks of this name."""
    with (run_folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start_detached(command: Sequence[str], *, log: Path) -> int:
    """Start a program and return its process id; it is not a child of this process and gets no signal of its terminal.

    One whose command names a path in the run's folder ends with the run.
    """
    in_background = ["sh", "-c", '"$@" > "$0" 2>&1 < /dev/null & echo $!', str(log)]
    said = subprocess.run([*in_background, *command], start_new_session=True, check=True, stdout=subprocess.PIPE).stdout
    return int(said)


def _parent(name: str) -> Path:
    try:
        is_roomy = (_MEMORY / name).exists() or shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    except OSError:
        is_roomy = False
    return _MEMORY if is_roomy and os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _join(folder: Path) -> bool:
    """Make this process a member until it ends; return whether it is one: the keeper may be removing the folder."""
    folder.mkdir(mode=0o711, exist_ok=True)  # a server of another user enters its own folder in it
    path = folder / "members"
    try:
        members = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(members, fcntl.LOCK_SH)  # released when the process ends: nobody closes the file
        if os.stat(path).st_ino == os.fstat(members).st_ino:  # noqa: PTH116 both are calls of the system
            _start_keeper(folder)
            return True
    except FileNotFoundError:
        return False
    os.close(members)
    return False


def _start_keeper(folder: Path) -> None:
    """Start the keeper if no other member has."""
    try:
        (folder / "keeper").touch(exist_ok=False)
    except FileExistsError:
        return
    start_detached([sys.executable, "-I", "-S", __file__, str(folder)], log=Path(os.devnull))


def _keep(folder: Path) -> None:
    """Wait for the end of the last member, then leave nothing."""
    with (folder / "members").open("r+") as members:
        fcntl.flock(members, fcntl.LOCK_EX)
        deadline_s = time.monotonic() + _END_S
        while left := _processes(folder):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGQUIT if time.monotonic() < deadline_s else signal.SIGKILL)
            time.sleep(0.1)
        shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: Path) -> list[int]:
    """Return the processes whose command names a path in the folder, but for this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # process that has ended meanwhile
            if f"{folder}/".encode() in entry.read_bytes() and (pid := int(entry.parent.name)) != os.getpid():
                found.append(pid)
    return found


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
