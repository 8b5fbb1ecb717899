"""A device's variant of a version: what it installs, what it says it has, and how it moves to another."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.sim.agent_device import TASK, start
from tests.sim.cloud_files import CloudFiles, sha256_of
from walle.deploy.agent.installed import TaskState, VersionRef
from walle.protocol import Directive, Envelope, FileEntry, FileVariant, Manifest

FILES = {"main.pyc": b"one" * 900, "resources/model.walle": b"large" * 100}
SMALL = b"small" * 40


def _with_variant(manifest: Manifest) -> Manifest:
    entry = FileEntry("resources/model.walle", sha256_of(SMALL), len(SMALL))
    return dataclasses.replace(manifest, variants=(FileVariant("small", "ram_mb < 512", (entry,)),))


def _both(cloud: CloudFiles, version: str = "v1") -> tuple[Directive, Directive]:
    """Return the directives for the version's own files, and for those of its variant."""
    own = cloud.publish(TASK, version, FILES, change=_with_variant)
    envelope = dataclasses.replace(Envelope.from_bytes(cloud.blobs[own.manifest]), variant="small").to_bytes()
    cloud.blobs |= {sha256_of(envelope): envelope, sha256_of(SMALL): SMALL}
    return own, dataclasses.replace(own, manifest=sha256_of(envelope), size_bytes=len(envelope))


@pytest.mark.asyncio
async def test_a_device_installs_its_variant_and_says_so_after_a_restart_too(tmp_path: Path) -> None:
    cloud = CloudFiles()
    _, small = _both(cloud)
    device = await start(tmp_path, cloud)
    await device.do(cloud.sign(small))
    assert device.running[TASK]["resources/model.walle"] == SMALL
    assert device.agent.tasks == {TASK: "v1@small"}
    assert sha256_of(FILES["resources/model.walle"]) not in dict(cloud.pulls)
    device = await start(tmp_path, cloud)
    assert device.agent.tasks == {TASK: "v1@small"}
    await device.do(cloud.sign(small))  # another directive for what is there
    assert device.agent.tasks == {TASK: "v1@small"}


@pytest.mark.asyncio
async def test_a_device_moves_between_variants_of_one_version(tmp_path: Path) -> None:
    cloud = CloudFiles()
    own, small = _both(cloud)
    device = await start(tmp_path, cloud)
    await device.do(cloud.sign(own))
    pulled = len(cloud.pulls)
    await device.do(cloud.sign(small))
    assert device.agent.tasks == {TASK: "v1@small"}
    assert [sha256 for sha256, _ in cloud.pulls[pulled:]] == [small.manifest, sha256_of(SMALL)]
    await device.do(cloud.sign(own))  # version on the disk
    assert device.agent.tasks == {TASK: "v1"}
    assert device.running[TASK] == FILES
    assert len(cloud.pulls) == pulled + 2


@pytest.mark.asyncio
async def test_an_envelope_with_another_variant_than_was_signed_for_is_refused(tmp_path: Path) -> None:
    cloud = CloudFiles()
    _, small = _both(cloud)
    cloud.blobs[small.manifest] = cloud.blobs[small.manifest].replace(b'"small"', b'"large"')
    device = await start(tmp_path, cloud)
    error = await device.refuse(cloud.sign(small))
    assert "is not the manifest that was signed for" in str(error)
    assert device.agent.tasks == {}


def test_an_older_walle_can_read_the_state_of_a_version_without_variant() -> None:
    ref = VersionRef("v1", "a" * 64, "r")
    state = TaskState(task=TASK, active=ref, previous=dataclasses.replace(ref, variant="small"))
    body = json.loads(state.to_bytes())["state"]
    assert sorted(body["active"]) == ["manifest", "release", "version"]
    assert TaskState.from_bytes(state.to_bytes()) == state
