"""Connections of an edge gateway to the gateway: what an answer, and the end of a connection, mean for the next one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpcore
import pytest

from walle.cloud.edge.gateway_connections import GatewayConnections, Onward
from walle.cloud.edge.reverse_proxy import ClientGoneError

type _Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_GET = Onward("GET", b"/", [(b"host", b"cloud")], None)


@contextlib.asynccontextmanager
async def _pool(serve: _Serve) -> AsyncIterator[tuple[GatewayConnections, str]]:
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = GatewayConnections(most=4)
        try:
            yield pool, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            pool.close()


async def _ask(pool: GatewayConnections, url: str, onward: Onward) -> tuple[int, bytes]:
    async with asyncio.timeout(30):
        answer = await pool.request(url, onward)
        try:
            return answer.status, b"".join([part async for part in answer.parts()])
        finally:
            answer.close()


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def _numbering(after: bytes = b"") -> _Serve:
    """Serve answers with their number on the connection, each with some bytes `after` it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                number += 1
                writer.write(_answer(b"%d" % number) + after)
                await writer.drain()
        writer.close()

    return serve


@pytest.mark.asyncio
async def test_a_connection_whose_answer_was_read_is_used_again() -> None:
    async with _pool(_numbering()) as (pool, url):
        assert [await _ask(pool, url, _GET) for _ in range(3)] == [(200, b"1"), (200, b"2"), (200, b"3")]
        assert pool.made == 1


@pytest.mark.asyncio
async def test_bytes_after_an_answer_are_no_answer_to_the_request_of_another_client() -> None:
    async with _pool(_numbering(after=_answer(b"of another"))) as (pool, url):
        assert [await _ask(pool, url, _GET) for _ in range(2)] == [(200, b"1"), (200, b"1")]
        assert pool.made == 2


_TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 9\r\n\r\ntoo large"
_CHUNKED = [(b"host", b"cloud"), (b"transfer-encoding", b"chunked")]


@pytest.mark.asyncio
async def test_an_answer_before_the_end_of_a_body_is_passed_on_although_the_connection_is_reset() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_TOO_LARGE)
        await writer.drain()
        await sent.wait()  # bytes that were not read: closing the socket resets the connection
        writer.close()

    async def body() -> AsyncIterator[bytes]:
        for number in range(256):
            if number == 1:
                sent.set()
            yield bytes(1 << 16)

    async with _pool(serve) as (pool, url):
        sent = asyncio.Event()
        assert await _ask(pool, url, Onward("POST", b"/", _CHUNKED, body())) == (413, b"too large")


@pytest.mark.asyncio
async def test_an_answer_is_passed_on_although_the_rest_of_the_body_is_never_read() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_TOO_LARGE)
        await answered.wait()
        writer.close()

    async def body() -> AsyncIterator[bytes]:
        while True:  # more than the sockets hold
            yield bytes(1 << 16)

    async with _pool(serve) as (pool, url):
        answered = asyncio.Event()
        try:
            assert await _ask(pool, url, Onward("POST", b"/", _CHUNKED, body())) == (413, b"too large")
        finally:
            answered.set()


@pytest.mark.asyncio
async def test_an_answer_is_passed_on_although_the_client_sends_no_more_of_its_body() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_TOO_LARGE)
        writer.close()

    async def body() -> AsyncIterator[bytes]:
        yield b"part"
        await asyncio.Event().wait()

    async with _pool(serve) as (pool, url):
        assert await _ask(pool, url, Onward("POST", b"/", _CHUNKED, body())) == (413, b"too large")


@pytest.mark.asyncio
async def test_a_body_is_sent_to_its_end_although_its_answer_has_begun() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nbegun\r\n")
        whole = await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(whole), whole))
        writer.close()

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.sleep(0.05)
        yield b"last"

    async with _pool(serve) as (pool, url):
        answer = b"begun5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n"
        assert await _ask(pool, url, Onward("POST", b"/", _CHUNKED, body())) == (200, answer)


@pytest.mark.asyncio
async def test_a_body_that_fails_ends_its_request() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def body() -> AsyncIterator[bytes]:
        yield b"part"
        await asyncio.sleep(0.05)
        raise ClientGoneError

    async with _pool(serve) as (pool, url):
        with pytest.raises(ClientGoneError):
            await _ask(pool, url, Onward("POST", b"/", _CHUNKED, body()))


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nonly"])
@pytest.mark.asyncio
async def test_a_connection_that_ends_within_an_answer_is_an_error(sent: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        writer.close()

    async with _pool(serve) as (pool, url):
        with pytest.raises((httpcore.RemoteProtocolError, httpcore.ReadError)):
            await _ask(pool, url, _GET)
