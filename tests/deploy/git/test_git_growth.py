"""Disk that people make a cloud keep in git: quotas of scenarios and tokens, and removal of what no ref leads to."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from tests.night.cases import at_night
from tests.sim.git_host import ROOT, address, git, process, served
from tests.sim.tasks import FILES
from walle.access.access import Access, Role, hash_of
from walle.base.clock import ManualClock, SystemClock
from walle.cloud.upkeep import git_upkeep
from walle.cloud.upkeep.git_upkeep import GitUpkeep
from walle.deploy.git import git_process, git_repack
from walle.deploy.git.git_http import git_app
from walle.deploy.git.git_process import GitProcessError
from walle.deploy.git.git_repack import pushing, repack
from walle.deploy.git.git_use import GitQuota, garbage_note, git_use, packs_of, read_owners
from walle.deploy.git.quarantine import Quarantine
from walle.deploy.git.repo import TaskRepos
from walle.store.disk_space import DiskFullError, DiskSpace

MB = 1_000_000


class Host:
    """A git server in this process, its repositories, and two tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repos = TaskRepos(folder / "repos")
        self.repos.create("shop")
        self.repository = folder / "repos" / "shop.git"
        self.access = Access()
        self.author = self.access.issue("wim", {"shop": Role.AUTHOR})
        self.releaser = self.access.issue("rita", {"shop": Role.RELEASER})
        self.work = folder / "work"
        self.work.mkdir()
        git(self.work, "init", "-q", "-b", "ipv")
        self.commit(FILES)

    def commit(self, files: dict[str, bytes]) -> str:
        for name, data in files.items():
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name).write_bytes(data)
        git(self.work, "add", "-A")
        git(self.work, "commit", "-q", "-m", "work")
        return git(self.work, "rev-parse", "HEAD").stdout.strip()

    def push(self, url: str, token: str, *refs: str) -> subprocess.CompletedProcess[str]:
        return git(self.work, "push", address(url, token, "shop"), *refs, check=False)

    def push_orphans(self, url: str, count: int, size_bytes: int, prefix: str = "junk") -> list[str]:
        """Push new branches without a common history, with files that do not compress; return their names."""
        names = [f"{prefix}{number}" for number in range(count)]
        for name in names:
            git(self.work, "checkout", "-q", "--orphan", name)
            self.commit({"random": os.urandom(size_bytes)})
            done = self.push(url, self.author, name)
            assert done.returncode == 0, done.stderr
        git(self.work, "checkout", "-q", "-f", "ipv")
        return names

    def check(self) -> None:
        """Check that git finds the repository whole, and that a clone has the version."""
        git(self.repository, "fsck", "--full", "--strict", "--no-dangling")
        assert sorted(self.repos.read("shop", "ipv", "v1").files) == sorted(FILES)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def released(host: Host, url: str) -> None:
    git(host.work, "tag", "ipv/v1")
    done = host.push(url, host.releaser, "ipv", "ipv/v1")
    assert done.returncode == 0, done.stderr


@pytest.mark.night
def test_deleted_branches_give_their_space_back_and_versions_stay(host: Host) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        names = host.push_orphans(url, 3, 2 * MB)
        assert git_use(host.repository).by_token["wim"] > 6 * MB
        repack(host.repos, "shop")
        assert git_use(host.repository).by_token["wim"] > 6 * MB  # branches lead to them
        git(host.work, "tag", "ipv/v2", names[0])
        refused = host.push(url, host.author, *(f":{name}" for name in names))
        assert refused.returncode != 0
        done = host.push(url, host.releaser, *(f":{name}" for name in names))
        assert done.returncode == 0, done.stderr
        repacked = repack(host.repos, "shop")
        assert repacked is not None
        assert (repacked.is_done, repacked.before_bytes > 6 * MB) == (True, True)
        use = git_use(host.repository)
        assert use.size_bytes < 100_000
        assert use.by_token.get("wim", 0) < 10_000
        assert repack(host.repos, "shop") is None  # nothing is left to do
        host.check()
        git(host.folder, "clone", "-q", address(url, host.releaser, "shop"), "cloned")
        assert (host.folder / "cloned" / "task.toml").read_bytes() == FILES["task.toml"]


def test_objects_that_a_forced_push_drops_are_removed(host: Host) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        repack(host.repos, "shop")
        host.commit({"random": os.urandom(2 * MB)})
        assert host.push(url, host.releaser, "ipv").returncode == 0
        assert garbage_note(host.repository) is None
        git(host.work, "reset", "-q", "--hard", "HEAD~1")
        assert host.push(url, host.releaser, "+ipv").returncode == 0
        assert garbage_note(host.repository) is not None
        repack(host.repos, "shop")
        assert git_use(host.repository).size_bytes < 100_000
        host.check()


