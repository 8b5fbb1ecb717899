"""Shared files in smaller forms: compressed, and as the difference to a file that devices have (page 169).

They are made from the files of a `FileStore` when a version is released, and may be removed at any time: whoever finds
none gets the whole file.
"""

import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from walle.deploy.cloud.files import FileStore
from walle.deploy.file_coding import DCZ, ZSTD, ZSTD_WINDOW_BYTES, dcz_header, window_bytes
from walle.durable_file import make_folders, write_file
from walle.protocol import FileEntry

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

IDENTITY = "identity"  # no coding
MIN_FILE_BYTES = 4096  # a smaller file is an answer of one or two packets in any form
_WORTHWHILE = 0.95  # of the size without the coding
_LARGE_BYTES = 8 << 20
_LEVEL, _LEVEL_OF_LARGE = 12, 6


class CodedFile(NamedTuple):
    """One form of a file, open for reading; `etag` changes when a form is made again with other bytes."""

    coding: str
    file: BinaryIO
    etag: str


class CodedFiles:
    """A folder of coded forms of the files in `store`. Several processes may use it at once."""

    def __init__(self, folder: Path, store: FileStore) -> None:
        self._folder = folder
        self._store = store

    def make(self, files: Iterable[FileEntry], older: Iterable[Iterable[FileEntry]]) -> None:
        """Make the forms of a version's `files` that save bytes; `older` are the files of versions that devices have.

        A file is compared with that of the same path in each of them. What was made before is kept.

        Raises:
            FileStoreError: the store does not hold a file.
            OSError: a disk error; what was made until then is there.
        """
        bases = [{entry.path: entry for entry in entries} for entries in older]
        for entry in files:
            if entry.size_bytes < MIN_FILE_BYTES or entry.route != "shared":
                continue
            smallest_bytes = self._compress(entry)
            for base in dict.fromkeys(entries[entry.path] for entries in bases if entry.path in entries):
                if base.sha256 != entry.sha256 and base.size_bytes > 0:
                    self._compare(entry, base, smallest_bytes)

    def find(self, sha256: str, codings: frozenset[str], dictionary: str) -> CodedFile | None:
        """Return the smallest form of a file among `codings`, for a caller that has the file `dictionary` (or "")."""
        if DCZ in codings and dictionary and (found := self._open(self._path(sha256, dictionary), DCZ)):
            return found
        return self._open(self._path(sha256), ZSTD) if ZSTD in codings else None

    def remove(self, sha256: str) -> None:
        """Remove all forms of a file that is not stored any more."""
        for path in (self._folder / sha256[:2]).glob(f"{sha256}.*"):
            path.unlink(missing_ok=True)

    def _compress(self, entry: FileEntry) -> int:
        """Return the length of the file's smaller form, or its own where compression does not pay."""
        path = self._path(entry.sha256)
        if path.exists():
            return path.stat().st_size
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: _level(entry.size_bytes),
            zstd.CompressionParameter.window_log: min((ZSTD_WINDOW_BYTES - 1).bit_length(), _log_of(entry.size_bytes)),
        }
        data = zstd.compress(self._read(entry.sha256), options=options)
        return self._keep(path, data, entry.size_bytes)

    def _compare(self, entry: FileEntry, base: FileEntry, smallest_bytes: int) -> None:
        path = self._path(entry.sha256, base.sha256)
        if path.exists() or entry.size_bytes > window_bytes(base.size_bytes):
            return
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: _level(entry.size_bytes),
            zstd.CompressionParameter.window_log: _log_of(entry.size_bytes),
            zstd.CompressionParameter.enable_long_distance_matching: 1,
        }
        prefix = zstd.ZstdDict(self._read(base.sha256), is_raw=True).as_prefix
        data = zstd.compress(self._read(entry.sha256), options=options, zstd_dict=prefix)
        self._keep(path, dcz_header(base.sha256) + data, smallest_bytes)

    def _keep(self, path: Path, data: bytes, without_bytes: int) -> int:
        if len(data) > without_bytes * _WORTHWHILE:
            return without_bytes
        make_folders(path.parent)
        write_file(path, data, mode=0o644)
        return len(data)

    def _read(self, sha256: str) -> bytes:
        return self._store.read(sha256)

    def _path(self, sha256: str, dictionary: str = "") -> Path:
        name = f"{sha256}.{dictionary}.{DCZ}" if dictionary else f"{sha256}.{ZSTD}"
        return self._folder / sha256[:2] / name

    @staticmethod
    def _open(path: Path, coding: str) -> CodedFile | None:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        state = os.fstat(file.fileno())
        digest = hashlib.sha256(f"{path.name} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()
        return CodedFile(coding, file, f'"{coding}-{digest[:32]}"')


def _level(size_bytes: int) -> int:
    return _LEVEL if size_bytes <= _LARGE_BYTES else _LEVEL_OF_LARGE


def _log_of(size_bytes: int) -> int:
    """Return the smallest window that holds `size_bytes`, as a power of two: with it a frame is one segment."""
    return max(10, (size_bytes - 1).bit_length())
