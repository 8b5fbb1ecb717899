"""Compilation of tasks by other Python versions on the cloud's machine, for devices that run them (§4.3).

Bytecode belongs to one minor version of CPython. Where the fleet has several versions, the cloud names an executable
of each, and a bundle has every module once for each version.
"""

import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from walle.engine_ext.vm.bytecode import TAG, BytecodeError
from walle.errors import ConfigError

_TIMEOUT_S = 60.0

# Script for the other Python, which lacks walle. Input: name in tracebacks → source; output: name → .pyc, as
# `walle.engine_ext.vm.bytecode.compile_source` writes it; or [file, problem, line] of the first that does not compile.
_PROGRAM = """
import base64, importlib.util, json, marshal, sys

def compiled(file, source):
    body = marshal.dumps(compile(source, file, "exec", dont_inherit=True, optimize=0))
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(source) + body

found = {"tag": sys.implementation.cache_tag, "files": {}, "error": None}
for file, text in json.load(sys.stdin).items():
    try:
        found["files"][file] = base64.b64encode(compiled(file, base64.b64decode(text))).decode()
    except SyntaxError as error:
        found["error"] = [file, f"does not compile: {error.msg}", error.lineno or 0]
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        found["error"] = [file, f"does not compile: {error or type(error).__name__}", 0]
    if found["error"]:
        break
json.dump(found, sys.stdout)
"""


class OtherPython:
    """A Python executable of another version than this one.

    Raises:
        ConfigError: it cannot be run, is not CPython, or has this interpreter's bytecode.
    """

    def __init__(self, executable: str | os.PathLike[str]) -> None:
        self.executable = os.fspath(executable)
        self.tag = str(self._ask({})["tag"])
        if not self.tag.startswith("cpython-"):
            raise ConfigError(f"{self.executable} is {self.tag}; VMs run CPython only")
        if self.tag == TAG:
            raise ConfigError(f"{self.executable} is {TAG}, as the cloud itself, which compiles for those anyway")

    def compile(self, sources: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the `.pyc` bytes of each source, by the name in its tracebacks; no code of it runs.

        Raises:
            BytecodeError: one does not compile in that Python.
            ConfigError: the executable no longer works.
        """
        found = self._ask({file: base64.b64encode(source).decode() for file, source in sources.items()})
        if found["error"]:
            file, problem, line = found["error"]
            raise BytecodeError(file, f"{problem} (by {self.tag})", line)
        return {file: base64.b64decode(text) for file, text in found["files"].items()}

    def _ask(self, sources: Mapping[str, str]) -> dict[str, Any]:
        command = [self.executable, "-I", "-S", "-c", _PROGRAM]
        try:
            done = subprocess.run(
                command, input=json.dumps(sources).encode(), capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired, ValueError) as error:
            raise ConfigError(f"{self.executable} cannot compile for devices: {error}") from error
        try:
            return json.loads(done.stdout)  # type: ignore[no-any-return]
        except ValueError:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise ConfigError(f"{self.executable} is not a Python that compiles: {said[0][:300]}") from None


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
