"""Limits of the HTTP server, one by one, on an app of a few lines."""

import asyncio
import contextlib
import dataclasses
import gc
import re
import socket
import ssl
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from walle.access.identity.authority import Authority
from walle.base.asgi import Receive, Scope, Send
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.http.fair_queue import Turns
from walle.cloud.http.limits import HttpLimits, address_key
from walle.cloud.http.server import HttpFront, serving
from walle.pipeline.tunnel.server.listener import send_at_once
from walle.store.disk_space import DiskSpace

LIMIT_S = 20
GET = b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n"
HELLO = b"\x16\x03\x01\x00\x04\x01\x00\x00\x00"  # a record of TLS
SHORT = HttpLimits(header_s=0.1, grace_s=0.1, body_rate=10**9, stalled_s=0.1)


class App:
    """An app: /hold answers when it is told, /large sends 16 MB, /echo the length of the body; else the client."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.ended = asyncio.Event()
        self.disconnects = self.holding = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self.ended.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, body = scope["path"], str(scope["client"][0]).encode()
        if path == "/echo":
            size_bytes = 0
            while (message := await receive())["type"] == "http.request":
                size_bytes += len(message["body"])
                if not message.get("more_body"):
                    break
            else:
                self.disconnects += 1
            body = str(size_bytes).encode()
        elif path == "/hold" or path.endswith("/stream"):
            self.holding += 1
            await self.held.wait()
        size_bytes = (16 << 20) if path == "/large" else len(body)
        headers = [(b"content-length", str(size_bytes).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(256 if path == "/large" else 0):
            await send({"type": "http.response.body", "body": bytes(64 << 10), "more_body": True})
        await send({"type": "http.response.body", "body": b"" if path == "/large" else body})


@dataclasses.dataclass
class Client:
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, sent: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer."""
        self.writer.write(sent)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(LIMIT_S):
            self.head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", self.head)
            assert length
            return int(self.head.split()[1]), await self.reader.readexactly(int(length[1]))

    async def closed(self) -> bytes:
        """Return what comes until the server closes."""
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionResetError):
                return await self.reader.read()
            return b""


class Server:
    """A server of `App`, and its clients."""

    def __init__(self, front: HttpFront, app: App, port: int, undo: contextlib.AsyncExitStack) -> None:
        self.front = front
        self.app = app
        self._port = port
        self._undo = undo
        self._clients = list[Client]()

    async def client(self, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Client:
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=tls, server_hostname=name, local_addr=(host, 0)
        )
        self._undo.callback(writer.transport.abort)
        client = Client(reader, writer)
        self._clients.append(client)  # one that is collected closes
        return client

    async def counted(self, count: int) -> None:
        """Return once the server has that many connections."""
        async with asyncio.timeout(LIMIT_S):
            while self.front.count != count:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def served(
    limits: HttpLimits,
    *,
    proxies: tuple[str, ...] = (),
    tls: ssl.SSLContext | None = None,
    space: DiskSpace | None = None,
) -> AsyncIterator[Server]:
    app = App()
    front = HttpFront(
        app, limits, lambda headers: headers.get(b"authorization") == b"yes", proxies, space, rules=REQUEST_RULES
    )
    async with contextlib.AsyncExitStack() as undo:
        url = await undo.enter_async_context(serving(front, "127.0.0.1", 0, tls=tls))
        undo.callback(app.held.set)
        yield Server(front, app, int(url.rpartition(":")[2]), undo)


@pytest.mark.asyncio
async def test_a_header_that_does_not_end_is_answered_with_408() -> None:
    async with served(SHORT) as server:
        for begun in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\na: b"):
            client = await server.client()
            client.writer.write(begun)
            assert (await client.closed()).startswith(b"HTTP/1.1 408 ")
        assert server.front.refused["slow_header"] == 3


