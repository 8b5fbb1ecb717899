import hashlib
import io
import os
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.sim.git_host import served
from walle.deploy.shared_files.cdn import CHUNK_BYTES, RangeError, cdn_app, parse_range
from walle.deploy.shared_files.folder_store import FolderStore
from walle.deploy.shared_files.store import FileStoreError

DATA = os.urandom(2 * CHUNK_BYTES + 17)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    return FolderStore(tmp_path_factory.mktemp("files") / "store")


@pytest.fixture(scope="module")
def client(store: FolderStore) -> Iterator[httpx.Client]:
    with served(cdn_app(store)) as url, httpx.Client(base_url=url) as client:
        yield client


def test_put_files_by_hash_and_once(store: FolderStore) -> None:
    name = store.put(b"abc")
    assert name == hashlib.sha256(b"abc").hexdigest()
    before = store.path(name).stat().st_ino
    assert store.put(b"abc") == name
    assert store.path(name).stat().st_ino == before  # the file is not written again
    assert (store.has(name), store.has("0" * 64), store.path(name).read_bytes()) == (True, False, b"abc")


def test_flipped_bit_is_found(store: FolderStore) -> None:
    name = store.put(b"flip" + DATA)
    assert store.verify(name)
    data = bytearray(b"flip" + DATA)
    data[1000] ^= 4
    store.path(name).write_bytes(data)
    assert not store.verify(name)
    with pytest.raises(FileStoreError, match="the store does not have it"):
        store.verify("0" * 64)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n", "0" * 62 + "/."])
def test_only_hashes_are_names(store: FolderStore, name: str) -> None:
    with pytest.raises(FileStoreError, match="not a sha256 in lower-case hex"):
        store.path(name)


def test_full_disk_leaves_nothing_half_done(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.put(DATA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert store.verify(store.put(DATA))


@given(st.integers(0, 200), st.integers(0, 220), st.integers(0, 220))
def test_ranges_are_those_of_slices(size: int, first: int, last: int) -> None:
    data = bytes(range(size % 256))[:size]

    def cut(header: str) -> bytes | None:
        try:
            part = parse_range(header, size)
        except RangeError:
            return None
        return data if part is None else data[slice(*part)]

    assert cut(f"bytes={first}-") == (data[first:] if first < size else None)
    assert cut(f"Bytes = {first}-{last}") == (
        data if last < first else data[first : last + 1] if first < size else None
    )
    assert cut(f"bytes=-{last}") == (data[-last:] if last and size else None)


@given(st.text(max_size=20) | st.text("bytes=-0123456789, ", max_size=30), st.integers(0, 50))
def test_any_range_header_is_answered(header: str, size: int) -> None:
    for text in (header, f"bytes={header}"):
        try:
            part = parse_range(text, size)
        except RangeError:
            continue
        assert part is None or 0 <= part[0] < part[1] <= size


def test_a_whole_file_is_sent_with_permanent_cache_headers(client: httpx.Client, store: FolderStore) -> None:
    name = store.put(DATA)
    answer = client.get(f"/cdn/{name}")
    assert (answer.status_code, answer.content) == (200, DATA)
    assert answer.headers["etag"] == f'"{name}"'
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["accept-ranges"] == "bytes"
    head = client.head(f"/cdn/{name}", headers={"range": "bytes=0-1"})
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(DATA)), b"")
    empty = client.get(f"/cdn/{store.put(b'')}")
    assert (empty.status_code, empty.content) == (200, b"")


@pytest.mark.parametrize(
    ("value", "status"),
    [("{}", 304), ("W/{}", 304), ("*", 304), ('"x", {}', 304), ('"x"', 200), ("", 200)],
)
def test_a_matching_etag_is_answered_with_304(
    client: httpx.Client, store: FolderStore, value: str, status: int
) -> None:
    name = store.put(b"abc")
    answer = client.get(f"/cdn/{name}", headers={"if-none-match": value.format(f'"{name}"')})
    assert (answer.status_code, answer.content) == (status, b"abc" if status == 200 else b"")
    assert answer.headers["etag"] == f'"{name}"'


def test_a_range_is_answered_with_206_and_its_bytes(client: httpx.Client, store: FolderStore) -> None:
    name, size = store.put(DATA), len(DATA)

    def get(value: str, **more: str) -> httpx.Response:
        return client.get(f"/cdn/{name}", headers={"range": value, **{k.replace("_", "-"): v for k, v in more.items()}})

    middle = get(f"bytes=100-{CHUNK_BYTES + 99}")
    assert (middle.status_code, middle.content) == (206, DATA[100 : CHUNK_BYTES + 100])
    assert middle.headers["content-range"] == f"bytes 100-{CHUNK_BYTES + 99}/{size}"
    assert get("bytes=-5").content == DATA[-5:]
    assert get(f"bytes={size - 3}-").content == DATA[-3:]
    assert get("bytes=0-1,4-5").status_code == 200
    past = get(f"bytes={size}-")
    assert (past.status_code, past.headers["content-range"]) == (416, f"bytes */{size}")
    assert "begins at" in past.json()["error"]
    assert get("bytes=0-1", if_range=f'"{name}"').content == DATA[:2]
    for other in ('"x"', f'W/"{name}"', "Wed, 21 Oct 2015 07:28:00 GMT"):
        assert get("bytes=0-1", if_range=other).status_code == 200


def test_broken_download_is_resumed(client: httpx.Client, store: FolderStore) -> None:
    name, got = store.put(DATA), b""
    with client.stream("GET", f"/cdn/{name}") as answer:
        for chunk in answer.iter_raw(1000):
            got += chunk
            break  # the link drops
    got += client.get(f"/cdn/{name}", headers={"range": f"bytes={len(got)}-"}).content
    assert hashlib.sha256(got).hexdigest() == name


@pytest.mark.parametrize("path", ["/cdn/" + "0" * 64, "/cdn/", "/", "/cdn/..%2f..%2fetc%2fpasswd", "/cdn/" + "A" * 64])
def test_an_unknown_file_is_answered_with_a_json_error(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]
    assert client.head(path).content == b""


def test_other_methods_are_refused(client: httpx.Client, store: FolderStore) -> None:
    answer = client.put(f"/cdn/{store.put(b'abc')}", content=b"evil")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_mounted_in_another_app(store: FolderStore) -> None:
    name = store.put(b"abc")
    with served(Starlette(routes=[Mount("/v1/cdn", cdn_app(store))])) as url:
        assert httpx.get(f"{url}/v1/cdn/{name}").content == b"abc"
        assert httpx.get(f"{url}/v1/cdn/{name}/x").status_code == 404


def test_many_readers_at_once(client: httpx.Client, store: FolderStore) -> None:
    names = [store.put(DATA + bytes([number])) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: (name, client.get(f"/cdn/{name}").content), names * 8))
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in answers)


def test_file_cut_short_on_disk_breaks_the_connection(
    client: httpx.Client, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = store.put(DATA)

    class Longer(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            return super().seek(offset, whence) + (10 if whence == os.SEEK_END else 0)

    monkeypatch.setattr(store, "open", lambda _: Longer(DATA))
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(f"/cdn/{name}")


def test_a_damaged_copy_is_replaced_when_the_file_is_put_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    sha256 = store.put(b"whole")
    store.path(sha256).write_bytes(b"wholE")
    assert not store.verify(sha256)
    assert store.put(b"whole") == sha256
    assert store.verify(sha256)
