"""Reachability of stored files: which of them devices or the cloud may still ask for, and by which releases.

A release reaches its manifest and the files that this names while devices may have its version or get it: until it is
rolled back or has failed. So every version that a rollback can lead to stays whole. The latest versions of each task
are reached whatever became of them. Exclusive files and uploads are in separate databases.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping

from walle.deploy.releases.release import Release
from walle.deploy.shared_files.store import FileStoreError, FileStoreUnavailableError
from walle.errors import DeployError
from walle.protocol import Envelope, Manifest, ProtocolError

KEEP_VERSIONS = 5  # versions kept of each task


class ManifestError(DeployError):
    """A manifest that cannot be read, so that nobody knows which files its version has; `is_absent`: it is gone."""

    def __init__(self, release_id: str, sha256: str, why: str, *, is_absent: bool = False) -> None:
        super().__init__(
            f"release {release_id}: its manifest {sha256} {why}; repair it first: walle storage check FOLDER"
        )
        self.release_id = release_id
        self.sha256 = sha256
        self.is_absent = is_absent


@dataclasses.dataclass(frozen=True)
class Reachable:
    """The reached files by their sha256, with the releases that reach each: those of devices, and of the cloud.

    `unread` are the manifests among them that could not be read.
    """

    files: Mapping[str, tuple[Release, ...]]
    cloud_files: Mapping[str, tuple[Release, ...]]
    unread: tuple[ManifestError, ...] = ()

    def of(self, store: str) -> Mapping[str, tuple[Release, ...]]:
        """Return the reached files of the store of that name; none of one that neither devices nor phases read."""
        return {"files": self.files, "cloud-files": self.cloud_files}.get(store, {})


def find_reachable(
    releases: Iterable[Release], read: Callable[[str], bytes], *, keep_versions: int = KEEP_VERSIONS
) -> Reachable:
    """Return what `releases` reach; `read` returns a stored file by its sha256, as `FileStore.read`.

    A manifest of a version that is over may be gone: it is not reached any more. Each other one that cannot be read is
    in `unread`.
    """
    files: dict[str, list[Release]] = collections.defaultdict(list)
    cloud_files: dict[str, list[Release]] = collections.defaultdict(list)
    unread = []
    for release in _reaching(releases, keep_versions):
        try:
            manifest = _manifest(release, read)
        except ManifestError as error:
            if release.state.terminal and error.is_absent:
                continue
            unread.append(error)
            for sha256 in (release.manifest, *(one.manifest for one in release.variants)):
                files[sha256].append(release)
            continue
        manifests = (release.manifest, *(one.manifest for one in release.variants))
        for sha256 in {*manifests, *(entry.sha256 for entry in manifest.device_files)}:
            files[sha256].append(release)
        for sha256 in {entry.sha256 for entry in manifest.cloud_files}:
            cloud_files[sha256].append(release)
    return Reachable(_frozen(files), _frozen(cloud_files), tuple(unread))


def _reaching(releases: Iterable[Release], keep_versions: int) -> list[Release]:
    of_task: dict[str, list[Release]] = collections.defaultdict(list)
    for release in releases:
        if release.manifest:
            of_task[release.request.name].append(release)
    reaching = []
    for found in of_task.values():
        newest_first = sorted(found, key=lambda release: -release.number)
        latest = list(dict.fromkeys(release.request.version for release in newest_first))[:keep_versions]
        reaching += [one for one in newest_first if not one.state.terminal or one.request.version in latest]
    return reaching


def _manifest(release: Release, read: Callable[[str], bytes]) -> Manifest:
    sha256 = release.manifest
    try:
        data = read(sha256)
    except (FileStoreError, OSError) as error:
        is_absent = isinstance(error, FileStoreError) and not isinstance(error, FileStoreUnavailableError)
        raise ManifestError(release.id, sha256, f"cannot be read ({error})", is_absent=is_absent) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ManifestError(release.id, sha256, "is damaged")
    try:
        return Envelope.from_bytes(data).manifest
    except ProtocolError as error:
        raise ManifestError(release.id, sha256, f"is not a manifest ({error})") from error


def _frozen(found: Mapping[str, Collection[Release]]) -> dict[str, tuple[Release, ...]]:
    return {sha256: tuple(releases) for sha256, releases in found.items()}
