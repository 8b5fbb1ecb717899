"""The agent's disk: corrupted versions, power cuts at every step, no room."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Mapping
from pathlib import Path

import pytest

from tests.night.cases import at_night
from tests.sim.agent_device import (
    FILES,
    MODEL,
    TASK,
    Device,
    assert_tidy,
    publish,
    spoil,
    start,
    two_versions,
)
from tests.sim.cloud_files import CloudFiles
from tests.sim.power_cut import FaultyDisk, PowerCut
from walle.protocol import Directive, OutcomeKind


@pytest.mark.asyncio
@pytest.mark.parametrize("part", ["files/main.pyc", "files/lib/a/b.pyc", "manifest", "missing", "planted", "symlink"])
async def test_a_corrupted_active_version_never_runs_and_comes_back_whole(tmp_path: Path, part: str) -> None:
    cloud = CloudFiles()
    _, second = await two_versions(tmp_path / "agent", cloud)
    (version,) = (tmp_path / "agent").glob(f"*/versions/{second.manifest}")
    if part == "missing":
        (version / "files/lib/copy.pyc").unlink()
    elif part == "planted":
        (version / "files/lib/evil.pyc").touch()
    elif part == "symlink":
        (version / "files/more").symlink_to(tmp_path)
    else:
        spoil(version / part)
    device = await start(tmp_path / "agent", cloud)
    assert device.log == ["activate v1"]
    assert device.running[TASK] == FILES["v1"]
    assert device.take_outcomes() == ["reverted v2"]
    assert_tidy(device.folder, 1)
    await device.do(second)
    assert device.running[TASK] == FILES["v2"]


@pytest.mark.asyncio
async def test_with_both_versions_corrupted_the_task_is_dropped_until_pulled_again(tmp_path: Path) -> None:
    cloud = CloudFiles()
    _, second = await two_versions(tmp_path / "agent", cloud)
    for path in (tmp_path / "agent").rglob("main.pyc"):
        spoil(path)
    device = await start(tmp_path / "agent", cloud)
    assert device.log == []
    assert device.agent.tasks == {}
    assert device.take_outcomes() == ["reverted v2", "reverted v1"]
    await device.do(second)
    assert device.running[TASK] == FILES["v2"]


@pytest.mark.asyncio
async def test_a_corrupted_state_drops_the_task_with_an_outcome(tmp_path: Path) -> None:
    cloud = CloudFiles()
    _, second = await two_versions(tmp_path / "agent", cloud)
    (path,) = (tmp_path / "agent").glob("*/state.json")
    good = path.read_bytes()
    for spoiled in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000, good[:-9], good.replace(b'"v2"', b'"v9"', 1)):
        shutil.copytree(tmp_path / "agent", tmp_path / "copy")
        (copy,) = (tmp_path / "copy").glob("*/state.json")
        copy.write_bytes(spoiled)
        device = await start(tmp_path / "copy", cloud)
        assert device.log == ["remove"]  # the data are removed too
        (outcome,) = device.outcomes()
        assert (outcome.kind, outcome.task, outcome.version) == (OutcomeKind.REMOVED, TASK, "")
        assert "state.json is corrupted" in outcome.error
        assert_tidy(device.folder, 0)
        device = await start(tmp_path / "copy", cloud)  # the process was killed before it had reported
        assert (device.log, device.outcomes()) == ([], [outcome])
        await device.do(second)
        assert device.running[TASK] == FILES["v2"]
        assert device.take_outcomes() == ["installed v2"]
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.asyncio
async def test_a_removal_after_a_corrupted_state_is_completed_by_a_later_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = CloudFiles()
    _, second = await two_versions(tmp_path / "agent", cloud)
    (path,) = (tmp_path / "agent").glob("*/state.json")
    spoil(path)
    device = Device(tmp_path / "agent", cloud)
    device.fail_remove = True
    await device.agent.start()
    assert "its data could not be removed" in caplog.text
    assert device.take_outcomes() == ["removed"]
    device = await start(tmp_path / "agent", cloud)
    assert (device.log, device.take_outcomes()) == (["remove"], ["removed"])
    assert_tidy(device.folder, 0)
    await device.do(second)
    assert device.agent.tasks == {TASK: "v2"}


@pytest.mark.asyncio
async def test_a_corrupted_previous_version_is_pulled_again_by_a_rollback_and_skipped_by_a_revert(
    tmp_path: Path,
) -> None:
    cloud = CloudFiles()
    first, _ = await two_versions(tmp_path / "agent", cloud)
    shutil.copytree(tmp_path / "agent", tmp_path / "copy")
    for folder in (tmp_path / "agent", tmp_path / "copy"):
        spoil(next(folder.glob(f"*/versions/{first.manifest}/files/main.pyc")))
    device = await start(tmp_path / "agent", cloud)
    await device.do(cloud.sign(first))
    assert device.running[TASK] == FILES["v1"]
    device = await start(tmp_path / "copy", cloud)
    assert await device.agent.revert(TASK, "it raises")
    assert device.agent.tasks == {}
    assert device.running == {}


async def _update(device: Device, directives: Mapping[str, Directive]) -> None:
    await device.agent.handle([directives["v3"]], device.cloud.timestamp())


async def _roll_back(device: Device, directives: Mapping[str, Directive]) -> None:
    await device.agent.handle([directives["v1 again"]], device.cloud.timestamp())


async def _drop(device: Device, directives: Mapping[str, Directive]) -> None:
    await device.agent.handle([directives["removal"]], device.cloud.timestamp())


async def _leave(device: Device, _: Mapping[str, Directive]) -> None:
    if device.agent.tasks[TASK] == "v2":
        await device.agent.revert(TASK, "it raises")


ACTS = {"update": (_update, "v3"), "rollback": (_roll_back, "v1"), "removal": (_drop, ""), "revert": (_leave, "v1")}


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing is what `FaultyDisk` keeps account of; the real disk need not wait for it a thousand times."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[CloudFiles, Path, dict[str, Directive]]:
    """A device's folder with v2 active and v1 previous, and what may be asked of it next."""
    cloud = CloudFiles()
    cloud.chunk_bytes = 4000
    folder = tmp_path_factory.mktemp("prepared") / "agent"
    first, second = asyncio.run(two_versions(folder, cloud))
    third = cloud.publish(TASK, "v3", FILES["v3"] | {"resources/model.walle": MODEL, "lib/new.pyc": b"new"})
    directives = {"v2": second, "v3": third, "v1 again": cloud.sign(first), "removal": cloud.remove(TASK)}
    return cloud, folder, directives


