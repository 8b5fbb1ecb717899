"""Reachability and retention of stored files: nothing that a device can be sent to is ever missing."""

import asyncio
import contextlib
import dataclasses
import functools
import tempfile
import unittest.mock
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.sim.release_world import BUNDLE_SIGNER, CDN_URL
from walle.clock import ManualClock
from walle.deploy.cloud.bundle import Bundle, TaskVersion, build_bundle
from walle.deploy.cloud.files import FileStoreUnavailableError
from walle.deploy.cloud.folder_store import FolderStore
from walle.deploy.cloud.reachability import Reachable, find_reachable
from walle.deploy.cloud.release import Release, ReleaseRequest, ReleaseState
from walle.deploy.cloud.release_table import plan_row
from walle.deploy.cloud.retention import GRACE_S, MIN_GRACE_S, SKEW_S, Marks, sweep_files
from walle.deploy.cloud.task_tree import TaskTree
from walle.errors import ConfigError
from walle.protocol import Envelope, Manifest

DAY_S = 86_400.0
TASKS, NUMBERS = st.sampled_from(["ipv", "live"]), st.integers(1, 9)  # versions are released again too
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


class Cloud:
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
            rows = [plan_row(task, of_task[:end], CDN_URL) for end in range(1, len(of_task) + 1)]  # after rollbacks
            for entry in {entry.directive.manifest: entry for row in rows for entry in row.entries}.values():
                manifest = Manifest.from_bytes(Envelope.from_bytes(self.files.read(entry.directive.manifest)).payload)
                assert all(self.files.verify(file.sha256) for file in manifest.files)
                assert all(self.cloud_files.verify(file.sha256) for file in manifest.cloud_files)


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


def test_files_of_old_failed_versions_go_after_the_grace_time(cloud: Cloud) -> None:
    bundles = [bundle_of("ipv", number, b"own model %d" % number) for number in range(1, 6)]
    for bundle in bundles:
        cloud.put(bundle)
        cloud.record(bundle, ReleaseState.ROLLED_BACK)
    cloud.advance(2 * SKEW_S)
    assert cloud.sweep() == []
    cloud.advance(GRACE_S - 1)
    assert cloud.sweep() == []
    cloud.advance(2)
    would = cloud.sweep(dry_run=True)
    assert {bundle.sha256 for bundle in bundles if not cloud.files.has(bundle.sha256)} == set()
    assert cloud.sweep() == would
    gone, kept = bundles[:3], bundles[3:]  # two versions are kept whatever became of them
    assert {bundle.sha256 for bundle in gone} <= set(would)
    assert all(cloud.files.has(sha256) for bundle in kept for sha256 in (bundle.sha256, *bundle.blobs))
    assert not any(cloud.files.has(bundle.sha256) for bundle in gone)
    assert cloud.sweep() == []


def test_versions_that_a_rollback_leads_to_are_kept(cloud: Cloud) -> None:
    for number in range(1, 30):
        bundle = bundle_of("ipv", number)
        cloud.put(bundle)
        cloud.record(bundle)
    for _ in range(2):
        cloud.advance(10 * DAY_S)
        assert cloud.sweep() == []
    for release in reversed(list(cloud.releases.values())):
        cloud.assert_whole()
        cloud.releases[release.id] = dataclasses.replace(release, state=ReleaseState.ROLLED_BACK)


def test_a_file_that_is_put_again_waits_again(cloud: Cloud) -> None:
    name = cloud.files.put(b"orphan")
    cloud.advance(DAY_S)
    assert cloud.sweep() == []
    cloud.advance(GRACE_S + 1)
    cloud.files.put(b"orphan")  # by a release that is being made
    assert cloud.sweep() == []
    cloud.advance(GRACE_S)
    assert cloud.sweep() == []
    cloud.advance(GRACE_S)
    assert cloud.sweep() == [name]


def test_a_put_during_the_sweep_keeps_the_file(cloud: Cloud) -> None:
    name = cloud.files.put(b"orphan")
    cloud.advance(DAY_S)
    cloud.sweep()
    cloud.advance(2 * GRACE_S)
    assert cloud.sweep(between=lambda: cloud.files.put(b"orphan")) == []
    assert cloud.files.verify(name)


