"""Client of a cloud's API: what an answer may be, and where the token goes."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from walle.client import cloud_client
from walle.client.cloud_client import CloudAddressError, CloudClient, CloudRefusedError, LongAnswerError


@pytest.mark.asyncio
async def test_an_answer_beyond_the_bound_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_client, "_MAX_ANSWER_BYTES", 100)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 30
            yield b"x" * 30
            await asyncio.sleep(0)

    for status in (200, 500):
        transport = httpx.MockTransport(lambda _, status=status: httpx.Response(status, content=endless()))
        async with CloudClient("http://cloud", transport=transport) as client:
            with pytest.raises(LongAnswerError, match="more than 100 bytes"):
                await client.call("GET", "/v1/cloud")
    assert sent == 2 * 120


@pytest.mark.asyncio
async def test_a_reason_in_plain_text_is_shown() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(503, text="the gateway is full; \033[1mtry again\n"))
    async with CloudClient("http://cloud", transport=transport) as client:
        with pytest.raises(CloudRefusedError, match=r"503 Service Unavailable: the gateway is full; [^\x1b]*again$"):
            await client.call("GET", "/v1/cloud")


@pytest.mark.asyncio
async def test_no_redirect_is_followed_with_the_token() -> None:
    asked: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.url} {request.headers['Authorization']}")
        return httpx.Response(307, headers={"Location": "http://elsewhere/v1/tokens/ci"})

    async with CloudClient("http://cloud", "secret", transport=httpx.MockTransport(redirect)) as client:
        with pytest.raises(CloudRefusedError, match="the answer was 307 Temporary Redirect; is this the address"):
            await client.call("DELETE", "/v1/tokens/ci")
        with pytest.raises(CloudRefusedError, match="307"):
            await client.send("PUT", "/v1/files", content=b"a file")  # a file that was not stored
        with pytest.raises(CloudRefusedError, match="307"):
            await anext(client.lines("/v1/lines", silence_s=1.0))
    assert asked[0] == "http://cloud/v1/tokens/ci Bearer secret"
    assert {one.split("/")[2] for one in asked} == {"cloud"}


@pytest.mark.asyncio
async def test_a_direct_client_reads_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with CloudClient("http://cloud.invalid", "secret") as client:
            assert await client.call("GET", "/v1/cloud") == {}
        async with CloudClient("http://cloud.invalid", "secret", is_direct=True) as client:
            with pytest.raises(cloud_client.CloudUnreachableError):
                await client.call("GET", "/v1/cloud")
    assert asked == 1


@pytest.mark.asyncio
async def test_a_client_moves_to_another_address_of_its_cloud() -> None:
    hosts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return httpx.Response(204)

    async with CloudClient("http://one", transport=httpx.MockTransport(answer)) as client:
        assert await client.call("GET", "/v1/cloud") is None
        client.move("http://two")
        await client.call("GET", "/v1/cloud")
        with pytest.raises(CloudAddressError, match="begins with http://"):
            client.move("two")
    assert hosts == ["one", "two"]
