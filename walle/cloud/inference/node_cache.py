"""Cache of versions' files on a node that does not have the cloud's folder."""

import asyncio
import contextlib
import fcntl
import hashlib
import io
import logging
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Buffer, Callable, Iterator
from pathlib import Path
from typing import IO

from walle.base.durable_file import make_folders, remove_unfinished, write_file
from walle.cloud.inference.failures import InferenceError
from walle.errors import ConfigError
from walle.protocol import Envelope, Manifest, ProtocolError

_LOG = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RUN = "run-"  # begins the names of processes' folders


def default_folder(cloud: str) -> Path:
    """Return the folder of a cloud's cache on this node, in the user's folder for caches.

    Raises:
        ConfigError: the user has none.
    """
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise ConfigError(f"no folder for the files of fallback inference ({error}); set XDG_CACHE_HOME") from error
    return caches / "walle" / "inference" / cloud


class NodeCache:
    """Files in `folder`, at most `max_bytes` of them, those used last; what is absent is fetched from the cloud.

    Several processes may use it at once. Each has its own folder below it, `run_folder`, between `prepare` and
    `close`; that of a process that was killed is removed by the next one. `fetch` yields a file by its sha256 in parts;
    the hash is checked here, as is that of each file that is read: the folder may be damaged.
    """

    def __init__(self, folder: Path, max_bytes: int, fetch: Callable[[str], AsyncIterator[Buffer]]) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._fetch = fetch
        self._lock = -1
        self.run_folder = folder / f"{_RUN}{os.getpid()}-{secrets.token_hex(4)}"

    def prepare(self) -> None:
        """Make the folders. Raises OSError where they cannot be."""
        make_folders(self._folder, mode=0o700)
        with self._locked():
            remove_unfinished(self._folder)
            for run in self._folder.glob(f"{_RUN}*"):
                _remove_unused(run)
            self.run_folder.mkdir(mode=0o700)
            self._lock = os.open(self.run_folder, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        shutil.rmtree(self.run_folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def manifest(self, sha256: str) -> Manifest:
        """Return a manifest. The scheduler has verified its signature before it named the hash, which is checked here.

        Raises:
            InferenceError: it cannot be fetched or read.
        """
        try:
            return Envelope.from_bytes(await self.read(sha256)).manifest
        except ProtocolError as error:
            raise InferenceError(f"the manifest {sha256} cannot be read: {error}") from error

    async def read(self, sha256: str) -> bytes:
        """Return a file, from the cloud where it is not here.

        Raises:
            InferenceError: the cloud does not have it, or sent other bytes.
            ReplicaLostError: the connection ended.
        """
        _check_name(sha256)
        held = io.BytesIO()
        if not await asyncio.to_thread(self._copy_cached, sha256, held):
            parts = [bytes(part) async for part in self._fetch(sha256)]
            data = b"".join(parts)
            _check_hash(sha256, hashlib.sha256(data).hexdigest(), len(data))
            await asyncio.to_thread(self._store, sha256, len(data), lambda path: write_file(path, data))
            return data
        return held.getvalue()

    def place(self, sha256: str) -> Path | None:  # noqa: ARG002 - the cache may remove it meanwhile
        return None

    async def copy(self, sha256: str, path: Path) -> None:
        """Write a file to `path`, a new one on the disk of the cache, by pieces; errors as `read`.

        It may be the same file as the cache's: do not write to it.
        """
        _check_name(sha256)
        with path.open("x+b") as file:
            if await asyncio.to_thread(self._copy_cached, sha256, file):
                return
            digest, size_bytes = hashlib.sha256(), 0

            def write(part: Buffer) -> None:
                digest.update(part)
                file.write(part)

            async for part in self._fetch(sha256):
                size_bytes += memoryview(part).nbytes
                await asyncio.to_thread(write, part)
        _check_hash(sha256, digest.hexdigest(), size_bytes)
        # One file with two names: no second copy is written. Another process may have kept it meanwhile.
        await asyncio.to_thread(self._store, sha256, size_bytes, lambda kept: _link(path, kept))

    def _copy_cached(self, sha256: str, target: IO[bytes]) -> bool:
        """Write a file that is here and whole to `target`, and return whether it is."""
        path = self._folder / sha256
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
            if digest.hexdigest() == sha256:
                os.utime(path)  # the modification time tells which file was used last
                return True
            target.seek(0)
            target.truncate()
            _LOG.warning("%s was damaged; it is fetched again", path)
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            target.seek(0)
            target.truncate()
            _LOG.warning("%s cannot be read, and is fetched: %s", path, error)
        return False

    def _store(self, sha256: str, size_bytes: int, put: Callable[[Path], object]) -> None:
        """Keep a file, in place of those used longest ago; one that cannot be kept is fetched again when needed."""
        if size_bytes > self._max_bytes:
            return
        try:
            with self._locked():
                files = [path for path in self._folder.iterdir() if _SHA256.fullmatch(path.name)]
                kept = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in files)
                left_bytes = self._max_bytes - size_bytes - sum(held_bytes for _, held_bytes, _ in kept)
                for _, held_bytes, path in kept:
                    if left_bytes >= 0:
                        break
                    path.unlink(missing_ok=True)
                    left_bytes += held_bytes
                put(self._folder / sha256)
        except OSError as error:
            _LOG.warning("the file %s is not kept on this node: %s", sha256, error)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes and threads from changing the folder; the lock goes with the process."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _check_name(sha256: str) -> None:
    if not _SHA256.fullmatch(sha256):
        raise InferenceError(f"{sha256[:80]!r} is not a sha256 in lower-case hex")


def _check_hash(sha256: str, found: str, size_bytes: int) -> None:
    if found != sha256:
        raise InferenceError(f"the cloud sent {size_bytes} bytes of sha256 {found} for the file {sha256}")


def _link(path: Path, kept: Path) -> None:
    with contextlib.suppress(FileExistsError):
        kept.hardlink_to(path)


def _remove_unused(run: Path) -> None:
    """Remove the folder of a process unless it lives."""
    with contextlib.suppress(OSError):
        descriptor = os.open(run, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(run, ignore_errors=True)
        finally:
            os.close(descriptor)
