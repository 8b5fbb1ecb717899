"""Stored files of a real cloud: in a bucket from where a device fetches them; checked, repaired, collected."""

import asyncio
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sim.git_host import git
from tests.sim.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.sim.shop_cloud import User, shop_cloud
from walle.base.clock import SystemClock
from walle.cli import app
from walle.cloud import CloudHome
from walle.cloud.folder.file_places import write_place
from walle.cloud.upkeep.backup import make_backup
from walle.cloud.upkeep.restore import restore_backup
from walle.cloud.upkeep.stored_files import StoredFiles
from walle.deploy.git.large_file_store import LargeFileError
from walle.deploy.shared_files.folder_store import FolderStore
from walle.deploy.shared_files.s3_store import S3Place, S3Store
from walle.protocol import Envelope, Manifest
from walle.task.format.bundle import build_unsigned
from walle.task.format.large_file import LargeFile

CONFIG = '[task]\nname = "count"\n[trigger]\nsequence = ["page_exit"]\n[files]\n"resources/model.bin" = "shared"\n'
MODEL = os.urandom(100_000)


async def run(*arguments: str, code: int = 0) -> Any:
    result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def model_of(home: CloudHome) -> str:
    """Return the sha256 of the one version's model."""
    (release,) = {one[0] for one in StoredFiles(home).reachable().files.values()}
    manifest = Manifest.from_bytes(Envelope.from_bytes(home.files.read(release.manifest)).payload)
    return next(entry.sha256 for entry in manifest.files if entry.path == "resources/model.bin")


