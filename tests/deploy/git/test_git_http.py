import asyncio
import dataclasses
import gzip
import hashlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.night.cases import at_night
from tests.sim import git_host
from tests.sim.git_host import address, git
from tests.sim.tasks import CONFIG, FILES
from walle.access.access import Access, Role
from walle.access.audit import read_records
from walle.access.audit_folder import AuditLog
from walle.base.asgi import ASGIApp, Message, Receive, Scope, Send
from walle.base.clock import ManualClock
from walle.deploy.git import git_http, push_rules
from walle.deploy.git.git_http import MAX_REQUEST_BYTES, MAX_REQUESTS_EACH, git_app
from walle.deploy.git.repo import TaskRepos
from walle.deploy.git.spool_budget import SpoolBudget

UPLOAD = {"content-type": "application/x-git-upload-pack-request"}


@dataclasses.dataclass
class Host:
    """A running cloud side: its repositories, its URL, tokens by role, and the pushes it heard of."""

    repos: TaskRepos
    url: str
    tokens: dict[str, str]
    heard: list[tuple[str, str, str]]

    def remote(self, role: str = "release", scenario: str = "shop") -> str:
        return address(self.url, self.tokens[role], scenario)


class Switch:
    """An ASGI app that hands everything to another, so that one server serves each test its own."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Switch, str]]:
    switch = Switch()
    with git_host.served(switch) as url:
        yield switch, url


@pytest.fixture
def host(tmp_path: Path, server: tuple[Switch, str]) -> Host:
    repos = TaskRepos(tmp_path / "repos")
    repos.create("shop")
    access = Access()
    tokens = {
        "release": access.issue("rita", {"*": Role.RELEASER}),
        "write": access.issue("wim", {"shop": Role.AUTHOR}),
        "read": access.issue("rob", {"shop": Role.READER}),
        "none": access.issue("nell", {"other": Role.RELEASER}),
    }
    heard: list[tuple[str, str, str]] = []

    async def on_push(scenario: str, ref: str, commit: str) -> None:
        heard.append((scenario, ref, commit))

    switch, url = server
    switch.app = git_app(repos, access, on_push)
    return Host(repos, url, tokens, heard)


def work(folder: Path, files: dict[str, bytes] | None = None, branch: str = "ipv") -> Path:
    """Make a working copy with one commit on `branch` that holds the small task and `files`."""
    folder.mkdir()
    git(folder, "init", "-b", branch)
    commit(folder, {**FILES, **(files or {})})
    return folder


def commit(folder: Path, files: dict[str, bytes], message: str = "work") -> str:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD").stdout.strip()


@pytest.mark.parametrize("tag", [("tag", "ipv/v1"), ("tag", "-a", "-m", "first", "ipv/v1")])
@pytest.mark.parametrize("protocol", ["0", "2"])
def test_push_then_clone_gives_the_same_files(host: Host, tmp_path: Path, tag: tuple[str, ...], protocol: str) -> None:
    copy = work(tmp_path / "work", {"notes/ü.txt": b"\0binary\xff"})
    head = git(copy, "rev-parse", "HEAD").stdout.strip()
    git(copy, *tag)
    git(copy, "-c", f"protocol.version={protocol}", "push", host.remote(), "ipv", "ipv/v1")
    git(tmp_path, "-c", f"protocol.version={protocol}", "clone", host.remote("read"), "clone")
    assert (tmp_path / "clone/notes/ü.txt").read_bytes() == b"\0binary\xff"
    assert git(tmp_path / "clone", "rev-parse", "ipv/v1^{commit}").stdout.strip() == head
    version = host.repos.read("shop", "ipv", "v1")
    assert (version.commit, version.files) == (head, {**FILES, "notes/ü.txt": b"\0binary\xff"})
    assert sorted(host.heard) == [("shop", "refs/heads/ipv", head), ("shop", "refs/tags/ipv/v1", head)]


def test_fetch_brings_only_what_is_new_and_shallow_clones_work(host: Host, tmp_path: Path) -> None:
    copy = work(tmp_path / "work")
    git(copy, "push", host.remote(), "ipv")
    git(tmp_path, "clone", host.remote("read"), "clone")
    commit(tmp_path / "clone", {"mine.txt": b"a commit that the server lacks"})
    for number in range(60):  # enough haves for several rounds and a gzipped request
        head = commit(copy, {"main.py": f"x = {number}\n".encode()})
        commit(tmp_path / "clone", {"mine.txt": f"{number}".encode()})
    git(copy, "push", host.remote(), "ipv")
    git(tmp_path / "clone", "fetch", "origin")
    assert git(tmp_path / "clone", "rev-parse", "origin/ipv").stdout.strip() == head
    git(tmp_path, "clone", "--depth", "1", host.remote("read"), "shallow")
    assert git(tmp_path / "shallow", "rev-list", "--count", "HEAD").stdout.strip() == "1"
    head = commit(tmp_path / "shallow", {"main.py": b"y = 1\n"})
    git(tmp_path / "shallow", "push", host.remote(), "ipv")
    git(copy, "fetch", host.remote(), "ipv")
    assert git(copy, "rev-list", "--count", head).stdout.strip() == "62"


def test_large_push_in_chunks(host: Host, tmp_path: Path) -> None:
    data = os.urandom(3 * 1024 * 1024)  # above http.postBuffer: git probes, then sends chunks
    toml = CONFIG + b'[files]\n"resources/model.walle" = "shared"\n'
    copy = work(tmp_path / "work", {"resources/model.walle": data, "task.toml": toml})
    git(copy, "tag", "ipv/v1")
    git(copy, "push", host.remote(), "ipv", "ipv/v1")
    assert host.repos.read("shop", "ipv", "v1").files["resources/model.walle"] == data


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"task.toml": b'[task]\nname = "ipv"\n'}, "task.toml: [trigger] is missing"),
        ({"task.toml": CONFIG.replace(b"ipv", b"cart")}, "task.toml: [task] name is 'cart', but the version is one of"),
        ({"main.py": b"def execute(ctx:\n"}, "main.py:1: does not compile: '(' was never closed"),
        ({"main.py": b"import os\n"}, "main.py:1: imports os, which a task may not"),
        ({"resources/a": b"1"}, 'add "resources/a" = "shared"'),
    ],
)
def test_broken_version_is_refused_with_the_reason(
    host: Host, tmp_path: Path, files: dict[str, bytes], reason: str
) -> None:
    copy = work(tmp_path / "work", files)
    git(copy, "tag", "ipv/v1")
    push = git(copy, "push", host.remote(), "ipv", "ipv/v1", check=False)
    assert push.returncode != 0
    assert "! [remote rejected] ipv/v1 -> ipv/v1 (" in push.stderr
    assert reason in push.stderr
    assert "* [new branch]      ipv -> ipv" in push.stderr  # the branch is not judged
    assert host.repos.tasks("shop") == []
    commit(copy, {**FILES, "resources/a": b""})
    (copy / "resources/a").unlink()
    commit(copy, FILES)
    git(copy, "tag", "-f", "ipv/v1")
    git(copy, "push", host.remote(), "ipv", "ipv/v1")
    assert host.repos.versions("shop", "ipv") == ["v1"]


def test_a_branch_name_that_git_cannot_store_is_refused_with_the_reason(host: Host, tmp_path: Path) -> None:
    copy = work(tmp_path / "work")
    git(copy, "push", host.remote(), "ipv", "ipv:feature/ünïcode")
    reasons = (
        (b"a\xff", b"not a name that git allows in UTF-8"),
        (b"ipv/x", b"refs/heads/ipv exists already, and this name needs a folder of its name"),
        (b"feature", b"exists already, in a folder of this name"),
        (b"-x", b"is taken for an option by git's commands"),
        (b"--upload-pack=x", b"is taken for an option by git's commands"),
        (b"HEAD", b"is taken for another by git's commands"),
        (b"refs/heads/ipv", b"is taken for another by git's commands"),
    )
    for name, reason in reasons:
        refspec = b"HEAD:refs/heads/" + name
        push = subprocess.run(
            [b"git", b"push", host.remote().encode(), refspec], cwd=copy, capture_output=True, check=False
        )
        assert b"[remote rejected] HEAD" in push.stderr
        assert reason in push.stderr
    branches = git(copy, "ls-remote", "--heads", host.remote()).stdout.split()[1::2]
    assert branches == ["refs/heads/feature/ünïcode", "refs/heads/ipv"]


@pytest.mark.parametrize("tag", ["v1", "ipv/1", "ipv/v0", "ipv/v01", "ipv/v1/x", "IPV/v1", "latest"])
def test_a_tag_that_does_not_name_a_version_is_refused(host: Host, tmp_path: Path, tag: str) -> None:
    copy = work(tmp_path / "work")
    git(copy, "tag", tag)
    push = git(copy, "push", host.remote(), tag, check=False)
    assert f"! [remote rejected] {tag} -> {tag} (a version's tag is TASK/vN" in push.stderr
    assert git(copy, "ls-remote", host.remote()).stdout == ""


def test_version_never_moves_and_is_never_deleted_but_branches_are_free(host: Host, tmp_path: Path) -> None:
    copy = work(tmp_path / "work")
    first = git(copy, "rev-parse", "HEAD").stdout.strip()
    git(copy, "tag", "ipv/v1")
    git(copy, "push", host.remote(), "ipv", "ipv/v1")
    git(copy, "commit", "-q", "--amend", "-m", "other")
    git(copy, "tag", "-f", "ipv/v1")
    moved = git(copy, "push", "-f", host.remote(), "ipv", "ipv/v1", check=False)
    assert "! [remote rejected] ipv/v1 -> ipv/v1 (a version is never moved; tag the next one)" in moved.stderr
    assert "(forced update)" in moved.stderr
    deleted = git(copy, "push", host.remote(), ":refs/tags/ipv/v1", ":refs/heads/ipv", check=False)
    assert "! [remote rejected] ipv/v1 (a version is never deleted; tag the next one)" in deleted.stderr
    assert "- [deleted]         ipv" in deleted.stderr
    assert host.repos.read("shop", "ipv", "v1").commit == first
    assert (
        git(copy, "push", host.remote(), "HEAD:refs/notes/x", check=False).stderr.count("only branches and tags") == 1
    )


def test_a_push_needs_the_role_author_and_a_version_the_role_releaser(host: Host, tmp_path: Path) -> None:
    copy = work(tmp_path / "work")
    git(copy, "tag", "ipv/v1")
    assert "wim" not in git(copy, "push", host.remote("write"), "ipv").stderr
    tag = git(copy, "push", host.remote("write"), "ipv/v1", check=False)
    assert "(versions are made by the role releaser, and this token has author)" in tag.stderr
    read = git(copy, "push", host.remote("read"), "ipv", check=False)
    assert "remote: rob needs the role author in scenario 'shop', and has reader" in read.stderr
    none = git(copy, "ls-remote", host.remote("none"), check=False)
    assert "remote: nell needs the role reader in scenario 'shop', and has none" in none.stderr
    wrong = git(copy, "ls-remote", address(host.url, "guess", "shop"), check=False)
    assert "remote: a token is needed" in wrong.stderr
    missing = git(copy, "ls-remote", host.remote(scenario="shoe"), check=False)
    assert "remote: scenario 'shoe': does not exist; the cloud" in missing.stderr
    assert host.repos.tasks("shop") == []


def test_only_releasers_take_commits_away(host: Host, tmp_path: Path) -> None:
    copy = work(tmp_path / "work")
    git(copy, "push", host.remote("write"), "ipv", "ipv:other")
    first = git(copy, "rev-parse", "HEAD").stdout.strip()
    git(copy, "commit", "-q", "--amend", "-m", "rewritten")
    forced = git(copy, "push", "-f", host.remote("write"), "ipv", check=False)
    assert (
        "! [remote rejected] ipv -> ipv (a forced push removes commits, for which the role releaser is needed"
        in forced.stderr
    )
    deleted = git(copy, "push", host.remote("write"), ":other", check=False)
    assert "! [remote rejected] other (branches are deleted by the role releaser, and this token has" in deleted.stderr
    assert git(copy, "ls-remote", "--heads", host.remote()).stdout.split() == [
        first,
        "refs/heads/ipv",
        first,
        "refs/heads/other",
    ]
    git(copy, "reset", "-q", "--hard", first)
    commit(copy, {"more": b"1"})
    git(copy, "push", host.remote("write"), "ipv")  # a fast-forward adds to the branch
    git(copy, "commit", "-q", "--amend", "-m", "rewritten")
    git(copy, "push", "-f", host.remote(), "ipv", ":other")


def test_a_refused_push_leaves_nothing(host: Host, tmp_path: Path) -> None:
    objects = host.repos._folder / "shop.git/objects"
    before = sorted(objects.rglob("*"))
    copy = work(tmp_path / "work", {"main.py": b"import os\n"})
    git(copy, "tag", "ipv/v1")
    assert git(copy, "push", host.remote(), "ipv/v1", check=False).returncode != 0
    assert sorted(objects.rglob("*")) == before


def test_a_token_has_a_number_of_requests_under_way(host: Host) -> None:
    async def hold(count: int) -> list[bytes]:
        head = "POST /git/shop.git/git-upload-pack HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n"
        head += f"authorization: Bearer {host.tokens['read']}\r\n"
        head += "content-type: application/x-git-upload-pack-request\r\nexpect: 100-continue\r\n\r\n"
        writers, answers = [], []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(host.url.rpartition(":")[2]))
            writer.write(head.encode())
            answers.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
            writers.append(writer)
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        return answers

    answers = asyncio.run(hold(MAX_REQUESTS_EACH + 1))
    assert set(answers[:-1]) == {b"HTTP/1.1 100 Continue"}
    assert answers[-1] == b"HTTP/1.1 429 Too Many Requests"
    assert "refs" not in git(host.repos._folder, "ls-remote", host.remote()).stdout  # others are served


def test_concurrent_pushes_all_arrive(host: Host, tmp_path: Path) -> None:
    copies = []
    for number in range(6):
        toml = CONFIG.replace(b"ipv", f"task{number}".encode())
        copy = work(tmp_path / f"work{number}", {"task.toml": toml}, branch=f"task{number}")
        git(copy, "tag", f"task{number}/v1")
        copies.append(copy)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda copy: git(copy, "push", "--all", host.remote()), copies))
        list(pool.map(lambda copy: git(copy, "push", "--tags", host.remote()), copies))
    assert host.repos.tasks("shop") == [f"task{number}" for number in range(6)]
    assert len(host.heard) == 12
    git(tmp_path, "clone", "--mirror", host.remote(), "mirror")
    git(tmp_path / "mirror", "fsck", "--strict")


def test_one_of_two_pushes_that_race_for_a_branch_wins(host: Host, tmp_path: Path) -> None:
    copy = work(tmp_path / "work")
    git(copy, "push", host.remote(), "ipv")
    rivals = []
    for number in range(4):
        git(tmp_path, "clone", host.remote(), f"rival{number}")
        rivals.append((tmp_path / f"rival{number}", commit(tmp_path / f"rival{number}", {"who": str(number).encode()})))
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda rival: git(rival[0], "push", "origin", "ipv", check=False), rivals))
    winners = [head for (_, head), push in zip(rivals, done, strict=True) if push.returncode == 0]
    assert len(winners) == 1
    assert git(copy, "ls-remote", host.remote(), "ipv").stdout.split()[0] == winners[0]


@pytest.mark.parametrize(
    ("dies", "leftovers"),
    [
        *at_night(("unpacking", "objects/incoming-*"), ("adopted", "")),
        ("adopting", "objects/incoming-*"),
        ("ref", "refs/heads/ipv.lock"),
    ],
)
def test_server_killed_in_a_push_leaves_a_usable_repository(tmp_path: Path, dies: str, leftovers: str) -> None:
    repos = TaskRepos(tmp_path / "repos")
    repos.create("shop")
    sha256 = hashlib.sha256(b"token").hexdigest()
    copy = work(tmp_path / "work")
    git(copy, "tag", "ipv/v1")
    with git_host.process(tmp_path / "repos", sha256, dies) as (url, child):
        assert git(copy, "push", address(url, "token", "shop"), "ipv", "ipv/v1", check=False).returncode != 0
        assert child.wait(10) == -signal.SIGKILL
    assert not leftovers or list((tmp_path / "repos/shop.git").glob(leftovers))
    assert repos.tasks("shop") == []
    with git_host.process(tmp_path / "repos", sha256) as (url, _):
        git(copy, "push", address(url, "token", "shop"), "ipv", "ipv/v1")
        git(tmp_path, "clone", address(url, "token", "shop"), "clone")
        git(tmp_path / "clone", "fsck", "--strict")
        git(tmp_path / "repos/shop.git", "fsck", "--strict")
    assert repos.read("shop", "ipv", "v1").files == FILES
    assert {path.name for path in (tmp_path / "repos/shop.git").rglob("*.lock")} <= {"walle.lock", "walle-pushes.lock"}
    assert not list((tmp_path / "repos/shop.git/objects").glob("incoming-*"))


def test_changes_of_refs_are_bounded_and_refused_ones_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an author fills the audit log, of which each ref that is set is a record."""
    monkeypatch.setattr(push_rules, "MAX_BRANCHES", 4)
    repos, access, clock = TaskRepos(tmp_path / "repos"), Access(), ManualClock()
    repos.create("shop")
    token, other = (access.issue(name, {"shop": Role.AUTHOR}) for name in ("wim", "ana"))
    audit = AuditLog(tmp_path / "audit", clock, lambda data: (data[:1] * 64, b"k" * 32))
    monkeypatch.setattr(git_http, "MAX_REFS_A_DAY", 6)
    copy = work(tmp_path / "work")

    def push(*refs: str, by: str = token) -> str:
        return git(copy, "push", "-q", git_host.address(url, by, "shop"), *refs, check=False).stderr

    def recorded() -> list[str]:
        return [record.details["ref"] for record in read_records(tmp_path / "audit")]

    with git_host.served(git_app(repos, access, audit=audit, clock=clock)) as url:
        assert push("HEAD:refs/heads/a") == ""
        for _ in range(3):
            assert "exists already" in push("HEAD:refs/heads/a/b")
        assert recorded() == ["refs/heads/a"]
        assert "the limit of a scenario" in push(*(f"HEAD:refs/heads/b{number}" for number in range(4)))
        assert len(recorded()) == 4
        for number in range(2):
            commit(copy, {"notes": b"%d" % number})
            assert push("HEAD:refs/heads/a") == ""
        commit(copy, {"notes": b"more"})
        assert "this token has changed 6 refs, the most in a day" in push("HEAD:refs/heads/a")
        assert len(recorded()) == 6
        assert push("HEAD:refs/heads/a", by=other) == ""  # another's are not spent
        commit(copy, {"notes": b"tomorrow"})
        asyncio.run(clock.advance(86_400 / 6))
        assert push("HEAD:refs/heads/a") == ""


