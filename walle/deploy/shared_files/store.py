"""Content-addressed files: the interface of their stores, which `walle.deploy.shared_files.cdn` serves.

A file's name is the sha256 of its bytes, so it never changes: any cache may keep it indefinitely, and a device
verifies it by its name. Devices refuse a damaged file; `FileStore.verify` detects it in the store.

Two stores implement the interface: a folder (`folder_store`) and a bucket with the S3 API (`s3_store`). Their methods
block the calling thread. No method holds a large file in memory, but `put` and `read`, whose callers do.
"""

import abc
import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from walle.base.durable_file import UNFINISHED, write_all
from walle.errors import DeployError

CHUNK_BYTES = 1 << 20  # piece in which files are read and copied
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileStoreError(DeployError):
    """A file that the store does not hold, or a name that is not a sha256. `sha256` is the requested name."""

    def __init__(self, sha256: str, reason: str) -> None:
        super().__init__(f"file {sha256[:80]!r}: {reason}")
        self.sha256 = sha256
        self.reason = reason


class FileStoreUnavailableError(FileStoreError):
    """A store that does not answer, or refuses: the file's state is not known. Worth another try."""


class StoredFile(NamedTuple):
    """A file of a store. `stored_s` is when it was put last, in seconds since the epoch; `etag` is the store's."""

    sha256: str
    size_bytes: int
    stored_s: float
    etag: str


