import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from walle.deploy.cloud.cdn import cdn_app
from walle.deploy.cloud.folder_store import FolderStore
from walle.deploy.device.fetch import FetchError, HttpFetcher, WrongLengthError

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
