"""A cloud's two stores of files and the releases that reach them, without a service."""

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path

from tests.sim.release_world import BUNDLE_SIGNER, CDN_URL
from walle.base.clock import ManualClock
from walle.deploy.releases.reachability import Reachable, find_reachable
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.table import plan_row
from walle.deploy.shared_files.folder_store import FolderStore
from walle.deploy.shared_files.retention import Marks, sweep_files
from walle.protocol import Envelope, Manifest
from walle.task.format.bundle import Bundle, TaskVersion, build_bundle
from walle.task.format.tree import TaskTree

_TOML = """
[task]
name = "{task}"
[trigger]
sequence = ["page_exit"]
[files]
"resources/model.bin" = "shared"
"resources/large.bin" = "cloud"
"""


@functools.cache
def bundle_of(task: str, number: int, model: bytes = b"") -> Bundle:
    """Return a version; some of its files are those of versions before it."""
    files = {
        "task.toml": _TOML.format(task=task).encode(),
        "main.py": f"def execute(ctx, x):\n    return {number // 2}\n".encode(),
        "resources/model.bin": model or b"model %d" % (number // 3),
        "resources/large.bin": b"large %d" % (number // 3),
    }
    tree = TaskTree(scenario="shop", task=task, version=f"v{number}", commit=f"{number:040x}", files=files)
    return build_bundle(TaskVersion.parse(tree), BUNDLE_SIGNER)


class StoredCloud:
    """A cloud's two stores and the releases that its journal has."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.folder = folder
        self.files = FolderStore(folder / "files", clock=self.clock)
        self.cloud_files = FolderStore(folder / "cloud-files", clock=self.clock)
        self.releases: dict[str, Release] = {}

    def put(self, bundle: Bundle) -> None:
        for blob in (*bundle.blobs.values(), bundle.envelope):
            self.files.put(blob)
        for blob in bundle.cloud_blobs.values():
            self.cloud_files.put(blob)

    def record(self, bundle: Bundle, state: ReleaseState = ReleaseState.FULL) -> Release:
        manifest, number = bundle.manifest, len(self.releases) + 1
        request = ReleaseRequest(scenario="shop", task=manifest.name.partition("/")[2], version=manifest.version)
        release = Release(
            id=f"r{number}", number=number, request=request, created_s=0.0, updated_s=0.0, state=state,
            manifest=bundle.sha256, size_bytes=len(bundle.envelope),
        )  # fmt: skip
        self.releases[release.id] = release
        return release

    def reachable(self, keep_versions: int = 2) -> Reachable:
        return find_reachable(self.releases.values(), self.files.read, keep_versions=keep_versions)

    def sweep(self, *, between: Callable[[], object] = lambda: None, dry_run: bool = False) -> list[str]:
        """Run a sweep of both stores; `between` happens after it has looked what is reached."""
        removed = []
        for name, store in (("files", self.files), ("cloud-files", self.cloud_files)):

            def reached(name: str = name) -> frozenset[str]:
                found = self.reachable()
                assert not found.unread
                between()
                return frozenset(found.of(name))

            marks = Marks(self.folder / f"{name}.json")
            done = sweep_files(store, marks, reached, self.clock, dry_run=dry_run)
            removed += [file.sha256 for file in done.removed]
        return removed

    def advance(self, seconds: float) -> None:
        asyncio.run(self.clock.advance(seconds))

    def assert_whole(self) -> None:
        """Assert that each version that devices can be sent to, now or by rollbacks, is there with all its files."""
        tasks = {release.request.name for release in self.releases.values()}
        for task in tasks:
            of_task = [one for one in self.releases.values() if one.request.name == task]
            rows = [plan_row(task, of_task[:end], CDN_URL) for end in range(1, len(of_task) + 1)]  # rollbacks too
            for entry in {entry.directive.manifest: entry for row in rows for entry in row.entries}.values():
                manifest = Manifest.from_bytes(Envelope.from_bytes(self.files.read(entry.directive.manifest)).payload)
                assert all(self.files.verify(file.sha256) for file in manifest.files)
                assert all(self.cloud_files.verify(file.sha256) for file in manifest.cloud_files)
