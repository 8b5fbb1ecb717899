"""Shared files in smaller forms: compressed, and as the difference to a file that devices have (page 169).

They are made from the files of a `FileStore` when a version is released, and may be removed at any time: whoever finds
none gets the whole file.
"""

import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from walle.base.durable_file import make_folders, sync_file, sync_folder
from walle.base.file_coding import (
    DCZ,
    XOR,
    XOR_BLOCK_BYTES,
    ZSTD,
    ZSTD_WINDOW_BYTES,
    dcz_header,
    window_bytes,
    xor_encoded,
    xor_header,
)
from walle.deploy.shared_files.store import FileStore, remove_unfinished_until
from walle.protocol import FileEntry

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

IDENTITY = "identity"  # no coding
MIN_FILE_BYTES = 4096  # a smaller file is an answer of one or two packets in any form
_WORTHWHILE = 0.95  # share of the plain size up to which a coding is worthwhile
_LARGE_BYTES, _HUGE_BYTES = 8 << 20, 128 << 20
_LEVEL, _LEVEL_OF_LARGE, _LEVEL_OF_HUGE = 12, 6, 3
_MAX_COMPARED_BYTES = 256 << 20  # size of a file and the one that it replaces: a difference has both in memory
_XOR_LEVEL = 3  # a higher one saves 1 % of the bytes
_CHUNK_BYTES = 1 << 20


class CodedFile(NamedTuple):
    """One form of a file, open for reading; `etag` changes when a form is made again with other bytes."""

    coding: str
    file: BinaryIO
    etag: str


class CodedFiles:
    """A folder of coded forms of the files in `store`. Several processes may use it at once.

    A file and the one that it replaces are compared as a whole, in memory, where both together have
    `max_compared_bytes` at most.
    """

    def __init__(self, folder: Path, store: FileStore, *, max_compared_bytes: int = _MAX_COMPARED_BYTES) -> None:
        self._max_compared_bytes = max_compared_bytes
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
        needing = [(coding, self._path(sha256, dictionary, coding)) for coding in (DCZ, XOR) if dictionary]
        sizes = [(path.stat().st_size, coding, path) for coding, path in needing if coding in codings and path.exists()]
        for _, coding, path in sorted(sizes):
            if found := self._open(path, coding):
                return found
        return self._open(self._path(sha256), ZSTD) if ZSTD in codings else None

    def remove(self, sha256: str) -> None:
        """Remove all forms of a file that is not stored any more."""
        for path in (self._folder / sha256[:2]).glob(f"{sha256}.*"):
            path.unlink(missing_ok=True)

    def remove_unfinished(self, until_s: float) -> None:
        """Remove what killed processes left, as `FileStore.remove_unfinished`."""
        remove_unfinished_until(self._folder, until_s)

    def _compress(self, entry: FileEntry) -> int:
        """Return the length of the file's smaller form, or its own where compression does not pay."""
        path = self._path(entry.sha256)
        if path.exists():
            return path.stat().st_size
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: _level(entry.size_bytes),
            zstd.CompressionParameter.window_log: min((ZSTD_WINDOW_BYTES - 1).bit_length(), _log_of(entry.size_bytes)),
        }
        compressor = zstd.ZstdCompressor(options=options)
        with self._store.open(entry.sha256) as file:
            return self._keep(path, b"", compressor, _chunks(file, _CHUNK_BYTES), entry, entry.size_bytes)

    def _compare(self, entry: FileEntry, base: FileEntry, smallest_bytes: int) -> None:
        """Make the differences to `base` that save bytes: of inserted or changed parts, and of nudged weights."""
        path = self._path(entry.sha256, base.sha256, DCZ)
        has_room = entry.size_bytes + base.size_bytes <= self._max_compared_bytes
        if path.exists():
            smallest_bytes = path.stat().st_size
        elif has_room and entry.size_bytes <= window_bytes(base.size_bytes):
            smallest_bytes = self._difference(path, entry, base, smallest_bytes)
        path = self._path(entry.sha256, base.sha256, XOR)
        if entry.size_bytes == base.size_bytes and not path.exists():
            self._mix(path, entry, base, smallest_bytes)

    def _difference(self, path: Path, entry: FileEntry, base: FileEntry, smallest_bytes: int) -> int:
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: _level(entry.size_bytes),
            zstd.CompressionParameter.window_log: _log_of(entry.size_bytes),
            zstd.CompressionParameter.enable_long_distance_matching: 1,
        }
        prefix = zstd.ZstdDict(self._read(base.sha256), is_raw=True).as_prefix
        compressor = zstd.ZstdCompressor(options=options, zstd_dict=prefix)
        content = [self._read(entry.sha256)]
        return self._keep(path, dcz_header(base.sha256), compressor, content, entry, smallest_bytes)

    def _mix(self, path: Path, entry: FileEntry, base: FileEntry, smallest_bytes: int) -> None:
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: _XOR_LEVEL,
            zstd.CompressionParameter.window_log: (ZSTD_WINDOW_BYTES - 1).bit_length(),
        }
        with self._store.open(entry.sha256) as new, self._store.open(base.sha256) as old:
            blocks = (_chunks(file, XOR_BLOCK_BYTES) for file in (new, old))
            mixed = itertools.starmap(xor_encoded, zip(*blocks, strict=True))
            compressor = zstd.ZstdCompressor(options=options)
            self._keep(path, xor_header(base.sha256), compressor, mixed, entry, smallest_bytes)

    def _keep(
        self,
        path: Path,
        header: bytes,
        compressor: zstd.ZstdCompressor,
        content: Iterable[bytes],
        entry: FileEntry,
        without_bytes: int,
    ) -> int:
        """Write a form piece by piece, and return its length; where it does not pay it ends early and is removed."""
        compressor.set_pledged_input_size(entry.size_bytes)  # a frame that says it has no larger window than that
        limit_bytes = int(without_bytes * _WORTHWHILE)
        make_folders(path.parent)
        temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.unfinished")
        try:
            with temporary.open("wb") as file:
                file.write(header)
                for piece in content:
                    file.write(compressor.compress(piece))
                    if file.tell() > limit_bytes:
                        return without_bytes
                file.write(compressor.flush())
                size_bytes = file.tell()
                os.fchmod(file.fileno(), 0o644)
            if size_bytes > limit_bytes:
                return without_bytes
            sync_file(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
        return size_bytes

    def _read(self, sha256: str) -> bytes:
        return self._store.read(sha256)

    def _path(self, sha256: str, dictionary: str = "", coding: str = ZSTD) -> Path:
        name = f"{sha256}.{dictionary}.{coding}" if dictionary else f"{sha256}.{ZSTD}"
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


def _chunks(file: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    """Yield a file in pieces of this length, of which the last may be shorter."""
    while chunk := file.read(chunk_bytes):
        while len(chunk) < chunk_bytes and (more := file.read(chunk_bytes - len(chunk))):
            chunk += more
        yield chunk


def _level(size_bytes: int) -> int:
    if size_bytes <= _LARGE_BYTES:
        return _LEVEL
    return _LEVEL_OF_LARGE if size_bytes <= _HUGE_BYTES else _LEVEL_OF_HUGE


def _log_of(size_bytes: int) -> int:
    """Return the smallest window that holds `size_bytes`, as a power of two: with it a frame is one segment."""
    return max(10, (size_bytes - 1).bit_length())
