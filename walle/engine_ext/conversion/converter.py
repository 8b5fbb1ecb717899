"""Converter of models, in a process apart: what a broken or hostile file does ends that process alone.

The process is a new Python (`process`), not a fork of this one, which may have threads. It starts with the first
conversion, takes one after another, each in a child with limits, and ends when the converter is closed.
"""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

from walle.engine_ext import errors
from walle.engine_ext.conversion.job import ConvertLimits
from walle.engine_ext.errors import ModelError
from walle.errors import EngineError

_MAX_ANSWER_BYTES = 1 << 18
_GRACE_S = 30.0  # time for the process to start, to end a child that is late, and to search for a node
_LAST_WORDS_S = 5.0  # time for a process to end after it has closed its socket
_LIBRARY_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")  # the process needs none
_PROGRAM = (
    "import json, sys; sys.path += json.loads(sys.argv[3]); import walle.engine_ext.conversion.process as one;"
    " one.main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[4])"
)


class Converter:
    """A process that converts models of one format, `kind`: `onnx` or `tflite`.

    It ends by itself after `idle_s` without a model, and starts again with the next. Thread-safe: conversions are run
    one after another.
    """

    def __init__(self, limits: ConvertLimits | None = None, *, kind: str = "onnx", idle_s: float = 10.0) -> None:
        self._limits = limits or ConvertLimits()
        self._kind = kind
        self._idle_s = idle_s
        self._renew()

    def _renew(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def convert(self, source: int, out: int, *, name: str = "", folder: str = "") -> None:
        """Convert the model in the open file `source` and write it to the open and empty file `out`.

        `name` is what errors call the model, `folder` has its external data ("": it has none).

        Raises:
            ModelError: the file is not a valid model, or its conversion exceeds a limit or ends the process.
            UnsupportedError: it has an operator, an attribute, a type or an opset that the engine does not have.
        """
        asked = json.dumps({"folder": folder, "limits": asdict(self._limits)}).encode() + b"\n"
        if self._owner != os.getpid():  # after a fork, the lock may be held by a thread that does not exist here
            self._renew()
        with self._lock:
            answer = self._ask(asked, [source, out])
        if (error := _error(answer, self._limits)) is not None:
            raise error if not name else type(error)(f"{name}: {error}")

    def _ask(self, asked: bytes, files: list[int]) -> dict[str, Any]:
        if (kept := self._process) is not None:
            with contextlib.suppress(EOFError):  # an idle process may have ended
                return self._ask_process(kept, asked, files)
        self._process = started = _Process(self._idle_s, self._kind)
        try:
            return self._ask_process(started, asked, files)
        except EOFError as error:
            raise ModelError(f"the process that converts models ended before it answered: {error}") from error

    def _ask_process(self, process: "_Process", asked: bytes, files: list[int]) -> dict[str, Any]:
        """Return the answer; whatever goes wrong ends the process. Raises EOFError where it has ended."""
        try:
            return process.ask(asked, files, self._limits.wall_s + _GRACE_S)
        except EOFError:
            self._process = None
            raise EOFError(process.last_words()) from None
        except BaseException:
            self._process = None
            process.close()
            raise

    def close(self) -> None:
        """End the process, if there is one. A converter that is closed may be used again."""
        if self._owner != os.getpid():
            return
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.close()


class _Process:
    """A started process and the socket to it."""

    def __init__(self, idle_s: float, kind: str) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise ModelError("sys.executable is not a Python interpreter; run `walle model convert`")
        self._socket, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        missing = json.dumps([path or str(Path.cwd()) for path in sys.path])
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _PROGRAM, str(theirs.fileno()), str(idle_s), missing, kind],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    cwd="/",
                    env={**os.environ, **dict.fromkeys(_LIBRARY_THREADS, "1")},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as error:
            self._socket.close()
            self._errors.close()
            raise ModelError(f"the process that converts models cannot be started: {error}") from error

    def ask(self, asked: bytes, files: list[int], wall_s: float) -> dict[str, Any]:
        """Return the process's answer. Raises EOFError where it has ended, ModelError where it does not answer."""
        try:
            socket.send_fds(self._socket, [asked], files)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error
        until_s, line = time.monotonic() + wall_s, b""
        while not line.endswith(b"\n"):
            self._socket.settimeout(max(1e-3, until_s - time.monotonic()))
            try:
                part = self._socket.recv(_MAX_ANSWER_BYTES)
            except TimeoutError as error:
                raise ModelError(f"its conversion did not end within {wall_s:g} s") from error
            except ConnectionResetError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            line += part
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}

    def last_words(self) -> str:
        """Close as `close` does, once the process has written why it ends."""
        until_s, one = time.monotonic() + _LAST_WORDS_S, self._process.pid
        with contextlib.suppress(ChildProcessError):  # this program ignores SIGCHLD
            # It stays a zombie, so that close() cannot kill another process with its number.
            while os.waitid(os.P_PID, one, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < until_s:
                time.sleep(0.005)
        return self.close()

    def close(self) -> str:
        """End the process and its children, and return the last line of what it wrote to its standard error."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):  # the process group holds its children too
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with self._errors:
            self._errors.seek(0)
            lines = self._errors.read(_MAX_ANSWER_BYTES).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"


def has_package(name: str) -> bool:
    """Return whether a package that conversion needs is installed."""
    return importlib.util.find_spec(name) is not None


def _error(answer: dict[str, Any], limits: ConvertLimits) -> EngineError | None:
    """Return the error that an answer stands for, None for a conversion that is done."""
    end, node = answer.get("end"), str(answer.get("node", ""))
    while_ = f"{node}: " if node else ""
    doing = f"the attempt to {answer.get('stage', 'convert it')}"
    if end == "done":
        return None
    if end == "refused":
        kind = getattr(errors, str(answer.get("kind")), ModelError)
        is_ours = isinstance(kind, type) and issubclass(kind, EngineError)
        return (kind if is_ours else ModelError)(str(answer.get("message", "")))
    if end == "raised":
        return ModelError(f"{while_}{doing} failed: {answer.get('message', '')}; export the model again")
    number = answer.get("signal")
    if end == "memory":
        why = f"needs more memory than {limits.memory_bytes >> 20} MiB and {limits.memory_factor} times the file's size"
    elif end == "late":
        why = f"took more than {limits.wall_s:g} s"
    elif number in (signal.SIGXCPU, signal.SIGKILL):
        why = f"took more than {limits.cpu_s} s of CPU time, or the system had no memory for it"
    else:
        why = f"ended its process by {_signal_name(number)}: the model is broken or hostile"
        return ModelError(f"{while_}{doing} {why}")
    return ModelError(f"{while_}{doing} {why}; raise the limits (ConvertLimits) for a model that you trust")


def _signal_name(number: object) -> str:
    names = {one.value: one.name for one in signal.Signals}
    return names.get(number, f"exit status {number}") if isinstance(number, int) else "an unknown signal"
