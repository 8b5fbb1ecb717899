"""Scrubber: flipped bits and missing files are found, and repaired from what proves to be the file."""

import asyncio
import errno
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.sim.stored_cloud import StoredCloud, bundle_of
from walle.cloud.upkeep.repair_sources import CodedForms, Copy, OtherStore, PushedVersions, RepairSource
from walle.cloud.upkeep.scrub import Checked, Fault, Finding, Scrubber
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.shared_files.coded_files import CodedFiles
from walle.deploy.shared_files.folder_store import FolderStore
from walle.deploy.shared_files.store import FileStoreError, FileStoreUnavailableError
from walle.protocol import FileEntry

TEXT = b"".join(b"line %d of a table that compresses well\n" % number for number in range(20_000))


class World(StoredCloud):
    """Stored files of three versions, and all three kinds of sources."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bundles = {f"v{number}": bundle_of("ipv", number, TEXT + b"%d" % number) for number in (1, 2, 3)}
        for bundle in self.bundles.values():
            self.put(bundle)
            self.record(bundle)
        self.other = FolderStore(folder / "other", clock=self.clock)
        self.coded = CodedFiles(folder / "coded-files", self.files)
        self.sources: dict[str, list[RepairSource]] = {"files": [], "cloud-files": []}

    @property
    def scrubber(self) -> Scrubber:
        stores = {"files": self.files, "cloud-files": self.cloud_files}
        return Scrubber(stores, self.reachable, self.sources, self.folder / "quarantine", self.clock)

    def check(self, *, repairs: bool = True) -> list[Finding]:
        async def run() -> list[Finding]:
            return [one.finding async for one in self.scrubber.run(repairs=repairs) if one.finding]

        return asyncio.run(run())

    def model(self, version: str) -> str:
        return next(one.sha256 for one in self.bundles[version].manifest.files if one.path == "resources/model.bin")

    def damage(self, sha256: str) -> None:
        path = self.files.path(sha256)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_whole_files_are_all_read(world: World) -> None:
    async def run() -> list[Checked]:
        return [one async for one in world.scrubber.run()]

    checked = asyncio.run(run())
    assert [one for one in checked if one.finding] == []
    assert {(one.store, one.file.sha256) for one in checked} == {
        *(("files", file.sha256) for file in world.files.files()),
        *(("cloud-files", file.sha256) for file in world.cloud_files.files()),
    }
    assert {one.all_bytes for one in checked} == {sum(one.file.size_bytes for one in checked)}


def test_a_file_that_cannot_be_repaired_is_set_aside_and_named(world: World) -> None:
    sha256 = world.model("v2")
    world.damage(sha256)
    bytes_there = world.files.read(sha256)
    (finding,) = world.check(repairs=False)
    assert (finding.sha256, finding.fault, finding.origin) == (sha256, Fault.DAMAGED, "")
    assert [release.id for release in finding.releases] == ["r2"]
    assert world.files.has(sha256)
    (finding,) = world.check()
    assert "of r2 is damaged: nothing could repair it" in str(finding)
    assert (world.folder / "quarantine" / sha256).read_bytes() == bytes_there
    (finding,) = world.check()
    assert finding.fault is Fault.MISSING
    world.put(world.bundles["v2"])
    assert world.check() == []


def test_repair_from_a_coded_form(world: World) -> None:
    entries = {version: bundle.manifest.files for version, bundle in world.bundles.items()}
    world.coded.make(entries["v1"], [])
    world.coded.make(entries["v3"], [entries["v2"]])
    world.sources["files"] = [CodedForms(world.folder / "coded-files", world.files)]
    compressed, difference = world.model("v1"), world.model("v3")
    (world.folder / "coded-files" / difference[:2] / f"{difference}.zstd").unlink()  # leaves the difference
    world.damage(compressed)
    world.files.remove(difference)
    findings = {finding.sha256: finding for finding in world.check()}
    assert findings[compressed].origin == f"its form {compressed}.zstd"
    assert findings[difference].origin == f"its form {difference}.{world.model('v2')}.dcz"
    assert findings[difference].fault is Fault.MISSING
    assert world.check() == []
    world.assert_whole()


def test_repair_of_nudged_weights_from_the_exclusive_or_with_the_version_before(world: World) -> None:
    random = Random(3)
    old = random.randbytes(2_500_000)  # more than two blocks
    new = bytearray(old)
    new[::4] = random.randbytes(len(new[::4]))
    entries = [FileEntry("resources/m.bin", world.files.put(data), len(data), "shared") for data in (old, bytes(new))]
    world.coded.make(entries[1:], [entries[:1]])
    world.sources["files"] = [CodedForms(world.folder / "coded-files", world.files)]
    world.damage(entries[1].sha256)
    (finding,) = world.check()
    assert finding.origin == f"its form {entries[1].sha256}.{entries[0].sha256}.walle-xor"
    assert world.files.read(entries[1].sha256) == new
    form = world.folder / "coded-files" / entries[1].sha256[:2] / f"{entries[1].sha256}.{entries[0].sha256}.walle-xor"
    form.write_bytes(b"WALLEXR1" + form.read_bytes()[8:1000])
    world.damage(entries[1].sha256)
    (finding,) = world.check()
    assert finding.origin == ""


def test_a_damaged_form_or_copy_repairs_nothing(world: World) -> None:
    world.coded.make(world.bundles["v1"].manifest.files, [])
    sha256 = world.model("v1")
    path = world.folder / "coded-files" / sha256[:2] / f"{sha256}.zstd"
    whole = path.read_bytes()
    world.other.put(TEXT + b"1")
    world.other.path(sha256).write_bytes(TEXT)
    world.sources["files"] = [CodedForms(world.folder / "coded-files", world.files), OtherStore(world.other)]
    for data in (whole[: len(whole) // 2], whole[:100] + b"\0" * 50 + whole[150:], b"", b"nonsense", whole[1:]):
        path.write_bytes(data)
        world.put(world.bundles["v1"])
        world.damage(sha256)
        (finding,) = world.check()
        assert finding.origin == ""
        assert not world.files.has(sha256)
    path.write_bytes(whole)
    (finding,) = world.check()
    assert finding.origin
    assert world.files.verify(sha256)


def test_repair_from_another_store_and_from_the_repository(world: World) -> None:
    def build(release: Release) -> Mapping[str, bytes]:
        bundle = world.bundles[release.request.version]
        return {**bundle.blobs, **bundle.cloud_blobs, bundle.sha256: bundle.envelope}

    world.sources = {name: [OtherStore(world.other), PushedVersions(build)] for name in world.sources}
    world.other.put(TEXT + b"1")
    world.damage(world.model("v1"))
    manifest = world.bundles["v2"].sha256
    world.damage(manifest)
    (cloud_file,) = world.bundles["v3"].cloud_blobs
    world.cloud_files.remove(cloud_file)
    origins = {finding.sha256: finding.origin for finding in world.check()}
    assert origins.pop(world.model("v1")) == f"the copy in folder {world.folder / 'other'}"
    assert origins == {
        manifest: "shop/ipv v2 of the task repository",
        cloud_file: "shop/ipv v3 of the task repository",
    }
    assert world.check() == []
    world.assert_whole()


def test_a_repository_on_the_same_lost_disk_does_not_end_the_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(_: Release) -> Mapping[str, bytes]:
        raise zlib.error("incorrect data check")

    def stat(_: str) -> object:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(world.other, "stat", stat)
    world.sources["files"] = [PushedVersions(build), OtherStore(world.other)]
    world.damage(world.model("v1"))
    world.damage(world.model("v3"))
    assert {finding.sha256 for finding in world.check()} == {world.model("v1"), world.model("v3")}


def test_files_that_nothing_reaches_and_that_vanish_are_no_fault(world: World) -> None:
    orphan = world.files.put(b"orphan")
    world.damage(orphan)
    (finding,) = world.check()
    assert finding.releases == ()
    assert world.check() == []


def test_a_sector_that_cannot_be_read_is_damage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256, real = world.model("v1"), world.files.open

    def opened(name: str) -> object:
        if name == sha256:
            raise OSError(5, "Input/output error")
        return real(name)

    monkeypatch.setattr(world.files, "open", opened)
    (finding,) = world.check()
    assert (finding.sha256, finding.fault) == (sha256, Fault.DAMAGED)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOMEM])
def test_an_error_of_this_process_does_not_count_as_damage(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sha256, real = world.model("v1"), world.files.open

    def opened(name: str) -> object:
        if name == sha256:
            raise OSError(number, os.strerror(number))
        return real(name)

    monkeypatch.setattr(world.files, "open", opened)
    with pytest.raises(FileStoreUnavailableError, match="cannot be read"):
        world.check()
    monkeypatch.undo()
    assert world.check() == []
    assert not (world.folder / "quarantine").exists()


@pytest.mark.asyncio
async def test_a_finding_names_the_releases_of_now_and_not_of_the_start_of_the_pass(world: World) -> None:
    findings = []
    async for checked in world.scrubber.run():
        if len(world.releases) == 3:
            newer = world.record(world.bundles["v2"], ReleaseState.GRAY)  # newer has the files of v2, such as its model
            world.damage(world.model("v2"))
            await world.clock.advance(86_400)
        findings += [checked.finding] if checked.finding else []
    (finding,) = findings
    assert newer in finding.releases


def test_a_file_that_a_release_puts_while_its_damaged_copy_is_checked_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(path: Path) -> None:
        later_s = path.stat().st_mtime + 60
        path.unlink()
        world.put(world.bundles["v2"])
        os.utime(path, (later_s, later_s))

    class Meanwhile:
        """No source, but time that passes."""

        def copies(self, sha256: str, releases: Sequence[Release]) -> Iterator[Copy]:
            put(world.files.path(sha256))
            return iter(())

    sha256, real = world.model("v2"), world.files.open
    path = world.files.path(sha256)
    world.damage(sha256)
    world.sources["files"] = [Meanwhile()]
    world.check()
    assert world.files.verify(sha256)

    def opened(name: str) -> object:  # the damaged copy, which a release replaces while it is read
        file = real(name)
        if name == sha256:
            monkeypatch.undo()
            put(path)
        return file

    world.sources["files"] = []
    world.damage(sha256)
    monkeypatch.setattr(world.files, "open", opened)
    assert world.check() == []
    assert world.files.verify(sha256)


def test_a_store_that_does_not_answer_ends_the_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(name: str) -> object:
        raise FileStoreUnavailableError(name, "the S3 server does not answer")

    monkeypatch.setattr(world.files, "open", away)
    with pytest.raises(FileStoreUnavailableError):
        world.check()
    monkeypatch.undo()
    assert world.check() == []


@pytest.mark.asyncio
async def test_the_rate_is_kept_and_a_pass_continues_where_it_was(world: World) -> None:
    async def run(after: str = "") -> list[str]:
        rate = 1e6
        found = world.scrubber.run(rate=lambda all_bytes, _: rate if all_bytes else math.inf, after=after)
        return [f"{one.store}/{one.file.sha256}" async for one in found]

    began_s = world.clock.time()
    task = asyncio.ensure_future(run())
    while not task.done():
        await asyncio.sleep(0)
        await world.clock.advance(0.05)
    seen = task.result()
    stores = (world.files, world.cloud_files)
    all_bytes = sum(file.size_bytes for store in stores for file in store.files())
    assert all_bytes / 1e6 <= world.clock.time() - began_s
    rest = asyncio.ensure_future(run(after=seen[2]))
    while not rest.done():
        await asyncio.sleep(0)
        await world.clock.advance(0.05)
    assert rest.result() == seen[3:]


def test_states_of_releases_are_in_findings(world: World) -> None:
    world.releases["r3"] = world.record(world.bundles["v3"], ReleaseState.GRAY)
    world.files.remove(world.model("v3"))
    (finding,) = world.check()
    assert ReleaseState.GRAY in {release.state for release in finding.releases}
    with pytest.raises(FileStoreError):
        world.files.read(world.model("v3"))
