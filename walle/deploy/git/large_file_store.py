"""Large files that were pushed to a scenario, beside its git repository, in the layout of Git LFS.

    {scenario}.git/lfs/objects/12/34/1234...   whole files by their sha256, read-only
    {scenario}.git/lfs/incoming/...            files on their way; a killed writer's are not locked, and are removed
    {scenario}.git/lfs/incoming/....part       uploads that may continue, each of one owner; kept for PARTIAL_S

A file that is sent, or asked for to be sent while it is here, is new again: `LargeObjects`, by which files are removed
that nothing names, keeps it until its push has had the time to set its refs.

They are of one scenario: who may read another one gets nothing from here by knowing a hash. A release copies them to
the stores that devices and the cloud's phases read.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import make_folders, sync_folder, write_all
from walle.deploy.shared_files.folder_store import FolderStore
from walle.deploy.shared_files.store import FileStoreError, StoredFile, folder_locked, is_name
from walle.errors import DeployError
from walle.task.format.large_file import MAX_LARGE_FILE_BYTES, LargeFile

PARTIAL_S = 86_400.0  # time after its last byte when the rest of a cut upload is removed
_CHUNK_BYTES = 1 << 20
_PART = ".part"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class LargeFileError(DeployError):
    """A large file that is refused, or is not here. `sha256` names it; `is_full` where the scenario has no room."""

    def __init__(self, sha256: str, why: str, *, is_full: bool = False) -> None:
        super().__init__(f"file {sha256[:80]!r}: {why}")
        self.sha256 = sha256
        self.why = why
        self.is_full = is_full


class LargeFileBusyError(LargeFileError):
    """An upload to which another request adds bytes now."""

    def __init__(self, sha256: str) -> None:
        super().__init__(sha256, "another request is sending it; try again once that has ended")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargeFileLimits:
    """Limits of one file, and of all files of a scenario together."""

    file_bytes: int = MAX_LARGE_FILE_BYTES
    scenario_bytes: int = 64 << 30
    scenario_files: int = 100_000  # counted for each upload

    def check(self, sha256: str, size_bytes: int, used: "Used") -> None:
        """Raise LargeFileError where a file of this length may not come to a scenario that has `used`."""
        if used.files >= self.scenario_files:
            why = f"the scenario has {used.files} large files, the limit; commit small ones without Git LFS"
            raise LargeFileError(sha256, why, is_full=True)
        if size_bytes > self.file_bytes:
            raise LargeFileError(sha256, f"has {size_bytes} bytes; at most {self.file_bytes} are accepted")
        if used.size_bytes + size_bytes > self.scenario_bytes:
            why = (
                f"has {size_bytes} bytes, and the scenario's large files have {used.size_bytes} of at most"
                f" {self.scenario_bytes}; ask the cloud's owner for more (walle cloud up --large-files-gb)"
            )
            raise LargeFileError(sha256, why, is_full=True)


class Used(NamedTuple):
    """All files of a scenario, those on their way too."""

    size_bytes: int
    files: int


class LargeFileStore:
    """The folder. Several processes may put and read at once; everything here blocks on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, sha256: str, size_bytes: int) -> LargeFile:
        """Return a file, which need not be here. Raises LargeFileError for a name that is not a sha256."""
        return LargeFile(sha256, size_bytes, self._path(sha256))

    def size_bytes(self, sha256: str) -> int | None:
        """Return the length of a file, None where it is not here. Raises LargeFileError as `find`."""
        try:
            return self._path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def renew(self, sha256: str) -> int | None:
        """As `size_bytes`, and make the file as new: a push will name it. Raises LargeFileError as `find`."""
        path = self._path(sha256)
        try:
            with folder_locked(self._folder / "objects", shared=True):
                os.utime(path)
                return path.stat().st_size
        except FileNotFoundError:
            return None

    def open(self, sha256: str) -> BufferedReader:
        """Return a file, open for reading. Raises LargeFileError where it is not here."""
        try:
            return self._path(sha256).open("rb")
        except FileNotFoundError:
            raise LargeFileError(sha256, "it was never pushed here, or only in part") from None

    @property
    def has_folder(self) -> bool:
        """Return whether a file was ever kept here."""
        return (self._folder / "objects").is_dir()

    def used(self) -> Used:
        total_bytes = count = 0
        for parent, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total_bytes += Path(parent, name).stat().st_size
                    count += 1
        return Used(total_bytes, count)

    @contextlib.contextmanager
    def receiving(self, sha256: str, size_bytes: int) -> Iterator["IncomingFile"]:
        """Give a file to write, which is in the store after `keep`, and is removed without it.

        Raises:
            LargeFileError: `sha256` is not one.
            OSError: a disk error, such as a full disk.
        """
        target = self._path(sha256)
        incoming = self._folder / "incoming"
        make_folders(incoming)
        path, handle = _locked_file(incoming, sha256)
        file = IncomingFile(path, handle, target, sha256, size_bytes)
        try:
            yield file
        finally:
            path.unlink(missing_ok=True)
            file.close()

    def partial_bytes(self, sha256: str, owner: str) -> int:
        """Return how many bytes of an upload of `owner` are here, 0 without one. Raises LargeFileError as `find`."""
        try:
            return self._partial(sha256, owner).stat().st_size
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def resuming(self, sha256: str, size_bytes: int, owner: str) -> Iterator["IncomingFile"]:
        """Give the upload of `owner` to which bytes are added, a new one where there is none; it stays without `keep`.

        Nobody else's upload is continued: whoever sent other bytes would spoil it.

        Raises:
            LargeFileBusyError: another request adds to it.
            LargeFileError: `sha256` is not one.
            OSError: a disk error, such as a full disk.
        """
        target, path = self._path(sha256), self._partial(sha256, owner)
        make_folders(path.parent)
        handle = _locked_partial(path, sha256)
        held_bytes = os.lseek(handle, 0, os.SEEK_END)
        file = IncomingFile(path, handle, target, sha256, size_bytes, held_bytes=held_bytes)
        try:
            yield file
        finally:
            if file.is_wrong:
                path.unlink(missing_ok=True)
            file.close()

    def sweep(self, clock: Clock | None = None) -> None:
        """Remove what killed writers left, and uploads that did not continue for PARTIAL_S."""
        until_s = (clock or SystemClock()).time() - PARTIAL_S
        for path in self._folder.glob("incoming/*"):
            with contextlib.suppress(OSError):
                if path.suffix == _PART and path.stat().st_mtime > until_s:
                    continue
                handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(handle)

    def checked(self) -> "LargeObjects":
        """Return the whole files as a store that the scrubber can check and repair."""
        # The folder is that of the account that takes pushes, not of who checks.
        return LargeObjects(self._folder / "objects", makes_folder=False)

    def _partial(self, sha256: str, owner: str) -> Path:
        self._path(sha256)  # raises for what is not a sha256
        return self._folder / "incoming" / f"{sha256}.{hashlib.sha256(owner.encode()).hexdigest()[:16]}{_PART}"

    def _path(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise LargeFileError(sha256, "is not a sha256 in lower-case hex")
        return self._folder / "objects" / sha256[:2] / sha256[2:4] / sha256


class LargeObjects(FolderStore):
    """The whole files in the layout of Git LFS, as a `FileStore`. One that is removed may be pushed again.

    The time of a file is that of its upload, or of the last batch request that wanted to send it.
    """

    def path(self, sha256: str) -> Path:
        parent = super().path(sha256).parent
        return parent / sha256[2:4] / sha256

    def files(self) -> Iterator[StoredFile]:
        for path in sorted(self._folder.glob("[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]/*")):
            if is_name(path.name):
                with contextlib.suppress(FileStoreError):  # the object was removed meanwhile
                    yield self.stat(path.name)


class IncomingFile:
    """A file on its way. Its methods may be called from any thread; `close` waits for a `write`.

    Where `held_bytes` came earlier, `keep` hashes the file: it is read once, whatever the number of requests.
    """

    def __init__(
        self, path: Path, handle: int, target: Path, sha256: str, size_bytes: int, *, held_bytes: int = 0
    ) -> None:
        self._path = path
        self._handle = handle
        self._target = target
        self._sha256 = sha256
        self._size_bytes = size_bytes
        self._digest = hashlib.sha256()
        self._written_bytes = held_bytes
        self._is_hashed = held_bytes == 0  # bytes are hashed as they come
        self._lock = threading.Lock()
        self.is_wrong = False

    @property
    def size_bytes(self) -> int:
        """The bytes that came so far."""
        return self._written_bytes

    def write(self, data: bytes) -> None:
        """Add `data` to the file.

        Raises:
            LargeFileError: that is more than its stated length.
            OSError: a disk error, or it is closed.
        """
        with self._lock:
            self._written_bytes += len(data)
            if self._written_bytes > self._size_bytes:
                raise LargeFileError(self._sha256, f"received more than its {self._size_bytes} bytes")
            write_all(self._handle, data)
            if self._is_hashed:
                self._digest.update(data)

    def keep(self) -> None:
        """Put the file into the store, durably.

        Raises:
            LargeFileError: its length or its sha256 is another one.
            OSError: a disk error, or it is closed.
        """
        with self._lock:
            self.is_wrong = True
            if self._written_bytes != self._size_bytes:
                why = f"{self._written_bytes} bytes came of {self._size_bytes}; push it again"
                raise LargeFileError(self._sha256, why)
            if not self._is_hashed:
                self._hash_all()
            if self._digest.hexdigest() != self._sha256:
                raise LargeFileError(self._sha256, "the received file has another sha256; push it again")
            self.is_wrong = False
            os.fchmod(self._handle, 0o444)
            os.fsync(self._handle)
            make_folders(self._target.parent)
            with folder_locked(self._target.parents[2], shared=True):  # lock of all objects: none is removed meanwhile
                os.utime(self._handle)
                self._path.replace(self._target)
                sync_folder(self._target.parent)

    def _hash_all(self) -> None:
        with os.fdopen(os.dup(self._handle), "rb", buffering=0) as file:
            file.seek(0)
            while chunk := file.read(_CHUNK_BYTES):
                self._digest.update(chunk)

    def close(self) -> None:
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
            self._handle = -1


def _locked_partial(path: Path, sha256: str) -> int:
    """Return a descriptor of the upload at `path` with its lock.

    Before it has its lock, a sweep may remove the file, and another request may have kept it as a whole one.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise LargeFileBusyError(sha256) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)


def _locked_file(folder: Path, sha256: str) -> tuple[Path, int]:
    """Return a new file with a lock, and its descriptor; a sweep may remove it before it has its lock."""
    while True:
        path = folder / f"{sha256}.{os.urandom(6).hex()}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)
