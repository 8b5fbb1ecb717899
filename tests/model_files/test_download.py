"""Download of a model from a real HTTP server on loopback that breaks off, lies, redirects, refuses or is slow."""

import contextlib
import fcntl
import hashlib
import http.server
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.model_files.model_server import part, serving, status, whole
from walle.model_files import FetchedModel, ModelEntry, ModelFetchError, ModelFileError, ModelFolder, download, fetch

DATA = bytes(range(256)) * 4096  # 1 MiB


def entry(url: str, data: bytes = DATA) -> ModelEntry:
    digest = hashlib.sha256(data).hexdigest()
    return ModelEntry(
        name="net", file="net.onnx", url=url, sha256=digest, bytes=len(data),
        licence="-", source="-", task="-", input="-", output="-",
    )  # fmt: skip


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return ModelFolder(tmp_path / "cache" / "models")


def get(one: ModelEntry, folder: ModelFolder, client: httpx.Client, **more: object) -> FetchedModel:
    return fetch(one, folder, client, sleep=lambda _: None, **more)  # type: ignore[arg-type]


def names(folder: ModelFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def test_it_fetches_once_and_reports_progress(folder: ModelFolder, client: httpx.Client) -> None:
    steps: list[int] = []
    with serving(part(DATA)) as server:
        got = get(entry(server.address), folder, client, on_progress=steps.append)
        again = get(entry(server.address), folder, client)
    assert got == FetchedModel(folder.path / "net.onnx", len(DATA), 0)
    assert again == FetchedModel(folder.path / "net.onnx", 0, 0)
    assert got.path.read_bytes() == DATA
    assert names(folder) == ["net.onnx"]
    assert got.path.stat().st_mode & 0o777 == 0o644
    assert server.ranges == [None]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, len(DATA))


def test_a_transfer_that_breaks_off_is_resumed(folder: ModelFolder, client: httpx.Client) -> None:
    with serving(part(DATA, sends=300_000), part(DATA, sends=200_000), part(DATA)) as server:
        got = get(entry(server.address), folder, client)
    assert got == FetchedModel(folder.path / "net.onnx", len(DATA), 0)
    assert server.ranges[0] is None
    starts = [int(str(wanted).removeprefix("bytes=").removesuffix("-")) for wanted in server.ranges[1:]]
    assert starts == [300_000, 500_000]
    assert got.path.read_bytes() == DATA


def test_a_failed_download_is_resumed_by_the_next(folder: ModelFolder, client: httpx.Client) -> None:
    with serving(part(DATA, sends=100_000)) as server:
        with pytest.raises(ModelFetchError, match=r"broke off.*3 times; 300000 of 1048576 bytes are kept"):
            get(entry(server.address), folder, client)
        assert names(folder) == [f".net.onnx.{entry('').sha256[:12]}.partial"]
        server.answers = [part(DATA)]
        got = get(entry(server.address), folder, client)
    assert got == FetchedModel(folder.path / "net.onnx", len(DATA) - 300_000, 300_000)
    assert names(folder) == ["net.onnx"]


@pytest.mark.parametrize("restart", [whole(DATA), status(416)])
def test_a_server_without_parts_sends_it_from_the_start(
    folder: ModelFolder, client: httpx.Client, restart: "object"
) -> None:
    with serving(part(DATA, sends=1000), restart, whole(DATA)) as server:  # type: ignore[arg-type]
        got = get(entry(server.address), folder, client)
    assert got.path.read_bytes() == DATA


def test_a_truncated_body_without_a_length_is_noticed(folder: ModelFolder, client: httpx.Client) -> None:
    with serving(whole(DATA, says=-1, sends=1000)) as server, pytest.raises(ModelFetchError, match="ended at 1000 of"):
        get(entry(server.address), folder, client)
    assert "net.onnx" not in names(folder)


def test_another_file_is_refused_and_not_kept(folder: ModelFolder, client: httpx.Client) -> None:
    wrong = DATA[:-1] + b"\0"
    with serving(whole(wrong)) as server, pytest.raises(ModelFetchError) as caught:
        get(entry(server.address), folder, client)
    for digest in (hashlib.sha256(wrong).hexdigest(), hashlib.sha256(DATA).hexdigest()):
        assert digest in str(caught.value)
    assert len(server.ranges) == 1
    (left,) = folder.path.iterdir()
    assert left.stat().st_size == 0


def test_a_wrong_kept_part_costs_one_restart(folder: ModelFolder, client: httpx.Client) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / f".net.onnx.{entry('').sha256[:12]}.partial").write_bytes(b"x" * 5000)
    with serving(part(DATA)) as server:
        got = get(entry(server.address), folder, client)
    assert server.ranges == ["bytes=5000-", None]
    assert got.path.read_bytes() == DATA


def test_a_file_of_another_length_is_refused_before_it_is_read(folder: ModelFolder, client: httpx.Client) -> None:
    with serving(whole(DATA + b"more")) as server, pytest.raises(ModelFetchError, match="has 1048580 bytes"):
        get(entry(server.address), folder, client)


