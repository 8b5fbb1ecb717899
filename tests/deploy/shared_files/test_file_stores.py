"""Contract of file stores, held by each of them; what a single store adds is tested below it."""

import contextlib
import fcntl
import hashlib
import http.server
import os
import random
import socket
import socketserver
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from obstore.exceptions import GenericError

from tests.sim.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.sim.traced_memory import traced_memory
from walle.base.clock import ManualClock
from walle.base.durable_file import UNFINISHED
from walle.deploy.git.large_file_store import LargeFileError, LargeFileStore
from walle.deploy.shared_files.folder_store import FolderStore
from walle.deploy.shared_files.retention import SKEW_S
from walle.deploy.shared_files.s3_store import MULTIPART_BYTES, S3Place, S3Store
from walle.deploy.shared_files.store import (
    CHUNK_BYTES,
    FileStore,
    FileStoreError,
    FileStoreUnavailableError,
    StoredFile,
)
from walle.errors import ConfigError

NAMES = ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n", "0" * 62 + "/."]
ABSENT = "0" * 64
DATA = os.urandom(2 * CHUNK_BYTES + 17)


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put_large(store: FileStore, megabytes: int) -> str:
    """Put a file by pieces of 1 MiB, each of one repeated number, and return its sha256."""
    with store.writer() as writer:
        for number in range(megabytes):
            writer.write(bytes([number % 251]) * (1 << 20))
        assert writer.size_bytes == megabytes << 20
        return writer.commit()


class FileStoreContract:
    """Tests that every store passes. Subclasses give the fixture `store`, and `damage`."""

    def damage(self, store: FileStore, sha256: str, data: bytes) -> None:
        """Make `data` the content of a file, as a fault of its disk would."""
        raise NotImplementedError

    def test_what_is_put_is_there_under_its_hash(self, store: FileStore) -> None:
        name = store.put(DATA)
        assert name == sha256_of(DATA)
        assert store.put(DATA) == name
        assert (store.has(name), store.read(name), store.verify(name)) == (True, DATA, True)
        assert store.stat(name)[:2] == (name, len(DATA))
        assert store.read(store.put(b"")) == b""

    def test_an_absent_file_is_named_in_each_error(self, store: FileStore) -> None:
        assert not store.has(ABSENT)
        for ask in (store.stat, store.open, store.read, store.verify, lambda name: list(store.chunks(name))):
            with pytest.raises(FileStoreError, match="does not have it") as caught:
                ask(ABSENT)
            assert caught.value.sha256 == ABSENT
        assert not store.remove(ABSENT)

    @pytest.mark.parametrize("name", NAMES)
    def test_only_hashes_are_names(self, store: FileStore, name: str) -> None:
        for ask in (store.has, store.stat, store.open, store.read, store.verify, store.remove):
            with pytest.raises(FileStoreError, match="not a sha256 in lower-case hex"):
                ask(name)

    def test_parts_of_a_file_are_read_from_any_place(self, store: FileStore) -> None:
        name = store.put(DATA)
        for start, stop in ((0, None), (5, 9), (CHUNK_BYTES - 1, CHUNK_BYTES + 1), (len(DATA) - 3, None), (7, 7)):
            assert b"".join(store.chunks(name, start, stop)) == DATA[start:stop]
        assert all(len(chunk) <= CHUNK_BYTES for chunk in store.chunks(name))
        with store.open(name) as file:
            assert file.seek(0, os.SEEK_END) == len(DATA)
            assert file.seek(CHUNK_BYTES) == CHUNK_BYTES
            assert file.read(10) == DATA[CHUNK_BYTES : CHUNK_BYTES + 10]
            assert file.read() == DATA[CHUNK_BYTES + 10 :]
            assert file.read(1) == b""

    def test_a_file_of_the_wrong_hash_is_not_stored(self, store: FileStore) -> None:
        with store.writer() as writer:
            writer.write(b"other bytes")
            with pytest.raises(FileStoreError, match=r"have the sha256 .* send it again") as caught:
                writer.commit(ABSENT)
        assert caught.value.sha256 == ABSENT
        assert not store.has(ABSENT)
        assert not store.has(sha256_of(b"other bytes"))

    def test_an_abandoned_file_leaves_nothing(self, store: FileStore) -> None:
        before = list(store.files())
        with store.writer() as writer:
            writer.write(DATA)
            assert list(store._local.glob(f".*{UNFINISHED}"))
        assert list(store.files()) == before
        assert not list(store._local.glob(f".*{UNFINISHED}"))

    def test_a_large_file_is_put_and_read_by_pieces(self, store: FileStore, tmp_path: Path) -> None:
        with traced_memory():
            name = put_large(store, 40)
            assert store.verify(name)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        path = tmp_path / "large.bin"
        path.write_bytes(b"".join(store.chunks(name)))
        assert (store.stat(name).size_bytes, store.put_file(path)) == (40 << 20, name)
        store.remove(name)

    def test_files_are_listed_and_removed(self, store: FileStore) -> None:
        for file in list(store.files()):
            assert store.remove(file.sha256)
        names = sorted(store.put(f"file {number}".encode()) for number in range(20))
        found = list(store.files())
        assert [file.sha256 for file in found] == names
        assert [store.stat(name) for name in names] == found
        assert store.remove(names[0])
        assert not store.has(names[0])
        assert [file.sha256 for file in store.files()] == names[1:]

    def test_a_file_that_was_put_again_is_not_removed_as_an_old_one(self, store: FileStore) -> None:
        name = store.put(b"put again")
        first_s = store.stat(name).stored_s
        assert not store.remove(name, stored_until_s=first_s - 1.0)
        assert store.remove(name, stored_until_s=first_s)

    def test_a_flipped_bit_is_found_and_repaired_by_the_next_put(self, store: FileStore) -> None:
        name = store.put(DATA)
        flipped = bytearray(DATA)
        flipped[1000] ^= 4
        self.damage(store, name, bytes(flipped))
        assert not store.verify(name)
        assert store.put(DATA) == name
        assert store.verify(name)