def test_a_scenario_and_a_token_have_a_quota(host: Host) -> None:
    quota = GitQuota(scenario_bytes=7 * MB, token_bytes=5 * MB)
    with served(git_app(host.repos, host.access, quota=quota)) as url:
        released(host, url)
        names = host.push_orphans(url, 2, 2 * MB)
        before = sorted(host.repository.rglob("*"))
        git(host.work, "checkout", "-q", "--orphan", "more")
        host.commit({"random": os.urandom(2 * MB)})
        refused = host.push(url, host.author, "more")
        assert refused.returncode != 0
        assert "token wim in scenario shop has 4.0 MB of at most 5.0 MB of disk in git, and this push adds 2.0 MB" in (
            " ".join(refused.stderr.split())
        )
        assert "--git-token-gb" in refused.stderr
        assert sorted(host.repository.rglob("*")) == before
        assert host.push(url, host.releaser, "more").returncode == 0  # the scenario's quota has room left
        git(host.work, "checkout", "-q", "--orphan", "again")
        host.commit({"random": os.urandom(2 * MB)})
        full = host.push(url, host.releaser, "again")
        assert "scenario shop has 6.0 MB of at most 7.0 MB" in " ".join(full.stderr.split())
        assert full.returncode != 0
        done = host.push(url, host.releaser, *(f":{name}" for name in names))  # a deletion is never refused
        assert done.returncode == 0, done.stderr
        repack(host.repos, "shop")
        assert host.push(url, host.author, "again").returncode == 0
        host.check()


def test_a_scenario_that_is_full_unpacks_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
    with served(git_app(host.repos, host.access, quota=GitQuota(scenario_bytes=1, token_bytes=1))) as url:
        monkeypatch.setattr("walle.deploy.git.git_push.Quarantine", None)  # an error if it is used
        host.commit({"more": b"1"})
        refused = host.push(url, host.author, "ipv")
        assert "of at most 0.0 MB of disk in git; delete branches" in " ".join(refused.stderr.split())


def test_a_repository_of_an_earlier_version_is_repacked_once(host: Host) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        names = host.push_orphans(url, 1, 2 * MB)
        host.push(url, host.releaser, f":{names[0]}")
    (host.repository / "walle-packs.json").unlink()
    (host.repository / "walle-garbage").unlink()
    assert read_owners(host.repository) == {}
    assert repack(host.repos, "shop") is not None
    assert git_use(host.repository).size_bytes < 100_000
    assert repack(host.repos, "shop") is None
    host.check()


def test_objects_that_a_push_relies_on_are_not_removed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push of a ref to objects that are here, without a ref, while they are being removed."""
    monkeypatch.setattr(git_repack, "_WAIT_S", 0.2)
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        (name,) = host.push_orphans(url, 1, 2 * MB)
        host.push(url, host.releaser, f":{name}")
        with pushing(host.repository):  # a push that has checked its objects, and has not set its ref
            waited = repack(host.repos, "shop")
            assert waited is not None
            assert not waited.is_done
            assert waited.after_bytes == waited.before_bytes
        assert host.push(url, host.author, name).returncode == 0  # a ref that comes between
        repack(host.repos, "shop")
        git(host.repository, "rev-list", "--objects", name)
        host.check()


def test_a_ref_that_moves_while_a_pack_is_made_stops_its_swap(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        (name,) = host.push_orphans(url, 1, 2 * MB)
        tip = git(host.work, "rev-parse", name).stdout.strip()
        host.push(url, host.releaser, f":{name}")
        run_git = git_process.run_git

        def and_then(*arguments: object, **options: object) -> bytes:
            made = run_git(*arguments, **options)  # type: ignore[arg-type]
            git(host.repository, "update-ref", f"refs/heads/{name}", tip)
            return made

        monkeypatch.setattr(git_repack, "run_git", and_then)
        stopped = repack(host.repos, "shop")
        assert stopped is not None
        assert not stopped.is_done
        git(host.repository, "rev-list", "--objects", name)
        host.check()


@pytest.mark.night
def test_a_branch_that_is_removed_and_pushed_again_meanwhile_stays(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refs are the same at both ends, and the pack that was made between lacks the branch."""
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        gone, kept = host.push_orphans(url, 2, 2 * MB)
        host.push(url, host.releaser, f":{gone}")
        run_git = git_process.run_git

        def between(*arguments: object, **options: object) -> bytes:
            removed = host.push(url, host.releaser, f":{kept}")
            assert removed.returncode == 0, removed.stderr
            made = run_git(*arguments, **options)  # type: ignore[arg-type]
            again = host.push(url, host.author, kept)
            assert again.returncode == 0, again.stderr
            return made

        monkeypatch.setattr(git_repack, "run_git", between)
        stopped = repack(host.repos, "shop")
        assert stopped is not None
        git(host.repository, "rev-list", "--objects", kept)
        assert not stopped.is_done
        host.check()


