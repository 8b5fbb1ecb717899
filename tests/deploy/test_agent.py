import asyncio
import contextlib
import dataclasses
import os
import random
import shutil
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tests.sim.cloud_files import NEVER_S, CloudFiles, sha256_of
from tests.sim.power_cut import FaultyDisk, PowerCut
from walle.clock import ManualClock
from walle.deploy.agent import ActivationFailedError, Agent, DirectiveRefusedError, SupersededError
from walle.deploy.fetch import Fetcher, FetchError, HttpFetcher
from walle.deploy.files import FileStore, cdn_app
from walle.deploy.installed import Installed, TaskNameError
from walle.deploy.outcomes import OutcomeReport
from walle.deploy.pull import BundleRejectedError
from walle.deploy.signing import Signer
from walle.errors import DeployError
from walle.protocol import Directive, FileEntry, Manifest, Outcome, OutcomeKind

TASK = "shop/ipv"
MODEL = random.Random(7).randbytes(5500)
FILES = {
    "v1": {"main.pyc": b"one" * 900, "resources/model.walle": MODEL, "resources/empty": b""},
    "v2": {
        "main.pyc": b"two" * 800,
        "resources/model.walle": MODEL,
        "lib/a/b.pyc": b"b" * 10,
        "lib/copy.pyc": b"b" * 10,
    },
    "v3": {"main.pyc": b"three" * 500},
}


