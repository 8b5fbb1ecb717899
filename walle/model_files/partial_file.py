"""The file that a model's bytes go to until they are whole and checked, and the error of a model that is not got."""

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from walle.base.durable_file import sync_folder
from walle.errors import WalleError
from walle.model_files.folder import FOLDER_VARIABLE
from walle.model_files.manifest import ModelEntry


class ModelFetchError(WalleError):
    """A model that could not be fetched; `name` and `origin` are the manifest's."""

    def __init__(self, entry: ModelEntry, what: str) -> None:
        super().__init__(f"{entry.name}: {entry.origin}: {what}")
        self.name = entry.name
        self.origin = entry.origin


def without_network(entry: ModelEntry) -> str:
    """Return what to do where an entry's file cannot be fetched."""
    return (
        f"Without a network, put {entry.file} (SHA-256 {entry.sha256}) into a folder and name that folder with"
        f" --models-dir or {FOLDER_VARIABLE}"
    )


class PartialFile:
    """A partial file that this process holds; `finish` gives it its name."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._handle, view) :]

    def clear(self) -> None:
        os.ftruncate(self._handle, 0)

    def digest(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def finish(self, target: Path) -> None:
        os.fchmod(self._handle, 0o644)
        os.fsync(self._handle)
        self.path.replace(target)
        sync_folder(target.parent)


@contextlib.contextmanager
def partial_file(path: Path, entry: ModelEntry) -> Iterator[PartialFile]:
    """Hold the partial file for this process alone.

    Raises:
        ModelFetchError: another process holds it.
        OSError: it cannot be written.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise ModelFetchError(entry, f"another process is fetching it into {path.parent}; wait for it") from error
        except BaseException:
            os.close(handle)
            raise
        if _is_same_file(handle, path):
            break
        os.close(handle)  # the file was renamed or removed between opening and locking
    try:
        yield PartialFile(path, handle)
    finally:
        os.close(handle)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
