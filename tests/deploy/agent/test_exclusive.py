"""The device's part of exclusive files against a cloud that lies, a disk that fails, and a thief of the disk."""

import asyncio
import contextlib
import dataclasses
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.sim.agent_device import FILES, Device
from tests.sim.exclusive_cloud import DEVICE, NOW_S, TASK, ExclusiveCloud, task
from tests.sim.power_cut import FaultyDisk, PowerCut
from tests.sim.shop_cloud import until
from walle.base.backoff import Pace
from walle.deploy.agent.exclusive import ExclusiveFiles, ExclusiveMissingError, ExclusiveUnknownError
from walle.protocol import ExclusiveFile, Manifest, Timestamp, seal_info
from walle.trust.sealing import SealError, open_sealed
from walle.trust.signing import Signer

A, B = ExclusiveFile(name="a", required=False), ExclusiveFile(name="b")
BOTH = task(A, B)


def read_all(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def contents(device: ExclusiveFiles, name: str = "a") -> bytes | None:
    return (await device.read(BOTH, name))[1]


@pytest.mark.asyncio
async def test_files_come_change_and_go_as_the_lists_say(tmp_path: Path) -> None:
    cloud = ExclusiveCloud()
    device = await cloud.device(tmp_path, BOTH)
    assert device.missing(BOTH) == "b"
    cloud.put("a", b"one")
    cloud.put("b", b"")
    assert await device.refresh()
    assert (await contents(device), await contents(device, "b"), device.missing(BOTH)) == (b"one", b"", "")
    sha256, _ = await device.read(BOTH, "a")
    assert await device.read(BOTH, "a", sha256) == (sha256, None)
    cloud.put("a", b"two")
    assert await device.refresh()
    assert await contents(device) == b"two"
    cloud.remove("a")
    assert await device.refresh()
    assert await device.read(BOTH, "a", sha256) == ("", None)
    assert [path.name for path in (tmp_path / "sealed").iterdir()] == [cloud.entries()[0].sha256]
    cloud.remove("b")
    assert await device.refresh()
    with pytest.raises(ExclusiveMissingError, match="'b' of shop/ipv is not on this device now"):
        await contents(device, "b")
    with pytest.raises(ExclusiveUnknownError, match="does not list 'c' under"):
        await contents(device, "c")


@pytest.mark.asyncio
async def test_only_files_that_tasks_of_the_device_list_are_fetched(tmp_path: Path) -> None:
    cloud = ExclusiveCloud()
    cloud.put("a", b"one")
    cloud.put("c", b"no task lists it")
    cloud.put("a", b"of a task that is not here", of="shop/other")
    device = await cloud.device(tmp_path)
    assert await device.refresh()
    assert cloud.asked == ["/cen/files"]
    await device.obtain(BOTH)
    assert cloud.asked[1:] == ["/cen/files", f"/cen/files/{cloud.entries()[0].sha256}"]
    assert await contents(device) == b"one"
    await device.forget(TASK)
    assert not list((tmp_path / "sealed").iterdir())


@pytest.mark.asyncio
async def test_a_task_reads_no_file_of_another_task_by_its_name(tmp_path: Path) -> None:
    cloud, other = ExclusiveCloud(), task(A, name="shop/other")
    cloud.put("a", b"of shop/ipv")
    device = await cloud.device(tmp_path, BOTH, other)
    assert await device.refresh()
    assert await contents(device) == b"of shop/ipv"
    assert await device.read(other, "a") == ("", None)


@pytest.mark.asyncio
async def test_a_file_above_its_max_bytes_is_not_fetched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cloud = ExclusiveCloud()
    cloud.put("a", b"x" * 11)
    small = task(dataclasses.replace(A, max_bytes=10), B)
    device = await cloud.device(tmp_path, small)
    cloud.put("b", b"this one is")
    assert await device.refresh()
    assert "exclusive file a of shop/ipv is larger than its max_bytes" in caplog.text
    assert await device.read(small, "a") == ("", None)
    assert await contents(device, "b") == b"this one is"


# --- lists that lie ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("another device", "the list is of device 'phone 2'"),
        ("another fleet", "not signed by the release role"),
        ("another key", "not signed by the release role"),
        ("changed", "not signed by the release role"),
        ("unsigned", "not signed by the release role"),
        ("expired", "expired at"),
        ("another epoch", "the list is of epoch 7, the cloud is in 1"),
        ("older", "serial 2 was seen; 1 is a replay"),
        ("not a list", "not JSON"),
        ("twice", "a file is listed twice"),
        ("endless", "more than 131072 bytes"),
    ],
)
async def test_a_list_that_does_not_count_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attack: str, reason: str
) -> None:
    cloud = ExclusiveCloud()
    cloud.put("a", b"old")
    old = cloud.list()
    cloud.put("a", b"mine")
    device = await cloud.device(tmp_path, BOTH)
    assert await device.refresh()
    cloud.put("a", b"the attacker's")
    entry = cloud.entries()[0]
    lies: dict[str, Callable[[], bytes]] = {
        "another device": lambda: cloud.list(device_id="phone 2"),
        "another fleet": lambda: cloud.list(fleet="fleet-2"),
        "another key": lambda: cloud.list(signer=Signer.generate()),
        "changed": lambda: cloud.list().replace(b'"serial":3', b'"serial":4'),
        "unsigned": lambda: cloud.list().replace(b'"signature":"', b'"signature":"AAAA'),
        "expired": lambda: cloud.list(expires_s=NOW_S),
        "another epoch": lambda: cloud.list(epoch=7),
        "older": lambda: old,
        "not a list": lambda: b"<html>",
        "twice": lambda: cloud.list(files=(entry, entry)),
        "endless": lambda: b" " * 131_073,
    }
    cloud.answers["/cen/files"] = lies[attack]()
    caplog.set_level("INFO")
    assert not await device.refresh()
    assert reason in caplog.text
    assert await contents(device) == b"mine"
    assert await contents(await cloud.device(tmp_path, BOTH)) == b"mine"
    del cloud.answers["/cen/files"]
    assert await device.refresh()
    assert await contents(device) == b"the attacker's"  # accepted once the release role says so


