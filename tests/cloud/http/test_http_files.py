"""Files that the kernel sends: whole, in parts, to clients that are slow, leave, or send the next request meanwhile."""

import asyncio
import contextlib
import hashlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.sim.shop_cloud import LIMIT_S, until
from walle.access.identity.authority import Authority
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.http import files as http_files
from walle.cloud.http.limits import HttpLimits
from walle.cloud.http.server import HttpFront, serving
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.folder_store import FolderStore

DATA = os.urandom(1 << 20) * 7 + b"the end"


@contextlib.asynccontextmanager
async def _server(
    folder: Path, limits: HttpLimits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[HttpFront, str, str]]:
    """Serve a store; give the server, its URL and the sha256 of DATA."""
    store = FolderStore(folder / "files")
    sha256 = store.put(DATA)
    front = HttpFront(cdn_app(store), limits or HttpLimits(), lambda _: True, rules=REQUEST_RULES)
    async with serving(front, "127.0.0.1", 0, tls=tls) as url:
        yield front, url, sha256


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes that the kernel was asked to send, by calls."""
    found: list[int] = []
    send = os.sendfile

    def sendfile(out: int, file: int, offset: int, count: int) -> int:
        found.append(count)
        return send(out, file, offset, count)

    monkeypatch.setattr(os, "sendfile", sendfile)
    return found


@pytest.mark.asyncio
async def test_the_kernel_sends_files_and_their_parts(tmp_path: Path, sent: list[int]) -> None:
    async with _server(tmp_path) as (_, url, sha256), httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as http:
        whole = await http.get(f"/{sha256}")
        assert hashlib.sha256(whole.content).hexdigest() == sha256
        assert sum(sent) >= len(DATA)
        for ranges, expected in (("bytes=5-9", DATA[5:10]), ("bytes=1048570-", DATA[1048570:]), ("bytes=-3", b"end")):
            part = await http.get(f"/{sha256}", headers={"Range": ranges})
            assert (part.status_code, part.content) == (206, expected)
        before = len(sent)
        assert (await http.head(f"/{sha256}")).content == b""
        assert (await http.get(f"/{sha256}", headers={"If-None-Match": f'"{sha256}"'})).status_code == 304
        assert len(sent) == before


@pytest.mark.asyncio
async def test_a_disk_that_may_be_slow_is_read_in_a_thread(
    tmp_path: Path, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_files, "_is_cached", lambda *_: False)
    async with _server(tmp_path) as (_, url, sha256), httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as http:
        assert (await http.get(f"/{sha256}")).content == DATA
    assert sum(sent) >= len(DATA)


@pytest.mark.asyncio
async def test_with_tls_files_are_read_in_pieces(tmp_path: Path, sent: list[int]) -> None:
    authority = Authority(tmp_path / "authority")
    trusting = ssl.create_default_context(cafile=authority.ca_path)
    async with (
        _server(tmp_path, tls=authority.server_context()) as (_, url, sha256),
        httpx.AsyncClient(base_url=url, verify=trusting, timeout=LIMIT_S) as http,
    ):
        assert (await http.get(f"/{sha256}")).content == DATA
    assert not sent


def _request(sha256: str) -> bytes:
    return f"GET /{sha256} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def _connect(url: str) -> socket.socket:
    """Return a connection that takes few bytes at a time."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.connect((host, int(port)))
    return connection


async def _read(connection: socket.socket, until_bytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    found = bytearray()
    async with asyncio.timeout(LIMIT_S):
        while len(found) < until_bytes and (data := await loop.sock_recv(connection, 1 << 16)):
            found += data
    return bytes(found)


@pytest.mark.asyncio
async def test_requests_that_come_meanwhile_are_answered_after_the_file(tmp_path: Path) -> None:
    async with _server(tmp_path) as (front, url, sha256):
        with _connect(url) as connection:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, 2 * _request(sha256))
            await until(lambda: any(one.stalled_s is not None for one in front.connections))
            size = 2 * len(DATA)
            found = await _read(connection, size + 200)
            first, second = found.split(b"HTTP/1.1 200 OK\r\n")[1:]
            for answer in (first, second):
                head, _, body = answer.partition(b"\r\n\r\n")
                assert b"content-length: %d" % len(DATA) in head
                assert body == DATA[: len(body)]
            assert first.endswith(DATA)


@pytest.mark.asyncio
async def test_a_client_that_disconnects_or_stops_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names
    async with _server(tmp_path, HttpLimits(stalled_s=0.0)) as (front, url, sha256):
        loop = asyncio.get_running_loop()
        for leaves in (True, False):
            with _connect(url) as connection:
                await loop.sock_sendall(connection, _request(sha256))
                if leaves:
                    await until(lambda: len(front.connections) > 0)
                    await _read(connection, 1)
                else:
                    await until(lambda: front.refused["slow_reader"] > 0)
            await until(lambda: front.count == 0)
        async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as http:
            assert (await http.get(f"/{'0' * 64}")).status_code == 404
    await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)  # noqa: PTH208