def test_upload_that_breaks_off_changes_nothing(host: Host) -> None:
    async def send_half() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(host.url.rpartition(":")[2]))
        head = "POST /git/shop.git/git-receive-pack HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n"
        head += f"authorization: Bearer {host.tokens['release']}\r\n"
        head += "content-type: application/x-git-receive-pack-request\r\n\r\n"
        writer.write(head.encode() + b"0099half")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""

    asyncio.run(send_half())
    with httpx.Client(auth=("dev", host.tokens["release"])) as client:
        refs = client.get(f"{host.url}/git/shop.git/info/refs?service=git-receive-pack")
    assert refs.content.startswith(b"001f# service=git-receive-pack\n0000")
    assert b"capabilities^{}" in refs.content
    assert host.heard == []


def test_bad_requests_have_different_answers(host: Host) -> None:
    base = f"{host.url}/git/shop.git"
    push = {"content-type": "application/x-git-receive-pack-request"}
    line = f"{'0' * 40} {'1' * 40} refs/heads/ipv\0report-status"
    command = f"{len(line) + 4:04x}{line}0000".encode()
    with httpx.Client(auth=("dev", host.tokens["release"])) as client:
        assert client.get(f"{base}/info/refs").status_code == 403
        assert client.get(f"{base}/info/refs?service=git-shell").status_code == 403
        assert client.get(f"{base}/objects/info/packs").status_code == 404
        assert client.get(f"{host.url}/git/..%2f..%2fetc.git/info/refs?service=git-upload-pack").status_code == 404
        assert client.put(f"{base}/git-upload-pack").status_code == 405
        assert client.post(f"{base}/git-upload-pack", content=b"0000").status_code == 415
        assert client.post(f"{base}/git-upload-pack", content=b"zzzz", headers=UPLOAD).status_code == 400
        coded = {**UPLOAD, "content-encoding": "br"}
        assert client.post(f"{base}/git-upload-pack", content=b"0000", headers=coded).status_code == 415
        packed = {**UPLOAD, "content-encoding": "gzip"}
        assert client.post(f"{base}/git-upload-pack", content=b"0000", headers=packed).status_code == 400
        half = gzip.compress(os.urandom(1000))[:-20]
        assert client.post(f"{base}/git-upload-pack", content=half, headers=packed).status_code == 400
        bomb = gzip.compress(bytes(MAX_REQUEST_BYTES + 1), compresslevel=1)
        assert client.post(f"{base}/git-upload-pack", content=bomb, headers=packed).status_code == 413
        assert client.post(f"{base}/git-receive-pack", content=b"0009abcd\n0000", headers=push).status_code == 400
        report = client.post(f"{base}/git-receive-pack", content=command + b"PACKnonsense", headers=push)
        assert (report.status_code, b"ng refs/heads/ipv the pack could not be read" in report.content) == (200, True)
        empty_pack = b"PACK\0\0\0\2\0\0\0\0"
        whole = command + empty_pack + hashlib.sha1(empty_pack).digest()
        report = client.post(f"{base}/git-receive-pack", content=whole, headers=push)
        assert b"unpack ok" in report.content
        assert b"ng refs/heads/ipv" in report.content
        assert b"1" * 40 in report.content
    assert not list((host.repos._folder / "shop.git").rglob("tmp_pack_*"))
    assert host.repos.scenarios() == ["shop"]