class FileWriter:
    """A file that is being put, piece by piece: in the store once `commit` returns, and not there before.

    The pieces lie in a temporary file in `folder`, so that a file whose hash is wrong, or whose sender is slow or
    disappears, never reaches the store. Use it within `with`, which removes what was not committed.
    """

    def __init__(self, folder: Path, keep: Callable[[Path, str, bool], None], *, repair: bool = False) -> None:
        handle, name = tempfile.mkstemp(prefix=".", suffix=UNFINISHED, dir=folder)
        self._handle = handle
        self._path = Path(name)
        self._keep = keep
        self._repair = repair
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
        self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append `data`. Raises OSError: the disk is full or cannot be written."""
        write_all(self._handle, data)
        self._digest.update(data)
        self.size_bytes += len(data)

    def commit(self, expected: str = "") -> str:
        """Put the file into the store, durably, and return its sha256.

        Raises:
            FileStoreError: the sha256 is not `expected`, if that is given; nothing is stored.
            FileStoreUnavailableError, OSError: the store or the disk failed; nothing is stored.
        """
        sha256 = self._digest.hexdigest()
        if expected and sha256 != expected:
            reason = f"the {self.size_bytes} bytes received have the sha256 {sha256}; send it again"
            raise FileStoreError(expected, reason)
        os.fchmod(self._handle, 0o644)
        os.fsync(self._handle)
        self._keep(self._path, sha256, self._repair)
        return sha256


class FileStore(abc.ABC):
    """Files by their sha256. Several processes may put, read and remove at once.

    `place` names the store in messages. `folder` is on a disk of this machine, shared by all processes that write to
    the store: it has temporary files, and a lock that keeps `remove` from taking what is being put.

    Raises, from all methods:
        FileStoreError: a name is not 64 lower-case hex digits, or the store does not hold the file.
        FileStoreUnavailableError: the store does not answer, or refuses; OSError from one that is a folder.
    """

    def __init__(self, place: str, folder: Path) -> None:
        self.place = place
        self._local = folder

    def put(self, data: bytes) -> str:
        """Store `data` durably and return its sha256; a damaged copy is replaced, and `stored_s` is now."""
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    def put_file(self, path: Path, expected: str = "") -> str:
        """Store what the file at `path` has, durably, and return its sha256; `expected` as of `FileWriter.commit`."""
        with path.open("rb") as file, self.writer() as writer:
            while chunk := file.read(CHUNK_BYTES):
                writer.write(chunk)
            return writer.commit(expected)

    def writer(self, *, repair: bool = False) -> FileWriter:
        """Return a new file that is put piece by piece, to be used within `with`.

        With `repair` it replaces the stored one also where the store believes that to be whole.
        """
        return FileWriter(self._local, self._keep, repair=repair)

    def remove_unfinished(self, until_s: float) -> None:
        """Remove what killed writers left: temporary files in which nothing was written since `until_s`."""
        remove_unfinished_until(self._local, until_s)

    def check(self) -> None:  # noqa: B027 - a folder is there
        """Raise FileStoreUnavailableError where the store cannot be used."""

    def has(self, sha256: str) -> bool:
        try:
            self.stat(sha256)
        except FileStoreUnavailableError:
            raise
        except FileStoreError:
            check_name(sha256)
            return False
        return True

    def read(self, sha256: str) -> bytes:
        """Return the whole file: for manifests and other short ones."""
        with self.open(sha256) as file:
            return file.read()

    def chunks(self, sha256: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the bytes start ≤ i < stop of a file, in pieces of CHUNK_BYTES at most; `stop` None is its end."""
        with self.open(sha256) as file:
            file.seek(start)
            position = start
            while chunk := file.read(CHUNK_BYTES if stop is None else min(CHUNK_BYTES, stop - position)):
                position += len(chunk)
                yield chunk

    def verify(self, sha256: str) -> bool:
        """Return whether the stored bytes still have this hash."""
        digest = hashlib.sha256()
        for chunk in self.chunks(sha256):
            digest.update(chunk)
        return digest.hexdigest() == sha256

    @abc.abstractmethod
    def stat(self, sha256: str) -> StoredFile:
        """Return what is known of a file without reading it."""

    @abc.abstractmethod
    def open(self, sha256: str) -> BinaryIO:
        """Return the file, open for reading and seeking. A read may raise as `open` does."""

    @abc.abstractmethod
    def files(self) -> Iterator[StoredFile]:
        """Yield all files, in the order of their names. Those that are put or removed meanwhile may be in it or not."""

    @abc.abstractmethod
    def remove(self, sha256: str, *, stored_until_s: float | None = None) -> bool:
        """Remove a file, and return whether it was there. One that was put after `stored_until_s` is kept."""

    def local_path(self, sha256: str) -> Path | None:  # noqa: ARG002 - for stores that have one
        """Return the path of a file on a disk of this machine, None where the store keeps it elsewhere."""
        return None

    def address(self, sha256: str, life_s: int) -> str:  # noqa: ARG002 - for stores that have one
        """Return a URL from which anybody can fetch the file for `life_s` seconds, "" where the store gives none."""
        return ""

    @abc.abstractmethod
    def _keep(self, path: Path, sha256: str, repair: bool) -> None:
        """Put the synced file at `path`, which may be moved from there; `repair` as of `writer`."""

    def _locked(self, *, shared: bool) -> contextlib.AbstractContextManager[None]:
        """Hold the store's lock: shared while a file is put, alone while one is removed."""
        return folder_locked(self._local, shared=shared)


@contextlib.contextmanager
def folder_locked(folder: Path, *, shared: bool) -> Iterator[None]:
    """Hold the lock of a folder, which all processes share."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def remove_unfinished_until(folder: Path, until_s: float) -> None:
    """Remove the temporary files in a folder and in its folders in which nothing was written since `until_s`."""
    for path in itertools.chain(folder.glob(f".*{UNFINISHED}"), folder.glob(f"*/.*{UNFINISHED}")):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime <= until_s:
                path.unlink()


def is_name(name: str) -> bool:
    """Return whether a name is 64 lower-case hex digits."""
    return _SHA256.fullmatch(name) is not None


def check_name(sha256: str) -> None:
    """Raise FileStoreError if a name is not 64 lower-case hex digits."""
    if not is_name(sha256):
        raise FileStoreError(sha256, "not a sha256 in lower-case hex")
