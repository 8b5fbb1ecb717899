"""Look-up of released versions by the names that devices use."""

import asyncio
import collections
import functools
from typing import Protocol

from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference.engine import ReleasedVersion
from walle.cloud.inference.failures import InferenceError
from walle.cloud.inference.version_source import HomeSource
from walle.deploy.releases.release import Release

MAX_VERSIONS = 256  # versions whose manifests are kept, those asked for last

type _Name = tuple[str, str]  # a task's full name, and a version


class KnownReleases(Protocol):
    """The one method of the release service that is called here."""

    async def all(self) -> tuple[Release, ...]: ...


class Versions:
    """Versions that were released here, by task and version."""

    def __init__(self, home: CloudHome, releases: KnownReleases) -> None:
        self._source = HomeSource(home)
        self._releases = releases
        self._known: collections.OrderedDict[_Name, ReleasedVersion] = collections.OrderedDict()
        self._finding: dict[_Name, asyncio.Task[ReleasedVersion]] = {}

    async def find(self, task: str, version: str) -> ReleasedVersion:
        """Return a version; concurrent callers share the look-up.

        Raises:
            InferenceError: it was never released here.
        """
        name = task, version
        found = self._known.get(name)
        if found is not None:
            self._known.move_to_end(name)
            return found
        finding = self._finding.get(name)
        if finding is None:
            finding = self._finding[name] = asyncio.create_task(self._find(name))
            finding.add_done_callback(functools.partial(self._note_end, name))
        return await asyncio.shield(finding)

    async def read(self, sha256: str) -> ReleasedVersion:
        """Return the version of a manifest.

        Raises:
            OSError: the manifest is not in the cloud's folder.
            WalleError: it is damaged.
        """
        return ReleasedVersion.of(sha256, await self._source.manifest(sha256))

    async def close(self) -> None:
        finding = list(self._finding.values())
        for task in finding:
            task.cancel()
        await asyncio.gather(*finding, return_exceptions=True)

    def _note_end(self, name: _Name, finding: asyncio.Task[ReleasedVersion]) -> None:
        del self._finding[name]
        if finding.cancelled() or finding.exception() is not None:
            return
        self._known[name] = finding.result()
        if len(self._known) > MAX_VERSIONS:
            self._known.popitem(last=False)

    async def _find(self, name: _Name) -> ReleasedVersion:
        for release in await self._releases.all():
            if (release.request.name, release.request.version) == name and release.manifest:
                return await self.read(release.manifest)
        task, version = name
        raise InferenceError(f"{task[:200]} {version[:100]} was never released here")