@pytest.mark.asyncio
async def test_a_body_that_unpacks_to_much_leaves_the_event_loop_to_others() -> None:
    contents = os.urandom(1 << 20) + bytes(64 << 20) + os.urandom(1 << 20)
    packed = gzip.compress(contents)
    pieces = [packed[at : at + (64 << 10)] for at in range(0, len(packed), 64 << 10)]
    spent_s = [0.0]

    async def receive() -> Message:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def others() -> None:
        while True:
            before_s = time.thread_time()  # time of this thread alone: the machine may be busy
            await asyncio.sleep(0)
            spent_s.append(time.thread_time() - before_s)

    waiting = asyncio.create_task(others())
    budget = SpoolBudget(1 << 30, 1 << 30)
    with tempfile.TemporaryFile() as body, await budget.take("anna", 0) as share:
        assert await git_http._spool({"headers": [(b"content-encoding", b"gzip")]}, receive, body, share)
        assert budget.used_bytes == len(contents)
        waiting.cancel()
        assert hashlib.file_digest(body, "sha256").digest() == hashlib.sha256(contents).digest()
    assert max(spent_s) < 0.03


def test_a_name_outside_of_refs_is_refused(host: Host, tmp_path: Path) -> None:
    """`heads/v1` would pass for the version v1 of a task named heads, and be a file beside the refs."""
    copy = work(tmp_path / "work", {**FILES, "task.toml": CONFIG.replace(b"ipv", b"heads")})
    git(copy, "push", host.remote("write"), "ipv")
    head = git(copy, "rev-parse", "HEAD").stdout.strip()
    pack = b"PACK\0\0\0\2\0\0\0\0"
    push = {"content-type": "application/x-git-receive-pack-request"}
    for old, new in (("0" * 40, head), (head, "0" * 40)):
        (host.repos._folder / "shop.git" / "heads").mkdir(exist_ok=True)
        (host.repos._folder / "shop.git" / "heads" / "v2").write_text(f"{head}\n")
        line = f"{old} {new} heads/{'v1' if new == head else 'v2'}\0report-status"
        body = f"{len(line) + 4:04x}{line}0000".encode() + pack + hashlib.sha1(pack).digest()
        with httpx.Client(auth=("dev", host.tokens["release"])) as client:
            report = client.post(f"{host.url}/git/shop.git/git-receive-pack", content=body, headers=push)
        assert report.status_code == 200
        assert b"only branches and tags TASK/vN are accepted" in report.content


