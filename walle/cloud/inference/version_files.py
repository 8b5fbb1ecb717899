"""Files of the versions that run here, unpacked at first use, in a folder with a bound."""

import asyncio
import collections
import contextlib
import functools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from walle.cloud.home import CloudHome
from walle.deploy.cloud.bundle import unpack
from walle.protocol import Manifest

MAX_FOLDERS = 64  # of versions that nothing uses, the latest used ones


class VersionFiles:
    """Folders of versions in `folder`, which is emptied first. `home` has the files."""

    def __init__(self, home: CloudHome, folder: Path) -> None:
        self._home = home
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
                unpacking = asyncio.create_task(asyncio.to_thread(self._unpack, sha256, manifest))
                self._unpacking[sha256] = unpacking
                unpacking.add_done_callback(functools.partial(self._forget_failed, sha256))
            self._unpacking.move_to_end(sha256)
            yield await asyncio.shield(unpacking)
        finally:
            self._users[sha256] -= 1
            if not self._users[sha256]:
                del self._users[sha256]
            self._remove_oldest()

    async def close(self) -> None:
        """Wait for what is being unpacked: a thread cannot be stopped."""
        await asyncio.gather(*self._unpacking.values(), return_exceptions=True)

    def _forget_failed(self, sha256: str, unpacking: asyncio.Task[Path]) -> None:
        if unpacking.cancelled() or unpacking.exception() is not None:
            self._unpacking.pop(sha256, None)

    def _remove_oldest(self) -> None:
        idle = [sha256 for sha256, one in self._unpacking.items() if one.done() and not self._users[sha256]]
        for sha256 in idle[: max(0, len(idle) - MAX_FOLDERS)]:
            folder = self._unpacking.pop(sha256).result()
            # At once under another name: a new use unpacks it again meanwhile.
            gone = folder.with_name(f".gone-{folder.name}")
            with contextlib.suppress(OSError):
                folder.rename(gone)
            asyncio.get_running_loop().run_in_executor(None, functools.partial(shutil.rmtree, gone, ignore_errors=True))

    def _unpack(self, sha256: str, manifest: Manifest) -> Path:
        shared, cloud = self._home.files, self._home.cloud_files
        blobs = {entry.sha256: shared.path(entry.sha256).read_bytes() for entry in manifest.files}
        blobs |= {entry.sha256: cloud.path(entry.sha256).read_bytes() for entry in manifest.cloud_files}
        folder = self._folder / sha256
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        unpack(manifest, blobs, folder, on_cloud=True)
        return folder
