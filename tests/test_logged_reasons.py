"""Failures after which a program continues with less: the log, or the refusal that follows, says why."""

import asyncio
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from dulwich.objects import ObjectID

from tests.sim.git_host import git
from walle.access.access import Access
from walle.access.access_file import AccessFile
from walle.access.identity.authority import Authority
from walle.base.clock import SystemClock
from walle.cli.device.program import SOURCE_FILE, DeviceProgram
from walle.cli.figures.load_tests import read_load_tests
from walle.cli.task.folder import TaskFolderError, git_large_files, read_files
from walle.cloud.api.exclusive import ExclusiveFileError, _listed
from walle.cloud.edge.shared_listener import _take_from
from walle.cloud.upkeep.git_upkeep import GitUpkeep
from walle.deploy.git.git_process import GitLimits
from walle.deploy.git.git_use import GitQuota, read_owners
from walle.deploy.git.quarantine import PackError, Quarantine
from walle.deploy.git.repo import TaskRepos
from walle.deploy.releases.signatures import Signatures
from walle.device.credentials import DeviceCredentials
from walle.engine_ext import rates
from walle.store.disk_space import DiskSpace

Log = pytest.LogCaptureFixture


def damaged_rates(folder: Path) -> None:
    (folder / "rates.json").write_text("{")
    rates.save({}, folder / "rates.json")


def damaged_signatures(folder: Path) -> None:
    signatures = Signatures(folder, None)  # type: ignore[arg-type]
    signatures._path(b"x").write_bytes(b"{")
    assert signatures._kept(b"x") == {}


def damaged_authority(folder: Path) -> None:
    Authority(folder).server_path.write_bytes(b"cut")
    Authority(folder)


def damaged_owners(folder: Path) -> None:
    (folder / "walle-packs.json").write_text("{")
    assert read_owners(folder) == {}


def access_of(folder: Path) -> AccessFile:
    Access().save(folder / "access.toml")
    return AccessFile(folder / "access.toml")


def damaged_uses(folder: Path) -> None:
    (folder / "token-use.json").write_text("{")
    access_of(folder).last_uses_s()


def no_spare(folder: Path) -> None:
    access = access_of(folder)
    access._spare_path.unlink(missing_ok=True)
    access._spare_path.mkdir()
    access.keep_spare()


def damaged_source(folder: Path) -> None:
    program: Any = SimpleNamespace(_config=SimpleNamespace(folder=folder))
    device: Any = SimpleNamespace(store=SimpleNamespace(position=4))
    source: Any = SimpleNamespace(replayable=True, name="events.jsonl")
    (folder / SOURCE_FILE).write_text('{"name": "events.jsonl"}')
    assert DeviceProgram._base(program, device, source) == 5


def damaged_load_test(folder: Path) -> None:
    (folder / "tunnel.json").write_text("{}")
    assert read_load_tests(folder, folder / "report.html") == []


def credentials_of(folder: Path) -> None:
    credentials = DeviceCredentials(
        "d1",
        folder,
        httpx.AsyncClient(),
        SystemClock(),
        random.Random(1),
        token="",
        on_certificate=lambda certificate, key: None,
    )
    credentials._load()


def damaged_key(folder: Path) -> None:
    (folder / "identity").mkdir()
    (folder / "identity/key.pem").write_text("no key")
    credentials_of(folder)


def damaged_certificate(folder: Path) -> None:
    credentials_of(folder)  # makes the key
    (folder / "identity/certificate.pem").write_text("no certificate")
    credentials_of(folder)


@pytest.mark.parametrize(
    ("work_around", "says"),
    [
        (damaged_rates, "rates.json is replaced, with the rates of other CPUs in it: "),
        (damaged_signatures, "are ignored, sign the version again: "),
        (damaged_authority, "server.pem is issued again, since it cannot be used: "),
        (damaged_owners, "walle-packs.json: the packs count for no token: "),
        (damaged_uses, "token-use.json cannot be read: "),
        (no_spare, "to revoke tokens on a full disk: [Errno 21] Is a directory"),
        (damaged_source, "source.json cannot be read: KeyError('base')"),
        (damaged_load_test, "tunnel.json is left out, run it again: KeyError('page')"),
        (damaged_key, "key.pem cannot be read, and a new one is made: "),
        (damaged_certificate, "certificate.pem cannot be read: "),
    ],
)
def test_the_log_says_why(work_around: Callable[[Path], None], says: str, tmp_path: Path, caplog: Log) -> None:
    with caplog.at_level(logging.WARNING):
        work_around(tmp_path)
    (message,) = [record.getMessage() for record in caplog.records]
    assert says in message
    assert len(message) > message.index(says) + len(says) or not says.endswith(": ")


