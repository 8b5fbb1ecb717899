"""A `FileStore` in a folder: files named by their sha256, in folders named by its first two digits."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import make_folders, sync_folder, write_file
from walle.deploy.shared_files.store import FileStore, FileStoreError, StoredFile, check_name, is_name


class FolderStore(FileStore):
    """Files in `folder`. The time at which one was put last is its modification time.

    The folder is made, but with `makes_folder=False`: nothing is put then before somebody else made it.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None, makes_folder: bool = True) -> None:
        super().__init__(f"folder {folder}", folder)
        self._folder = folder
        self._clock = clock or SystemClock()
        if makes_folder:
            make_folders(folder)

    def put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256)
        with self._locked(shared=True):
            if not (path.exists() and self.verify(sha256)):
                make_folders(path.parent)
                write_file(path, data, mode=0o644)
            self._touch(path)
        return sha256

    def path(self, sha256: str) -> Path:
        """Return the path of the file, which need not exist.

        Raises:
            FileStoreError: `sha256` is not 64 lower-case hex digits.
        """
        check_name(sha256)
        return self._folder / sha256[:2] / sha256

    def stat(self, sha256: str) -> StoredFile:
        try:
            found = self.path(sha256).stat()
        except FileNotFoundError:
            raise _absent(sha256) from None
        return _stored(sha256, found)

    def open(self, sha256: str) -> BinaryIO:
        try:
            return self.path(sha256).open("rb")
        except FileNotFoundError:
            raise _absent(sha256) from None

    def files(self) -> Iterator[StoredFile]:
        for part in sorted(self._folder.glob("[0-9a-f][0-9a-f]")):
            for path in sorted(part.iterdir()):
                if not is_name(path.name):  # a temporary file
                    continue
                try:
                    yield self.stat(path.name)
                except FileStoreError:  # the file was removed meanwhile
                    continue

    def remove(self, sha256: str, *, stored_until_s: float | None = None) -> bool:
        path = self.path(sha256)
        with self._locked(shared=False):
            try:
                if stored_until_s is not None and path.stat().st_mtime > stored_until_s:
                    return False
                path.unlink()
            except FileNotFoundError:
                return False
            sync_folder(path.parent)
        return True

    def local_path(self, sha256: str) -> Path | None:
        path = self.path(sha256)
        return path if path.exists() else None

    def _keep(self, path: Path, sha256: str, repair: bool) -> None:  # noqa: ARG002 - it replaces always
        target = self.path(sha256)
        with self._locked(shared=True):
            make_folders(target.parent)
            self._touch(path)
            path.replace(target)
            sync_folder(target.parent)

    def _touch(self, path: Path) -> None:
        now_s = self._clock.time()
        os.utime(path, (now_s, now_s))


def _absent(sha256: str) -> FileStoreError:
    return FileStoreError(sha256, "the store does not have it")


def _stored(sha256: str, found: os.stat_result) -> StoredFile:
    return StoredFile(sha256, found.st_size, found.st_mtime, f"{found.st_size:x}-{found.st_mtime_ns:x}")