@pytest.fixture(scope="module")
def folder_store(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    return FolderStore(tmp_path_factory.mktemp("files") / "store")


class TestFolderStore(FileStoreContract):
    @pytest.fixture
    def store(self, folder_store: FileStore) -> FileStore:
        return folder_store

    def damage(self, store: FileStore, sha256: str, data: bytes) -> None:
        assert isinstance(store, FolderStore)
        store.path(sha256).write_bytes(data)

    def test_a_file_has_a_path_and_no_address(self, store: FileStore) -> None:
        path = store.local_path(store.put(DATA))
        assert path is not None
        assert path.read_bytes() == DATA
        assert path.stat().st_mode & 0o777 == 0o644
        assert store.local_path(ABSENT) is None
        assert store.address(sha256_of(DATA), 60) == ""

    def test_temporary_files_are_not_listed(self, store: FileStore) -> None:
        with store.writer() as writer:
            writer.write(b"half")
            assert len([file for file in store.files() if len(file.sha256) != 64]) == 0
            name = writer.commit(sha256_of(b"half"))
        assert store.read(name) == b"half"


class TestLargeObjects(TestFolderStore):
    """The files that Git LFS pushed, where it looks for them."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> FileStore:
        (tmp_path / "lfs" / "objects").mkdir(parents=True)
        return LargeFileStore(tmp_path / "lfs").checked()

    def test_a_file_is_stored_where_git_lfs_puts_it(self, store: FileStore, tmp_path: Path) -> None:
        pushed, other = LargeFileStore(tmp_path / "lfs"), b"stored first"
        sha256 = sha256_of(DATA)
        with pushed.receiving(sha256, len(DATA)) as file:
            file.write(DATA)
            file.keep()
        assert store.read(sha256) == DATA
        with pushed.open(store.put(other)) as found:
            assert found.read() == other


def test_an_upload_that_another_request_kept_before_its_lock_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"whole"
    sha256 = sha256_of(data)
    store = LargeFileStore(tmp_path)
    lock = fcntl.flock

    def keep_and_lock(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        with store.resuming(sha256, len(data), "anna") as first:  # the caller has opened the first
            first.write(data)
            first.keep()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", keep_and_lock)
    with store.resuming(sha256, 2 * len(data), "anna") as second:
        assert second.size_bytes == 0
        second.write(b" and more")
    with store.open(sha256) as file:
        assert file.read() == data


def test_an_upload_in_many_pieces_is_read_once(tmp_path: Path) -> None:
    def read_bytes() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    data = random.Random(1).randbytes(4 << 20)
    sha256, store, piece = sha256_of(data), LargeFileStore(tmp_path), len(data) // 64
    before = read_bytes()
    for start in range(0, len(data), piece):
        with store.resuming(sha256, len(data), "anna") as file:
            assert file.size_bytes == start
            file.write(data[start : start + piece])
            if file.size_bytes == len(data):
                file.keep()
    assert read_bytes() - before < 2 * len(data)  # each piece read all before it: 32 times as much
    with store.open(sha256) as kept:
        assert kept.read() == data


def test_a_piece_that_the_disk_lost_is_found_at_the_end_of_an_upload(tmp_path: Path) -> None:
    data = b"one two three"
    sha256, store = sha256_of(data), LargeFileStore(tmp_path)
    with store.resuming(sha256, len(data), "anna") as file:
        file.write(data[:8])
    (part,) = (tmp_path / "incoming").iterdir()
    part.write_bytes(data[:4] + bytes(4))  # a power cut may leave zeros
    with store.resuming(sha256, len(data), "anna") as file:
        file.write(data[8:])
        with pytest.raises(LargeFileError, match="another sha256"):
            file.keep()
    assert store.partial_bytes(sha256, "anna") == 0


@contextlib.contextmanager
def refusing_uploads(endpoint: str, *, after_bytes: int) -> Iterator[str]:
    """Give the address of a proxy that breaks the connections of PUT requests once that much has passed."""
    url, passed = httpx.URL(endpoint), 0

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((url.host, url.port)) as server:
                back = threading.Thread(target=copy, args=(server, self.request))
                back.start()
                self.forward(server)
                for one in (server, self.request):
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                back.join()

        def forward(self, server: socket.socket) -> None:
            nonlocal passed
            is_put = False
            while data := receive(self.request):
                is_put = data.startswith(b"PUT ") or (is_put and not data.startswith((b"DELETE ", b"GET ", b"POST ")))
                passed += len(data)
                if is_put and passed > after_bytes:
                    return
                server.sendall(data)

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := receive(source):
                target.sendall(data)

    def receive(source: socket.socket) -> bytes:
        with contextlib.suppress(OSError):
            return source.recv(1 << 16)
        return b""

    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
        proxy.shutdown()


@contextlib.contextmanager
def watched(endpoint: str, *, has_conditions: bool = True) -> Iterator[tuple[str, list[str]]]:
    """Give the address of a proxy and the methods that came; it may refuse conditions as an older server does."""
    methods: list[str] = []

    class Request(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            methods.append(f"{self.command}{' if none' if 'If-None-Match' in self.headers else ''}")
            if "If-None-Match" in self.headers and not has_conditions:
                self.send_response(501)
                refusal = b"<Error><Code>NotImplemented</Code></Error>"
                self.send_header("Content-Length", str(len(refusal)))
                self.end_headers()
                self.wfile.write(refusal)
                return
            answer = httpx.request(self.command, f"{endpoint}{self.path}", content=body, headers=dict(self.headers))
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Request) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}", methods
        proxy.shutdown()


def after_first(found: Callable[[str], StoredFile | None]) -> Callable[[str], StoredFile | None]:
    """Return `found`, but for its first answer: that of a look before another gateway had put the file."""
    looks: Iterator[None] = iter([None])
    return lambda sha256: next(looks, found(sha256))


KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


@pytest.fixture(scope="module")
def s3_store(s3_bucket: S3Server, tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    place = S3Place(BUCKET, "shop/files", s3_bucket.endpoint, public=s3_bucket.endpoint)
    return S3Store(place, tmp_path_factory.mktemp("local"), environment=KEYS)


class TestS3Store(FileStoreContract):
    @pytest.fixture
    def store(self, s3_store: FileStore) -> FileStore:
        return s3_store

    def damage(self, store: FileStore, sha256: str, data: bytes) -> None:
        assert isinstance(store, S3Store)
        store._s3.put(store._bucket, sha256, data)

    def test_objects_are_stored_under_the_prefix(self, store: FileStore, s3_bucket: S3Server) -> None:
        name = store.put(b"under the prefix")
        assert f"shop/files/{name}" in s3_bucket.keys_of_objects()
        assert store.local_path(name) is None

    def test_a_signed_address_gives_the_file_and_a_changed_one_does_not(
        self, store: FileStore, s3_bucket: S3Server
    ) -> None:
        name = store.put(DATA)
        url = store.address(name, 60)
        assert url.startswith(f"{s3_bucket.endpoint}/{BUCKET}/shop/files/{name}?")
        part = httpx.get(url, headers={"Range": "bytes=5-9"})
        assert (part.status_code, part.content) == (206, DATA[5:10])
        whole = httpx.get(url)
        assert whole.content == DATA
        assert httpx.get(url, headers={"If-None-Match": whole.headers["ETag"]}).status_code == 304
        assert httpx.get(url.replace("Expires=60", "Expires=6000")).status_code == 403
        assert httpx.get(url.partition("?")[0]).status_code == 403

    def test_a_large_upload_that_fails_leaves_no_parts(self, s3_bucket: S3Server, tmp_path: Path) -> None:
        with refusing_uploads(s3_bucket.endpoint, after_bytes=20 << 20) as endpoint:
            store = S3Store(S3Place(BUCKET, "broken", endpoint), tmp_path, environment=KEYS)
            with pytest.raises(FileStoreUnavailableError, match="does not answer, or failed"):
                put_large(store, 3 * MULTIPART_BYTES >> 20)
            assert list(store.files()) == []
        assert s3_bucket.uploads() == []
        assert not list(tmp_path.glob(f".*{UNFINISHED}"))

    def test_a_file_is_uploaded_once_and_no_whole_object_overwritten(self, s3_bucket: S3Server, tmp_path: Path) -> None:
        data, large = os.urandom(1000), tmp_path / "large.bin"
        large.write_bytes(os.urandom(MULTIPART_BYTES + 5))
        with watched(s3_bucket.endpoint) as (endpoint, methods):

            def store(part: str, now_s: float) -> S3Store:
                place = S3Place(BUCKET, "once", endpoint)
                return S3Store(place, tmp_path / part, environment=KEYS, clock=ManualClock(now_s))

            def uploads() -> list[str]:
                return [method for method in methods if method.startswith("PUT")]

            one = store("a", time.time())
            name = one.put(data)
            assert uploads() == ["PUT if none"]
            stored_s = one.stat(name).stored_s
            other = store("b", stored_s + SKEW_S)
            for _ in range(2):
                assert other.put(data) == name
                (tmp_path / "copy").write_bytes(data)
                assert other.put_file(tmp_path / "copy") == name
            assert uploads() == ["PUT if none"]
            whole = other.put_file(large)
            assert uploads() == ["PUT if none", "PUT", "PUT", "PUT"]  # three parts
            assert one.put_file(large) == whole
            store("b", stored_s + SKEW_S + 1).put(data)  # a retention may have marked it: its time is renewed
            assert uploads() == ["PUT if none", "PUT", "PUT", "PUT", "PUT"]

    def test_the_second_of_two_gateways_that_put_at_once(
        self, s3_bucket: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = os.urandom(1000)
        name = sha256_of(data)
        with watched(s3_bucket.endpoint) as (endpoint, methods):
            place = S3Place(BUCKET, "race", endpoint)
            one, other = (S3Store(place, tmp_path / part, environment=KEYS) for part in ("a", "b"))
            for first, uploads in ((data, ["PUT if none"]), (b"other bytes", ["PUT if none", "PUT"])):
                one._s3.put(one._bucket, name, first)
                methods.clear()
                with monkeypatch.context() as patch:
                    patch.setattr(other, "_found", after_first(other._found))
                    assert other.put(data) == name
                assert [method for method in methods if method.startswith("PUT")] == uploads
                assert one.read(name) == data

    def test_a_server_without_conditions(self, s3_bucket: S3Server, tmp_path: Path) -> None:
        with watched(s3_bucket.endpoint, has_conditions=False) as (endpoint, methods):
            store = S3Store(S3Place(BUCKET, "older", endpoint), tmp_path, environment=KEYS)
            names = [store.put(data) for data in (b"one", b"two")]
            assert [store.read(name) for name in names] == [b"one", b"two"]
            assert methods.index("PUT") == methods.count("PUT if none") + 1  # one question, with the client's tries

    def test_an_error_about_a_name_with_501_in_it_says_nothing_of_conditions(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Failing:
            @staticmethod
            def put(*_: object, **__: object) -> None:
                path = f"http://127.0.0.1:5010/{BUCKET}/files/{'501' * 21}f in 2.501ms"
                raise GenericError(f"Generic S3 error: Error performing PUT {path} - {status}")

        store = S3Store(S3Place(BUCKET, "files", "http://127.0.0.1:1"), tmp_path, environment=KEYS)
        monkeypatch.setattr(store, "_s3", Failing)
        status = "Server returned non-2xx status code: 503 Service Unavailable: <Error/>"
        assert not store._make("501" * 21 + "f", b"any")
        assert store._takes_conditions
        status = "Server returned non-2xx status code: 501 Not Implemented: "
        assert not store._make("501" * 21 + "f", b"any")
        assert not store._takes_conditions

    def test_a_repair_overwrites_a_file_that_the_server_believes_intact(self, store: FileStore) -> None:
        assert isinstance(store, S3Store)
        name = store.put(b"repaired")
        before = store._s3.head(store._bucket, name)["last_modified"]
        with store.writer(repair=True) as writer:
            writer.write(b"repaired")
            until_s = time.monotonic() + 20
            while time.time() < before.timestamp() + 1.1:  # S3 tells whole seconds
                assert time.monotonic() < until_s
                time.sleep(0.05)
            writer.commit()
        assert store._s3.head(store._bucket, name)["last_modified"] > before

    def test_errors_name_the_place_and_what_to_do(self, s3_bucket: S3Server, tmp_path: Path) -> None:
        def store(bucket: str = BUCKET, endpoint: str = s3_bucket.endpoint, secret: str = SECRET_KEY) -> S3Store:
            keys = {**KEYS, "AWS_SECRET_ACCESS_KEY": secret}
            return S3Store(S3Place(bucket, "files", endpoint), tmp_path, environment=keys)

        with pytest.raises(FileStoreUnavailableError, match=r"s3://nothing/files: the bucket does not exist: make it"):
            store("nothing").check()
        with pytest.raises(FileStoreUnavailableError, match=rf"s3://{BUCKET}/files: refused; check the keys"):
            store(secret="wrong").put(b"x")
        with pytest.raises(FileStoreUnavailableError, match=rf"s3://{BUCKET}/files: the S3 server does not answer"):
            store(endpoint="http://127.0.0.1:1").has(ABSENT)
        with pytest.raises(ConfigError, match=rf"s3://{BUCKET}/files: endpoint 'nonsense' is not a URL"):
            store(endpoint="nonsense")
        store().check()

    def test_keys_of_the_file_of_credentials(self, s3_bucket: S3Server, tmp_path: Path) -> None:
        file = tmp_path / "credentials"
        file.write_text(
            "[default]\naws_access_key_id = other\naws_secret_access_key = other\n"
            f"[walle]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
        )
        place = S3Place(BUCKET, "keys", s3_bucket.endpoint)
        named = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
        name = S3Store(place, tmp_path, environment={**named, "AWS_PROFILE": "walle"}).put(b"by profile")
        with pytest.raises(FileStoreUnavailableError, match="refused"):
            S3Store(place, tmp_path, environment=named).read(name)
        with pytest.raises(ConfigError, match="has no profile 'nobody'"):
            S3Store(place, tmp_path, environment={**named, "AWS_PROFILE": "nobody"})
