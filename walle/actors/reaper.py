"""Process that ends what a local Ray leaves behind when the process that started it is killed.

Linux ends some of Ray's processes with their parent, but not the children of these: after SIGKILL of the parent the
agents stay, and the folder. The reaper waits for the end of its parent, then kills each process that inherited the
variable MARKER with its value, with its children, and removes the folder. The agents write their titles over their
environment: they are known by title and open files. The reaper runs as a script, with the standard library alone, in a
separate session, so that signals of a terminal do not end it.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Self

MARKER = "WALLE_LOCAL_RAY"

_PROC = Path("/proc")
_TITLE = b"ray::"
_LIMIT_S = 10.0  # time for the search for processes; one that cannot be killed by then is the kernel's to end
_LOOK_S = 0.05
_QUIET_LOOKS = 4  # looks that must find no process: one that was starting may come last
_WAIT_S = 15.0  # time that a parent waits for its reaper to close
_END = b"end"


class Reaper:
    """The process, and the pipe whose end tells it that its parent has ended. `close` ends both.

    Ray is started with MARKER=`marker` in its environment.
    """

    def __init__(self, process: subprocess.Popen[bytes], marker: str) -> None:
        self.marker = marker
        self._process = process

    @classmethod
    def start(cls, marker: str, folder: Path) -> Self:
        """Start the process; `folder` has the files of that Ray.

        Raises:
            OSError: the process cannot be started.
        """
        command = [sys.executable, "-I", "-S", __file__, marker, str(os.getpid()), str(folder)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        return cls(process, marker)

    def close(self) -> None:
        """End what is left of Ray, and return when it has gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the reaper itself was killed
            self._process.stdin.write(_END)  # a child that was forked may have the pipe open
            self._process.stdin.close()
        try:
            self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def wait_for_end(parent: int, pipe: IO[bytes]) -> None:
    """Return when the parent has written to the pipe or closed it, or has ended: others may have inherited its end."""
    watched: list[int] = [pipe.fileno()]
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(parent))
            undo.callback(os.close, watched[-1])
        if os.getppid() == parent:
            select.select(watched, [], [])


def reap(marker: str, folder: str, limit_s: float = _LIMIT_S) -> None:
    """Kill the processes of that Ray and their descendants, until there are none or time is over."""
    until_s = time.monotonic() + limit_s
    quiet = 0
    while quiet < _QUIET_LOOKS and time.monotonic() < until_s:
        found = _processes(marker, folder)
        quiet = 0 if found else quiet + 1
        for pid in found:
            with contextlib.suppress(OSError):  # the process has ended
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _processes(marker: str, ray_folder: str) -> set[int]:
    """Return the processes of this user that are that Ray's, and their descendants, which may show nothing of it."""
    wanted = f"{MARKER}={marker}".encode()
    children: dict[int, list[int]] = {}
    left: list[int] = []
    for folder in _PROC.glob("[0-9]*"):
        pid = int(folder.name)
        try:
            status = (folder / "stat").read_bytes().rpartition(b")")[2].split()  # state, parent, ...
            if status[0] in (b"Z", b"X"):
                continue
            children.setdefault(int(status[1]), []).append(pid)
            if wanted in (folder / "environ").read_bytes().split(b"\0") or _is_agent(folder, ray_folder):
                left.append(pid)
        except OSError:  # the process has ended, or is another user's
            continue
    found: set[int] = set()
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found - {os.getpid()}


def _is_agent(process: Path, ray_folder: str) -> bool:
    """Return whether a process has Ray's title, and a file in the folder."""
    if not (process / "cmdline").read_bytes().startswith(_TITLE):
        return False
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if str(link.readlink()).startswith(f"{ray_folder}/"):
                return True
    return False


def main() -> None:
    """Wait for the end of the parent, then reap and remove the folder."""
    marker, parent, folder = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wait_for_end(int(parent), sys.stdin.buffer)
    reap(marker, folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
