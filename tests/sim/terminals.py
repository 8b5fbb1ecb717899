"""Terminals of a person: one bash per script of commands, in a separate network.

Run as a program, it plays the files SCRIPT one after the other, and prints what `play` returns as JSON:
    python -m tests.sim.terminals FOLDER LAST_LINE SCRIPT...
A script that ends is waited for. A script whose last command keeps running (READY) is left running once it prints its
text of READY, and is interrupted at the end, as by Ctrl-C. `FOLDER/terminal-N.txt` has the output of terminal N.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

READY = {
    "walle cloud up": "the cloud is up",
    "walle device run": "waiting for a task",
}  # commands that keep running → their output when they are ready
LIMIT_S = 150.0
AFTER_S = 20.0  # time for running commands to react to the last script
_SIOCSIFFLAGS = 0x8914
_UP = 0x1 | 0x40  # IFF_UP | IFF_RUNNING


def enter_own_network() -> bool:
    """Move this process into a network with a loopback only, where every port is free; return False if it may not."""
    user, group = os.getuid(), os.getgid()
    try:
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
    except OSError:
        return False
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _UP))
    return True


class Terminal:
    """One script in a shell that stops at the first command that fails."""

    def __init__(self, script: str, folder: Path, number: int) -> None:
        self.script = script
        self._path = folder / f"terminal-{number}.txt"
        with self._path.open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", "-e", "-c", script], cwd=folder, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def text(self) -> str:
        return self._path.read_text(errors="replace")

    @property
    def ready(self) -> str:
        """The text that a script that keeps running prints when it is ready; empty for one that ends."""
        last = self.script.strip().splitlines()[-1]
        return next((text for command, text in READY.items() if last.startswith(command)), "")

    def wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while self.process.poll() is None and not (self.ready and self.ready in self.text):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not ready after {LIMIT_S:g} s:\n{self.script}\n{self.text}")
            time.sleep(0.1)
        if self.process.returncode or (self.ready and self.ready not in self.text):
            raise ChildProcessError(f"exit status {self.process.returncode}:\n{self.script}\n{self.text}")

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit status."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def play(folder: Path, scripts: Sequence[str], until: str) -> list[int]:
    """Run the scripts one after the other, each in a new terminal; return the exit statuses of those that kept running.

    After the last one, waits at most AFTER_S until the latest line of a running script contains `until`.

    Raises:
        ChildProcessError: a command failed.
        TimeoutError: a script neither ended nor got ready.
    """
    terminals: list[Terminal] = []
    try:
        for number, script in enumerate(scripts):
            terminals.append(Terminal(script, folder, number))
            terminals[-1].wait_until_ready()
        deadline_s = time.monotonic() + AFTER_S
        running = [terminal for terminal in terminals if terminal.ready]
        while time.monotonic() < deadline_s and not any(until in one.text.splitlines()[-1] for one in running):
            time.sleep(0.1)
        return [terminal.interrupt() for terminal in reversed(running)][::-1]
    finally:
        for terminal in terminals:
            terminal.kill()


if __name__ == "__main__":
    enter_own_network()
    _, where, last_line, *paths = sys.argv
    sys.stdout.write(json.dumps(play(Path(where), [Path(path).read_text() for path in paths], last_line)))
