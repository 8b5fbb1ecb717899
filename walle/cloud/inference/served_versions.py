"""Versions that devices may get: loaded before a device asks for them, and kept while it may."""

import asyncio
import collections
import logging
from collections.abc import Iterable, Sequence

from walle.cloud.inference.engine import Engine, ReleasedVersion
from walle.cloud.inference.failures import NoRoomError
from walle.cloud.inference.versions import Versions
from walle.errors import WalleError
from walle.task.run.runner import runs_on_cloud

_LOG = logging.getLogger(__name__)


class ServedVersions:
    """The versions of the release table whose phases run here, between `keep` and `close`.

    `loads` counts versions that were to be loaded beforehand: "loaded", "room" (what is used takes all room) and
    "failed".
    """

    def __init__(self, versions: Versions, engine: Engine) -> None:
        self.loads = collections.Counter[str]()
        self._versions = versions
        self._engine = engine
        self._known: dict[str, ReleasedVersion | None] = {}  # by manifest; None: no phase of it runs here
        self._served: list[ReleasedVersion] = []
        self._to_load: collections.deque[ReleasedVersion] = collections.deque()
        self._running: dict[str, asyncio.Event] = {}  # set at the end of a load
        self._loading: asyncio.Task[None] | None = None

    async def cold(self, manifests: Iterable[str]) -> frozenset[str]:
        """Return those whose phases run here and that are not loaded."""
        versions = [await self._version(sha256) for sha256 in manifests]
        return frozenset(one.sha256 for one in versions if one is not None and not self._engine.is_loaded(one))

    async def load(self, manifest: str) -> None:
        """Load a version in each process; others make room for it. A failure is logged and counted."""
        version = await self._version(manifest)
        if version is not None:
            await self._load(version, may_unload=True)

    async def keep(self, manifests: Sequence[str]) -> None:
        """Take note of what devices may get, and load it in the background as far as there is room."""
        versions = [await self._version(sha256) for sha256 in manifests]
        before = {version.sha256 for version in self._served}
        self._known = {sha256: self._known[sha256] for sha256 in manifests if sha256 in self._known}
        self._served = [version for version in versions if version is not None]
        self._engine.keep(self._served)
        self._to_load = collections.deque(
            one for one in self._served if one.sha256 not in before or one in self._to_load
        )
        if self._to_load and (self._loading is None or self._loading.done()):
            self._loading = asyncio.create_task(self._load_all())

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    async def _version(self, sha256: str) -> ReleasedVersion | None:
        if sha256 in self._known:
            return self._known[sha256]
        try:
            version = await self._versions.read(sha256)
        except (WalleError, OSError) as error:  # a request for it says so; the next table has it read again
            _LOG.warning("the manifest %s cannot be read: %s", sha256, error)
            return None
        return self._known.setdefault(sha256, version if runs_on_cloud(version.manifest) else None)

    async def _load_all(self) -> None:
        while self._to_load:
            await self._load(self._to_load.popleft(), may_unload=False)

    async def _load(self, version: ReleasedVersion, *, may_unload: bool) -> None:
        while (other := self._running.get(version.sha256)) is not None:
            await other.wait()
        if self._engine.is_loaded(version):
            return
        ended = self._running[version.sha256] = asyncio.Event()
        try:
            await self._engine.load(version, may_unload=may_unload)
        except NoRoomError as error:
            self.loads["room"] += 1
            if may_unload:
                _LOG.warning("%s; the first request for it waits until it is (more --inference-vms)", error)
        except Exception as error:  # noqa: BLE001 -- the version's, whatever it is: its runs report it
            self.loads["failed"] += 1
            _LOG.warning("%s is not loaded in advance: %s", version.name, error)
        else:
            self.loads["loaded"] += 1
        finally:
            del self._running[version.sha256]
            ended.set()