def test_a_pack_that_is_being_made_does_not_count(host: Host) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
    before = git_use(host.repository)
    (host.repository / "objects" / "pack" / "tmp_pack_new").write_bytes(bytes(MB))
    assert git_use(host.repository) == before


@pytest.mark.parametrize("place", ["adopted", *at_night("removed")])
def test_objects_of_a_killed_push_are_removed(host: Host, place: str) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        (name,) = host.push_orphans(url, 1, MB)
    repack(host.repos, "shop")
    assert garbage_note(host.repository) is None
    git(host.work, "checkout", "-q", "--orphan", "more")
    host.commit({"random": os.urandom(MB)})
    sha256 = hash_of(host.releaser)
    with process(host.repos._folder, sha256, place) as (url, child):
        done = host.push(url, host.releaser, "more" if place == "adopted" else f":{name}")
        assert child.wait(20) == -signal.SIGKILL
    assert done.returncode != 0
    assert git_use(host.repository).size_bytes > (2 * MB if place == "adopted" else MB)
    assert repack(host.repos, "shop") is not None
    assert git_use(host.repository).size_bytes < (1.1 * MB if place == "adopted" else 100_000)
    host.check()


@pytest.mark.night
def test_pushes_and_fetches_continue_while_packs_are_replaced(host: Host) -> None:
    errors: list[str] = []
    ended = threading.Event()

    def repack_all_the_time() -> None:
        while not ended.is_set():
            try:
                (host.repository / "walle-garbage").touch()
                repack(host.repos, "shop")
            except Exception as error:
                errors.append(repr(error))

    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        thread = threading.Thread(target=repack_all_the_time)
        thread.start()
        try:
            for number in range(8):
                names = host.push_orphans(url, 1, 300_000, f"junk{number}-")
                done = host.push(url, host.releaser, f":{names[0]}")
                assert done.returncode == 0, done.stderr
                host.commit({"counter": str(number).encode()})
                pushed = host.push(url, host.author, "ipv")
                assert pushed.returncode == 0, pushed.stderr
                git(host.folder, "clone", "-q", address(url, host.releaser, "shop"), f"clone{number}")
                assert (host.folder / f"clone{number}" / "counter").read_text() == str(number)
                assert sorted(host.repos.read("shop", "ipv", "v1").files) == sorted(FILES)
        finally:
            ended.set()
            thread.join()
    assert errors == []
    repack(host.repos, "shop")
    assert git_use(host.repository).size_bytes < 100_000
    host.check()


PLACES = ("made", "owners", "moved one", "adopted", "index removed", "removed")


@pytest.mark.parametrize("place", [*at_night(*PLACES[:-2]), *PLACES[-2:]])
def test_a_repack_that_is_killed_leaves_a_whole_repository(host: Host, place: str) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        names = host.push_orphans(url, 2, MB)
        host.push(url, host.releaser, f":{names[0]}")
    kept = git(host.repository, "rev-parse", names[1]).stdout.strip()
    command = [sys.executable, "-m", "tests.deploy.git.test_git_growth", str(host.repos._folder), place]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    host.check()
    git(host.repository, "rev-list", "--objects", kept)
    assert garbage_note(host.repository) is not None
    repacked = repack(host.repos, "shop")
    assert repacked is not None
    assert repacked.is_done
    host.check()
    assert packs_of(host.repository).keys() == read_owners(host.repository).keys()
    assert MB < git_use(host.repository).by_token["wim"] < 2 * MB or place == "index removed"
    assert not list((host.repository / "objects").glob("incoming-*"))


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(before: Callable[..., object]) -> Callable[..., None]:
    def call(*arguments: object, **options: object) -> None:
        before(*arguments, **options)
        _die()

    return call


def main(folder: str, place: str) -> None:
    """Repack and be killed at a place."""
    quarantine = Quarantine
    if place == "made":
        quarantine.sync = _die  # type: ignore[method-assign,assignment]
    elif place == "owners":
        quarantine.adopt = _die  # type: ignore[method-assign]
    elif place == "moved one":
        rename = Path.rename

        def once(self: Path, target: Path) -> Path:
            moved = rename(self, target)
            if target.suffix == ".pack":
                _die()
            return moved

        Path.rename = once  # type: ignore[method-assign,assignment]
    elif place == "adopted":
        git_repack._remove = _die
    elif place == "index removed":
        unlink = Path.unlink

        def and_die(self: Path, missing_ok: bool = False) -> None:
            unlink(self, missing_ok=missing_ok)
            if self.suffix == ".idx":
                _die()

        Path.unlink = and_die  # type: ignore[method-assign]
    else:
        git_repack._remove = _dying(git_repack._remove)
    repack(TaskRepos(Path(folder)), "shop")