def test_push_that_has_begun_is_finished_though_its_request_is_cancelled(host: Host, tmp_path: Path) -> None:
    copy = work(tmp_path / "work")
    head = git(copy, "rev-parse", "HEAD").stdout.strip()
    git(copy, "push", host.remote(), "ipv")
    heard: list[str] = []
    access = Access()
    token = access.issue("dev", {"*": Role.AUTHOR})

    async def on_push(_scenario: str, ref: str, _commit: str) -> None:
        heard.append(ref)

    async def push_and_cancel() -> None:
        line = f"{'0' * 40} {head} refs/heads/other\0report-status"
        pack = b"PACK\0\0\0\2\0\0\0\0"
        body = f"{len(line) + 4:04x}{line}0000".encode() + pack + hashlib.sha1(pack).digest()
        read = asyncio.Event()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/git/shop.git/git-receive-pack",
            "query_string": b"",
            "headers": [
                (b"authorization", f"Bearer {token}".encode()),
                (b"content-type", b"application/x-git-receive-pack-request"),
            ],
        }

        async def receive() -> MutableMapping[str, Any]:
            read.set()
            return {"type": "http.request", "body": body}

        async def send(message: MutableMapping[str, Any]) -> None:
            raise AssertionError(message)

        with host.repos.writing("shop"):  # the push waits for this
            task = asyncio.ensure_future(git_app(host.repos, access, on_push)(scope, receive, send))
            await read.wait()  # nothing between reading and the push's own task gives way to others
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(push_and_cancel())
    assert heard == ["refs/heads/other"]
    assert git(copy, "ls-remote", host.remote(), "other").stdout.split()[0] == head


def test_mounted_in_another_app(host: Host, tmp_path: Path) -> None:
    copy, access = work(tmp_path / "work"), Access()
    token = access.issue("dev", {"shop": Role.AUTHOR})
    with git_host.served(Starlette(routes=[Mount("/git", git_app(host.repos, access))])) as url:
        git(copy, "push", address(url, token, "shop"), "ipv")
        assert git(copy, "ls-remote", address(url, token, "shop"), "ipv").stdout


def test_listener_that_fails_does_not_fail_the_push(tmp_path: Path) -> None:
    repos, access, called = TaskRepos(tmp_path / "repos"), Access(), threading.Event()
    repos.create("shop")
    token = access.issue("dev", {"shop": Role.RELEASER})

    async def on_push(_scenario: str, _ref: str, _commit: str) -> None:
        called.set()
        raise RuntimeError("listener")

    copy = work(tmp_path / "work")
    with git_host.served(git_app(repos, access, on_push)) as url:
        git(copy, "push", address(url, token, "shop"), "ipv")
    assert called.is_set()
