"""Stored files of a cloud's folder and the releases that reach them: what checks, repairs and removes them needs."""

import contextlib
from collections.abc import Callable, Iterable, Mapping

from walle.base.clock import Clock
from walle.cloud.folder.file_places import STORES, read_place, store_at
from walle.cloud.folder.folder import CloudHome
from walle.cloud.upkeep.repair_sources import CodedForms, OtherStore, PushedVersions, RepairSource
from walle.cloud.upkeep.scrub import Scrubber
from walle.deploy.git.large_file_refs import named_files
from walle.deploy.git.large_file_store import LargeObjects
from walle.deploy.releases.reachability import KEEP_VERSIONS, Reachable, find_reachable
from walle.deploy.releases.release import Release
from walle.deploy.releases.signatures import SignatureAwaitedError
from walle.deploy.shared_files.store import FileStore
from walle.errors import ConfigError
from walle.task.format.bundle import TaskVersion, UnsignedBundle, build_unsigned

QUARANTINE = "quarantine"
LARGE_FILES = "large-files"  # begins those of pushed large files, before the scenario
UNREACHED = "-unreached.json"  # ends the names of files with the marks of a retention, after the store's


class StoredFiles:
    """Files of the cloud in `folder`, which may run. `releases` are read from its journal unless they are given."""

    def __init__(self, home: CloudHome, releases: Callable[[], Iterable[Release]] | None = None) -> None:
        self._home = home
        self._releases = releases or home.releases

    @property
    def stores(self) -> Mapping[str, FileStore]:
        return {"files": self._home.files, "cloud-files": self._home.cloud_files}

    @property
    def pushed(self) -> Mapping[str, LargeObjects]:
        """The large files that were pushed, by scenario; scenarios without any are left out."""
        found = {name: self._home.repos.large_files(name) for name in self._home.repos.scenarios()}
        return {name: store.checked() for name, store in found.items() if store.has_folder}

    def named(self, scenario: str) -> frozenset[str]:
        """Return the large files that the branches and versions of a scenario name. Raises RepoError."""
        return named_files(self._home.repos, scenario)

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
            built = build(self._home.repos.read_version(request.scenario, request.task, request.version))
            files = {**built.blobs, **built.cloud_blobs}
            with contextlib.suppress(SignatureAwaitedError, ConfigError):  # the offline keys are elsewhere
                bundle = built.signed(self._home.signatures.envelope(built.manifest))
                files |= {one.sha256: one.envelope for one in (bundle, *bundle.variants)}
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