def test_a_damaged_manifest_stops_the_sweep_and_an_unanswering_store_too(cloud: Cloud) -> None:
    bundle = bundle_of("ipv", 1)
    cloud.put(bundle)
    release = cloud.record(bundle)
    cloud.files.path(bundle.sha256).write_bytes(b"damaged")
    (error,) = cloud.reachable().unread
    assert (error.release_id, error.sha256) == (release.id, bundle.sha256)
    assert "is damaged; repair it first: walle files check" in str(error)
    cloud.files.remove(bundle.sha256)
    (error,) = cloud.reachable().unread
    assert "cannot be read" in str(error)
    cloud.releases[release.id] = dataclasses.replace(release, state=ReleaseState.ROLLED_BACK)
    assert cloud.reachable().unread == ()  # it may be gone

    def away(sha256: str) -> bytes:
        raise FileStoreUnavailableError(sha256, "the S3 server does not answer")

    assert len(find_reachable(cloud.releases.values(), away).unread) == 1


def test_a_grace_time_that_is_too_short_and_marks_that_are_damaged(cloud: Cloud, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too short"):
        sweep_files(cloud.files, Marks(tmp_path / "m"), frozenset, cloud.clock, grace_s=MIN_GRACE_S - 1)
    (tmp_path / "m").write_text("[]")
    with pytest.raises(ConfigError, match="is damaged; remove it"):
        Marks(tmp_path / "m")


class Life(RuleBasedStateMachine):
    """A cloud to which anything happens in any order: releases, rollbacks, sweeps, also in the middle of a release."""

    @initialize()
    def begin(self) -> None:
        self.undo = contextlib.ExitStack()
        folder = self.undo.enter_context(tempfile.TemporaryDirectory())
        self.undo.enter_context(unittest.mock.patch("os.fsync"))  # no power cut here
        self.cloud = Cloud(Path(folder))
        self.making: list[Bundle] = []  # their files are put, and they are not journalled yet

    def teardown(self) -> None:
        self.undo.close()

    @rule(task=TASKS, number=NUMBERS, state=st.sampled_from(list(ReleaseState)))
    def release(self, task: str, number: int, state: ReleaseState) -> None:
        bundle = bundle_of(task, number)
        self.cloud.put(bundle)
        self.cloud.record(bundle, state)

    @rule(task=TASKS, number=NUMBERS)
    def begin_release(self, task: str, number: int) -> None:
        self.making.append(bundle_of(task, number))
        self.cloud.put(self.making[-1])

    @precondition(lambda self: self.making)
    @rule()
    def end_release(self) -> None:
        self.cloud.record(self.making.pop(0))

    @precondition(lambda self: self.cloud.releases)
    @rule(data=st.data(), state=st.sampled_from([ReleaseState.ROLLED_BACK, ReleaseState.FULL, ReleaseState.PAUSED]))
    def change(self, data: st.DataObject, state: ReleaseState) -> None:
        release = data.draw(st.sampled_from(list(self.cloud.releases.values())))
        if not release.state.terminal:
            self.cloud.releases[release.id] = dataclasses.replace(release, state=state)

    @rule(days=st.sampled_from([0.0, 0.1, 5.0, 5.0]))
    def sweep_after(self, days: float) -> None:
        while days and self.making:  # a release is journalled within MIN_GRACE_S of its puts
            self.end_release()
        self.cloud.advance(days * DAY_S)
        self.cloud.sweep()

    @rule(task=TASKS, number=NUMBERS)
    def sweep_during_a_release(self, task: str, number: int) -> None:
        self.cloud.advance(5 * DAY_S if not self.making else 0.0)
        bundle = bundle_of(task, number)
        steps: list[Callable[[], object]] = [lambda: self.cloud.record(bundle), lambda: self.cloud.put(bundle)]
        self.cloud.sweep(between=lambda: steps.pop()() if steps else None)
        while steps:
            steps.pop()()

    @invariant()
    def whole(self) -> None:
        self.cloud.assert_whole()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
