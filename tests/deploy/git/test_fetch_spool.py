"""Disk that fetches take while their clients do not read: bounded for each token and in all, and given back in time."""

import asyncio
import contextlib
import copy
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.git_host import address, git, served
from tests.sim.tasks import FILES
from walle.access.access import Access, Role
from walle.deploy.git import git_http
from walle.deploy.git.git_http import git_app
from walle.deploy.git.repo import TaskRepos
from walle.deploy.git.spool_budget import SpoolBudget
from walle.store import disk_space
from walle.store.disk_space import DiskSpace

BRANCH_BYTES = 12 << 20
EACH_BYTES = 40 << 20
TOTAL_BYTES = 60 << 20


class Host:
    """Repositories with a branch that does not compress, and tokens that may read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repos = TaskRepos(folder / "repos")
        self.repos.create("shop")
        self.access = Access()
        self.readers = [self.access.issue(f"reader{number}", {"shop": Role.READER}) for number in range(3)]
        author = self.access.issue("wim", {"shop": Role.AUTHOR})
        work = folder / "work"
        work.mkdir()
        git(work, "init", "-q", "-b", "ipv")
        for name, data in {**FILES, "random": os.urandom(BRANCH_BYTES)}.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(data)
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", "work")
        self.tip = git(work, "rev-parse", "HEAD").stdout.strip()
        with served(git_app(self.repos, self.access)) as url:
            git(work, "push", "-q", address(url, author, "shop"), "ipv")

    def budget(self, wait_s: float = 60.0) -> SpoolBudget:
        return SpoolBudget(TOTAL_BYTES, EACH_BYTES, wait_s=wait_s)

    def spooled_bytes(self) -> int:
        """Return the bytes of files without a name in the folder of the repositories, which this process has open."""
        total_bytes = 0
        for one in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if (name := str(one.readlink())).startswith(str(self.repos.spool)) and name.endswith(" (deleted)"):
                    total_bytes += one.stat().st_size
        return total_bytes

    def clone(self, url: str, reader: int = 0) -> int:
        target = self.folder / f"clone-{time.monotonic_ns()}"
        return git(self.folder, "clone", "-q", address(url, self.readers[reader], "shop"), str(target)).returncode


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(tmp_path_factory.mktemp("pushed"))


@pytest.fixture
def host(pushed: Host, tmp_path: Path) -> Host:
    """A copy, which the test may change: compressing the branch takes a second."""
    shutil.copytree(pushed.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    host = copy.copy(pushed)
    host.folder, host.repos = tmp_path, TaskRepos(tmp_path / "repos")
    return host


@contextlib.contextmanager
def stalled(host: Host, url: str, token: str, count: int) -> Iterator[list[socket.socket]]:
    """Ask for the branch on connections that read nothing."""
    want = f"want {host.tip} side-band-64k ofs-delta\n".encode()
    body = b"%04x%s00000009done\n" % (len(want) + 4, want)
    head = (
        f"POST /git/shop.git/git-upload-pack HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        f"content-type: application/x-git-upload-pack-request\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    with contextlib.ExitStack() as undo:
        sockets = []
        for _ in range(count):
            one = undo.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            one.sendall(head + body)
            sockets.append(one)
        yield sockets


def settled(host: Host, at_least: int, limit_s: float = 30) -> int:
    """Return the bytes that are spooled once they are `at_least` and stay the same for a second."""
    end_s, before, same_s = time.monotonic() + limit_s, -1, time.monotonic()
    while time.monotonic() < end_s:
        now = host.spooled_bytes()
        if now != before:
            before, same_s = now, time.monotonic()
        elif now >= at_least and time.monotonic() - same_s > 1:
            return now
        time.sleep(0.05)
    raise AssertionError(f"{before} bytes are spooled")


@pytest.mark.night
def test_answers_for_clients_that_do_not_read_are_bounded(host: Host) -> None:
    """8 fetches of each of 3 tokens: their answers would take 288 MiB."""
    budget = host.budget()
    with served(git_app(host.repos, host.access, answers=budget)) as url, contextlib.ExitStack() as undo:
        first = undo.enter_context(stalled(host, url, host.readers[0], 8))
        own = settled(host, BRANCH_BYTES)
        assert own <= EACH_BYTES
        assert host.clone(url, reader=1) == 0  # another token is served
        for reader in (1, 2):
            undo.enter_context(stalled(host, url, host.readers[reader], 8))
        assert settled(host, 3 * BRANCH_BYTES) <= TOTAL_BYTES
        assert budget.used_bytes <= TOTAL_BYTES
        for one in first:
            one.close()
    end_s = time.monotonic() + 10
    while budget.used_bytes and time.monotonic() < end_s:
        time.sleep(0.05)
    assert budget.used_bytes == 0


@pytest.mark.night
def test_fetches_of_one_token_at_once_all_succeed(host: Host) -> None:
    """They take turns where the token's share is small: git does not try again."""
    with served(git_app(host.repos, host.access, answers=SpoolBudget(1 << 30, 1 << 20))) as url:

        async def at_once() -> list[int]:
            return await asyncio.gather(*(asyncio.to_thread(host.clone, url) for _ in range(6)))

        assert asyncio.run(at_once()) == [0] * 6


