"""Stored files of a cloud's folder and the releases that reach them: what checks, repairs and removes them needs."""

import contextlib
from collections.abc import Callable, Iterable, Mapping

from walle.clock import Clock
from walle.cloud.file_places import STORES, read_place, store_at
from walle.cloud.home import CloudHome
from walle.deploy.cloud.bundle import TaskVersion, UnsignedBundle, build_unsigned
from walle.deploy.cloud.files import FileStore
from walle.deploy.cloud.reachability import KEEP_VERSIONS, Reachable, find_reachable
from walle.deploy.cloud.release import Release
from walle.deploy.cloud.repair_sources import CodedForms, OtherStore, PushedVersions, RepairSource
from walle.deploy.cloud.scrub import Scrubber
from walle.deploy.cloud.signatures import SignatureAwaitedError
from walle.errors import ConfigError

QUARANTINE = "quarantine"
UNREACHED = "-unreached.json"  # ends the names of files with the marks of a retention, after the store's


class StoredFiles:
    """Files of the cloud in `folder`, which may run. `releases` are read from its journal unless they are given."""

    def __init__(self, home: CloudHome, releases: Callable[[], Iterable[Release]] | None = None) -> None:
        self._home = home
        self._releases = releases or home.releases

    @property
    def stores(self) -> Mapping[str, FileStore]:
        return {"files": self._home.files, "cloud-files": self._home.cloud_files}

    def reachable(self, keep_versions: int = KEEP_VERSIONS) -> Reachable:
        """Return what the releases reach now."""
        return find_reachable(self._releases(), self._home.files.read, keep_versions=keep_versions)

    def scrubber(self, clock: Clock, build: Callable[[TaskVersion], UnsignedBundle] = build_unsigned) -> Scrubber:
        """Return the scrubber of both stores and of the large files that were pushed, which repair each other.

        `build` builds versions again, as the release node does.
        """
        folder = self._home.folder

        def files_of(release: Release) -> Mapping[str, bytes]:
            request = release.request
            built = build(TaskVersion.parse(self._home.repos.read(request.scenario, request.task, request.version)))
            files = {**built.blobs, **built.cloud_blobs}
            with contextlib.suppress(SignatureAwaitedError, ConfigError):  # the offline keys are elsewhere
                bundle = built.signed(self._home.signatures.envelope(built.manifest))
                files[bundle.sha256] = bundle.envelope
            return files

        repos = self._home.repos
        pushed = {f"large files of {name}": repos.large_files(name).checked() for name in repos.scenarios()}
        sources: dict[str, list[RepairSource]] = {
            name: [OtherStore(store) for store in self.stores.values()] for name in pushed
        }
        for name in STORES:
            sources[name] = [*(OtherStore(store) for store in pushed.values()), PushedVersions(files_of)]
            if read_place(folder) is not None:
                sources[name].insert(0, OtherStore(store_at(folder, None, name)))
        sources["files"].insert(0, CodedForms(folder / "coded-files", self._home.files))
        return Scrubber({**self.stores, **pushed}, self.reachable, sources, folder / QUARANTINE, clock)