def test_nothing_is_logged_of_what_is_absent(tmp_path: Path, caplog: Log) -> None:
    with caplog.at_level(logging.WARNING):
        rates.save({}, tmp_path / "rates.json")
        assert read_owners(tmp_path) == {}
        Authority(tmp_path / "authority")
        credentials_of(tmp_path / "device")
        access_of(tmp_path).keep_spare()
    assert caplog.records == []


@pytest.mark.asyncio
async def test_a_repository_that_cannot_be_measured_is_named(tmp_path: Path, caplog: Log) -> None:
    repos = TaskRepos(tmp_path)
    repos.create("shop")
    upkeep = GitUpkeep(repos, GitQuota(), DiskSpace(tmp_path, 0), SystemClock())
    await upkeep.look()
    (tmp_path / "shop.git/objects/pack").rmdir()
    (tmp_path / "shop.git/objects/pack").symlink_to("pack")
    with caplog.at_level(logging.WARNING):
        await upkeep.look()
    assert "the repository of shop cannot be measured: " in caplog.text


@pytest.mark.asyncio
async def test_a_process_that_keeps_its_socket_to_itself_is_named(tmp_path: Path, caplog: Log) -> None:
    server = await asyncio.start_unix_server(lambda _, writer: writer.close(), tmp_path / "1.listener")
    async with server:
        (tmp_path / "2.listener").symlink_to("2.listener")
        with caplog.at_level(logging.WARNING):
            assert await _take_from(tmp_path / "2.listener") is None
    assert "2.listener does not give its socket: " in caplog.text


def test_a_folder_whose_repository_git_refuses_is_not_taken_for_one_without(tmp_path: Path) -> None:
    assert git_large_files(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / ".git/config").write_text("[core]\nrepositoryformatversion = 99\n")
    with pytest.raises(TaskFolderError, match=r"git rev-parse failed: fatal: .*99"):
        git_large_files(tmp_path)
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "m.bin").write_bytes(bytes(1 << 20))
    with pytest.raises(TaskFolderError, match=r"git check-attr failed: fatal: .*99"):
        read_files(tmp_path)


def test_git_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "m.bin").write_bytes(bytes(1 << 20))
    assert set(read_files(tmp_path)[0]) == {"task.toml", "m.bin"}  # .gitattributes say nothing without git
    with pytest.raises(TaskFolderError, match=r"git rev-parse cannot be run: .*'git'"):
        git_large_files(tmp_path)


def test_a_history_that_git_cannot_compare_is_not_taken_for_another(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main", "work")
    work = tmp_path / "work"
    for number in range(2):
        git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", str(number))
    new, old = (ObjectID(git(work, "rev-parse", name).stdout.strip().encode()) for name in ("HEAD", "HEAD~1"))
    with Quarantine(work / ".git", GitLimits()) as quarantine:
        assert quarantine.is_descendant(old, new)
        assert not quarantine.is_descendant(new, old)
        with pytest.raises(PackError, match="its history cannot be compared with the branch: "):
            quarantine.is_descendant(ObjectID(b"1" * 40), new)


def test_a_version_that_cannot_be_read_is_named_where_none_lists_the_file(tmp_path: Path) -> None:
    config = json.dumps("not a table")

    class Repos:
        def versions(self, *_: str) -> list[str]:
            return ["v1", "v2"]

        def read_file(self, _: str, __: str, version: str, ___: str) -> bytes:
            return f"task = {config}".encode() if version == "v2" else b'[task]\nname = "count"\n'

    with pytest.raises(ExclusiveFileError, match=r"push a version; v2 cannot be read: "):
        _listed(Repos(), "shop", "count", "a.bin")  # type: ignore[arg-type]
