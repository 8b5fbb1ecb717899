import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from walle.deploy.agent.fetch import FetchError, HeldPart, HttpFetcher, WrongLengthError, _target
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.folder_store import FolderStore

DATA = bytes(range(256)) * 3000


@contextlib.asynccontextmanager
async def _serving(app: Any) -> AsyncIterator[HttpFetcher]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none"))
    sockets = [server.config.bind_socket()]
    serving = asyncio.create_task(server.serve(sockets))
    port = sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield HttpFetcher(client, timeout=httpx.Timeout(5.0, read=0.5))
    finally:
        server.should_exit = True
        await serving


async def _all(fetcher: HttpFetcher, url: str, offset: int, size_bytes: int) -> bytes:
    return b"".join([chunk async for chunk in fetcher.fetch(url, offset=offset, size_bytes=size_bytes)])


@pytest.mark.asyncio
async def test_pulls_whole_and_resumes_from_the_cdn_app(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    sha256 = store.put(DATA)
    async with _serving(cdn_app(store)) as fetcher:
        url = f"/cdn/{sha256}"
        assert await _all(fetcher, url, 0, len(DATA)) == DATA
        for offset in (1, 1000, len(DATA) - 1):
            assert await _all(fetcher, url, offset, len(DATA)) == DATA[offset:]
        with pytest.raises(WrongLengthError):
            await _all(fetcher, url, 0, len(DATA) - 1)
        with pytest.raises(WrongLengthError):
            await _all(fetcher, url, 0, len(DATA) + 1)
        with pytest.raises(WrongLengthError):
            await _all(fetcher, url, 5, len(DATA) - 1)
        with pytest.raises(WrongLengthError):
            await _all(fetcher, url, len(DATA), len(DATA) + 9)
        with pytest.raises(FetchError, match="404"):
            await _all(fetcher, "/cdn/" + "0" * 64, 0, 10)


def _answer(status: int, headers: dict[str, str], *parts: bytes, hang: bool = False) -> Callable[..., Awaitable[None]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if hang:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await send({"type": "http.response.body", "body": b""})

    return app


@pytest.mark.asyncio
async def test_a_server_that_ignores_range_is_put_up_with() -> None:
    async with _serving(_answer(200, {}, b"abc", b"def", b"ghi")) as fetcher:
        assert await _all(fetcher, "/x", 4, 9) == b"efghi"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("app", "error", "match"),
    [
        (_answer(200, {}, b"abcdefghij", b"k" * 100_000), WrongLengthError, "more than the 9"),
        (_answer(200, {}, b"abcde"), FetchError, "ended after 5"),
        (_answer(200, {}, b"abc", hang=True), FetchError, "ReadTimeout"),
        (_answer(200, {"content-encoding": "gzip"}, b"abcdefghi"), FetchError, "gzip"),
        (_answer(206, {"content-range": "bytes 0-8/9"}, b"abcdefghi"), FetchError, "asked for bytes from 4"),
        (_answer(206, {"content-range": "bytes 4-8/11"}, b"efghi"), WrongLengthError, "11 bytes there"),
        (_answer(302, {"location": "/y"}), FetchError, "302"),
        (_answer(503, {}), FetchError, "503"),
    ],
)
async def test_answers_that_are_no_file_are_refused(app: Any, error: type[FetchError], match: str) -> None:
    async with _serving(app) as fetcher:
        with pytest.raises(error, match=match) as caught:
            await _all(fetcher, "/x", 4, 9)
        assert caught.value.url == "/x"


@pytest.mark.asyncio
async def test_no_byte_beyond_the_signed_length_is_given() -> None:
    async with _serving(_answer(200, {}, b"abcde", b"fghij")) as fetcher:
        came = b""
        with pytest.raises(WrongLengthError):  # noqa: PT012 - what came before the error is what is looked at
            async for chunk in fetcher.fetch("/x", offset=0, size_bytes=7):
                came += chunk
        assert b"abcdefg".startswith(came)


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "/no/base", "ftp://h/x", "http://[/x", "http://h:99999999/x"])
async def test_addresses_that_lead_nowhere_are_fetch_errors(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(FetchError):
            await _all(HttpFetcher(client), url, 0, 10)


def _redirect(location: str) -> Callable[..., Awaitable[None]]:
    return _answer(302, {"Location": location})


@contextlib.asynccontextmanager
async def _redirecting(
    target: Any, location: Callable[[str], str] = "{}/elsewhere".format
) -> AsyncIterator[tuple[HttpFetcher, list[dict[str, str]]]]:
    """Give a fetcher whose server redirects to another one, which runs `target`, and the headers that reach it."""
    asked: list[dict[str, str]] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        asked.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await target(scope, receive, send)

    async with _serving(noting) as other:
        url = location(str(other._client.base_url).rstrip("/"))
        async with _serving(_redirect(url)) as fetcher:
            fetcher._client.headers["X-Walle-Device"] = "a session of this device"
            fetcher._client.headers["Authorization"] = "Bearer of this device"
            fetcher._client.cookies.set("session", "of this device", domain="127.0.0.1")
            yield fetcher, asked


@pytest.mark.asyncio
async def test_a_redirect_is_followed_without_what_the_device_is_known_by(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    sha256 = store.put(DATA)
    async with _redirecting(cdn_app(store), f"{{}}/cdn/{sha256}".format) as (fetcher, asked):
        assert await _all(fetcher, "/cdn/x", 0, len(DATA)) == DATA
        assert await _all(fetcher, "/cdn/x", 1000, len(DATA)) == DATA[1000:]
    assert [set(headers) - {"host", "accept-encoding"} for headers in asked] == [set(), {"range"}]
    assert {headers["accept-encoding"] for headers in asked} == {"identity"}


@pytest.mark.asyncio
async def test_a_part_of_a_coded_form_is_not_asked_for_elsewhere(tmp_path: Path) -> None:
    """The cloud lost the coded form, and redirects to the whole file: the pull begins again with it."""
    store = FolderStore(tmp_path)
    sha256 = store.put(DATA)
    held = HeldPart("zstd", '"zstd-etag"', 10)
    async with (
        _redirecting(cdn_app(store), f"{{}}/cdn/{sha256}".format) as (fetcher, asked),
        fetcher.fetch_coded("/cdn/x", codings=["zstd"], dictionary="", held=held, max_bytes=len(DATA)) as answer,
    ):
        assert (answer.coding, answer.offset) == ("", 0)
        assert b"".join([chunk async for chunk in answer.chunks]) == DATA
    assert set(asked[0]) == {"host", "accept-encoding"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://169.254.169.254/latest", "redirects to http://169.254.169.254; only HTTPS leads to other hosts"),
        ("https://files.example/x", "only HTTPS leads to other hosts"),
        ("file:///etc/passwd", "not an address of a file"),
        ("ftp://127.0.0.1/x", "only HTTPS leads"),
        ("http://user:secret@127.0.0.1/x", "not an address of a file"),
        ("http://127.0.0.1:99999999/", "not an address of a file"),
        ("", "not an address of a file"),
    ],
)
async def test_redirects_that_are_refused(location: str, reason: str) -> None:
    async with _serving(_redirect(location)) as fetcher:
        with pytest.raises(FetchError, match=re.escape(reason)):
            await _all(fetcher, "/cdn/x", 0, 10)


@pytest.mark.asyncio
async def test_one_redirect_is_followed_and_none_of_metadata() -> None:
    async with _redirecting(_redirect("/again")) as (fetcher, asked):
        with pytest.raises(FetchError, match="the server answered 302"):
            await _all(fetcher, "/cdn/x", 0, 10)
        assert len(asked) == 1
        with pytest.raises(FetchError, match="the server answered 302"):
            await fetcher.fetch_small("/trust/x", max_bytes=10)
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("source", "location", "followed"),
    [
        ("https://cloud.example/cdn/x", "https://files.example/y?z", True),
        ("https://cloud.example/cdn/x", "http://files.example/y", False),
        ("https://cloud.example/cdn/x", "http://cloud.example/y", False),
        ("http://cloud.example/cdn/x", "http://cloud.example:8333/y", True),
        ("http://cloud.example/cdn/x", "http://files.example/y", False),
    ],
)
def test_a_redirect_leads_to_other_hosts_over_https_only(source: str, location: str, followed: bool) -> None:
    answer = httpx.Response(302, headers={"Location": location}, request=httpx.Request("GET", source))
    if followed:
        assert str(_target(answer, source)) == location
    else:
        with pytest.raises(FetchError, match="only HTTPS leads to other hosts, and only to HTTPS"):
            _target(answer, source)
