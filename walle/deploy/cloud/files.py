"""Content-addressed files, which `walle.deploy.cloud.cdn` serves.

A file's name is the sha256 of its bytes, so it never changes: any cache may keep it indefinitely, and a device
verifies it by its name. Devices refuse a damaged file; `FileStore.verify` detects it in the store.
"""

import hashlib
import os
import re
import tempfile
from io import BufferedReader
from pathlib import Path

from walle.durable_file import make_folders, sync_folder, write_file
from walle.errors import DeployError

_CHUNK_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileStoreError(DeployError):
    """A file that the store does not hold, or a name that is not a sha256. `sha256` is the requested name."""

    def __init__(self, sha256: str, reason: str) -> None:
        super().__init__(f"file {sha256[:80]!r}: {reason}")
        self.sha256 = sha256


class FileStore:
    """A folder of blobs named by their sha256. Several processes may put and read at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folders(folder)

    def put(self, data: bytes) -> str:
        """Store `data` durably and return its sha256; a damaged copy is replaced."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256)
        if path.exists() and self.verify(sha256):
            return sha256
        make_folders(path.parent)
        write_file(path, data, mode=0o644)
        return sha256

    def put_file(self, path: Path) -> str:
        """Store what the file at `path` has, durably, and return its sha256."""
        handle, name = tempfile.mkstemp(prefix=".", suffix=".unfinished", dir=self._folder)
        try:
            with path.open("rb") as source, os.fdopen(handle, "wb") as file:
                digest = hashlib.sha256()
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            target = self.path(digest.hexdigest())
            make_folders(target.parent)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        sync_folder(target.parent)
        return target.name

    def path(self, sha256: str) -> Path:
        """Return the path of the file, which need not exist.

        Raises:
            FileStoreError: `sha256` is not 64 lower-case hex digits.
        """
        if not _SHA256.fullmatch(sha256):
            raise FileStoreError(sha256, "not a sha256 in lower-case hex")
        return self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).exists()

    def open(self, sha256: str) -> BufferedReader:
        """Return the file, open for reading. Raises FileStoreError where the store does not hold it."""
        try:
            return self.path(sha256).open("rb")
        except FileNotFoundError:
            raise FileStoreError(sha256, "the store does not hold it") from None

    def verify(self, sha256: str) -> bool:
        """Return whether the bytes on the disk still have this hash."""
        with self.open(sha256) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
