"""Files of the versions that run here, unpacked at first use, in a folder with a bound."""

import asyncio
import collections
import contextlib
import functools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from walle.cloud.inference.version_source import VersionSource
from walle.protocol import Manifest
from walle.task.format.bundle import unpack
from walle.task.format.large_file import LargeFile

_LARGE_BYTES = 8 << 20  # size from which on a file is copied by pieces
MAX_FOLDERS = 64  # versions that nothing uses, the latest used ones


class VersionFiles:
    """Folders of versions in `folder`, which is emptied first. Those that nothing uses are MAX_FOLDERS at most, and
    their files have `max_idle_bytes` at most.
    """

    def __init__(self, source: VersionSource, folder: Path, max_idle_bytes: int) -> None:
        self._source = source
        self._max_idle_bytes = max_idle_bytes
        self._sizes: dict[str, int] = {}
        self._folder = folder
        self._unpacking: collections.OrderedDict[str, asyncio.Task[Path]] = collections.OrderedDict()
        self._users = collections.Counter[str]()

    def prepare(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    @contextlib.asynccontextmanager
    async def use(self, sha256: str, manifest: Manifest) -> AsyncIterator[Path]:
        """Give the folder of a version, which stays as long as the block; concurrent callers share its unpacking."""
        self._users[sha256] += 1
        try:
            unpacking = self._unpacking.get(sha256)
            if unpacking is None:
                unpacking = asyncio.create_task(self._unpack(sha256, manifest))
                self._unpacking[sha256] = unpacking
                self._sizes[sha256] = sum(one.size_bytes for one in (*manifest.files, *manifest.cloud_files))
                unpacking.add_done_callback(functools.partial(self._forget_failed, sha256))
            self._unpacking.move_to_end(sha256)
            yield await asyncio.shield(unpacking)
        finally:
            self._users[sha256] -= 1
            if not self._users[sha256]:
                del self._users[sha256]
            self._remove_oldest()

    async def close(self) -> None:
        """Wait for what is being unpacked: a thread cannot be stopped. The source has failed what it was reading."""
        await asyncio.gather(*self._unpacking.values(), return_exceptions=True)

    def _forget_failed(self, sha256: str, unpacking: asyncio.Task[Path]) -> None:
        if unpacking.cancelled() or unpacking.exception() is not None:
            self._unpacking.pop(sha256, None)
            self._sizes.pop(sha256, None)

    def _remove_oldest(self) -> None:
        idle = [sha256 for sha256, one in self._unpacking.items() if one.done() and not self._users[sha256]]
        folders, size_bytes = len(idle), sum(self._sizes[sha256] for sha256 in idle)
        for sha256 in idle:
            if folders <= MAX_FOLDERS and size_bytes <= self._max_idle_bytes:
                break
            folders, size_bytes = folders - 1, size_bytes - self._sizes.pop(sha256)
            folder = self._unpacking.pop(sha256).result()
            # At once under another name: a new use unpacks it again meanwhile.
            gone = folder.with_name(f".gone-{folder.name}")
            with contextlib.suppress(OSError):
                folder.rename(gone)
            asyncio.get_running_loop().run_in_executor(None, functools.partial(shutil.rmtree, gone, ignore_errors=True))

    async def _unpack(self, sha256: str, manifest: Manifest) -> Path:
        entries = (*manifest.files, *manifest.cloud_files)
        blobs: dict[str, bytes] = {}
        large: dict[str, LargeFile] = {}
        folder = self._folder / sha256
        copies = self._folder / f".large-{sha256}"
        copies.mkdir(exist_ok=True)
        try:
            for entry in entries:
                if entry.size_bytes < _LARGE_BYTES:
                    blobs[entry.sha256] = await self._source.read(entry.sha256)
                elif entry.sha256 not in large:
                    path = await asyncio.to_thread(self._source.place, entry.sha256)
                    if path is None:
                        path = copies / entry.sha256
                        await self._source.copy(entry.sha256, path)
                    large[entry.sha256] = LargeFile(entry.sha256, entry.size_bytes, path)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            await asyncio.to_thread(unpack, manifest, blobs, folder, large=large, on_cloud=True)
        finally:
            await asyncio.to_thread(shutil.rmtree, copies, ignore_errors=True)
        return folder
