"""Sources of versions' manifests and files for replicas: the cloud's folder, or a cache of it (`node_cache`)."""

import asyncio
from pathlib import Path
from typing import Protocol

from walle.cloud.folder.folder import CloudHome
from walle.deploy.shared_files.store import FileStore, FileStoreError
from walle.protocol import Manifest

PART_BYTES = 256 << 10  # piece of a file sent to another node: a batch does not wait long for the part before it


class VersionSource(Protocol):
    """Files by their sha256. The methods raise OSError or WalleError for one that cannot be had."""

    async def manifest(self, sha256: str) -> Manifest: ...

    async def read(self, sha256: str) -> bytes:
        """Return a file that a manifest names; who unpacks it checks its hash."""

    def place(self, sha256: str) -> Path | None:
        """Return where a file is on this machine as long as the version is released, None where it is copied."""

    async def copy(self, sha256: str, path: Path) -> None:
        """Write a file to `path`, a new one, by pieces; who unpacks it checks its hash."""


class HomeSource:
    """The files in a cloud's folder."""

    def __init__(self, home: CloudHome) -> None:
        self._home = home

    async def manifest(self, sha256: str) -> Manifest:
        """Return a manifest that the keys of its scenario signed."""
        envelope = await asyncio.to_thread(self._home.files.read, sha256)
        return self._home.trust.scenarios().verify_manifest(envelope)

    async def read(self, sha256: str) -> bytes:
        return await asyncio.to_thread(lambda: self._store_of(sha256).read(sha256))

    def place(self, sha256: str) -> Path | None:
        return self._store_of(sha256).local_path(sha256)

    async def copy(self, sha256: str, path: Path) -> None:
        def work() -> None:
            with path.open("xb") as file:
                for chunk in self._store_of(sha256).chunks(sha256):
                    file.write(chunk)

        await asyncio.to_thread(work)

    def read_part(self, sha256: str, offset: int) -> tuple[int, bytes]:
        """Return the size of a file, and its PART_BYTES from `offset`, fewer at its end.

        Raises:
            FileStoreError: the cloud does not have it.
            OSError: it cannot be read.
        """
        with self._store_of(sha256).open(sha256) as file:
            size_bytes = file.seek(0, 2)
            file.seek(offset)
            return size_bytes, file.read(PART_BYTES)

    def _store_of(self, sha256: str) -> FileStore:
        for store in (self._home.files, self._home.cloud_files):
            if store.has(sha256):
                return store
        raise FileStoreError(sha256, "the cloud does not have it")
