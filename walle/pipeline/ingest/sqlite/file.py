"""Identity of an open SQLite file: whether another file, such as a restored backup, has taken its place."""

import os
from pathlib import Path
from typing import NamedTuple

_LOGS = ("-wal", "-shm")  # endings of the files beside one in WAL mode


class _Identity(NamedTuple):
    device: int
    inode: int


class OpenedFile:
    """The file at `path` and its logs, as they are when this object is made: just after the file was opened."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._main = _identity(self._path)
        self._logs = {name: found for name in self._log_names() if (found := _identity(name)) is not None}

    @property
    def is_current(self) -> bool:
        """True while the same file is at the path. Costs one system call."""
        return _identity(self._path) == self._main

    @property
    def is_removed(self) -> bool:
        return _identity(self._path) is None

    def logs_left(self) -> list[str]:
        """Return the logs that are still at their places: SQLite would apply them to the file that is there now."""
        kept = set(self._logs.values())
        return [name for name in self._log_names() if _identity(name) in kept]

    def _log_names(self) -> list[str]:
        """Return the places of the logs: beside the file itself, where the path is a symbolic link to it."""
        file = os.path.realpath(self._path)
        return [file + suffix for suffix in _LOGS]


def _identity(path: str) -> _Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - on each call of a store: four times as fast as Path.stat
    except FileNotFoundError:
        return None
    return _Identity(found.st_dev, found.st_ino)
