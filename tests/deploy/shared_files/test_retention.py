"""Reachability and retention of stored files: nothing that a device can be sent to is ever missing."""

import contextlib
import dataclasses
import os
import tempfile
import unittest.mock
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.sim.stored_cloud import StoredCloud, bundle_of
from walle.deploy.releases.reachability import find_reachable
from walle.deploy.releases.release import ReleaseState
from walle.deploy.releases.table import superseded
from walle.deploy.shared_files.retention import GRACE_S, MIN_GRACE_S, SKEW_S, Marks, sweep_files
from walle.deploy.shared_files.store import FileStoreUnavailableError
from walle.errors import ConfigError
from walle.task.format.bundle import Bundle

DAY_S = 86_400.0
TASKS, NUMBERS = st.sampled_from(["ipv", "live"]), st.integers(1, 9)  # versions are released again too


@pytest.fixture
def cloud(tmp_path: Path) -> StoredCloud:
    return StoredCloud(tmp_path)


def test_files_of_old_failed_versions_go_after_the_grace_time(cloud: StoredCloud) -> None:
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


def test_versions_that_a_rollback_leads_to_are_kept(cloud: StoredCloud) -> None:
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


def test_files_of_retired_versions_go_after_the_grace_time(cloud: StoredCloud) -> None:
    bundles = [bundle_of("ipv", number, b"own model %d" % number) for number in range(1, 7)]
    for bundle in bundles:
        cloud.put(bundle)
        cloud.record(bundle)
    for release_id in superseded(cloud.releases.values(), 3):
        release = cloud.releases[release_id]
        cloud.releases[release_id] = dataclasses.replace(release, state=ReleaseState.RETIRED)
    for _ in range(2):
        cloud.advance(GRACE_S + DAY_S)
        cloud.sweep()
    assert [cloud.files.has(bundle.sha256) for bundle in bundles] == [False] * 3 + [True] * 3
    cloud.assert_whole()


def test_a_file_that_is_put_again_waits_again(cloud: StoredCloud) -> None:
    name = cloud.files.put(b"orphan")
    cloud.advance(DAY_S)
    assert cloud.sweep() == []
    cloud.advance(GRACE_S + 1)
    cloud.files.put(b"orphan")  # a release that is being made puts it
    assert cloud.sweep() == []
    cloud.advance(GRACE_S)
    assert cloud.sweep() == []
    cloud.advance(GRACE_S)
    assert cloud.sweep() == [name]


def test_a_put_during_the_sweep_keeps_the_file(cloud: StoredCloud) -> None:
    name = cloud.files.put(b"orphan")
    cloud.advance(DAY_S)
    cloud.sweep()
    cloud.advance(2 * GRACE_S)
    assert cloud.sweep(between=lambda: cloud.files.put(b"orphan")) == []
    assert cloud.files.verify(name)


def test_what_killed_writers_left_goes_and_what_is_being_written_stays(cloud: StoredCloud) -> None:
    cloud.files.put(b"x")
    folder = next(path for path in (cloud.folder / "files").iterdir() if path.is_dir())
    old_s, new_s = (cloud.clock.time() - age_s for age_s in (GRACE_S + 1, MIN_GRACE_S))
    left = [cloud.folder / "files" / ".a.unfinished", folder / ".b.unfinished"]
    with cloud.files.writer() as writer:
        for path in left:
            path.write_bytes(b"half of a file")
            os.utime(path, (old_s, old_s))
        writer.write(b"a file that comes slowly")
        (coming,) = set((cloud.folder / "files").glob(".*.unfinished")) - set(left)
        os.utime(coming, (new_s, new_s))
        cloud.sweep()
        assert not any(path.exists() for path in left)
        assert cloud.files.has(writer.commit())


def test_a_damaged_manifest_stops_the_sweep_and_an_unanswering_store_too(cloud: StoredCloud) -> None:
    bundle = bundle_of("ipv", 1)
    cloud.put(bundle)
    release = cloud.record(bundle)
    cloud.files.path(bundle.sha256).write_bytes(b"damaged")
    (error,) = cloud.reachable().unread
    assert (error.release_id, error.sha256) == (release.id, bundle.sha256)
    assert "is damaged; repair it first: walle storage check" in str(error)
    cloud.files.remove(bundle.sha256)
    (error,) = cloud.reachable().unread
    assert "cannot be read" in str(error)
    cloud.releases[release.id] = dataclasses.replace(release, state=ReleaseState.ROLLED_BACK)
    assert cloud.reachable().unread == ()  # files of a release that was rolled back may be gone

    def away(sha256: str) -> bytes:
        raise FileStoreUnavailableError(sha256, "the S3 server does not answer")

    assert len(find_reachable(cloud.releases.values(), away).unread) == 1


def test_a_grace_time_that_is_too_short_and_marks_that_are_damaged(cloud: StoredCloud, tmp_path: Path) -> None:
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
        self.cloud = StoredCloud(Path(folder))
        self.making: list[Bundle] = []  # bundles whose files are put, and which are not journalled yet

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

    @rule(task=TASKS, keep_versions=st.integers(1, 3))
    def retire(self, task: str, keep_versions: int) -> None:
        of_task = [one for one in self.cloud.releases.values() if one.request.task == task]
        for release_id in superseded(of_task, keep_versions):
            release = self.cloud.releases[release_id]
            self.cloud.releases[release_id] = dataclasses.replace(release, state=ReleaseState.RETIRED)

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
