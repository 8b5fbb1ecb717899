"""Space of a SQLite write-ahead log that is written before it is needed.

A commit that makes the log longer syncs the file's size and blocks beside its contents, which takes about as long as
the contents. A log is used again from its beginning after each checkpoint, so zeros that are written once make all
later commits cheaper. SQLite takes zeros for the end of the log: its frames have numbers and checksums.
"""

import contextlib
import os
from pathlib import Path

_HEADER_BYTES = 32  # header of the log; its salts are at 16
_FRAME_HEADER_BYTES = 24  # page number, size after a commit, salts, checksums
_SALTS_BYTES = 8
_FROM_BYTES = 256 << 10  # shorter logs are of stores that take little
_GROWTH = 4  # times, at once: each step delays a commit, and a hundredth of 1,400 lone uploads shall not meet one
_MARGIN_BYTES = 1 << 20
_FREE_BYTES = 1 << 30  # a disk with less is left alone
_BLOCK = bytes(1 << 20)


class WalReserve:
    """The reserve of the log at `path`, up to `limit_bytes`.

    It has a separate file descriptor, whose end releases no lock of SQLite, because SQLite locks other files.
    """

    def __init__(self, path: Path, *, page_bytes: int, limit_bytes: int, free_bytes: int = _FREE_BYTES) -> None:
        self._frame_bytes = _FRAME_HEADER_BYTES + page_bytes
        self._limit_bytes = limit_bytes
        self._free_bytes = free_bytes
        self._may_grow = True
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    @property
    def is_low(self) -> bool:
        """True once the log is used to near the end of its file, and may be made longer."""
        if (file := self._file) is None or not self._may_grow:
            return False
        try:
            size_bytes = os.fstat(file).st_size
        except OSError:
            return False
        if size_bytes < _FROM_BYTES:
            return False
        self._may_grow = size_bytes < self._limit_bytes
        margin_bytes = min(_MARGIN_BYTES, size_bytes // 4)
        return self._may_grow and self.is_used_to((size_bytes - margin_bytes - _HEADER_BYTES) // self._frame_bytes)

    def is_used_to(self, pages: int) -> bool:
        """Return whether the log has more than `pages` pages since it last began."""
        if (file := self._file) is None:  # another thread may close it meanwhile
            return False
        try:
            salts = os.pread(file, _SALTS_BYTES, _HEADER_BYTES + pages * self._frame_bytes + 8)
            return len(salts) == _SALTS_BYTES and salts == os.pread(file, _SALTS_BYTES, 16)
        except OSError:
            return False

    def grow(self) -> None:
        """Make the log's file _GROWTH times as long.

        The caller holds SQLite's write lock, so that no process appends meanwhile.
        """
        if self._file is None or not self._may_grow:
            return
        try:
            size_bytes = os.fstat(self._file).st_size
            disk = os.fstatvfs(self._file)
            if disk.f_bavail * disk.f_frsize < self._free_bytes:
                self._may_grow = False
                return
            end = min(max(_GROWTH * size_bytes, len(_BLOCK)), self._limit_bytes)
            while size_bytes < end:
                size_bytes += os.pwrite(self._file, _BLOCK[: end - size_bytes], size_bytes)
            os.fdatasync(self._file)
        except OSError:  # the disk is full, or has a quota: commits go on without a reserve
            self._may_grow = False

    def close(self) -> None:
        """Close the file. The reserve stays, and does not grow any more."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
