"""The agent: versions come, go and return, and those that fail are left."""

import asyncio
import dataclasses
import errno
from pathlib import Path
from typing import cast

import pytest

from tests.sim.agent_device import FILES, TASK, Device, assert_tidy, publish, start, two_versions
from tests.sim.cloud_files import CloudFiles, sha256_of
from walle.deploy.agent.agent_errors import (
    ActivationFailedError,
    ActivationPostponedError,
    CheckFailedError,
    DirectiveRefusedError,
    SupersededError,
)
from walle.deploy.agent.exclusive import ExclusiveFiles
from walle.protocol import Directive, Failure, FailureClass, Manifest, OutcomeKind


@pytest.mark.asyncio
async def test_installs_updates_and_keepstwo_versions(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    assert device.agent.tasks == {}
    for version, kept in (("v1", 1), ("v2", 2), ("v3", 2)):
        await device.do(publish(cloud, version))
        assert device.agent.tasks == {TASK: version}
        assert device.running[TASK] == FILES[version]
        assert_tidy(device.folder, kept)
    assert device.take_outcomes() == ["installed v1", "installed v2", "installed v3"]
    assert device.log == ["check v1", "activate v1", "check v2", "activate v2", "check v3", "activate v3"]


@pytest.mark.asyncio
async def test_a_version_is_prepared_where_it_runs_while_the_one_before_is_active(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(first)
    await device.do(second)
    assert device.prepared == [("v1", {}, FILES["v1"]), ("v2", {TASK: "v1"}, FILES["v2"])]
    await device.do(cloud.sign(first))  # v2 is left, and at once
    assert await device.agent.revert(TASK, "v1 fails too")
    assert [version for version, _, _ in device.prepared] == ["v1", "v2"]


@pytest.mark.asyncio
async def test_pulls_no_file_twice(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    cloud.pulls.clear()
    directive = publish(cloud, "v2")
    await device.do(directive)
    names = [sha256 for sha256, _ in cloud.pulls]
    assert sorted(names) == sorted([directive.manifest, sha256_of(FILES["v2"]["main.pyc"]), sha256_of(b"b" * 10)])
    cloud.pulls.clear()
    await device.do(directive)
    await device.do(cloud.sign(directive))
    assert cloud.pulls == []


@pytest.mark.asyncio
async def test_rollback_to_the_version_on_disk_pulls_nothing_and_is_not_undone_locally(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first = publish(cloud, "v1")
    second = publish(cloud, "v2")
    await device.do(first)
    await device.do(second)
    cloud.offline = True
    await device.do(cloud.sign(first))
    assert device.running[TASK] == FILES["v1"]
    assert device.log[-1] == "activate v1"
    assert (await device.refuse(second)).__class__ is DirectiveRefusedError
    assert await device.agent.revert(TASK, "v1 fails too")
    assert device.agent.tasks == {}  # v2 was left for being bad: the device does not go there by itself
    assert device.running == {}
    assert device.take_outcomes() == ["installed v2", "installed v1", "reverted v1"]


@pytest.mark.asyncio
async def test_a_version_left_as_bad_is_checked_again_before_it_returns(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(first)
    await device.do(second)
    await device.do(cloud.sign(first))
    cloud.pulls.clear()
    await device.do(cloud.sign(second))
    assert device.log[-2:] == ["check v2", "activate v2"]
    assert cloud.pulls == []
    assert_tidy(device.folder, 2)


@pytest.mark.asyncio
async def test_going_back_to_a_version_that_must_be_pulled_leaves_no_bad_fallback(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first = publish(cloud, "v1")
    await device.do(publish(cloud, "v2"))
    await device.do(cloud.sign(first))
    assert await device.agent.revert(TASK, "bad")
    assert device.agent.tasks == {}


@pytest.mark.asyncio
async def test_removal_ends_the_task_and_old_directives_cannot_bring_it_back(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first = publish(cloud, "v1")
    await device.do(first)
    await device.do(cloud.remove(TASK))
    assert device.running == {}
    assert device.agent.tasks == {}
    assert_tidy(device.folder, 0)
    device = await start(device.folder, cloud)
    assert device.take_outcomes() == ["removed v1"]
    assert isinstance(await device.refuse(first), DirectiveRefusedError)
    await device.do(cloud.sign(first))
    assert device.agent.tasks == {TASK: "v1"}


@pytest.mark.asyncio
async def test_restart_puts_the_active_version_to_use_and_tells_its_outcome_again(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"), cloud.publish("other/task", "v9", FILES["v3"]))
    device = await start(device.folder, cloud)
    assert device.agent.tasks == {TASK: "v1", "other/task": "v9"}
    assert device.running == {TASK: FILES["v1"], "other/task": FILES["v3"]}
    assert sorted(device.take_outcomes()) == ["installed v1", "installed v9"]
    device.agent.count_run(TASK, "v1")
    device.agent.count_run(TASK, "v0", Failure(error_type="E", error="x"))
    assert [(outcome.version, outcome.release) for outcome in device.outcomes()] == [("v1", "r-v1"), ("v0", "")]


@pytest.mark.asyncio
async def test_expiry_is_asked_of_directives_and_not_of_what_is_installed(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    now_s = int(device.clock.time())
    brief = cloud.sign(dataclasses.replace(publish(cloud, "v1"), expires_s=now_s + 10))
    await device.do(brief)
    late = cloud.sign(dataclasses.replace(publish(cloud, "v2"), expires_s=now_s + 10))
    await device.clock.advance(10)
    assert "expired" in str(await device.refuse(late))
    await device.agent.start()
    assert device.agent.tasks == {TASK: "v1"}


@pytest.mark.asyncio
async def test_a_failed_check_is_reported_once_and_only_a_newer_directive_retries(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.take_outcomes()
    device.fail_check = "no such module"
    directive = publish(cloud, "v2")
    assert "no such module" in str(await device.refuse(directive))
    assert device.running[TASK] == FILES["v1"]
    assert_tidy(device.folder, 1)
    device.fail_check = ""
    await device.do(directive)
    device = await start(device.folder, cloud)
    await device.do(directive)
    assert device.agent.tasks == {TASK: "v1"}
    assert [(outcome.kind, outcome.version, "no such module" in outcome.error) for outcome in device.outcomes()] == [
        (OutcomeKind.REJECTED, "v2", True)
    ]
    await device.do(cloud.sign(directive))
    assert device.agent.tasks == {TASK: "v2"}


@pytest.mark.asyncio
async def test_a_version_that_is_taken_back_does_not_stay_because_the_older_one_fails_in_its_runs(
    tmp_path: Path,
) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first = publish(cloud, "v1")
    await device.do(publish(cloud, "v2"))
    device.fail_check = CheckFailedError("its smoke run failed", Failure(error_type="E", error="at this time of day"))
    await device.do(cloud.sign(first))
    assert device.agent.tasks == {TASK: "v1"}
    assert "at this time of day" in str(await device.refuse(publish(cloud, "v3")))
    device = await start(tmp_path / "other", cloud)
    await device.do(publish(cloud, "v2"))
    device.fail_check = "it does not load"
    await device.refuse(cloud.sign(first))
    assert device.agent.tasks == {TASK: "v2"}


@pytest.mark.asyncio
async def test_a_check_that_fails_for_want_of_memory_is_made_again(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    device.fail_check = OSError(errno.ENOMEM, "no memory")
    directive = publish(cloud, "v1")
    await device.refuse(directive)
    assert [one.failure_class for one in device.outcomes()] == [FailureClass.DEVICE]
    device.fail_check = ""
    await device.do(directive)
    assert device.agent.tasks == {TASK: "v1"}


@pytest.mark.asyncio
async def test_a_check_that_changes_the_files_is_rejected(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    device.during_check = lambda files: (files / "planted.pyc").touch()
    assert "the manifest does not list it" in str(await device.refuse(publish(cloud, "v1")))
    assert device.agent.tasks == {}


@pytest.mark.asyncio
async def test_revert_goes_to_the_previous_version_once_and_the_same_serial_does_not_return(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    second = publish(cloud, "v2")
    await device.do(second)
    device.take_outcomes()
    assert not await device.agent.revert(TASK, "told late", version="v1")
    assert not await device.agent.revert("no/such", "x")
    assert await device.agent.revert(TASK, "it raises", version="v2")
    assert device.running[TASK] == FILES["v1"]
    assert [(outcome.kind, outcome.release, outcome.error) for outcome in device.outcomes()] == [
        (OutcomeKind.REVERTED, "r-v2", "it raises")
    ]
    await device.do(second)
    device = await start(device.folder, cloud)
    await device.do(second)
    assert device.agent.tasks == {TASK: "v1"}
    assert device.take_outcomes() == ["reverted v2"]
    await device.do(cloud.sign(second))
    assert device.agent.tasks == {TASK: "v2"}


@pytest.mark.asyncio
async def test_a_version_that_cannot_be_put_to_use_is_left_and_with_it_its_bad_predecessors(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.fail_activate = {"v2"}
    assert isinstance(await device.refuse(publish(cloud, "v2")), ActivationFailedError)
    assert device.running[TASK] == FILES["v1"]
    assert device.take_outcomes() == ["installed v1", "installed v2", "reverted v2"]
    device.fail_activate = {"v1", "v3"}
    assert isinstance(await device.refuse(publish(cloud, "v3")), ActivationFailedError)
    assert device.agent.tasks == {}
    assert device.running == {}
    assert_tidy(device.folder, 0)


@pytest.mark.asyncio
async def test_a_version_that_cannot_be_put_to_use_at_a_start_is_left(tmp_path: Path) -> None:
    cloud = CloudFiles()
    _, second = await two_versions(tmp_path / "agent", cloud)
    device = Device(tmp_path / "agent", cloud)
    device.fail_activate = {"v2"}
    await device.agent.start()
    assert device.running[TASK] == FILES["v1"]
    assert device.take_outcomes() == ["installed v2", "reverted v2"]
    await device.do(second)
    assert device.agent.tasks == {TASK: "v1"}


@pytest.mark.asyncio
async def test_a_removal_holds_though_the_task_fails_to_close(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.fail_remove = True
    await device.do(cloud.remove(TASK))
    assert device.agent.tasks == {}
    assert_tidy(device.folder, 0)


@pytest.mark.asyncio
async def test_no_directive_is_believed_before_the_serials_are_known(tmp_path: Path) -> None:
    cloud = CloudFiles()
    first, _ = await two_versions(tmp_path / "agent", cloud)
    with pytest.raises(RuntimeError, match="the agent is not started, or is closed"):
        await Device(tmp_path / "agent", cloud).agent.handle([first], cloud.timestamp())


@pytest.mark.asyncio
async def test_one_bad_directive_does_not_hold_up_the_others(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    bad = dataclasses.replace(cloud.publish("a/bad", "v1", FILES["v3"]), signature="")
    assert isinstance(await device.refuse(bad, publish(cloud, "v1")), DirectiveRefusedError)
    assert device.agent.tasks == {TASK: "v1"}


@pytest.mark.asyncio
async def test_a_postponed_version_leaves_the_active_one_and_is_activated_by_the_same_directive(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.take_outcomes()
    device.postpone = {"v2"}
    second = publish(cloud, "v2")
    for _ in range(2):
        assert isinstance(await device.refuse(second), ActivationPostponedError)
        assert device.agent.tasks == {TASK: "v1"}
        assert device.running[TASK] == FILES["v1"]
        assert device.take_outcomes() == []
    cloud.pulls.clear()
    device.postpone.clear()
    await device.do(second)
    assert device.running[TASK] == FILES["v2"]
    assert (cloud.pulls, device.take_outcomes()) == ([], ["installed v2"])
    assert device.log == ["check v1", "activate v1", "check v2", "activate v2"]
    assert_tidy(device.folder, 2)


class _RequiredFile:
    """Stands for the exclusive files of a device, of which one is required: `is_here` says whether it has come."""

    def __init__(self) -> None:
        self.is_here = False

    async def obtain(self, manifest: Manifest) -> None: ...
    async def forget(self, task: str) -> None: ...

    def missing(self, manifest: Manifest) -> str:
        return "" if self.is_here or manifest.version == "v1" else "gallery.json"


async def _lacking(folder: Path, cloud: CloudFiles) -> tuple[Device, _RequiredFile, Directive]:
    """Return a device on which v1 is active, and v2 waits for a file."""
    file = _RequiredFile()
    device = Device(folder, cloud, exclusive=cast("ExclusiveFiles", file))
    await device.agent.start()
    await device.do(publish(cloud, "v1"))
    second = publish(cloud, "v2")
    for _ in range(3):
        assert isinstance(await device.refuse(second), ActivationPostponedError)
    assert device.log == ["check v1", "activate v1", "check v2"]  # checked once, not at each answer
    return device, file, second


@pytest.mark.asyncio
async def test_a_version_that_lacked_a_file_is_checked_with_it_once_and_refused_if_it_fails(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device, file, second = await _lacking(tmp_path / "a", cloud)
    file.is_here = True
    device.postpone = {"v2"}  # a run is under way: the check is not made again for that
    for _ in range(2):
        assert isinstance(await device.refuse(second), ActivationPostponedError)
    device.postpone.clear()
    await device.do(second)
    assert device.log[3:] == ["check v2", "activate v2"]

    cloud = CloudFiles()
    device, file, second = await _lacking(tmp_path / "b", cloud)
    file.is_here = True
    device.fail_check = CheckFailedError("its smoke run failed", Failure(error_type="E", error="no faces"))
    assert "no faces" in str(await device.refuse(second))
    assert device.running[TASK] == FILES["v1"]
    assert "rejected v2" in device.take_outcomes()
    assert_tidy(device.folder, 1)


@pytest.mark.asyncio
async def test_a_file_that_comes_during_the_check_has_it_made_again_at_the_next_answer(tmp_path: Path) -> None:
    cloud, file = CloudFiles(), _RequiredFile()
    device = Device(tmp_path, cloud, exclusive=cast("ExclusiveFiles", file))
    await device.agent.start()
    await device.do(publish(cloud, "v1"))

    def arrive(_: Path) -> None:
        file.is_here = True

    device.during_check = arrive
    second = publish(cloud, "v2")
    assert isinstance(await device.refuse(second), ActivationPostponedError)
    await device.do(second)
    assert device.log == ["check v1", "activate v1", "check v2", "check v2", "activate v2"]


@pytest.mark.asyncio
async def test_a_newer_directive_ends_the_late_check(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device, file, second = await _lacking(tmp_path, cloud)
    file.is_here = True
    began = asyncio.Event()

    async def check(files: Path, manifest: Manifest) -> None:
        if manifest.version == "v2":
            began.set()
            await asyncio.Event().wait()

    device.agent._check = check
    late = asyncio.create_task(device.refuse(second))
    async with asyncio.timeout(30):
        await began.wait()
        await device.do(publish(cloud, "v3"))
        assert isinstance(await late, SupersededError)
    assert device.running[TASK] == FILES["v3"]


@pytest.mark.asyncio
async def test_a_postponed_version_gives_way_to_another_and_is_pulled_again_after_a_restart(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.postpone = {"v2"}
    second = publish(cloud, "v2")
    await device.refuse(second)
    device = await start(device.folder, cloud)
    assert device.running[TASK] == FILES["v1"]
    assert_tidy(device.folder, 1)
    device.postpone = {"v2"}
    await device.refuse(second)
    await device.do(publish(cloud, "v3"))
    assert device.running[TASK] == FILES["v3"]
    assert_tidy(device.folder, 2)
    assert await device.agent.revert(TASK, "bad")
    assert device.running[TASK] == FILES["v1"]


@pytest.mark.asyncio
async def test_a_bad_version_is_left_at_once_though_the_one_before_would_rather_wait(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(first)
    await device.do(second)
    device.postpone = {"v1"}
    await device.do(cloud.sign(first))
    assert device.running[TASK] == FILES["v1"]


@pytest.mark.asyncio
async def test_a_task_without_a_version_to_run_keeps_its_data_until_it_is_removed(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    assert await device.agent.revert(TASK, "it raises")
    assert (device.agent.tasks, device.running, device.data) == ({}, {}, {TASK})
    await device.do(publish(cloud, "v2"))
    assert await device.agent.revert(TASK, "it raises too")
    assert device.data == {TASK}
    await device.do(cloud.remove(TASK))
    assert device.data == set()
    assert [entry for entry in device.log if entry in ("suspend", "remove")] == ["suspend", "suspend", "remove"]


@pytest.mark.asyncio
async def test_data_of_a_task_whose_removal_was_interrupted_is_removed_at_the_next_start(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    await device.do(cloud.remove(TASK))
    device = Device(device.folder, cloud)
    device.data = {TASK}  # the process ended before it was removed
    await device.agent.start()
    assert (device.data, device.log) == (set(), ["remove"])


@pytest.mark.asyncio
async def test_nothing_is_kept_in_memory_for_directives_that_are_done(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    for number in range(5):
        task = f"shop/t{number}"
        await device.do(cloud.publish(task, "v1", FILES["v3"]))
        await device.do(cloud.remove(task))
    assert (dict(device.agent._locks), device.agent._newest, device.agent._active._postponed) == ({}, {}, {})