V3 = FILES["v3"] | {"resources/model.walle": MODEL, "lib/new.pyc": b"new"}


def _assert_whole(device: Device, old: str, new: str) -> None:
    version = device.agent.tasks.get(TASK, "")
    assert version in (old, new)
    assert device.running.get(TASK, {}) == {"": {}, "v1": FILES["v1"], "v2": FILES["v2"], "v3": V3}[version]


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("mode", [*at_night("kept", "lost"), "torn"])
@pytest.mark.parametrize("act", ACTS)
def test_a_power_cut_at_any_step_leaves_the_old_version_or_the_new_one_whole(
    tmp_path: Path, prepared: tuple[CloudFiles, Path, dict[str, Directive]], act: str, mode: str
) -> None:
    cloud, source, directives = prepared
    perform, new = ACTS[act]
    seen: set[str] = set()
    for step in range(1, 1000):
        folder = tmp_path / f"{step}" / "agent"
        shutil.copytree(source, folder)
        device = asyncio.run(start(folder, cloud))
        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(patch, tmp_path / f"{step}" / "grave", step)
            with contextlib.suppress(PowerCut):
                asyncio.run(_run(perform(device, directives)))
        disk.cut_off(mode, step)
        if not disk.failed:  # the work ended, and the power failed after that
            _assert_whole(asyncio.run(start(folder, cloud)), new, new)
            if mode != "kept":  # the last step may be the sync of the new state, which a cut there undoes
                seen.add(new)
            break

        async def recover_and_try_again(folder: Path = folder) -> None:
            device = await start(folder, cloud)
            _assert_whole(device, "v2", new)
            seen.add(device.agent.tasks.get(TASK, ""))
            assert {outcome.error for outcome in device.outcomes()} <= {"", "it raises"}
            await perform(device, directives)
            _assert_whole(device, new, new)
            again = await start(folder, cloud)
            _assert_whole(again, new, new)
            assert_tidy(folder, {"update": 2, "rollback": 2, "revert": 2, "removal": 0}[act])

        asyncio.run(recover_and_try_again())
    assert not disk.failed
    assert step > 5
    assert seen == {"v2", new}


