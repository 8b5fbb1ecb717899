"""Reader of a task's code: every module as bytecode of this interpreter, checked before a VM starts.

A folder is an installed bundle (`main.pyc`, or `main.cpython-313.pyc` where a bundle carries several versions) or, for
development, the sources themselves (`main.py`), which are compiled here and never in a VM. Bytecode wins over source.
"""

import dataclasses
import functools
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from walle.engine_ext.vm.bytecode import TAG, BytecodeError, compile_source, load_code
from walle.errors import ConfigError

type Sources = dict[str, tuple[bool, str, bytes]]  # dotted name → (is package, file as tracebacks show it, .pyc bytes)

_RESOURCES = "resources"  # contains no code
_MAX_CODE_BYTES = 64 << 20


class InMemory(Protocol):
    """A bundle whose files are in memory: relative path → bytes."""

    @property
    def files(self) -> Mapping[str, bytes]: ...


class Installed(Protocol):
    """A bundle whose files are in a folder; messages call the task by its `name`, where it has one."""

    @property
    def folder(self) -> Path: ...


type TaskLike = str | os.PathLike[str] | Installed | InMemory


@dataclasses.dataclass(frozen=True)
class TaskFiles:
    """A task's files: in `folder`, or in `files` where folder is None. `replica` tells VMs of the same files apart."""

    name: str
    folder: Path | None
    files: Mapping[str, bytes]
    replica: int = 0

    @property
    def prefix(self) -> str:
        """The beginning of the paths of the task's files in messages."""
        return f"{self.folder}{os.sep}" if self.folder else f"{self.name}/"

    @property
    def key(self) -> tuple[str | int, int]:
        """Equal for two values of the same task and replica, as long as one of a task in memory exists."""
        return str(self.folder) if self.folder else id(self.files), self.replica

    def identity(self) -> str:
        """Return what identifies the task permanently: its folder, or a digest of its name and files."""
        if self.folder:
            return str(self.folder)
        digest = hashlib.sha256(self.name.encode())
        for path, data in sorted(self.files.items()):
            digest.update(b"%d %d %b" % (len(path.encode()), len(data), path.encode()))
            digest.update(data)
        return digest.hexdigest()


@functools.lru_cache(maxsize=1_000)
def _resolved(path: str, _device: int, _inode: int) -> Path:
    """Return the folder's real path. Cached for a pool, which asks at each call, until the path leads elsewhere."""
    return Path(path).resolve()


def task_files(task: TaskLike, name: str = "", *, fresh: bool = False) -> TaskFiles:
    """Return where the task's files are; `fresh` ignores cached paths.

    Raises:
        ConfigError: the folder does not exist, or the object is neither a folder nor a bundle.
    """
    given = task if isinstance(task, str | os.PathLike) else getattr(task, "folder", None)
    if given is not None:
        try:
            found = Path(given).stat()
        except (OSError, ValueError):
            found = None
        if found is None or not stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"{Path(given).absolute()} is not a folder; a task is a folder with main.py or main.pyc")
        if fresh:
            _resolved.cache_clear()
        folder = _resolved(os.fspath(given), found.st_dev, found.st_ino)
        return TaskFiles(name or str(getattr(task, "name", folder.name)), folder, {}, getattr(task, "replica", 0))
    files = getattr(task, "files", None)
    if not isinstance(files, Mapping):
        raise ConfigError(f"a {type(task).__name__} is not a task; give a folder, or a bundle with `folder` or `files`")
    return TaskFiles(name or str(getattr(task, "name", "task")), None, files)


def _code_paths(task: TaskFiles) -> list[str]:
    if task.folder is None:
        return sorted(path for path in task.files if path.endswith((".py", ".pyc")))
    found = []
    for base, folders, names in os.walk(task.folder):
        top = Path(base) == task.folder
        folders[:] = [name for name in folders if name.isidentifier() and not (top and name == _RESOURCES)]
        folders[:] = [name for name in folders if name != "__pycache__"]
        relative = Path(base).relative_to(task.folder)
        found += [(relative / name).as_posix() for name in names if name.endswith((".py", ".pyc"))]
    return sorted(found)


def _read(task: TaskFiles, path: str) -> bytes:
    return (task.folder / path).read_bytes() if task.folder else bytes(task.files[path])


def _choose(paths: list[str], shown: str) -> str:
    """Return the best of one module's files: bytecode tagged for this Python, plain bytecode, source."""
    ranks = {f".{TAG}.pyc": 0, ".pyc": 1, ".py": 2}
    best = min(paths, key=lambda path: ranks.get("." + path.rpartition("/")[2].partition(".")[2], 3))
    ending = best.rpartition("/")[2].partition(".")[2]
    if f".{ending}" not in ranks:
        tags = ", ".join(sorted(path.rpartition("/")[2].split(".")[1] for path in paths))
        raise BytecodeError(shown, f"has bytecode for {tags}, but none for {TAG}")
    return best


def read_sources(task: TaskFiles) -> Sources:
    """Return every module of the task, compiled.

    Raises:
        BytecodeError: a syntax error, bytecode of another Python, or no `main`.
        OSError: a file cannot be read.
    """
    modules: dict[str, list[str]] = {}
    for path in _code_paths(task):
        folder, _, name = path.rpartition("/")
        parts = [*folder.split("/")] if folder else []
        stem = name.partition(".")[0]
        if all(part.isidentifier() for part in [*parts, stem]) and parts[:1] != [_RESOURCES]:
            modules.setdefault(".".join([*parts, stem]), []).append(path)
    sources: Sources = {}
    total_bytes = 0
    for dotted, paths in sorted(modules.items()):
        shown = task.prefix + dotted.replace(".", "/") + ".py"
        path = _choose(paths, shown)
        data = _read(task, path)
        total_bytes += len(data)
        if total_bytes > _MAX_CODE_BYTES:
            raise BytecodeError(shown, f"the task's code is larger than {_MAX_CODE_BYTES} bytes")
        if path.endswith(".py"):
            data = compile_source(data, shown)
        else:
            shown = load_code(data, task.prefix + path).co_filename
        is_package = dotted.rpartition(".")[2] == "__init__"
        sources[dotted.removesuffix(".__init__") if is_package else dotted] = (is_package, shown, data)
    for dotted in list(sources):  # folders without __init__ are packages too
        parent = dotted.rpartition(".")[0]
        while parent and parent not in sources:
            shown = task.prefix + parent.replace(".", "/")
            sources[parent] = (True, shown, compile_source("", shown))
            parent = parent.rpartition(".")[0]
    if "main" not in sources:
        raise BytecodeError(task.prefix + "main.py", "is missing; a task needs main.py or main.pyc")
    return sources
