"""A server on a socket that others have too: what was accepted is served to its end, the rest waits for the next one.

tests/cli/cloud/test_socket_activation.py has the processes.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from tests.sim.shop_cloud import until
from walle.base.asgi import Receive, Scope, Send
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.http import server as http_server
from walle.cloud.http.limits import HttpLimits
from walle.cloud.http.server import HttpFront, serving

LIMIT_S = 20.0
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def _app(name: bytes) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an app that answers with a name."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", str(len(name)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": name})

    return app


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_accepted_clients_are_answered_before_the_end_and_others_by_the_next_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "_FAREWELL_S", LIMIT_S)
    with socket.create_server(("127.0.0.1", 0)) as kept:
        port = kept.getsockname()[1]
        limits = HttpLimits(header_s=LIMIT_S)
        first = HttpFront(_app(b"first"), limits, lambda _: True, rules=REQUEST_RULES)
        stopping = asyncio.Event()

        async def serve() -> str:
            async with serving(first, "127.0.0.1", 0, inherited=kept.dup()) as url:
                await stopping.wait()
                return url

        running = asyncio.create_task(serve())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: first.count == 1)  # the connection is accepted, and has sent nothing
        stopping.set()
        await until(lambda: first.is_draining)
        late_reader, late_writer = await asyncio.open_connection("127.0.0.1", port)
        late_writer.write(GET)
        await asyncio.sleep(0.5)  # a server that does not wait has ended by now
        writer.write(GET)
        async with asyncio.timeout(LIMIT_S):
            answer = await reader.read()  # read to its end
            assert await running == f"http://127.0.0.1:{port}"
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"first")
        second = HttpFront(_app(b"second"), limits, lambda _: True, rules=REQUEST_RULES)
        async with serving(second, "127.0.0.1", 0, inherited=kept.dup()), asyncio.timeout(LIMIT_S):
            head = await late_reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await late_reader.readexactly(6) == b"second"
        late_writer.close()
