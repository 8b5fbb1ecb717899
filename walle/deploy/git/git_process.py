"""git in a child process with limits: its memory, CPU time, duration, files and environment.

A pack is a program of a stranger: a few bytes can ask for gigabytes. git's own tools read it, in a process that the
kernel ends when it takes more than it may, and the gateway continues. git and its children end with the process that
started them, also where that is killed.
"""

import contextlib
import dataclasses
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from walle.errors import ConfigError, DeployError

OLDEST_GIT = (2, 30)
_VERSION = re.compile(rb"git version (\d+)\.(\d+)")
_MAX_MESSAGE_BYTES = 4096  # length kept of git's message about a failure
_NICE = 10  # devices are served first
# Run git with its own standard input, and beside it a process that ends both and all their children once the other end
# of the pipe {life} is closed: when the process that has it ends. The shell stays, to reap them, and ends as git does.
_SCRIPT = """\
{limits} && exec {stdin}<&0 </dev/null || exit
nice -n {nice} "$@" <&{stdin} {stdin}<&- &
git=$!
{{ read -r _ </proc/self/fd/{life}; kill -KILL 0; }} {stdin}<&- &
watch=$!
exec 2>/dev/null
wait "$git"
status=$?
kill -KILL "$watch"
wait "$watch"
exit "$status"
"""
_BY_SIGNAL = 128  # added to a signal's number in the status of a shell
_LIMIT_SIGNALS = (signal.SIGXCPU, signal.SIGKILL, signal.SIGXFSZ)
# Packs are mapped in windows that fit into the limit of memory. Larger files are streamed, and never held whole.
_CONFIGURATION = (
    "core.packedGitWindowSize=1m",
    "core.packedGitLimit=32m",
    "core.deltaBaseCacheLimit=8m",
    "core.bigFileThreshold=16m",
    "pack.threads=1",
    "pack.windowMemory=16m",
    "pack.deltaCacheSize=8m",
    "gc.auto=0",
    "safe.directory=*",
)


class GitProcessError(DeployError):
    """git refused, or was ended at a limit. `why` is for the person who pushed or fetched.

    `is_oversized`: it wrote a file of more bytes than it may. `status` is what it ended with, None where it was ended.
    """

    def __init__(self, command: str, why: str, *, is_oversized: bool = False, status: int | None = None) -> None:
        super().__init__(command, why)
        self.command = command
        self.why = why
        self.is_oversized = is_oversized
        self.status = status

    def __str__(self) -> str:
        return f"git {self.command}: {self.why}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GitLimits:
    """Limits of one child process. `memory_bytes` is its address space, `file_bytes` each file that it writes."""

    memory_bytes: int = 300 << 20
    cpu_s: int = 30
    wall_s: float = 60.0
    file_bytes: int = 512 << 20
    open_files: int = 128


def check_git() -> None:
    """Check that git is installed and new enough. Raises ConfigError, which says what to do."""
    wanted = f"git {OLDEST_GIT[0]}.{OLDEST_GIT[1]} or newer"
    try:
        found = subprocess.run(["git", "version"], capture_output=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"a cloud needs {wanted} on PATH, for task repositories: {error}") from error
    match = _VERSION.match(found)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_GIT:
        raise ConfigError(f"a cloud needs {wanted}, for task repositories; there is {found.decode().strip()}")


def run_git(
    repository: Path,
    *arguments: str,
    limits: GitLimits,
    stdin: IO[bytes] | bytes = b"",
    stdout: IO[bytes] | None = None,
    objects: Path | None = None,
    sees_repository: bool = True,
    keep_open: Sequence[int] = (),
) -> bytes:
    """Run git on a bare repository, and return its output, or an empty one where it goes to `stdout`.

    New objects go to the folder `objects`, if one is given; those of the repository are seen too, or not. `keep_open`
    are file descriptors that the child inherits, such as a lock on a folder in which it writes. Blocks the calling
    thread.

    Raises:
        GitProcessError: git failed, or was ended at a limit.
    """
    command = [_git(), *(part for one in _CONFIGURATION for part in ("-c", one)), *arguments]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_DIR": str(repository),
        "LC_ALL": "C",
    }
    if objects is not None:
        environment["GIT_OBJECT_DIRECTORY"] = str(objects)
        if sees_repository:
            environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(repository / "objects")
    with contextlib.ExitStack() as undo:
        if isinstance(stdin, bytes):
            source = undo.enter_context(tempfile.TemporaryFile())
            source.write(stdin)
            source.seek(0)
            stdin = source
        output = stdout if stdout is not None else undo.enter_context(tempfile.TemporaryFile())
        errors = undo.enter_context(tempfile.TemporaryFile())
        stdin.flush()
        os.lseek(stdin.fileno(), stdin.tell(), os.SEEK_SET)  # what was read through a buffer is not read again
        life, ours = os.pipe()
        undo.callback(os.close, ours)
        try:
            child = subprocess.Popen(
                _limited(command, limits, life, keep_open),
                cwd=repository,
                env=environment,
                stdin=stdin,
                stdout=output,
                stderr=errors,
                pass_fds=(life, *keep_open),
                start_new_session=True,
            )
        finally:
            os.close(life)
        try:
            child.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            raise GitProcessError(arguments[0], f"took more than {limits.wall_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # upload-pack has a child of its own
            child.wait()
        if child.returncode:
            ended_by = child.returncode - _BY_SIGNAL
            status = -ended_by if ended_by in _LIMIT_SIGNALS else child.returncode
            why, is_oversized = _why(status, errors, limits)
            raise GitProcessError(arguments[0], why, is_oversized=is_oversized, status=status)
        if stdout is not None:
            return b""
        output.seek(0)
        return output.read()


@functools.cache
def _git() -> str:
    return shutil.which("git") or "git"


def _limited(command: Sequence[str], limits: GitLimits, life: int, keep_open: Sequence[int]) -> list[str]:
    """Return a command that runs `command` with the limits, until that or the other end of the pipe `life` ends."""
    values = {
        "v": limits.memory_bytes >> 10,
        "f": -(-limits.file_bytes // 512),
        "t": limits.cpu_s,
        "n": limits.open_files,
        "c": 0,
    }
    set_limits = " && ".join(f"ulimit -{option} {value}" for option, value in values.items())
    stdin = next(number for number in range(3, 10) if number not in (life, *keep_open))  # a shell names no other
    script = _SCRIPT.format(limits=set_limits, stdin=stdin, nice=_NICE, life=life)
    return ["/bin/sh", "-c", script, "sh", *command]


def _why(status: int, errors: IO[bytes], limits: GitLimits) -> tuple[str, bool]:
    """Return why git ended with a status, and whether it wrote too large a file."""
    size_bytes = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size_bytes - _MAX_MESSAGE_BYTES))
    said = errors.read().decode("utf-8", "replace")
    lines = [line for line in said.splitlines() if line.startswith(("fatal:", "error:"))] or said.splitlines()[-1:]
    text = "; ".join(line.partition(": ")[2] or line for line in lines[:3])
    died = re.search(r"died of signal (\d+)", said)
    if died is not None:
        status = -int(died[1])
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"took more than {limits.cpu_s} s of CPU time", False
    if status == -signal.SIGXFSZ:
        return f"wrote a file of more than {limits.file_bytes >> 20} MiB", True
    if re.search(r"out of memory|malloc failed|cannot allocate|mmap failed", said, re.IGNORECASE):
        what = f"took more than {limits.memory_bytes >> 20} MiB of memory; large files are sent whole after:"
        return f"{what} git config core.bigFileThreshold 16m", False
    return text or f"ended with status {status}", False