def test_a_fetch_that_waits_too_long_is_refused_with_the_reason(host: Host) -> None:
    with (
        served(git_app(host.repos, host.access, answers=host.budget(wait_s=0.2))) as url,
        contextlib.ExitStack() as undo,
    ):
        for count in (1, 2):
            undo.enter_context(stalled(host, url, host.readers[0], 1))
            settled(host, count * BRANCH_BYTES)
        (third,) = undo.enter_context(stalled(host, url, host.readers[0], 1))
        third.settimeout(20)
        answer = b""
        while b"try again" not in answer and (part := third.recv(4096)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 5" in answer
    assert b"other requests of reader0 have 24 MiB of the 40 MiB of disk" in answer


def test_a_client_that_reads_too_slowly_is_ended(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_http, "_SLOW_GRACE_S", 0.5)
    monkeypatch.setattr(git_http, "_SLOWEST_BYTES_S", 4 << 20)  # the kernel takes some MB at once
    budget = host.budget()
    with served(git_app(host.repos, host.access, answers=budget)) as url:
        with stalled(host, url, host.readers[0], 1) as (one,):
            end_s = time.monotonic() + 30
            while not budget.used_bytes:
                assert time.monotonic() < end_s
                time.sleep(0.01)
            while budget.used_bytes or host.spooled_bytes():  # the files are closed just after the bytes are given back
                assert one.recv(100)
                assert time.monotonic() < end_s
                time.sleep(0.02)
        assert host.clone(url) == 0


def test_an_answer_larger_than_the_repository_is_made_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_http, "_SPARE_BYTES", -(8 << 20))
    budget = SpoolBudget(4 << 30, 2 << 30)
    with served(git_app(host.repos, host.access, answers=budget)) as url:
        assert host.clone(url) == 0
    assert budget.used_bytes == 0
    monkeypatch.setattr(git_http, "MAX_ANSWER_BYTES", 6 << 20)
    with served(git_app(host.repos, host.access, answers=budget)) as url:
        refused = git(host.folder, "clone", "-q", address(url, host.readers[0], "shop"), "large", check=False)
        assert refused.returncode != 0
    assert (budget.used_bytes, host.spooled_bytes()) == (0, 0)


def test_a_fetch_is_refused_where_the_disk_has_no_room_for_its_answer(host: Host) -> None:
    free = DiskSpace(host.folder, reserve_bytes=1 << 60)
    with served(git_app(host.repos, host.access, space=free)) as url, stalled(host, url, host.readers[0], 1) as (one,):
        one.settimeout(10)
        assert one.recv(4096).startswith(b"HTTP/1.1 507 ")


RESERVE_BYTES = 8 << 20


@pytest.fixture
def small_disk(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskSpace]:
    """Give a disk with room for 4 MiB of what is spooled, whose reserve stays whole but for 2 MiB."""
    least = []

    def free(_: Path) -> int:
        least.append(RESERVE_BYTES + (4 << 20) - host.spooled_bytes())
        return least[-1]

    monkeypatch.setattr(disk_space, "free_bytes", free)
    yield DiskSpace(host.folder, RESERVE_BYTES)
    assert min(least) >= RESERVE_BYTES - (2 << 20)
    assert host.spooled_bytes() == 0


def test_a_large_request_is_refused_on_a_disk_with_little_room(host: Host, small_disk: DiskSpace) -> None:
    head = (
        "POST /git/shop.git/git-upload-pack HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n"
        f"authorization: Bearer {host.readers[0]}\r\ncontent-type: application/x-git-upload-pack-request\r\n\r\n"
    ).encode()
    with (
        served(git_app(host.repos, host.access, space=small_disk)) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 20) as one,
    ):
        with contextlib.suppress(ConnectionError):  # the connection is closed once it is refused
            one.sendall(head + bytes(8 << 20))
        assert one.recv(4096).startswith(b"HTTP/1.1 507 ")


def test_a_small_answer_of_a_large_repository_is_given_on_a_disk_with_little_room(
    host: Host, small_disk: DiskSpace
) -> None:
    """Several large answers that are written at once leave the reserve alone too."""
    work, author = host.folder / "work", host.access.issue("ana", {"shop": Role.AUTHOR})
    git(work, "checkout", "-q", "--orphan", "few")
    git(work, "rm", "-q", "--cached", "random")
    git(work, "commit", "-q", "-m", "few")
    with served(git_app(host.repos, host.access)) as url:
        git(work, "push", "-q", address(url, author, "shop"), "few")
    with served(git_app(host.repos, host.access, space=small_disk)) as url:
        where = address(url, host.readers[0], "shop")
        few = git(host.folder, "clone", "-q", "--single-branch", "--branch=few", where, "few", check=False)
        assert few.returncode == 0, few.stderr
        all_of_it = git(host.folder, "clone", "-q", where, "all", check=False)
        assert all_of_it.returncode != 0
        assert "507" in all_of_it.stderr
        with stalled(host, url, host.readers[0], 4) as sockets:
            for one in sockets:
                one.settimeout(20)
                assert one.recv(4096).startswith(b"HTTP/1.1 507 ")


def test_requests_that_come_are_bounded_for_a_token(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_http, "SPOOLED_REQUESTS_EACH", 3 << 20)
    head = (
        "POST /git/shop.git/git-upload-pack HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n"
        f"authorization: Bearer {host.readers[0]}\r\ncontent-type: application/x-git-upload-pack-request\r\n\r\n"
    ).encode()
    with served(git_app(host.repos, host.access)) as url, contextlib.ExitStack() as undo:
        sockets = []
        for _ in range(2):
            one = undo.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 20))
            one.sendall(head + bytes(2 << 20))
            sockets.append(one)
        refused = []
        for one in sockets:
            one.settimeout(3)
            with contextlib.suppress(TimeoutError):
                refused.append(one.recv(4096))
        assert len(refused) == 1
        assert refused[0].startswith(b"HTTP/1.1 429 ")
        assert host.spooled_bytes() <= 3 << 20