def test_an_endless_answer_is_ended(folder: ModelFolder, client: httpx.Client) -> None:
    def endless(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(200):
            request.wfile.write(DATA)

    with serving(endless) as server, pytest.raises(ModelFetchError, match="sends more than the 1048576 bytes"):
        get(entry(server.address), folder, client)
    assert [path.stat().st_size for path in folder.path.iterdir()] == [0]


@pytest.mark.parametrize("code", [404, 403, 204, 401])
def test_a_refusal_names_status_and_address(folder: ModelFolder, client: httpx.Client, code: int) -> None:
    with serving(status(code)) as server, pytest.raises(ModelFetchError, match=f"net: {server.address}: .*{code}"):
        get(entry(server.address), folder, client)
    assert len(server.ranges) == 1


def test_a_server_that_is_busy_is_asked_again(folder: ModelFolder, client: httpx.Client) -> None:
    pauses: list[float] = []
    with serving(status(503), status(429), part(DATA)) as server:
        fetch(entry(server.address), folder, client, sleep=pauses.append)
    assert pauses == [1.0, 2.0]


def test_redirects_are_followed_within_a_bound(folder: ModelFolder, client: httpx.Client) -> None:
    with serving(status(302, Location="/elsewhere"), part(DATA)) as server:
        assert get(entry(server.address), folder, client).received == len(DATA)
    with (
        serving(status(302, Location="/again")) as server,
        pytest.raises(ModelFetchError, match="more than 5 redirects"),
    ):
        get(entry(server.address, DATA[:10]), ModelFolder(folder.path / "b"), client)
    assert len(server.ranges) == 6


@pytest.mark.parametrize("target", ["http://198.51.100.1/net.onnx", "file:///etc/passwd", "ftp://127.0.0.1/x", "//"])
def test_a_redirect_to_an_address_without_tls_is_refused(
    folder: ModelFolder, client: httpx.Client, target: str
) -> None:
    with serving(status(301, Location=target)) as server, pytest.raises(ModelFetchError, match=r"not an|redirect"):
        get(entry(server.address), folder, client)


def test_an_https_server_may_not_redirect_to_this_machine(folder: ModelFolder) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(302, headers={"Location": "http://127.0.0.1:8080/admin"})

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as client,
        pytest.raises(ModelFetchError, match="not an https address"),
    ):
        get(entry("https://models.example/net.onnx"), folder, client)
    assert asked == ["https://models.example/net.onnx"]


def test_a_silent_server_is_left(folder: ModelFolder, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SILENCE_S", 0.1)
    released = threading.Event()

    def silent(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(DATA[:100])
        request.wfile.flush()
        released.wait(30)

    with serving(silent) as server:
        try:
            with pytest.raises(ModelFetchError, match="sent nothing for"):
                get(entry(server.address), folder, client)
        finally:
            released.set()


def test_a_server_that_trickles_is_left(folder: ModelFolder, client: httpx.Client) -> None:
    readers: list[threading.Semaphore] = []  # one for each transfer

    def trickle(request: http.server.BaseHTTPRequestHandler) -> None:
        taken = threading.Semaphore(0)
        readers.append(taken)
        request.send_response(200)
        request.end_headers()
        for _ in range(2):
            assert taken.acquire(timeout=30)  # each byte is a read apart
            request.wfile.write(b"x")
            request.wfile.flush()

    seconds = itertools.count(0, 20)
    with serving(trickle) as server, pytest.raises(ModelFetchError, match=r"too slowly \(2 bytes in 40 s\)"):
        get(
            entry(server.address),
            folder,
            client,
            monotonic=lambda: next(seconds),
            on_progress=lambda _: readers[-1].release(),
        )


def test_offline_says_what_to_do(folder: ModelFolder, client: httpx.Client) -> None:
    with serving(part(DATA)) as server:
        address = server.address
    with pytest.raises(ModelFetchError, match=r"cannot be reached.*--models-dir or WALLE_MODELS"):
        get(entry(address), folder, client)


def test_two_processes_do_not_write_one_file(folder: ModelFolder, client: httpx.Client) -> None:
    folder.path.mkdir(parents=True)
    partial = folder.path / f".net.onnx.{entry('').sha256[:12]}.partial"
    with contextlib.closing(partial.open("wb")) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with serving(part(DATA)) as server, pytest.raises(ModelFetchError, match="another process"):
            get(entry(server.address), folder, client)
    assert server.ranges == []


def test_a_wrong_file_in_the_folder_is_neither_used_nor_replaced(folder: ModelFolder, client: httpx.Client) -> None:
    folder.path.mkdir(parents=True)
    for wrong in (DATA[:-1] + b"\0", b"short"):
        (folder.path / "net.onnx").write_bytes(wrong)
        with serving(part(DATA)) as server, pytest.raises(ModelFileError, match=r"net\.onnx: .*remove the file"):
            get(entry(server.address), folder, client)
        assert server.ranges == []
        assert (folder.path / "net.onnx").read_bytes() == wrong
    with pytest.raises(ModelFileError, match="walle model get net"):
        ModelFolder(folder.path / "none").file(entry("https://models.example/x"))


def test_a_readable_folder_that_has_the_file_need_not_be_writable(folder: ModelFolder, client: httpx.Client) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "net.onnx").write_bytes(DATA)
    folder.path.chmod(0o555)
    try:
        assert get(entry("https://models.example/x"), folder, client).received == 0
        assert names(folder) == ["net.onnx"]
    finally:
        folder.path.chmod(0o755)