@pytest.mark.asyncio
async def test_nothing_is_taken_without_a_fresh_timestamp(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cloud = ExclusiveCloud()
    cloud.put("a", b"one")
    trust = cloud.trust()
    trust.timestamp = None
    device = await cloud.device(tmp_path, BOTH, trust=trust)
    assert not await device.refresh()
    assert "no signed timestamp came with it" in caplog.text


@pytest.mark.asyncio
async def test_a_restored_cloud_reaches_the_device_by_its_epoch_and_a_stolen_serial_ends_with_its_key(
    tmp_path: Path,
) -> None:
    cloud = ExclusiveCloud()
    cloud.serial = 1 << 40
    cloud.put("a", b"of the highest serial")
    trust = cloud.trust()
    device = await cloud.device(tmp_path, BOTH, trust=trust)
    assert await device.refresh()
    cloud.serial, cloud.cloud.epoch = 10, 2
    trust.accept(Timestamp.from_header(cloud.cloud.timestamp(NOW_S)))
    cloud.put("a", b"of a restored cloud")
    assert await device.refresh()
    assert await contents(device) == b"of a restored cloud"
    cloud.serial = 0
    assert not await device.refresh()
    files, new = cloud.cloud, Signer.generate()
    files.make_root(2, {**files.roles, "snapshot": new, "timestamp": new}, [files.root_signer])
    trust.follow(files.trust["2.root.json"])
    stamp = Timestamp.from_header(files.timestamp(NOW_S))
    assert trust.check(stamp)
    trust.accept(stamp)
    cloud.put("a", b"after the rotation")
    assert await device.refresh()
    assert await contents(device) == b"after the rotation"


# --- contents that lie ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("attack", ["flipped", "cut", "longer"])
async def test_changed_contents_are_refused_and_fetched_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attack: str
) -> None:
    cloud = ExclusiveCloud()
    sealed = bytearray(cloud.put("a", b"one"))
    path = f"/cen/files/{cloud.entries()[0].sha256}"
    sealed[-1] ^= 1
    cloud.answers[path] = {"flipped": bytes(sealed), "cut": bytes(sealed[:-1]), "longer": bytes(sealed) + b"!"}[attack]
    device = await cloud.device(tmp_path, BOTH)
    caplog.set_level("INFO")
    await device.refresh()
    assert await contents(device) is None
    assert not list((tmp_path / "sealed").iterdir())
    assert ("the received file is not the signed one" if attack != "longer" else "more than 84 bytes") in caplog.text
    cloud.answers.clear()
    await device.refresh()
    assert await contents(device) == b"one"


