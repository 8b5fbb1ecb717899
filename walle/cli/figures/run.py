"""Run of one figure in a separate process, and the record of it that is kept."""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Self

from walle.cli.figures.catalogue import Figure
from walle.cli.figures.headline import Headline

_LAST_LINES = 40
_MAX_OUTPUT_BYTES = 200_000
_GRACE_S = 10.0  # time for a benchmark to end


@dataclasses.dataclass(frozen=True, kw_only=True)
class FigureResult:
    """The outcome of a figure's run: `status` is ok, failed or late. `revision` is that of the checkout."""

    name: str
    status: str
    output: str
    error: str  # last lines of its standard error; empty for one that is ok
    seconds: float
    started_s: float
    quick: bool
    revision: str
    command: str
    machine: dict[str, str]
    versions: dict[str, str]

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def headlines(self) -> list[Headline]:
        """Return what the benchmark says in short; nothing of one that did not end well."""
        return Headline.find(self.output) if self.status == "ok" else []

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return a record that was kept, None where there is none that this version can read."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def stands_for(self, figure: Figure, *, quick: bool, revision: str) -> bool:
        """Return whether another run of the figure need not be made: the same command of the same revision worked."""
        same = (self.command, self.quick, self.revision) == (_shown(figure, quick=quick), quick, revision)
        return self.status == "ok" and same and bool(revision)


def run_figure(
    figure: Figure,
    root: Path,
    *,
    quick: bool,
    revision: str,
    limit_s: float,
    why: str = "the limit of each (--limit-s)",
) -> FigureResult:
    """Measure a figure in its own process group, which is ended after `limit_s`; return what came of it.

    `why` says where the limit comes from, for the result of one that takes too long.
    """
    arguments = list(figure.quick) if quick else []
    started_s, began_s = time.time(), time.monotonic()
    # Files, since a pipe does not end before all processes that a benchmark has left behind.
    with tempfile.TemporaryFile() as out_file, tempfile.TemporaryFile() as error_file:
        process = subprocess.Popen(
            [sys.executable, str(figure.path), *arguments],
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=error_file,
            start_new_session=True,
        )
        status = "ok"
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = "late"
            _end(process)
        except BaseException:
            _end(process)
            raise
        output, errors = _text(out_file), _text(error_file)
    if status == "ok" and process.returncode:
        status = "failed"
    last = errors.strip().splitlines()[-_LAST_LINES:]
    if status == "late":
        last.append(f"it was ended after {limit_s:.0f} s, {why}")
    elif status == "failed":
        last.append(f"exit status {process.returncode}")
    return FigureResult(
        name=figure.name,
        status=status,
        output=output,
        error="" if status == "ok" else "\n".join(last),
        seconds=round(time.monotonic() - began_s, 1),
        started_s=started_s,
        quick=quick,
        revision=revision,
        command=_shown(figure, quick=quick),
        machine=machine(),
        versions=versions(("walle", *figure.peers)),
    )


def run_directly(path: Path, arguments: Sequence[str], root: Path) -> int:
    """Run a benchmark in a separate process with this terminal; return its exit status, as a shell has it."""
    process = subprocess.Popen([sys.executable, str(path), *arguments], env=environment(root))
    try:
        process.wait()
    except KeyboardInterrupt:  # the benchmark has got the signal too: it ends its own processes
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        process.kill()
        process.wait()
        raise
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def environment(root: Path) -> dict[str, str]:
    """Return this process's environment, with the checkout at `root` first among the places of Python's modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a benchmark as Ctrl-C does, so that it ends its own processes; after a while its whole group is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_OUTPUT_BYTES))
    return file.read().decode(errors="replace")


def _shown(figure: Figure, *, quick: bool) -> str:
    return " ".join(["walle", *figure.command(quick=quick)])


def revision_of(root: Path) -> str:
    """Return the commit of a checkout, empty where files differ from it or it is not one."""
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return "" if _git(root, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> dict[str, str]:
    """Return what figures depend on: CPU, cores, memory, system and Python."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "CPU": _cpu(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{memory_bytes / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        "load at the start": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages; "not installed" for one that is missing."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