async def _run(work: Awaitable[object]) -> None:
    await work


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("mode", ["lost", *at_night("torn")])
def test_a_power_cut_at_any_step_of_a_first_install_leaves_nothing_or_all(tmp_path: Path, mode: str) -> None:
    cloud = CloudFiles()
    directive = publish(cloud, "v1")
    for step in range(1, 1000):
        folder = tmp_path / f"{step}" / "agent"
        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(patch, tmp_path / f"{step}" / "grave", step)
            with contextlib.suppress(PowerCut):
                asyncio.run(_start_and_handle(folder, cloud, directive))
        disk.cut_off(mode, step)
        device = asyncio.run(start(folder, cloud))
        assert device.running.get(TASK, {}) in ({}, FILES["v1"])
        assert {outcome.error for outcome in device.outcomes()} <= {""}
        if not disk.failed:  # the work ended, and the power failed after that
            assert device.running
            break
        device = asyncio.run(_start_and_handle(folder, cloud, directive))
        assert device.running[TASK] == FILES["v1"]
        assert_tidy(folder, 1)
    assert step > 20


async def _start_and_handle(folder: Path, cloud: CloudFiles, directive: Directive) -> Device:
    device = await start(folder, cloud)
    await device.do(directive)
    return device


@pytest.mark.usefixtures("no_sync")
def test_a_power_cut_at_any_step_of_a_recovery_is_recovered_from(
    tmp_path: Path, prepared: tuple[CloudFiles, Path, dict[str, Directive]]
) -> None:
    cloud, source, directives = prepared
    for step in range(1, 1000):
        folder = tmp_path / f"{step}" / "agent"
        shutil.copytree(source, folder)
        spoil(next(folder.glob(f"*/versions/{directives['v2'].manifest}/files/main.pyc")))
        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(patch, tmp_path / f"{step}" / "grave", step)
            with contextlib.suppress(PowerCut):
                asyncio.run(_run(start(folder, cloud)))
        disk.cut_off("torn", step)
        device = asyncio.run(start(folder, cloud))
        assert device.running[TASK] == FILES["v1"]
        if not disk.failed:
            break
    assert step > 5


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("act", ACTS)
def test_a_disk_that_is_full_from_any_step_on_keeps_a_whole_version_and_nothing_half_done(
    tmp_path: Path, prepared: tuple[CloudFiles, Path, dict[str, Directive]], act: str
) -> None:
    cloud, source, directives = prepared
    perform, new = ACTS[act]
    for step in range(1, 1000):
        folder = tmp_path / f"{step}" / "agent"
        shutil.copytree(source, folder)

        async def fill(folder: Path = folder, step: int = step) -> FaultyDisk:
            device = await start(folder, cloud)
            device.take_outcomes()
            with pytest.MonkeyPatch.context() as patch:
                disk = FaultyDisk(patch, folder.parent / "grave", step, full=True)
                await perform(device, directives)
            _assert_whole(device, "v2", new)
            if act == "update" and device.agent.tasks[TASK] == "v2":
                (outcome,) = device.outcomes()
                assert outcome.kind is OutcomeKind.REJECTED
                assert "No space left" in outcome.error
                assert_tidy(folder, 2)
            await device.wait_for_retry()
            await perform(device, directives)
            _assert_whole(device, new, new)
            if (
                act != "revert"
            ):  # a disk that took nothing has forgotten that v2 was left: it is left again when it fails
                _assert_whole(await start(folder, cloud), new, new)
            return disk

        if not asyncio.run(fill()).failed:
            break
    assert step > 5


@pytest.mark.asyncio
async def test_a_version_larger_than_the_room_left_is_refused_before_a_file_is_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    monkeypatch.setattr(device.agent._installed, "free_bytes", lambda: 5000)
    for _ in range(3):
        assert "No space left" in str(await device.refuse(directive))
    assert {sha256 for sha256, _ in cloud.pulls} == {directive.manifest}
    assert device.take_outcomes() == ["rejected v1"]
    monkeypatch.undo()
    await device.do(directive)