@pytest.mark.asyncio
async def test_a_file_sealed_for_another_name_or_device_is_not_taken_for_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = ExclusiveCloud()
    sealed = cloud.put("a", b"of a")
    cloud.put("b", b"", sealed=sealed)
    cloud.put("a", b"new a")
    device = await cloud.device(tmp_path, BOTH)
    assert await device.refresh()
    assert "not sealed to the present key of this device, or was changed; put it again" in caplog.text
    assert (await contents(device), device.missing(BOTH)) == (b"new a", "b")
    with pytest.raises(SealError):
        open_sealed(sealed, ec.generate_private_key(ec.SECP256R1()), seal_info(DEVICE, 1, TASK, "a"))
    with pytest.raises(SealError):
        open_sealed(sealed[:40], cloud.key, seal_info(DEVICE, 1, TASK, "a"))


@pytest.mark.asyncio
async def test_a_device_with_another_key_reads_nothing_of_the_one_before(tmp_path: Path) -> None:
    cloud = ExclusiveCloud()
    cloud.put("a", b"the former owner's")
    await (await cloud.device(tmp_path, BOTH)).refresh()
    cloud.key, cloud.generation, cloud.files = ec.generate_private_key(ec.SECP256R1()), 2, {}
    device = await cloud.device(tmp_path, BOTH)
    assert await contents(device) is None
    cloud.put("a", b"the next owner's")
    assert await device.refresh()
    assert await contents(device) == b"the next owner's"
    assert len(list((tmp_path / "sealed").iterdir())) == 1


# --- versions that require files --------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_version_waits_for_its_file_without_another_pull_and_a_rollback_does_not_wait(tmp_path: Path) -> None:
    files = ExclusiveCloud()
    cloud = files.cloud

    def requires(*names: str) -> Callable[[Manifest], Manifest]:
        listed = tuple(ExclusiveFile(name=name) for name in names)
        return lambda manifest: dataclasses.replace(manifest, exclusive=listed)

    device = Device(
        tmp_path / "agent", cloud, exclusive=await files.device(tmp_path / "exclusive", trust=files.trust())
    )
    await device.agent.start()
    first = cloud.publish(TASK, "v1", FILES["v1"], change=requires("a"))
    stamp = cloud.timestamp(device.clock.time())
    for _ in range(2):
        (error,) = await device.agent.handle([first], stamp)
        assert "v1 is not activated yet" in str(error)
        assert "requires exclusive files that this device does not have: a (walle device-file put)" in str(error)
    pulls = len(cloud.pulls)
    assert device.agent.tasks == {}
    files.put("a", b"one")
    exclusive = device.agent._exclusive
    assert exclusive is not None
    assert await exclusive.refresh()
    assert await device.agent.handle([first], stamp) == []
    assert (device.agent.tasks, len(cloud.pulls)) == ({TASK: "v1"}, pulls)
    second = cloud.publish(TASK, "v2", FILES["v2"], change=requires("a", "b"))
    assert "does not have: b (" in str((await device.agent.handle([second], stamp))[0])
    assert device.agent.tasks == {TASK: "v1"}  # the active version keeps running
    third = cloud.publish(TASK, "v3", FILES["v3"])
    assert await device.agent.handle([third], stamp) == []
    files.remove("a")
    assert await exclusive.refresh()
    assert await device.agent.handle([cloud.sign(first)], stamp) == []  # away from v3, which is bad
    assert device.agent.tasks == {TASK: "v1"}


@pytest.mark.asyncio
async def test_a_version_is_tried_with_the_files_that_the_cloud_has_for_it(tmp_path: Path) -> None:
    files = ExclusiveCloud()
    exclusive = await files.device(tmp_path / "exclusive", trust=files.trust())
    device = Device(tmp_path / "agent", files.cloud, exclusive=exclusive)
    await device.agent.start()
    files.put("a", b"one")
    listed = task(ExclusiveFile(name="a"))
    missing: list[str] = []
    device.during_check = lambda _: missing.append(exclusive.missing(listed))

    def change(manifest: Manifest) -> Manifest:
        return dataclasses.replace(manifest, exclusive=listed.exclusive)

    first = files.cloud.publish(TASK, "v1", FILES["v1"], change=change)
    assert await device.agent.handle([first], files.cloud.timestamp(device.clock.time())) == []
    assert missing == [""]


