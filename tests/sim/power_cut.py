"""A disk that fails at a chosen step: loses power, or has no room left.

Every call that changes the file system is a step. A power cut stops the step, lets none follow, and then does to the
folder what a real one may: bytes that were not synced are cut off, and in each folder the newest changes of entries
that were not synced are undone (all of them, none, or a seeded number).
"""

import contextlib
import dataclasses
import errno
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class PowerCut(BaseException):
    """The machine stops here."""


def _path_of(handle: int) -> str:
    return str(Path(f"/proc/self/fd/{handle}").readlink())


def _unlink(place: str) -> None:
    Path(place).unlink()


def _mkdir(place: str) -> None:
    Path(place).mkdir()


@dataclasses.dataclass
class _Change:
    """A changed entry of a folder, and how to undo it; `path` follows renames of the folders above it."""

    path: str
    undo: Callable[[str], None]

    @property
    def folder(self) -> str:
        return str(Path(self.path).parent)


class FaultyDisk:
    """Fails from step number `fail_at` on; as a power cut, or where `full` by refusing whatever takes room.

    With `instead`, that is called at the step, in the thread that makes it, and nothing fails.
    """

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        grave: Path,
        fail_at: int,
        *,
        full: bool = False,
        instead: Callable[[], None] | None = None,
    ) -> None:
        self.steps = 0
        self.failed = False
        self._fail_at = fail_at
        self._full = full
        self._instead = instead
        self._grave = grave
        self._graves = 0
        self._changes: list[_Change] = []
        self._unsynced: dict[int, str] = {}  # inode → a link to it that no rename moves
        self._lock = threading.RLock()
        grave.mkdir(parents=True)
        self._real = {name: getattr(os, name) for name in ("open", "write", "fsync", "mkdir", "rename", "replace")}
        self._real |= {name: getattr(os, name) for name in ("link", "unlink", "rmdir")}
        for name in self._real:
            patch.setattr(os, name, getattr(self, f"_{name}"))

    def cut_off(self, mode: str, seed: int = 0) -> None:
        """Do to the disk what a power cut may; to be called once the patches are undone. Modes: kept, lost, torn."""
        chosen = random.Random(seed)
        if mode == "kept":
            return
        folders = sorted({change.folder for change in self._changes})
        counts = {folder: sum(change.folder == folder for change in self._changes) for folder in folders}
        undone = {folder: count if mode == "lost" else chosen.randint(0, count) for folder, count in counts.items()}
        for path in self._unsynced.values():
            with contextlib.suppress(FileNotFoundError):
                Path(path).chmod(0o644)
                os.truncate(path, Path(path).stat().st_size // 2)
        is_undone: list[bool] = []
        for change in reversed(self._changes):
            is_undone.append(undone[change.folder] > 0)
            undone[change.folder] -= 1
        for chosen_one in is_undone:
            change = self._changes.pop()
            if chosen_one:
                with contextlib.suppress(OSError):
                    change.undo(change.path)

    def _step(self, *, takes_room: bool = True) -> None:
        self.steps += 1
        if self._instead is not None:
            if self.steps == self._fail_at:
                self.failed = True
                self._instead()
        elif self.steps >= self._fail_at:
            self.failed = True
            if not self._full:
                raise PowerCut
            if takes_room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _changed(self, path: str, undo: Callable[[str], None]) -> None:
        self._changes.append(_Change(path, undo))

    def _moved(self, old: str, new: str) -> None:
        for change in self._changes:
            if change.path.startswith(f"{old}/"):
                change.path = new + change.path.removeprefix(old)

    def _bury(self, path: str) -> str:
        """Return another link to the file at `path`, which outlives it."""
        self._graves += 1
        grave = str(self._grave / str(self._graves))
        self._real["link"](path, grave)
        return grave

    def _restorer(self, path: str) -> Callable[[str], None]:
        grave = self._bury(path)

        def restore(place: str) -> None:
            Path(place).unlink(missing_ok=True)
            os.link(grave, place)

        return restore

    def _dirty(self, handle: int, path: str) -> None:
        inode = os.fstat(handle).st_ino
        if inode not in self._unsynced:
            self._unsynced[inode] = self._bury(path)

    @staticmethod
    def _absolute(path: Any, dir_fd: int | None) -> str:
        folder = _path_of(dir_fd) if dir_fd is not None else str(Path.cwd())
        return os.path.join(folder, os.fspath(path))  # noqa: PTH118 - a path as the system sees it

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            if flags & (os.O_WRONLY | os.O_RDWR):
                self._step()
                whole = self._absolute(path, dir_fd)
                is_new = not Path(whole).exists()
                handle: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
                self._dirty(handle, whole)
                if is_new:
                    self._changed(whole, _unlink)
                return handle
            opened: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
            return opened

    def _write(self, handle: int, data: Any) -> int:
        with self._lock:
            if stat.S_ISREG(os.fstat(handle).st_mode):  # a regular file, unlike the event loop's wake-up socket
                self._dirty(handle, _path_of(handle))
                try:
                    self._step()
                except BaseException:
                    self._real["write"](handle, data[: len(data) // 2])
                    raise
            written: int = self._real["write"](handle, data)
            return written

    def _fsync(self, handle: int) -> None:
        with self._lock:
            self._step(takes_room=False)
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                folder = _path_of(handle)
                self._changes = [change for change in self._changes if change.folder != folder]
            else:
                self._unsynced.pop(status.st_ino, None)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            self._step()
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            whole = self._absolute(path, dir_fd)
            self._changed(whole, shutil.rmtree)

    def _rename(self, source: Any, place: Any) -> None:
        with self._lock:
            self._step(takes_room=False)
            old, new = self._absolute(source, None), self._absolute(place, None)
            restore = self._restorer(new) if Path(new).is_file() else None
            self._real["rename"](source, place)
            self._moved(old, new)

            def undo(current: str) -> None:
                os.rename(current, old)  # noqa: PTH104 - the real one again
                self._moved(current, old)
                if restore is not None:
                    restore(current)

            self._changed(new, undo)

    _replace = _rename

    def _link(self, source: Any, place: Any, **options: Any) -> None:
        with self._lock:
            self._step()
            self._real["link"](source, place, **options)
            whole = self._absolute(place, None)
            self._changed(whole, _unlink)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            self._step(takes_room=False)
            whole = self._absolute(path, dir_fd)
            restore = self._restorer(whole) if Path(whole).is_file() else None
            self._real["unlink"](path, dir_fd=dir_fd)
            if restore is not None:
                self._changed(whole, restore)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            self._step(takes_room=False)
            whole = self._absolute(path, dir_fd)
            self._real["rmdir"](path, dir_fd=dir_fd)
            self._changed(whole, _mkdir)
