"""A task's folder as its author has it."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.task.format.large_file import LargeFile
    from walle.task.format.tree import TaskTree

_SCENARIO = "local"  # scenario of a task that is not pushed yet
_MIN_LFS_BYTES = 1 << 20  # smallest file that git may be asked about
_LEFT_OUT = frozenset({".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})

Folder = Annotated[Path, typer.Argument(help="The task's folder: task.toml, main.py and what they need.")]


class TaskFolderError(ConfigError):
    """A folder that is not a task, or may not be written. `folder` names it."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(f"{folder}: {what}")
        self.folder = folder


def read_files(folder: Path, needed: str = "task.toml") -> "tuple[dict[str, bytes], dict[str, LargeFile]]":
    """Return the folder's files by path, and those that Git LFS keeps beside it; without .git and caches.

    Raises:
        TaskFolderError: it is not a folder, lacks the file `needed`, or holds links, too many files or too many bytes.
    """
    from walle.task.format.large_file import LargeFile, PointerError, parse_pointer
    from walle.task.format.tree import MAX_TREE_BYTES, MAX_TREE_FILES

    if not folder.is_dir():
        raise TaskFolderError(folder, "is not a folder; write a task with: walle task new NAME")
    places: dict[str, Path] = {}
    for parent, folders, names in folder.walk():
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in [*names, *folders]:
            if (parent / name).is_symlink():
                raise TaskFolderError(parent / name, "is a symbolic link; a task holds plain files only")
        for name in sorted(names):
            places[(parent / name).relative_to(folder).as_posix()] = parent / name
    large = {
        path: LargeFile.of(places[path])
        for path in _in_lfs(folder, [path for path, file in places.items() if file.stat().st_size >= _MIN_LFS_BYTES])
    }
    size_bytes = sum(file.stat().st_size for path, file in places.items() if path not in large)
    if len(places) > MAX_TREE_FILES or size_bytes > MAX_TREE_BYTES:
        what = f"holds more than {MAX_TREE_FILES} files or {MAX_TREE_BYTES} bytes"
        raise TaskFolderError(folder, f"{what}; large files are kept by Git LFS, or added with: walle task add-file")
    files = {path: file.read_bytes() for path, file in places.items() if path not in large}
    for path, data in list(files.items()):
        try:
            pointer = parse_pointer(data)
        except PointerError as error:
            raise TaskFolderError(folder / path, str(error)) from error
        if pointer is not None:
            del files[path]
            kept = git_large_files(folder) or folder
            place = kept / pointer.sha256[:2] / pointer.sha256[2:4] / pointer.sha256
            large[path] = LargeFile(pointer.sha256, pointer.size_bytes, place)
    if needed not in files:
        raise TaskFolderError(folder, f"has no {needed}; write a task with: walle task new NAME")
    return files, large


def git_large_files(folder: Path) -> Path | None:
    """Return where the git repository of a folder keeps files of Git LFS, None without a repository.

    Raises:
        TaskFolderError: git is not installed, or refuses the repository.
    """
    said = _git(folder, "rev-parse", "--git-path", "lfs/objects")
    return None if said is None else folder / said.rstrip("\n")


def _in_lfs(folder: Path, paths: Iterable[str]) -> list[str]:
    """Return which of the paths .gitattributes gives to Git LFS, none without git. Raises TaskFolderError."""
    listed = list(paths)
    if not listed or shutil.which("git") is None:
        return []
    said = (_git(folder, "check-attr", "-z", "filter", "--", *listed) or "").split("\0")
    return [path for path, value in zip(said[0::3], said[2::3], strict=False) if value == "lfs"]


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git says in a folder, None where it is in no repository."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env=environment, capture_output=True, check=False, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TaskFolderError(folder, f"git {arguments[0]} cannot be run: {error}") from error
    if done.returncode and "not a git repository" not in done.stderr:
        raise TaskFolderError(folder, f"git {arguments[0]} failed: {done.stderr.strip()[:500]}")
    return None if done.returncode else done.stdout


def read_folder(folder: Path) -> "TaskTree":
    """Return the folder's files as version v1 of the task that its task.toml names.

    Raises:
        TaskFolderError: as `read_files`.
        TaskConfigError: task.toml is wrong.
    """
    from walle.task.format.bundle import CONFIG_FILE
    from walle.task.format.config import TaskConfig
    from walle.task.format.tree import TaskTree

    files, large = read_files(folder)
    config = TaskConfig.parse(files[CONFIG_FILE], str(folder / CONFIG_FILE))
    return TaskTree(scenario=_SCENARIO, task=config.name, version="v1", commit="0" * 40, files=files, large=large)