# --- the disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_contents_are_on_the_disk_sealed_only(tmp_path: Path) -> None:
    cloud = ExclusiveCloud()
    cloud.put("a", b"who is in the gallery")
    device = await cloud.device(tmp_path, BOTH)
    assert await device.refresh()
    assert await contents(device) == b"who is in the gallery"
    held = read_all(tmp_path)
    assert b"gallery" not in held
    assert cloud.files[TASK, "a"] in held


@pytest.mark.asyncio
async def test_a_flipped_bit_on_the_disk_is_found_and_the_file_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = ExclusiveCloud()
    sealed = cloud.put("a", b"one")
    device = await cloud.device(tmp_path, BOTH)
    assert await device.refresh()
    (path,) = (tmp_path / "sealed").iterdir()

    async def reads_it() -> bool:
        return await contents(device) == b"one"

    running = asyncio.create_task(device.run(Pace(random.Random(1), 3600.0)))
    try:
        await until(lambda: len(cloud.asked) > 2)  # the first question was asked
        assert await device.refresh()
        path.write_bytes(bytes((sealed[0] ^ 1,)) + sealed[1:])
        await until(reads_it)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "is damaged and fetched again" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", ["", "[", "{}", "[]", "null", '{"format":1,"era":"","list":"{}"}', "forged"])
async def test_an_unsigned_list_on_the_disk_is_not_used(tmp_path: Path, damage: str) -> None:
    cloud = ExclusiveCloud()
    cloud.put("a", b"one")
    assert await (await cloud.device(tmp_path, BOTH)).refresh()
    path = tmp_path / "list.json"
    path.write_text(path.read_text().replace(r"\"serial\":1", r"\"serial\":2") if damage == "forged" else damage)
    device = await cloud.device(tmp_path, BOTH)
    assert await contents(device) is None
    assert await device.refresh()
    assert await contents(device) == b"one"
    assert len(cloud.asked) == 3  # the file itself is still there


def _state(device: ExclusiveFiles) -> tuple[bytes | None, bytes | None]:
    """Return both files, which are there whole or not at all."""

    async def read(name: str) -> bytes | None:
        try:
            return await contents(device, name)
        except ExclusiveMissingError:
            return None

    return asyncio.run(read("a")), asyncio.run(read("b"))


@pytest.mark.parametrize("mode", ["kept", "lost", "torn"])
def test_a_kill_or_power_cut_at_any_step_leaves_the_old_files_or_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # `FaultyDisk` keeps account of it
    cloud, source = ExclusiveCloud(), tmp_path / "source"
    cloud.put("a", b"one")
    asyncio.run(_refreshed(cloud, source))
    cloud.put("a", b"two")
    cloud.put("b", b"more")
    seen = set()
    for step in range(1, 1000):
        folder = tmp_path / f"{step}" / "exclusive"
        shutil.copytree(source, folder)
        device = asyncio.run(cloud.device(folder, BOTH))
        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(patch, tmp_path / f"{step}" / "grave", step)
            with contextlib.suppress(PowerCut):
                asyncio.run(device.refresh())
        disk.cut_off(mode, step)
        found = _state(asyncio.run(cloud.device(folder, BOTH)))
        assert found in ((b"one", None), (b"two", b"more"))
        seen.add(found)
        assert _state(asyncio.run(_refreshed(cloud, folder))) == (b"two", b"more")
        assert sorted(path.name for path in (folder / "sealed").iterdir()) == sorted(
            entry.sha256 for entry in cloud.entries()
        )
        if not disk.failed:
            break
    assert step > 10
    assert len(seen) == 2


@pytest.mark.asyncio
async def test_a_full_disk_keeps_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = ExclusiveCloud()
    cloud.put("a", b"one")
    device = await _refreshed(cloud, tmp_path / "exclusive")
    cloud.put("a", b"two")
    with monkeypatch.context() as patch:
        FaultyDisk(patch, tmp_path / "grave", 1, full=True)
        assert not await device.refresh()
        assert await contents(device) == b"one"
    assert await device.refresh()
    assert await contents(device) == b"two"


async def _refreshed(cloud: ExclusiveCloud, folder: Path) -> ExclusiveFiles:
    device = await cloud.device(folder, BOTH)
    assert await device.refresh()
    return device