@pytest.mark.asyncio
async def test_a_device_fetches_a_version_from_a_bucket(
    s3_bucket: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    folder = tmp_path / "cloud"
    folder.mkdir()
    write_place(folder, S3Place(BUCKET, "shop", s3_bucket.endpoint, public=s3_bucket.endpoint))
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await shop.push("v1", config=CONFIG, **{"resources/model.bin": MODEL})
        release_id = await shop.release("v1")
        await shop.until(release_id, "full", users=[user := User(device)])
        await user.until(lambda: user.has("v1"))
    (installed,) = (tmp_path / "d0").rglob("resources/model.bin")
    assert installed.read_bytes() == MODEL
    home = CloudHome(folder)
    assert isinstance(home.files, S3Store)
    sha256 = model_of(home)
    assert f"shop/files/{sha256}" in s3_bucket.keys_of_objects()
    assert not FolderStore(folder / "files").has(sha256)
    backup = make_backup(folder, tmp_path / "backup", SystemClock())
    assert (backup.has_files, backup.damaged) == (False, ())
    restore_backup(tmp_path / "backup", tmp_path / "restored", SystemClock())
    home.files.remove(sha256)
    (finding,) = (await run("storage", "check", str(tmp_path / "restored")))["findings"]
    assert finding["repaired_from"] == "shop/count v1 of the task repository"
    assert CloudHome(tmp_path / "restored").files.read(sha256) == MODEL


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_cloud_repairs_its_files_and_collects_what_nothing_reaches(tmp_path: Path) -> None:
    folder = tmp_path / "cloud"
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", config=CONFIG, **{"resources/model.bin": MODEL})
        await shop.until(await shop.release("v1", beta=0), "full", "gray", "beta")
        home = shop.cloud.home
        sha256, manifest = model_of(home), next(iter(StoredFiles(home).reachable().files.values()))[0].manifest
    home = CloudHome(folder)
    assert isinstance(home.files, FolderStore)
    whole = await run("storage", "check", str(folder))
    assert not (folder / "repos" / "shop.git" / "lfs").exists()
    assert (whole["findings"], whole["files"]) == ([], len(list(home.files.files())))
    home.files.path(sha256).write_bytes(MODEL[:-1] + b"x")
    home.files.remove(manifest)
    shown = (await run("storage", "check", str(folder), "--no-repair", code=1))["findings"]
    assert {one["sha256"]: one["fault"] for one in shown} == {sha256: "damaged", manifest: "missing"}
    repaired = (await run("storage", "check", str(folder)))["findings"]
    assert all(one["repaired_from"] for one in repaired)
    assert home.files.read(sha256) == MODEL
    assert home.files.verify(manifest)
    orphan = home.files.put(b"of a release that ended half-way")
    long_ago_s = time.time() - 10 * 86_400
    os.utime(home.files.path(orphan), (long_ago_s, long_ago_s))
    first = (await run("storage", "gc", str(folder)))["files"]
    assert (first["waiting"], first["removed"]) == (1, [])
    marks = folder / "files-unreached.json"
    marks.write_text(json.dumps({orphan: time.time() - 5 * 86_400}))
    assert (await run("storage", "gc", str(folder), "--dry-run"))["files"]["removed"] == [orphan]
    assert home.files.has(orphan)
    done = (await run("storage", "gc", str(folder)))["files"]
    assert (done["removed"], done["removed_bytes"]) == ([orphan], 32)
    assert not home.files.has(orphan)
    assert (await run("storage", "check", str(folder)))["findings"] == []


@pytest.mark.asyncio
async def test_a_large_file_and_its_stored_copy_repair_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "cloud"
    sha256 = hashlib.sha256(MODEL).hexdigest()
    async with shop_cloud(tmp_path) as shop:
        pushed = shop.cloud.home.repos.large_files("shop")
        with pushed.receiving(sha256, len(MODEL)) as file:
            file.write(MODEL)
            file.keep()
        pointer = LargeFile(sha256, len(MODEL)).pointer
        await shop.push("v1", config=CONFIG, **{"resources/model.bin": pointer})
        await shop.until(await shop.release("v1", beta=0), "full", "gray", "beta")
    home = CloudHome(folder)
    assert isinstance(home.files, FolderStore)
    large = folder / "repos" / "shop.git" / "lfs" / "objects" / sha256[:2] / sha256[2:4] / sha256
    stored = home.files.path(sha256)
    for damaged in (large, stored):
        damaged.chmod(0o644)
        damaged.write_bytes(MODEL[:-1])
        (finding,) = (await run("storage", "check", str(folder)))["findings"]
        assert (finding["sha256"], finding["fault"]) == (sha256, "damaged")
        assert finding["repaired_from"].startswith("the copy in folder")
        assert large.read_bytes() == stored.read_bytes() == MODEL
    for damaged in (large, stored):
        damaged.chmod(0o644)
        damaged.write_bytes(MODEL[:-1])
    findings = (await run("storage", "check", str(folder), code=1))["findings"]
    assert [one["store"] for one in findings] == ["files", "large files of shop"]
    with pytest.raises(LargeFileError, match="never pushed"):  # git-lfs sends it again
        pushed.open(sha256)


@pytest.mark.asyncio
async def test_large_files_that_no_commit_names_are_collected(tmp_path: Path) -> None:
    folder = tmp_path / "cloud"
    blobs = {what: what.encode() * 50_000 for what in ("tagged", "earlier", "branch", "abandoned", "coming")}
    sha256s = {what: hashlib.sha256(data).hexdigest() for what, data in blobs.items()}
    home = CloudHome(folder)
    home.prepare(("shop", "other"))
    pushed = home.repos.large_files("shop")
    for what, data in blobs.items():
        with pushed.receiving(sha256s[what], len(data)) as file:
            file.write(data)
            file.keep()
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-b", "count")
    for place, what in (("a.bin", "earlier"), ("deep/er/b.bin", "tagged"), ("a.bin", "branch")):
        (work / place).parent.mkdir(parents=True, exist_ok=True)
        (work / place).write_bytes(LargeFile(sha256s[what], len(blobs[what])).pointer)
        (work / "long.txt").write_bytes(LargeFile(sha256s["abandoned"], 1).pointer + b"x" * 2000)  # no pointer
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", what)
        if what == "tagged":
            git(work, "tag", "count/v1")
    git(work, "push", str(folder / "repos" / "shop.git"), "count", "count/v1")

    store = "large files of shop"
    objects = pushed.checked()
    before_s = time.time() - 10 * 86_400
    for sha256 in sha256s.values():
        os.utime(objects.path(sha256), (before_s, before_s))
    assert (await run("storage", "gc", str(folder)))[store]["waiting"] == 2
    marks = folder / "large-files-shop-unreached.json"
    since_s = json.loads(marks.read_text())
    assert set(since_s) == {sha256s["abandoned"], sha256s["coming"]}
    marks.write_text(json.dumps(dict.fromkeys(since_s, time.time() - 5 * 86_400)))
    assert pushed.renew(sha256s["coming"]) == len(blobs["coming"])  # a push asked for it, and has not set its refs yet
    shown = await run("storage", "gc", str(folder), "--dry-run")
    assert shown[store]["removed"] == [sha256s["abandoned"]]
    assert pushed.size_bytes(sha256s["abandoned"])
    assert "large files of other" not in shown
    done = (await run("storage", "gc", str(folder)))[store]
    assert (done["removed"], done["removed_bytes"], done["reached"]) == ([sha256s["abandoned"]], 450_000, 3)
    assert [pushed.size_bytes(sha256s[what]) is not None for what in blobs] == [True, True, True, False, True]

    marks.write_text(json.dumps({sha256s["coming"]: time.time() - 5 * 86_400}))
    os.utime(objects.path(sha256s["coming"]), (before_s, before_s))
    tree = git(work, "rev-parse", "count:deep").stdout.strip()
    damaged = next((folder / "repos" / "shop.git" / "objects" / tree[:2]).glob(f"{tree[2:]}*"))
    damaged.unlink()
    result = await asyncio.to_thread(CliRunner().invoke, app, ["storage", "gc", str(folder)])
    assert result.exit_code
    assert "scenario shop: its history cannot be read" in str(result.exception)
    assert pushed.size_bytes(sha256s["coming"])


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_release_pauses_for_a_fault_of_the_cloud(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path, scrub_mb_s=1e3) as shop, shop.device(tmp_path / "d0") as device:
        await shop.push("v1", config=CONFIG, **{"resources/model.bin": MODEL})
        release_id = await shop.release("v1", beta=["d0"])
        await shop.until(release_id, "beta", users=[User(device)])
        home, node = shop.cloud.home, shop.cloud._release_node
        sha256 = model_of(home)
        repository = home.folder / "repos" / "shop.git"
        repository.rename(tmp_path / "elsewhere.git")  # nothing is left to repair from
        home.files.remove(sha256)
        await node._scrubbing(shop.cloud.releases, build_unsigned).run_pass()
        shown = await shop.releases.get(release_id)
        assert shown["state"] == "paused"
        assert f"the cloud's own copy of files/{sha256} is missing" in shown["reason"]
        health = (await shop.http.get("/healthz")).json()
        assert (health["ok"], len(health["stored files"]["faults"])) == (True, 1)
        assert "walle_stored_file_faults 1.0" in (await shop.http.get("/metrics")).text
        (tmp_path / "elsewhere.git").rename(repository)
        await node._scrubbing(shop.cloud.releases, build_unsigned).run_pass()
        assert home.files.read(sha256) == MODEL
        assert "walle_stored_file_faults 0.0" in (await shop.http.get("/metrics")).text
        await shop.releases.resume(release_id)