def test_temporary_packs_of_a_killed_process_are_removed_later(host: Host) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
    folder = host.repository / "objects" / "pack"
    old, new = [folder / name for name in ("tmp_pack_old", "pack-00.pack")], folder / "tmp_pack_new"
    for path in (*old, new):
        path.write_bytes(bytes(1000))
    for path in old:
        os.utime(path, (1, 1))
    repack(host.repos, "shop")
    assert [path.exists() for path in (*old, new)] == [False, False, True]  # git may be writing the new one
    host.check()


def test_a_damaged_history_and_a_full_disk_change_nothing(host: Host) -> None:
    with served(git_app(host.repos, host.access)) as url:
        released(host, url)
        names = host.push_orphans(url, 1, MB)
        host.push(url, host.releaser, f":{names[0]}")
    before = sorted((host.repository / "objects").rglob("*"))
    with pytest.raises(DiskFullError):
        repack(host.repos, "shop", DiskSpace(host.folder, reserve_bytes=1 << 60))
    (host.repository / "refs" / "heads" / "broken").write_text("1" * 40 + "\n")
    with pytest.raises(GitProcessError, match="git pack-objects"):
        repack(host.repos, "shop")
    assert sorted((host.repository / "objects").rglob("*")) == before


@pytest.mark.asyncio
async def test_upkeep_removes_and_measures(host: Host) -> None:
    with served(git_app(host.repos, host.access)) as url:
        await asyncio.to_thread(released, host, url)
        names = await asyncio.to_thread(host.push_orphans, url, 1, 2 * MB)
        upkeep = GitUpkeep(host.repos, GitQuota(), DiskSpace(host.folder, 0), SystemClock())
        await upkeep.look()
        assert upkeep.health()["bytes"]["shop"] > 2 * MB
        await asyncio.to_thread(host.push, url, host.releaser, f":{names[0]}")
    await upkeep.look()
    state = upkeep.health()
    assert (state["bytes"]["shop"] < 100_000, state["errors"]) == (True, {})
    registry = CollectorRegistry()
    registry.register(type("Parts", (), {"collect": lambda _: upkeep.metrics()})())
    text = generate_latest(registry).decode()
    assert 'walle_git_bytes{scenario="shop"}' in text
    assert float(text.partition("\nwalle_git_limit_bytes ")[2].split()[0]) == GitQuota().scenario_bytes
    assert float(text.partition("\nwalle_git_freed_bytes_total ")[2].split()[0]) > 2 * MB
    (host.repository / "walle-garbage").touch()
    (host.repository / "refs" / "heads" / "broken").write_text("1" * 40 + "\n")
    await upkeep.look()
    assert "pack-objects" in upkeep.health()["errors"]["shop"]


@pytest.mark.asyncio
async def test_upkeep_of_others_continues_where_a_repository_is_damaged(host: Host) -> None:
    host.repos.create("a-first")
    damaged = host.folder / "repos" / "a-first.git"
    shutil.rmtree(damaged / "objects")
    upkeep = GitUpkeep(host.repos, GitQuota(), DiskSpace(host.folder, 0), SystemClock())
    await upkeep.look()
    state = upkeep.health()
    assert (list(state["bytes"]), list(state["errors"])) == (["shop"], ["a-first"])
    shutil.rmtree(damaged)
    await upkeep.look()
    assert upkeep.health()["errors"] == {}


@pytest.mark.asyncio
async def test_a_repository_that_cannot_be_repacked_is_tried_less_and_less(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try may take half an hour of CPU time."""
    clock, tries = ManualClock(), []

    def fail(_repos: TaskRepos, scenario: str, _space: DiskSpace) -> None:
        tries.append(clock.monotonic())
        raise GitProcessError("pack-objects", "took more than 1800 s of CPU time")

    monkeypatch.setattr(git_upkeep, "repack", fail)
    upkeep = GitUpkeep(host.repos, GitQuota(), DiskSpace(host.folder, 0), clock)
    for _ in range(40):
        await upkeep.look()
        await clock.advance(30)
    assert [round(tried - tries[0]) for tried in tries] == [0, 30, 90, 210, 450, 930]
    assert list(upkeep.health()["errors"]) == list(upkeep.health()["bytes"]) == ["shop"]
    monkeypatch.setattr(git_upkeep, "repack", repack)
    await clock.advance(960)
    await upkeep.look()
    assert upkeep.health()["errors"] == {}


if __name__ == "__main__":
    main(*sys.argv[1:3])
