"""A task's folder as its author has it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.deploy.cloud.task_tree import TaskTree

_SCENARIO = "local"  # of a task that is not pushed yet
_LEFT_OUT = frozenset({".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})

Folder = Annotated[Path, typer.Argument(help="The task's folder: task.toml, main.py and what they need.")]


class TaskFolderError(ConfigError):
    """A folder that is not a task, or may not be written. `folder` names it."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(f"{folder}: {what}")
        self.folder = folder


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the folder's files by path, without .git and caches.

    Raises:
        TaskFolderError: it is not a folder, lacks task.toml, or holds links, too many files or too many bytes.
    """
    from walle.deploy.cloud.bundle import CONFIG_FILE
    from walle.deploy.cloud.task_tree import MAX_TREE_BYTES, MAX_TREE_FILES

    if not folder.is_dir():
        raise TaskFolderError(folder, "is not a folder; write a task with: walle task new NAME")
    files: dict[str, bytes] = {}
    size_bytes = 0
    for parent, folders, names in folder.walk():
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in [*names, *folders]:
            if (parent / name).is_symlink():
                raise TaskFolderError(parent / name, "is a symbolic link; a task holds plain files only")
        for name in sorted(names):
            path = (parent / name).relative_to(folder).as_posix()
            size_bytes += (parent / name).stat().st_size
            if len(files) == MAX_TREE_FILES or size_bytes > MAX_TREE_BYTES:
                raise TaskFolderError(folder, f"holds more than {MAX_TREE_FILES} files or {MAX_TREE_BYTES} bytes")
            files[path] = (parent / name).read_bytes()
    if CONFIG_FILE not in files:
        raise TaskFolderError(folder, f"has no {CONFIG_FILE}; write a task with: walle task new NAME")
    return files


def read_folder(folder: Path) -> "TaskTree":
    """Return the folder's files as version v1 of the task that its task.toml names.

    Raises:
        TaskFolderError: as `read_files`.
        TaskConfigError: task.toml is wrong.
    """
    from walle.deploy.cloud.bundle import CONFIG_FILE
    from walle.deploy.cloud.task_config import TaskConfig
    from walle.deploy.cloud.task_tree import TaskTree

    files = read_files(folder)
    config = TaskConfig.parse(files[CONFIG_FILE], str(folder / CONFIG_FILE))
    return TaskTree(scenario=_SCENARIO, task=config.name, version="v1", commit="0" * 40, files=files)