@pytest.mark.asyncio
async def test_a_body_that_comes_too_slowly_is_answered_with_408_and_the_app_is_told() -> None:
    async with served(SHORT) as server:
        client = await server.client()
        client.writer.write(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf")
        assert (await client.closed()).startswith(b"HTTP/1.1 408 ")
        await server.app.ended.wait()
        assert server.app.disconnects == 1
        whole = await server.client()
        assert await whole.ask(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nfour") == (200, b"4")


@pytest.mark.asyncio
async def test_a_connection_is_idle_for_its_time_only_also_after_the_rest_of_a_refused_body() -> None:
    async with served(dataclasses.replace(SHORT, idle_s=1.0)) as server:
        client = await server.client()
        status, _ = await client.ask(b"POST /v1/releases HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
        assert status == 401
        client.writer.write(bytes(100))
        assert await client.closed() == b""
        assert server.front.refused["idle"] == 1


@pytest.mark.asyncio
async def test_the_time_in_which_the_app_does_not_read_is_not_the_clients() -> None:
    async with served(SHORT) as server:
        client = await server.client()
        client.writer.write(b"POST /hold HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n")
        await asyncio.sleep(1.2)  # two looks at all connections
        server.app.held.set()
        assert (await client.answer())[0] == 200


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    async with served(SHORT) as server:
        client = await server.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(GET % b"large")
        async with asyncio.timeout(LIMIT_S):
            await server.app.ended.wait()
        assert server.front.refused["slow_reader"] == 1
        assert server.front.count == 0


@pytest.mark.asyncio
async def test_a_full_server_ends_what_keeps_it_waiting_first() -> None:
    async with served(HttpLimits(connections=3)) as server:
        idle = await server.client()
        assert (await idle.ask(GET % b""))[0] == 200
        lone = await server.client(host="127.0.0.3")
        await server.counted(2)
        silent = await server.client(host="127.0.0.2")
        await server.counted(3)
        other = await server.client(host="127.0.0.2")
        assert await lone.closed() == b""  # the oldest, since each address has one
        assert (await other.ask(GET % b""))[0] == 200
        for _ in range(2):
            assert (await (await server.client()).ask(GET % b""))[0] == 200
        assert await silent.closed() == b""  # the only one without a finished request
        assert await idle.closed() == b""  # the one that was idle for longest
        busy = list[Client]()
        for count in range(1, 4):
            busy.append(await server.client())
            busy[-1].writer.write(GET % b"hold")
            async with asyncio.timeout(LIMIT_S):
                while server.app.holding < count:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
        refused = await server.client()
        status, said = await refused.answer()
        assert (status, b"the gateway is full" in said, b"retry-after: 5" in refused.head) == (503, True, True)
        server.app.held.set()
        assert [(await one.answer())[0] for one in busy] == [200, 200, 200]


@pytest.mark.asyncio
async def test_a_full_server_ends_strangers_before_those_who_have_shown_a_token() -> None:
    known = b"GET / HTTP/1.1\r\nhost: x\r\nauthorization: yes\r\n\r\n"
    pretended = known.replace(b"yes", b"no")
    async with served(HttpLimits(connections=3)) as server:
        honest = await server.client(host="127.0.0.2")
        assert (await honest.ask(known))[0] == 200
        begun = await server.client(host="127.0.0.2")  # nothing was sent yet, but the address is known
        await server.counted(2)
        strangers = [await server.client(host="127.0.0.3")]
        assert (await strangers[0].ask(pretended))[0] == 200
        for _ in range(3):
            strangers.append(await server.client(host="127.0.0.3"))
            assert await strangers[-2].closed() == b""
            assert (await strangers[-1].ask(GET % b""))[0] == 200
        assert (await begun.ask(GET % b""))[0] == 200
        assert (await honest.ask(GET % b""))[0] == 200
        strangers.append(await server.client(host="127.0.0.3"))
        await strangers[-2].closed()
        # A place that waits for a known client is taken by a known one, and not by a stranger.
        busy = [await server.client(host="127.0.0.2") for _ in range(3)]
        assert await strangers[-1].closed() == b""
        await begun.closed()
        await honest.closed()
        await server.counted(3)
        refused = await server.client(host="127.0.0.3")
        assert (await refused.answer())[0] == 503
        assert (await (await server.client(host="127.0.0.2")).ask(known))[0] == 200
        assert await busy[0].closed() == b""


@pytest.mark.parametrize("rest", [b"G", b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"])
@pytest.mark.asyncio
async def test_a_full_server_ends_those_that_begin_a_second_request_and_do_not_send_it(rest: bytes) -> None:
    known = b"GET / HTTP/1.1\r\nhost: x\r\nauthorization: yes\r\n\r\n"
    async with served(HttpLimits(connections=4)) as server:
        honest = await server.client(host="127.0.0.2")
        assert (await honest.ask(known))[0] == 200
        honest.writer.write(rest)  # slower than any other, and known
        await asyncio.sleep(0.1)
        slow = [await server.client(host=host) for host in ("127.0.0.4", "127.0.0.3", "127.0.0.3")]
        for one in slow:
            assert (await one.ask(GET % b""))[0] == 200
            one.writer.write(rest)
            await asyncio.sleep(0.05)
        refused = await server.client(host="127.0.0.5")  # requests of the others may be on their way
        assert (await refused.answer())[0] == 503
        await asyncio.sleep(2)
        other = await server.client(host="127.0.0.5")
        assert (await other.ask(GET % b""))[0] == 200
        assert await slow[1].closed() == b""  # the first of the address that has the most of them
        honest.writer.write(b"ET / HTTP/1.1\r\nhost: x\r\n\r\n" if rest == b"G" else bytes(100))
        assert (await honest.answer())[0] == 200
        assert server.front.refused == {"full": 1, "evicted": 1}


@pytest.mark.asyncio
async def test_an_address_has_a_number_of_connections_without_a_request() -> None:
    async with served(HttpLimits(unfinished_each=2)) as server:
        first, second = await server.client(), await server.client()
        await server.counted(2)
        elsewhere = await server.client(host="127.0.0.2")
        await server.counted(3)
        third = await server.client()
        assert await first.closed() == b""
        for one in (second, third, elsewhere):
            assert (await one.ask(GET % b""))[0] == 200
        for _ in range(5):  # those that have finished one do not count
            assert (await (await server.client()).ask(GET % b""))[0] == 200
        assert server.front.refused == {"address": 1}


@pytest.mark.asyncio
async def test_streams_are_bounded_by_address_and_in_all() -> None:
    stream = GET % b"v1/releases/r/stream"
    async with served(HttpLimits(streams=3, streams_each=2)) as server:
        for host in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
            (await server.client(host=host)).writer.write(stream)
        async with asyncio.timeout(LIMIT_S):
            while server.app.holding < 3:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert (await (await server.client()).ask(stream))[0] == 429
        assert (await (await server.client(host="127.0.0.2")).ask(stream))[0] == 503
        server.app.held.set()
        async with asyncio.timeout(LIMIT_S):
            while server.front.health()["streams"]:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert (await (await server.client()).ask(stream))[0] == 200


@pytest.mark.asyncio
async def test_a_connection_ends_after_a_number_of_requests() -> None:
    async with served(HttpLimits(requests_each=3)) as server:
        client = await server.client()
        client.writer.write((GET % b"") * 5)
        answers = await client.closed()
        assert answers.count(b"HTTP/1.1 200 OK") == 3
        assert answers.count(b"connection: close") == 1


@pytest.mark.asyncio
async def test_only_known_callers_learn_that_the_disk_is_full(tmp_path: Path) -> None:
    start = b"POST /v1/releases/r/start HTTP/1.1\r\nhost: x\r\n%s\r\n"
    async with served(HttpLimits(), space=DiskSpace(tmp_path, 1 << 62)) as server:
        client = await server.client()
        assert (await client.ask(start % b""))[0] == 200  # the app's own answer, here not 401
        assert (await client.ask(start % b"authorization: no\r\n"))[0] == 200
        status, error = await client.ask(start % b"authorization: yes\r\n")
        assert (status, str(tmp_path).encode() in error) == (507, True)


@pytest.mark.asyncio
async def test_a_body_is_not_read_before_the_token_is_known() -> None:
    async with served(HttpLimits()) as server:
        head = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n"
        assert (await (await server.client()).ask(head + b"\r\n"))[0] == 401
        assert (await (await server.client()).ask(head + b"authorization: yes\r\n\r\nfour"))[0] == 200
        large = head.replace(b"4", b"262145") + b"authorization: yes\r\n\r\n"
        assert (await (await server.client()).ask(large))[0] == 413


@pytest.mark.asyncio
@pytest.mark.parametrize(("proxies", "client"), [((), b"127.0.0.1"), (("127.0.0.0/8",), b"203.0.113.9")])
async def test_only_proxies_are_believed_who_their_clients_are(proxies: tuple[str, ...], client: bytes) -> None:
    async with served(HttpLimits(unfinished_each=1), proxies=proxies) as server:
        sent = b"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 203.0.113.9\r\n\r\n"
        assert await (await server.client()).ask(sent) == (200, client)
        first = await server.client()
        await server.counted(2)
        assert (await (await server.client()).ask(GET % b""))[0] == 200
        assert server.front.refused["address"] == (0 if proxies else 1)
        if proxies:
            assert (await first.ask(GET % b""))[0] == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
async def test_a_handshake_has_its_time_also_before_its_first_byte(tmp_path: Path, sent: bytes) -> None:
    context = Authority(tmp_path / "authority").server_context()
    async with served(HttpLimits(handshake_s=0.1), tls=context) as server:
        client = await server.client()
        client.writer.write(sent)
        assert await client.closed() == b""
        await server.counted(0)
        assert server.front.refused["handshake"] == 1


@pytest.mark.asyncio
async def test_a_connection_that_sends_nothing_is_a_socket_and_no_task(tmp_path: Path) -> None:
    context = Authority(tmp_path / "authority").server_context()
    async with served(HttpLimits(unfinished_each=8, handshake_s=60), tls=context) as server:
        before = len(asyncio.all_tasks())
        clients = [await server.client() for _ in range(8)]
        await server.counted(8)
        assert len(asyncio.all_tasks()) == before
        await server.client()
        assert await clients[0].closed() == b""
        assert server.front.refused == {"address": 1}
        assert server.front.count == 8


@pytest.mark.asyncio
async def test_a_client_that_sent_before_it_was_accepted_begins_its_handshake_at_once() -> None:
    front = HttpFront(App(), HttpLimits(), lambda _: False, rules=REQUEST_RULES)
    client, accepted = socket.socketpair()
    accepted.setblocking(False)
    begun = list[socket.socket]()

    async def connect(_: object, one: socket.socket) -> None:
        begun.append(one)

    with client, accepted:
        client.send(HELLO)
        front.begin(accepted, "10.0.0.1", connect, is_tls=True)
        assert begun == [accepted]
        await asyncio.sleep(0)
        assert front.count == 0  # a connection without a transport is over


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", [b"", HELLO[:3], HELLO[:-1]])
@pytest.mark.parametrize("is_ended", [False, True])
async def test_a_handshake_begins_once_its_first_record_has_come_or_never_will(sent: bytes, *, is_ended: bool) -> None:
    front = HttpFront(App(), HttpLimits(), lambda _: False, rules=REQUEST_RULES)
    begun = asyncio.Event()

    async def connect(_: object, one: socket.socket) -> None:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        begun.set()

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        send_at_once(client)
        accepted, _ = listener.accept()
        with accepted:
            accepted.setblocking(False)
            front.begin(accepted, "10.0.0.1", connect, is_tls=True)
            for start in range(len(sent)):
                client.send(sent[start : start + 1])
                for _ in range(3):
                    await asyncio.sleep(0)
            assert not begun.is_set()
            assert front.count == 1
            if is_ended:
                client.close()
            else:
                client.send(HELLO[len(sent) :])
            async with asyncio.timeout(LIMIT_S):
                await begun.wait()


@pytest.mark.asyncio
async def test_tls_and_its_handshakes_are_within_the_limits(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    context = authority.server_context()
    trusting = ssl.create_default_context(cafile=str(authority.ca_path))
    async with served(HttpLimits(connections=2, handshake_s=60), tls=context) as server:
        silent = [await server.client(), await server.client()]
        await server.counted(2)
        client = await server.client(tls=trusting)
        assert (await client.ask(GET % b"echo"))[0] == 200
        assert await silent[0].closed() == b""
        assert server.front.refused["evicted"] == 1
        large = await server.client(tls=trusting)
        large.writer.write(GET % b"large")
        async with asyncio.timeout(LIMIT_S):
            await large.reader.readuntil(b"\r\n\r\n")
            assert not any(await large.reader.readexactly(16 << 20))


@pytest.mark.asyncio
async def test_turns_are_dealt_to_addresses_in_a_circle() -> None:
    turns, dealt = Turns(asyncio.get_running_loop()), list[str]()
    for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
        turns.take(name[0], lambda name=name: dealt.append(name))  # type: ignore[misc]
    assert not dealt
    await turns.wait("d")
    turns.take("c", lambda: dealt.append("c3"))
    await turns.wait("e")
    for _ in range(20):
        await asyncio.sleep(0)
    assert dealt[:3] == ["a1", "b1", "c1"]
    assert sorted(dealt) == ["a1", "a2", "a3", "b1", "c1", "c2", "c3"]
    assert [name for name in dealt if name[0] == "a"] == ["a1", "a2", "a3"]


@pytest.mark.asyncio
async def test_between_turns_that_rest_others_have_the_loop() -> None:
    turns, passes = Turns(asyncio.get_running_loop(), most=1, rest=2.0), list[int]()
    count = 0

    async def heavy() -> None:
        await turns.wait("a")
        passes.append(count)
        time.sleep(0.02)  # noqa: ASYNC251 - it holds the loop

    work = [asyncio.create_task(heavy()) for _ in range(3)]
    while len(passes) < 3:
        await asyncio.sleep(0.001)
        count += 1
    await asyncio.gather(*work)
    assert passes[0] < passes[1] < passes[2]


def test_addresses_of_one_ipv6_network_count_as_one_client() -> None:
    assert address_key("192.0.2.1") == "192.0.2.1"
    assert address_key("::ffff:192.0.2.1") == "192.0.2.1"
    assert address_key("2001:db8::1") == address_key("2001:db8::2:3") != address_key("2001:db8:0:1::1")
    assert address_key("fe80::1%eth0") == "fe80::/64"


@pytest.mark.asyncio
async def test_a_body_that_was_received_while_reading_was_paused_is_read_to_its_end(tmp_path: Path) -> None:
    """aiofastnet looks at the socket when reading is resumed, and not at what it has decrypted or received already."""
    authority = Authority(tmp_path / "authority")
    trusting = ssl.create_default_context(cafile=str(authority.ca_path))
    async with served(HttpLimits(), tls=authority.server_context()) as server:
        for size_bytes in (17_000, 50_000, 150_000):
            head = f"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {size_bytes}\r\n\r\n".encode()
            client = await server.client(tls=trusting)
            assert await client.ask(head + bytes(size_bytes)) == (200, str(size_bytes).encode())
            assert await client.ask((head + bytes(size_bytes)) * 3 + GET % b"echo") == (200, str(size_bytes).encode())
            assert [(await client.answer())[1] for _ in range(3)] == [*[str(size_bytes).encode()] * 2, b"0"]


@pytest.mark.asyncio
async def test_a_large_body_in_one_tls_record_is_read_completely(tmp_path: Path) -> None:
    """More than what a transport reads at a time may be decrypted at a time: the end of such a body never came."""
    authority = Authority(tmp_path / "authority")
    trusting = ssl.create_default_context(cafile=str(authority.ca_path))
    async with served(HttpLimits(), tls=authority.server_context()) as server:
        records = [16 << 10, 63, *[16 << 10] * 3]  # the third ends a byte after the first 32,896 bytes
        client = await server.client(tls=trusting)
        head = f"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {sum(records)}\r\n\r\n".encode()
        for _ in range(20):
            client.writer.write(head)
            await asyncio.sleep(0.005)  # the body is read from its beginning
            for size_bytes in records:
                client.writer.write(bytes(size_bytes))
            assert await client.answer() == (200, str(sum(records)).encode())


@pytest.mark.asyncio
async def test_only_ends_by_a_shutdown_are_collected_and_many_at_once_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collections = list[float]()

    def collect() -> None:
        collections.append(time.monotonic())
        while time.monotonic() < collections[-1] + 0.05:
            pass

    monkeypatch.setattr("walle.cloud.http.server.gc.collect", collect)
    front = HttpFront(App(), HttpLimits(), lambda _: False, rules=REQUEST_RULES)
    for _ in range(1000):
        front.collect()
    assert len(collections) == 1
    ended = list[HttpFront]()
    monkeypatch.setattr(HttpFront, "collect", lambda self: ended.append(self))
    async with served(HttpLimits()) as server:
        for sent, count in ((GET % b"", 0), (b"GET / HTTP/1.0\r\n\r\n", 1), (b"?", 2)):
            client = await server.client()
            client.writer.write(sent)
            await client.reader.readuntil(b"\r\n\r\n")
            if count:
                await client.closed()
            client.writer.transport.abort()
            await server.counted(0)
            async with asyncio.timeout(LIMIT_S):
                while len(ended) != count:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_an_ended_connection_is_freed_without_a_collection(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    trusting = ssl.create_default_context(cafile=str(authority.ca_path))
    async with served(HttpLimits(), tls=authority.server_context()) as server:
        gc.collect()
        gc.disable()
        try:
            client = await server.client(tls=trusting)
            await client.ask(GET % b"")
            alive = [weakref.ref(one) for one in server.front.connections]
            client.writer.transport.abort()
            await server.counted(0)
            async with asyncio.timeout(LIMIT_S):
                while any(one() is not None for one in alive):
                    await asyncio.sleep(0.6)  # the sweep refers to the last that it saw
                    await server.client()
        finally:
            gc.enable()