class WatchedClock(ManualClock):
    """A clock that stands still and says when somebody sleeps by it."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        super().__init__(start_s)
        self.is_asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.is_asleep.set()
        await super().sleep(seconds)


class Device:
    """An agent on a folder, and what it was told to put to use: `running` maps tasks to the files they saw."""

    def __init__(
        self,
        folder: Path,
        cloud: CloudFiles,
        *,
        fetcher: Fetcher | None = None,
        jitter_s: float = 0.0,
        room: int = 10**8,
    ) -> None:
        self.folder = folder
        self.clock = WatchedClock()
        self.running: dict[str, dict[str, bytes]] = {}
        self.log: list[str] = []
        self.fail_check = ""
        self.fail_activate: set[str] = set()
        self.during_check: Callable[[Path], None] = lambda _: None
        self.agent = Agent(
            folder,
            cloud.keys,
            fetcher or cloud,
            self._check,
            self.clock,
            outcomes=OutcomeReport("d1"),
            on_activate=self._on_activate,
            on_remove=self._on_remove,
            jitter_s=jitter_s,
            random_source=random.Random(1),
            max_bundle_bytes=room,
        )

    async def _check(self, files: Path, manifest: Manifest) -> None:
        self.log.append(f"check {manifest.version}")
        self.during_check(files)
        if self.fail_check:
            raise RuntimeError(self.fail_check)

    async def _on_activate(self, task: str, files: Path, manifest: Manifest) -> None:
        await asyncio.sleep(0)
        if manifest.version in self.fail_activate:
            raise RuntimeError(f"no room for {manifest.version}")
        self.log.append(f"activate {manifest.version}")
        self.running[task] = read_folder(files)

    async def _on_remove(self, task: str) -> None:
        self.log.append("remove")
        del self.running[task]

    def outcomes(self) -> list[Outcome]:
        batch = self.agent.outcomes.take_batch()
        if batch is None:
            return []
        self.agent.outcomes.confirm(batch.batch_id)
        return list(batch.outcomes)

    def told(self) -> list[str]:
        return [f"{outcome.kind} {outcome.version}".strip() for outcome in self.outcomes()]

    async def do(self, *directives: Directive) -> None:
        assert await self.agent.handle(directives) == []

    async def refuse(self, *directives: Directive) -> DeployError:
        errors = await self.agent.handle(directives)
        assert len(errors) == 1
        return errors[0]


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names_in(folder: Path, pattern: str = "*") -> list[str]:
    return [path.name for path in folder.glob(pattern)]


def assert_tidy(folder: Path, versions: int) -> None:
    """Nothing half-done is left, and exactly so many versions are kept."""
    (task_folder,) = folder.iterdir()
    assert {path.name for path in task_folder.iterdir()} <= {"state.json", "versions", "staging"}
    assert list(task_folder.glob("staging/*")) == []
    assert len(list(task_folder.glob("versions/*"))) == versions


async def start(folder: Path, cloud: CloudFiles) -> Device:
    device = Device(folder, cloud)
    await device.agent.start()
    return device


def publish(cloud: CloudFiles, version: str) -> Directive:
    return cloud.publish(TASK, version, FILES[version])


# --- the ordinary way -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_installs_updates_and_keeps_two_versions(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    assert device.agent.tasks == {}
    for version, kept in (("v1", 1), ("v2", 2), ("v3", 2)):
        await device.do(publish(cloud, version))
        assert device.agent.tasks == {TASK: version}
        assert device.running[TASK] == FILES[version]
        assert_tidy(device.folder, kept)
    assert device.told() == ["installed v1", "installed v2", "installed v3"]
    assert device.log == ["check v1", "activate v1", "check v2", "activate v2", "check v3", "activate v3"]


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
    assert device.told() == ["installed v2", "installed v1", "reverted v1"]


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
    assert device.told() == ["removed v1"]
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
    assert sorted(device.told()) == ["installed v1", "installed v9"]
    device.agent.count_run(TASK, "v1", ok=True)
    device.agent.count_run(TASK, "v0", ok=False, error="x")
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


# --- what is not believed ---------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_unsigned_changed_and_replayed_directives_move_nothing_and_are_not_told(tmp_path: Path) -> None:
    cloud, stranger = CloudFiles(), CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(second)
    device.told()
    for forged in (
        first,
        dataclasses.replace(first, serial=99),
        dataclasses.replace(first, signature=""),
        stranger.sign(dataclasses.replace(first, serial=99), keep_serial=True),
        cloud.sign(dataclasses.replace(first, serial=0), keep_serial=True),
        cloud.sign(dataclasses.replace(first, manifest="../../../etc")),
    ):
        assert isinstance(await device.refuse(forged), DirectiveRefusedError)
    for name in ("", "ipv", "a//b", "/b", "s/" + "x" * 300, "s/\ud800"):
        error = await device.refuse(cloud.sign(dataclasses.replace(first, task=name)))
        assert isinstance(error, TaskNameError)
    assert device.agent.tasks == {TASK: "v2"}
    assert device.outcomes() == []


@pytest.mark.asyncio
async def test_a_task_named_with_dots_stays_in_the_folder(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(cloud.publish("../..", "../v1", FILES["v3"]))
    assert device.agent.tasks == {"../..": "../v1"}
    assert names_in(tmp_path) == ["agent"]


def _with(**fields: object) -> Callable[[Manifest], Manifest]:
    return lambda manifest: dataclasses.replace(manifest, **fields)  # type: ignore[arg-type]


def _with_paths(*paths: str) -> Callable[[Manifest], Manifest]:
    data = FILES["v3"]["main.pyc"]
    return _with(files=tuple(FileEntry(path, sha256_of(data), len(data)) for path in paths))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_with(task="other"), "the manifest is of 'shop/other'"),
        (_with(scenario="other"), "the manifest is of 'other/ipv'"),
        (_with(version="v2"), "the manifest is of 'shop/ipv' 'v2'"),
        (_with(bytecode=("cpython-27",)), "no bytecode for cpython-3"),
        (_with(bytecode=()), "only for: none"),
        (_with_paths("../../escaped"), "not a plain relative path"),
        (_with_paths("/escaped"), "not a plain relative path"),
        (_with_paths("a", "a/b"), "a file and a folder at once"),
        (_with_paths("\ud800"), "holds half a character"),
        (_with_paths("d/" * 600 + "x"), "cannot be a path here"),
        (_with_paths("x" * 300), "File name too long"),
        (_with(files=(FileEntry("a", "0" * 64, 1), FileEntry("b", "0" * 64, 2))), "two lengths"),
        (_with(files=(FileEntry("a", "0" * 64, 10**9),)), "1000000000 bytes, this device takes 100000000"),
    ],
)
async def test_signed_manifests_that_may_not_run_here_are_rejected(
    tmp_path: Path, change: Callable[[Manifest], Manifest], match: str
) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.told()
    error = await device.refuse(cloud.publish(TASK, "v3", FILES["v3"], change=change))
    assert match in str(error)
    assert device.running[TASK] == FILES["v1"]
    assert device.told() == ["rejected v3"]
    assert_tidy(device.folder, 1)
    assert names_in(tmp_path) == ["agent"]


@pytest.mark.asyncio
async def test_a_manifest_of_another_key_is_rejected_for_good(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = cloud.publish(TASK, "v1", FILES["v1"], signer=Signer.generate())
    assert isinstance(await device.refuse(directive), BundleRejectedError)
    cloud.pulls.clear()
    await device.do(directive)
    assert cloud.pulls == []
    assert device.told() == ["rejected v1"]


@pytest.mark.asyncio
async def test_a_flipped_bit_anywhere_is_rejected_and_a_mended_cdn_is_tried_again(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v3"))
    directive = publish(cloud, "v2")
    device.told()
    chosen = random.Random(3)
    for sha256 in {directive.manifest, *(sha256_of(data) for data in FILES["v2"].values())}:
        good = cloud.blobs[sha256]
        for position in {0, len(good) - 1, *(chosen.randrange(len(good)) for _ in range(6))}:
            spoiled = bytearray(good)
            spoiled[position] ^= 1 << chosen.randrange(8)
            cloud.blobs[sha256] = bytes(spoiled)
            assert isinstance(await device.refuse(directive), BundleRejectedError)
            assert device.running[TASK] == FILES["v3"]
            assert_tidy(device.folder, 1)
        cloud.blobs[sha256] = good
    assert set(device.told()) == {"rejected v2"}
    await device.do(directive)
    assert device.running[TASK] == FILES["v2"]
    assert device.told() == ["installed v2"]


@pytest.mark.asyncio
async def test_an_oversized_file_is_rejected_with_no_byte_too_many_on_disk(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    for sha256 in (directive.manifest, sha256_of(MODEL)):
        cloud.longer = {sha256}
        assert "too long" in str(await device.refuse(directive))
        assert_tidy(device.folder, 0)
    cloud.longer = set()
    huge = cloud.sign(dataclasses.replace(directive, size_bytes=1 << 30))
    cloud.pulls.clear()
    assert "manifest of 1073741824 bytes" in str(await device.refuse(huge))
    assert cloud.pulls == []


# --- interrupted pulls ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_dropped_link_is_no_rejection_and_the_next_try_resumes_even_after_a_restart(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    model = sha256_of(MODEL)
    cloud.drops[model] = 2000
    assert isinstance(await device.refuse(directive), FetchError)
    cloud.drops[model] = 4000
    assert isinstance(await device.refuse(directive), FetchError)
    assert device.outcomes() == []
    device = await start(device.folder, cloud)
    await device.do(directive)
    assert [offset for sha256, offset in cloud.pulls if sha256 == model] == [0, 2000, 4000]
    assert device.running[TASK] == FILES["v1"]
    assert_tidy(device.folder, 1)


@pytest.mark.asyncio
async def test_a_spoiled_piece_is_pulled_again_from_its_start(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    cloud.drops[sha256_of(MODEL)] = 2000
    await device.refuse(directive)
    (piece,) = device.folder.rglob(sha256_of(MODEL))
    piece.write_bytes(b"\0" * piece.stat().st_size)
    await device.do(directive)
    assert device.running[TASK] == FILES["v1"]


@pytest.mark.asyncio
async def test_a_half_pulled_version_is_dropped_when_another_is_asked_for_or_after_a_day(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    for version in ("v1", "v2"):
        directive = publish(cloud, version)
        cloud.drops[sha256_of(FILES[version]["main.pyc"])] = 1000
        await device.refuse(directive)
        assert names_in(device.folder, "*/staging/*") == [directive.manifest]
    late = Device(device.folder, cloud)
    late.clock = WatchedClock(NEVER_S)
    late.agent._clock = late.clock
    await late.agent.start()
    assert_tidy(device.folder, 0)


@pytest.mark.asyncio
async def test_one_directive_in_two_calls_is_pulled_once(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    cloud.gate.clear()
    first = asyncio.create_task(device.agent.handle([directive]))
    await cloud.waiting.wait()
    assert await device.agent.handle([directive, directive]) == []
    cloud.gate.set()
    assert await first == []
    names = [sha256 for sha256, _ in cloud.pulls]
    assert len(names) == len(set(names)) == 3
    assert device.told() == ["installed v1"]


@pytest.mark.asyncio
async def test_a_newer_directive_does_not_wait_for_a_pull_under_way(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(first)
    cloud.gate.clear()
    cloud.waiting.clear()
    pulling = asyncio.create_task(device.agent.handle([second]))
    await cloud.waiting.wait()
    await device.do(cloud.sign(first))
    (error,) = await pulling
    assert isinstance(error, SupersededError)
    assert device.agent.tasks == {TASK: "v1"}
    assert_tidy(device.folder, 1)


@pytest.mark.asyncio
async def test_a_failing_version_is_left_though_a_pull_is_under_way(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    await device.do(publish(cloud, "v2"))
    third = publish(cloud, "v3")
    cloud.gate.clear()
    cloud.waiting.clear()
    pulling = asyncio.create_task(device.agent.handle([third]))
    await cloud.waiting.wait()
    assert await device.agent.revert(TASK, "it raises")
    assert device.agent.tasks == {TASK: "v1"}
    assert isinstance((await pulling)[0], SupersededError)
    cloud.gate.set()
    await device.do(third)
    assert device.agent.tasks == {TASK: "v3"}


@pytest.mark.asyncio
async def test_one_slow_task_does_not_hold_up_another(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    cloud.gate.clear()
    pulling = asyncio.create_task(device.agent.handle([publish(cloud, "v1")]))
    await cloud.waiting.wait()
    await device.do(cloud.remove("other/task"))
    cloud.gate.set()
    assert await pulling == []


@pytest.mark.asyncio
async def test_cancelled_at_any_step_nothing_goes_on_behind_and_the_device_has_a_whole_version(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    loop = asyncio.get_running_loop()
    await device.do(publish(cloud, "v1"))
    await device.do(publish(cloud, "v2"))
    seen = set()
    for step in range(1, 1000):
        before, version = device.agent.tasks[TASK], f"v{step + 2}"
        ended: list[bool] = []

        def cancel(ended: list[bool] = ended) -> None:
            loop.call_soon_threadsafe(lambda: handling.cancel())  # noqa: B023 - called in this turn of the loop
            threading.Event().wait(0.003)  # the disk is slow: whoever does not wait for it is ahead
            ended.append(True)

        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(patch, tmp_path / f"grave{step}", step, instead=cancel)
            handling = asyncio.create_task(device.agent.handle([cloud.publish(TASK, version, FILES["v2"])]))
            await asyncio.wait([handling])
        if not disk.failed:
            break
        assert handling.cancelled()
        assert ended
        assert device.agent.tasks[TASK] in (before, version)
        seen.add(device.agent.tasks[TASK] == before)
        assert device.log[-1] == f"activate {device.agent.tasks[TASK]}" or device.log[-1].startswith("check")
        if device.agent.tasks[TASK] == version:
            assert device.log[-1] == f"activate {version}"
        active = Installed(device.folder).read(TASK).active
        assert active is not None
        assert active.version == device.agent.tasks[TASK]
    assert not disk.failed
    assert seen == {True, False}
    assert device.agent.tasks == {TASK: version}
    assert_tidy(device.folder, 2)


@pytest.mark.asyncio
async def test_pulls_are_spread_by_jitter_and_going_back_is_not(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = Device(tmp_path / "agent", cloud, jitter_s=30.0)
    await device.agent.start()
    first = publish(cloud, "v1")
    for directive in (first, publish(cloud, "v2")):
        cloud.pulls.clear()
        device.clock.is_asleep.clear()
        handling = asyncio.create_task(device.agent.handle([directive]))
        await device.clock.is_asleep.wait()
        await device.clock.advance(0.001)
        assert cloud.pulls == []
        await device.clock.advance(30)
        assert await handling == []
    await device.do(cloud.sign(first))
    assert device.agent.tasks == {TASK: "v1"}


# --- versions that fail -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_failed_check_is_told_once_and_only_a_newer_directive_tries_again(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.told()
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
    device.told()
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
    assert device.told() == ["reverted v2"]
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
    assert device.told() == ["installed v1", "installed v2", "reverted v2"]
    device.fail_activate = {"v1", "v3"}
    assert isinstance(await device.refuse(publish(cloud, "v3")), ActivationFailedError)
    assert device.agent.tasks == {}
    assert device.running == {}
    assert_tidy(device.folder, 0)


@pytest.mark.asyncio
async def test_a_version_that_cannot_be_put_to_use_at_a_start_is_left(tmp_path: Path) -> None:
    cloud = CloudFiles()
    _, second = await _two_versions(tmp_path / "agent", cloud)
    device = Device(tmp_path / "agent", cloud)
    device.fail_activate = {"v2"}
    await device.agent.start()
    assert device.running[TASK] == FILES["v1"]
    assert device.told() == ["installed v2", "reverted v2"]
    await device.do(second)
    assert device.agent.tasks == {TASK: "v1"}


@pytest.mark.asyncio
async def test_a_removal_holds_though_the_task_does_not_end_well(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.running.clear()  # its end raises KeyError
    await device.do(cloud.remove(TASK))
    assert device.agent.tasks == {}
    assert_tidy(device.folder, 0)


@pytest.mark.asyncio
async def test_no_directive_is_believed_before_the_serials_are_known(tmp_path: Path) -> None:
    cloud = CloudFiles()
    first, _ = await _two_versions(tmp_path / "agent", cloud)
    with pytest.raises(RuntimeError, match="start the agent first"):
        await Device(tmp_path / "agent", cloud).agent.handle([first])


@pytest.mark.asyncio
async def test_one_bad_directive_does_not_hold_up_the_others(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    bad = dataclasses.replace(cloud.publish("a/bad", "v1", FILES["v3"]), signature="")
    assert isinstance(await device.refuse(bad, publish(cloud, "v1")), DirectiveRefusedError)
    assert device.agent.tasks == {TASK: "v1"}


# --- corruption on the disk -------------------------------------------------------------------------------------------


async def _two_versions(folder: Path, cloud: CloudFiles) -> tuple[Directive, Directive]:
    device = await start(folder, cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(first)
    await device.do(second)
    return first, second


def _spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.unlink()
    path.write_bytes(data)


@pytest.mark.asyncio
@pytest.mark.parametrize("part", ["files/main.pyc", "files/lib/a/b.pyc", "manifest", "missing", "planted", "symlink"])
async def test_a_corrupted_active_version_never_runs_and_comes_back_whole(tmp_path: Path, part: str) -> None:
    cloud = CloudFiles()
    _, second = await _two_versions(tmp_path / "agent", cloud)
    (version,) = (tmp_path / "agent").glob(f"*/versions/{second.manifest}")
    if part == "missing":
        (version / "files/lib/copy.pyc").unlink()
    elif part == "planted":
        (version / "files/lib/evil.pyc").touch()
    elif part == "symlink":
        (version / "files/more").symlink_to(tmp_path)
    else:
        _spoil(version / part)
    device = await start(tmp_path / "agent", cloud)
    assert device.log == ["activate v1"]
    assert device.running[TASK] == FILES["v1"]
    assert device.told() == ["reverted v2"]
    assert_tidy(device.folder, 1)
    await device.do(second)
    assert device.running[TASK] == FILES["v2"]


@pytest.mark.asyncio
async def test_with_both_versions_corrupted_the_task_is_dropped_until_pulled_again(tmp_path: Path) -> None:
    cloud = CloudFiles()
    _, second = await _two_versions(tmp_path / "agent", cloud)
    for path in (tmp_path / "agent").rglob("main.pyc"):
        _spoil(path)
    device = await start(tmp_path / "agent", cloud)
    assert device.log == []
    assert device.agent.tasks == {}
    assert device.told() == ["reverted v2", "reverted v1"]
    await device.do(second)
    assert device.running[TASK] == FILES["v2"]


@pytest.mark.asyncio
async def test_a_corrupted_state_drops_the_task_with_an_outcome(tmp_path: Path) -> None:
    cloud = CloudFiles()
    _, second = await _two_versions(tmp_path / "agent", cloud)
    (path,) = (tmp_path / "agent").glob("*/state.json")
    good = path.read_bytes()
    for spoiled in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000, good[:-9], good.replace(b'"v2"', b'"v9"', 1)):
        shutil.copytree(tmp_path / "agent", tmp_path / "copy")
        (copy,) = (tmp_path / "copy").glob("*/state.json")
        copy.write_bytes(spoiled)
        device = await start(tmp_path / "copy", cloud)
        assert device.log == []
        assert device.told() == ["removed"]
        await device.do(second)
        assert device.running[TASK] == FILES["v2"]
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.asyncio
async def test_a_corrupted_previous_version_is_pulled_again_by_a_rollback_and_skipped_by_a_revert(
    tmp_path: Path,
) -> None:
    cloud = CloudFiles()
    first, _ = await _two_versions(tmp_path / "agent", cloud)
    shutil.copytree(tmp_path / "agent", tmp_path / "copy")
    for folder in (tmp_path / "agent", tmp_path / "copy"):
        _spoil(next(folder.glob(f"*/versions/{first.manifest}/files/main.pyc")))
    device = await start(tmp_path / "agent", cloud)
    await device.do(cloud.sign(first))
    assert device.running[TASK] == FILES["v1"]
    device = await start(tmp_path / "copy", cloud)
    assert await device.agent.revert(TASK, "it raises")
    assert device.agent.tasks == {}
    assert device.running == {}


# --- the power fails, the disk is full --------------------------------------------------------------------------------


async def _update(device: Device, directives: Mapping[str, Directive]) -> None:
    await device.agent.handle([directives["v3"]])


async def _roll_back(device: Device, directives: Mapping[str, Directive]) -> None:
    await device.agent.handle([directives["v1 again"]])


async def _drop(device: Device, directives: Mapping[str, Directive]) -> None:
    await device.agent.handle([directives["removal"]])


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
    first, second = asyncio.run(_two_versions(folder, cloud))
    third = cloud.publish(TASK, "v3", FILES["v3"] | {"resources/model.walle": MODEL, "lib/new.pyc": b"new"})
    directives = {"v2": second, "v3": third, "v1 again": cloud.sign(first), "removal": cloud.remove(TASK)}
    return cloud, folder, directives


V3 = FILES["v3"] | {"resources/model.walle": MODEL, "lib/new.pyc": b"new"}


def _assert_whole(device: Device, old: str, new: str) -> None:
    version = device.agent.tasks.get(TASK, "")
    assert version in (old, new)
    assert device.running.get(TASK, {}) == {"": {}, "v1": FILES["v1"], "v2": FILES["v2"], "v3": V3}[version]


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("mode", ["kept", "lost", "torn"])
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
        if not disk.failed:  # it ended, and the power failed after that
            _assert_whole(asyncio.run(start(folder, cloud)), new, new)
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
@pytest.mark.parametrize("mode", ["lost", "torn"])
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
        if not disk.failed:  # it ended, and the power failed after that
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
        _spoil(next(folder.glob(f"*/versions/{directives['v2'].manifest}/files/main.pyc")))
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
            device.told()
            with pytest.MonkeyPatch.context() as patch:
                disk = FaultyDisk(patch, folder.parent / "grave", step, full=True)
                await perform(device, directives)
            _assert_whole(device, "v2", new)
            if act == "update" and device.agent.tasks[TASK] == "v2":
                (outcome,) = device.outcomes()
                assert outcome.kind is OutcomeKind.REJECTED
                assert "No space left" in outcome.error
                assert_tidy(folder, 2)
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
    assert device.told() == ["rejected v1"]
    monkeypatch.undo()
    await device.do(directive)


# --- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_pulls_from_a_real_cdn_and_resumes_where_the_link_dropped(tmp_path: Path) -> None:
    cloud = CloudFiles()
    store = FileStore(tmp_path / "cdn")
    files = FILES["v1"] | {"big": random.Random(1).randbytes(3_000_000)}
    directive = cloud.publish(TASK, "v1", files)
    for data in cloud.blobs.values():
        store.put(data)
    asked: list[str] = []
    inner = cdn_app(store)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        is_big = scope["path"].endswith(sha256_of(files["big"]))
        sent_bytes = 0

        async def cut(message: Any) -> None:
            nonlocal sent_bytes
            if is_big and len(asked) == 1 and sent_bytes > 1_000_000:
                raise ConnectionResetError  # the server gives the connection up in the middle of the body
            sent_bytes += len(message.get("body", b""))
            await send(message)

        if is_big:
            asked.append(headers.get(b"range", b"").decode())
        with contextlib.suppress(ConnectionResetError):
            await inner(scope, receive, cut)

    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", ws="none")
    server, sockets = uvicorn.Server(config), [config.bind_socket()]
    serving = asyncio.create_task(server.serve(sockets))
    try:
        base_url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
            device = Device(tmp_path / "agent", cloud, fetcher=HttpFetcher(client))
            await device.agent.start()
            assert isinstance(await device.refuse(directive), FetchError)
            assert device.outcomes() == []
            await device.do(directive)
    finally:
        server.should_exit = True
        await serving
    assert device.running[TASK] == files
    first, second = asked
    assert first == ""
    assert 0 < int(second.removeprefix("bytes=").split("-")[0]) < 3_000_000
    assert_tidy(device.folder, 1)
