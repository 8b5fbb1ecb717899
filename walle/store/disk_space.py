"""Free space of the cloud's disk: below a reserve only what takes versions back is written.

A disk that fills up must not keep a bad version on devices. So new work stops while there is still room: pushes and new
releases are refused with 507. Rollbacks continue, in space that the journals have reserved.
"""

import errno
import os
import sqlite3
from pathlib import Path
from typing import Self

from walle.errors import DeployError

RESERVE_BYTES = 64 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(DeployError):
    """A write that was refused because the disk of `place` has too little room. Over HTTP: 507."""

    def __init__(self, place: str, free_bytes: int) -> None:
        super().__init__(place, free_bytes)
        self.place = place
        self.free_bytes = free_bytes

    @classmethod
    def of(cls, _: BaseException, place: Path) -> Self:
        """Return the error for a write to `place` that failed."""
        return cls(str(place), free_bytes(place))

    def __str__(self) -> str:
        return (
            f"the cloud's disk is full: {self.free_bytes >> 20} MiB are free at {self.place}; free some, or delete old"
            " features with --retain; releases can be rolled back and paused meanwhile"
        )


class DiskSpace:
    """The disk of a folder, of which `reserve_bytes` are kept for rollbacks."""

    def __init__(self, folder: Path, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes

    def check(self, more_bytes: int = 0) -> None:
        """Raise DiskFullError if there is less free space than the reserve, or would be with `more_bytes` written."""
        self.room_bytes(more_bytes)

    def room_bytes(self, least_bytes: int = 0) -> int:
        """Return how many bytes may be written before the reserve is reached.

        Raises:
            DiskFullError: they are fewer than `least_bytes`.
        """
        free = free_bytes(self._folder)
        if free < self._reserve_bytes + least_bytes:
            raise DiskFullError(str(self._folder), free)
        return free - self._reserve_bytes


def free_bytes(place: Path) -> int:
    """Return the free space of the disk of `place`, for a process that is not root's."""
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


def is_full(error: BaseException) -> bool:
    """Return whether an error of the system or of SQLite says that the disk, or a quota, is full."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _FULL
