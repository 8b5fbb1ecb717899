"""`walle` commands and what they print: those that only answer run in this process, others in their own."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self
from unittest import mock

from walle.cli import main

_ROOT = Path(__file__).parents[2]
_COMMAND = [sys.executable, "-c", "from walle.cli import main; main()"]
# As systemd does for a .socket unit: the sockets are file descriptors from 3 on.
_ACTIVATED = """\
import os, sys
given = [os.dup(int(one)) for one in sys.argv[1].split(",")]
given = [os.dup2(one, 100 + number) for number, one in enumerate(given)]
for number, one in enumerate(given):
    os.dup2(one, 3 + number)
os.closerange(3 + len(given), 200)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(given))}
os.execv(sys.argv[2], sys.argv[2:])
"""
LIMIT_S = 30.0


def _environment(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_ROOT), **more}


def run_main(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Return what the program prints, and its exit status; it runs in this process, outside of an event loop."""
    out, errors, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["walle", *arguments]),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


def walle(*arguments: str, **environment: str) -> Any:
    """Return the document that a command prints with --json; it runs as `run_main`."""
    done = run_main(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Program:
    """A `walle` command at work, and the lines of JSON that it has printed.

    `sockets` are handed over to it as by a service manager.
    """

    def __init__(
        self,
        *arguments: str,
        sockets: Sequence[socket.socket] = (),
        folder: Path | None = None,
        **environment: str,
    ) -> None:
        given = [one.fileno() for one in sockets]
        activated = [sys.executable, "-c", _ACTIVATED, ",".join(map(str, given))] if given else []
        self.process = subprocess.Popen(
            [*activated, *_COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(environment),
            pass_fds=given,
            cwd=folder,
        )
        self.lines: list[dict[str, Any]] = []
        self.errors = ""
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read().decode()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the latest line, as soon as it is one that is wanted."""
        with self._changed:
            found = self._changed.wait_for(lambda: bool(self.lines) and wanted(self.lines[-1]), LIMIT_S)
            assert found, (self.process.poll(), self.errors, self.lines[-1:])
            return self.lines[-1]

    def end(self) -> int:
        """Return the exit status once the program has ended by itself."""
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it has not ended within {LIMIT_S:g} s; its last line: {self.lines[-1:]}") from error
        for thread in self._threads:
            thread.join(LIMIT_S)
        return status

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


class Programs:
    """Starts programs, and kills those that are left at the end of the block."""

    def __init__(self) -> None:
        self._started: list[Program] = []

    def __call__(
        self,
        *arguments: str,
        sockets: Sequence[socket.socket] = (),
        folder: Path | None = None,
        **environment: str,
    ) -> Program:
        self._started.append(Program(*arguments, sockets=sockets, folder=folder, **environment))
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._started:
            program.kill()
