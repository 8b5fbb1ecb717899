"""HTTP client of the load: kept-alive connections to one address, one request at a time on each, precomputed bytes.

Only what Walle's gateway answers is understood: a status line, headers, and a body of Content-Length bytes. It
carried 17,600 requests a second on one core (`benchmarks/capacity.py`), all that the gateway's core could answer.
"""

import asyncio
import collections
from collections.abc import Callable
from typing import NamedTuple, cast

_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


class Answer(NamedTuple):
    """An answer. `head` is its status line and its headers, as they came; status 0 is a connection that was lost."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: bytes) -> str:
        """Return the value of a header, whose name is in lower case; empty if it has none."""
        at = self.head.lower().find(b"\r\n" + name + b":")
        if at < 0:
            return ""
        start = at + len(name) + 3
        end = self.head.find(b"\r\n", start)
        return self.head[start : end if end >= 0 else None].strip().decode()


type OnAnswer = Callable[[Answer], None]


class _Connection(asyncio.Protocol):
    def __init__(self, pool: "HttpPool") -> None:
        self._pool = pool
        self._received = b""
        self._body_at = 0  # once the header is whole
        self._ends_at = 0
        self._on_answer: OnAnswer | None = None
        self._request = b""
        self._is_repeated = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, on_answer: OnAnswer, *, is_repeated: bool) -> None:
        self._request, self._on_answer, self._is_repeated = request, on_answer, is_repeated
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        if not self._body_at:
            end = received.find(_END)
            if end < 0:
                return
            self._body_at = self._ends_at = end + len(_END)
            length = received[:end].lower().find(_LENGTH)
            if length >= 0:
                stop = received.find(b"\r\n", length + len(_LENGTH))
                self._ends_at += int(received[length + len(_LENGTH) : stop])
        if len(received) < self._ends_at:
            return
        head, body = received[: self._body_at - 2], received[self._body_at : self._ends_at]
        self._received, self._body_at = b"", 0
        on_answer, self._on_answer = self._on_answer, None
        assert on_answer is not None
        self._pool.free(self)
        on_answer(Answer(int(head[9:12]), head, body))

    def connection_lost(self, _: Exception | None) -> None:
        on_answer, self._on_answer = self._on_answer, None
        self._pool.lose(self)
        if on_answer is None:
            return
        if self._is_repeated or self._received:
            on_answer(Answer(0, b"", b""))
        else:  # the server had closed it as idle
            self._pool.request(self._request, on_answer, is_repeated=True)


class HttpPool:
    """At most `size` connections. Requests wait for one of them in order; `waiting` says how many do."""

    def __init__(self, host: str, port: int, size: int) -> None:
        self._address = host, port
        self._size = size
        self._open = 0
        self._idle: list[_Connection] = []
        self._queue: collections.deque[tuple[bytes, OnAnswer, bool]] = collections.deque()
        self._opening = set[asyncio.Task[None]]()
        self.errors = 0  # connections that could not be made

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def request(self, request: bytes, on_answer: OnAnswer, *, is_repeated: bool = False) -> None:
        """Send a request once a connection is free; `on_answer` gets its answer."""
        if self._idle:
            self._idle.pop().send(request, on_answer, is_repeated=is_repeated)
            return
        self._queue.append((request, on_answer, is_repeated))
        if self._open < self._size:
            self._open += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), *self._address
            )
        except OSError:
            self.errors += 1
            self._open -= 1
            if self._queue:
                self._queue.popleft()[1](Answer(0, b"", b""))
            return
        self.free(connection)

    async def get(self, request: bytes) -> Answer:
        """Send a request and return its answer."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.request(request, lambda answer: None if answered.done() else answered.set_result(answer))
        return await answered

    def free(self, connection: _Connection) -> None:
        if self._queue:
            request, on_answer, is_repeated = self._queue.popleft()
            connection.send(request, on_answer, is_repeated=is_repeated)
        else:
            self._idle.append(connection)

    def lose(self, connection: _Connection) -> None:
        self._open -= 1
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in list(self._idle):
            connection.transport.abort()
