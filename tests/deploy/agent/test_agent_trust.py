"""Metadata that the agent refuses: directives, manifests and files that are unsigned, changed, replayed, too large."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.agent_device import FILES, MODEL, TASK, assert_tidy, names_in, publish, start
from tests.sim.cloud_files import CloudFiles, sha256_of
from walle.deploy.agent.agent_errors import DirectiveRefusedError, PullDelayedError
from walle.deploy.agent.installed import TaskNameError
from walle.deploy.agent.pull import BundleRejectedError
from walle.protocol import FileEntry, Manifest
from walle.trust.signing import Signer


@pytest.mark.asyncio
async def test_unsigned_changed_and_replayed_directives_change_nothing_and_are_not_reported(tmp_path: Path) -> None:
    cloud, stranger = CloudFiles(), CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(second)
    device.take_outcomes()
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
        (_with(files=(FileEntry("a", "0" * 64, 10**9),)), "1000000000 bytes, this device accepts 100000000"),
    ],
)
async def test_signed_manifests_that_may_not_run_here_are_rejected(
    tmp_path: Path, change: Callable[[Manifest], Manifest], match: str
) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    device.take_outcomes()
    error = await device.refuse(cloud.publish(TASK, "v3", FILES["v3"], change=change))
    assert match in str(error)
    assert device.running[TASK] == FILES["v1"]
    assert device.take_outcomes() == ["rejected v3"]
    assert_tidy(device.folder, 1)
    assert names_in(tmp_path) == ["agent"]


@pytest.mark.asyncio
async def test_a_manifest_of_another_key_is_rejected_permanently(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = cloud.publish(TASK, "v1", FILES["v1"], signer=Signer.generate())
    assert isinstance(await device.refuse(directive), BundleRejectedError)
    cloud.pulls.clear()
    await device.do(directive)
    assert cloud.pulls == []
    assert device.take_outcomes() == ["rejected v1"]


@pytest.mark.asyncio
async def test_a_flipped_bit_anywhere_is_rejected_and_a_repaired_cdn_is_tried_again(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v3"))
    directive = publish(cloud, "v2")
    device.take_outcomes()
    chosen = random.Random(3)
    for sha256 in {directive.manifest, *(sha256_of(data) for data in FILES["v2"].values())}:
        good = cloud.blobs[sha256]
        for position in {0, len(good) - 1, *(chosen.randrange(len(good)) for _ in range(6))}:
            spoiled = bytearray(good)
            spoiled[position] ^= 1 << chosen.randrange(8)
            cloud.blobs[sha256] = bytes(spoiled)
            assert isinstance(await device.refuse(directive), BundleRejectedError)
            assert isinstance(await device.refuse(directive), PullDelayedError)  # pulled once, not at each answer
            await device.clock.advance(300.0)
            assert device.running[TASK] == FILES["v3"]
            assert_tidy(device.folder, 1)
        cloud.blobs[sha256] = good
    assert set(device.take_outcomes()) == {"rejected v2"}
    await device.do(directive)
    assert device.running[TASK] == FILES["v2"]
    assert device.take_outcomes() == ["installed v2"]


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
