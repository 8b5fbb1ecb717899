"""Compilation of tasks' sources (§4.3), which are those of strangers: in a process with limits, or in this one.

A process is of this Python, with the kernel's layers of a VM host around it, or of another version, for devices that
run that: bytecode belongs to one minor version of CPython. Where the fleet has several, the cloud names an executable
of each, and a bundle has every module once for each version.
"""

import dataclasses
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from walle.engine_ext import _core
from walle.engine_ext.vm.bytecode import TAG, BytecodeError
from walle.engine_ext.vm.host import this_python
from walle.errors import ConfigError
from walle.task.format import source_facts
from walle.task.format.source_facts import Import, Query, SourceError, SourceFacts, facts_of

_MAX_LINE_BYTES = 16 << 20  # length of a process's answer on one file beside its bytecode
_MAX_PYC_BYTES = 128 << 20  # size of all files together: a bundle has no more
_PROGRAM = Path(source_facts.__file__)

type Compile = Callable[[Mapping[str, bytes]], dict[str, SourceFacts]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileLimits:
    """Limits of one compiling process. `memory_bytes` is its address space."""

    memory_bytes: int = 1 << 30
    cpu_s: int = 30
    wall_s: float = 60.0


class _EndedError(Exception):
    """A compiling process ended before it had sent all. `done`: files that it has compiled."""

    def __init__(self, why: str, done: int) -> None:
        super().__init__(why)
        self.why = why
        self.done = done


class _TooLargeError(Exception):
    """More bytecode than a bundle may have."""


def compile_here(sources: Mapping[str, bytes]) -> dict[str, SourceFacts]:
    """Return the facts of each source, by the name in its tracebacks, for sources of this program's own user.

    Raises:
        BytecodeError: one does not compile.
    """
    found = {}
    for file, source in sources.items():
        try:
            found[file] = facts_of(source, file)
        except SourceError as error:
            raise BytecodeError(file, error.problem, error.line) from error
    return found


def compile_apart(sources: Mapping[str, bytes], limits: CompileLimits | None = None) -> dict[str, SourceFacts]:
    """Return what `compile_here` does, from a separate process with limits and the kernel's layers around it.

    Raises:
        BytecodeError: one does not compile, or ended its process, or took more than the limits.
        ConfigError: no process can be started.
    """
    return _compile(this_python(), _core.__file__, sources, limits or CompileLimits())[1]


class OtherPython:
    """A Python executable of another version than this one. Its processes have limits, but none of the layers.

    Raises:
        ConfigError: it cannot be run, is not CPython, or has this interpreter's bytecode.
    """

    def __init__(self, executable: str | os.PathLike[str], limits: CompileLimits | None = None) -> None:
        self.executable = os.fspath(executable)
        self._limits = limits or CompileLimits()
        self.tag = _compile(self.executable, "", {}, self._limits)[0]
        if not self.tag.startswith("cpython-"):
            raise ConfigError(f"{self.executable} is {self.tag}; VMs run CPython only")
        if self.tag == TAG:
            raise ConfigError(f"{self.executable} is {TAG}, as the cloud itself, which compiles for those anyway")

    def compile(self, sources: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the `.pyc` bytes of each source, by the name in its tracebacks; no code of it runs.

        Raises:
            BytecodeError: one does not compile in that Python, or ended its process.
            ConfigError: the executable no longer works.
        """
        try:
            found = _compile(self.executable, "", sources, self._limits)[1]
        except BytecodeError as error:
            raise BytecodeError(error.file, f"{error.problem} (by {self.tag})", error.line) from error
        return {file: facts.pyc for file, facts in found.items()}


def other_pythons(executables: Sequence[str]) -> tuple[OtherPython, ...]:
    """Return the Pythons of these executables.

    Raises:
        ConfigError: as OtherPython, or two have the same bytecode.
    """
    found: dict[str, OtherPython] = {}
    for executable in executables:
        python = OtherPython(executable)
        if python.tag in found:
            raise ConfigError(f"{executable} and {found[python.tag].executable} are both {python.tag}; give one")
        found[python.tag] = python
    return tuple(found.values())


def _compile(
    executable: str, core: str, sources: Mapping[str, bytes], limits: CompileLimits
) -> tuple[str, dict[str, SourceFacts]]:
    """Return the tag of the Python, and the facts of each source."""
    names = list(sources)
    asked = {
        "core": core,
        "limits": {"memory_bytes": limits.memory_bytes, "cpu_s": limits.cpu_s},
        "files": [(name, len(sources[name])) for name in names],
    }
    with TemporaryFile() as request, TemporaryFile() as errors:
        request.write(json.dumps(asked).encode() + b"\n")
        request.writelines(sources.values())
        request.seek(0)
        try:
            return _run(executable, request, errors, names, limits)
        except _EndedError as error:
            if error.done < 0:  # no source was looked at yet
                errors.seek(0)
                said = errors.read(1 << 16).decode(errors="replace").strip().splitlines()[-1:] or [error.why]
                raise ConfigError(f"{executable} is not a Python that compiles: {said[0][:300]}") from None
            file = names[min(error.done, len(names) - 1)]
            raise BytecodeError(file, f"cannot be compiled: {error.why}") from None


def _run(
    executable: str, request: IO[bytes], errors: IO[bytes], names: Sequence[str], limits: CompileLimits
) -> tuple[str, dict[str, SourceFacts]]:
    try:
        process = subprocess.Popen(
            [executable, "-I", "-S", "-B", "-W", "ignore", str(_PROGRAM)],
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            env={},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{executable} cannot compile for devices: {error}") from error
    assert process.stdout is not None
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limits.wall_s, end)
    timer.start()
    done = -1
    left_bytes = _MAX_PYC_BYTES
    try:
        tag = str(_line(process.stdout)["tag"])
        found: dict[str, SourceFacts] = {}
        for name in names:
            done = len(found)
            said = _line(process.stdout)
            if "error" in said:
                problem, line = said["error"]
                raise BytecodeError(name, str(problem), int(line))
            found[name] = _facts(said, process.stdout, left_bytes)
            left_bytes -= len(found[name].pyc)
    except _TooLargeError:
        raise _EndedError("the bytecode of this version is larger than a bundle may be", done) from None
    except EOFError:
        process.wait()
        raise _EndedError(_why(process.returncode, late.is_set(), limits), done) from None
    except (
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        RecursionError,
    ):  # only a process that was taken over says such
        raise _EndedError("its process sent an invalid message", done) from None
    else:
        return tag, found
    finally:
        timer.cancel()
        process.kill()  # one within the layers cannot end by itself
        process.stdout.close()
        process.wait()


def _line(output: IO[bytes]) -> dict[str, Any]:
    line = output.readline(_MAX_LINE_BYTES)
    if not line:
        raise EOFError
    said = json.loads(line)
    if not isinstance(said, dict):
        raise TypeError(line[:20])
    return said


def _facts(said: Mapping[str, Any], output: IO[bytes], most_bytes: int) -> SourceFacts:
    size = said["size"]
    if not isinstance(size, int) or size < 0:
        raise ValueError(size)
    if size > most_bytes:
        raise _TooLargeError
    pyc = output.read(size)
    if len(pyc) < size:
        raise EOFError
    imports = (Import(str(module), str(name), int(line), int(column)) for module, name, line, column in said["imports"])
    queries = (Query(str(topic), int(line)) for topic, line in said["queries"])
    return SourceFacts(pyc, tuple(imports), tuple(queries))


def _why(status: int, is_late: bool, limits: CompileLimits) -> str:
    if is_late:
        return f"it took more than {limits.wall_s:g} s; split the file"
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it took more than {limits.cpu_s} s of CPU time; split the file"
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}  # those of real time have none
        return f"it ended its compiler by {names.get(-status, f'signal {-status}')}"
    return f"its compiler ended with exit status {status}"
