"""Helpers of the tunnel's tests: servers, handlers, running clients, uploads, and a device that sends given frames."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import echo
from walle import protocol
from walle.pipeline.features.checksums import first_link
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.client.client import (
    TunnelClient,
)
from walle.pipeline.tunnel.frames import Decoder, Encoder
from walle.pipeline.tunnel.received import ResumePoint
from walle.pipeline.tunnel.server.server import TunnelServer

type MakeClient = Callable[..., TunnelClient]


class KeepingOutbox(MemoryOutbox):
    """An outbox that records what was put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[int, str, bytes]] = []

    def add(self, topic: str, payload: bytes) -> int:
        seq = super().add(topic, payload)
        self.sent.append((seq, topic, payload))
        return seq


@contextlib.asynccontextmanager
async def running(client: TunnelClient) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(client.run())
    try:
        yield task
    finally:
        await client.close()
        await asyncio.gather(task, return_exceptions=True)


def fill(outbox: MemoryOutbox, count: int, *, size: int = 200, seed: int = 1) -> list[tuple[int, str, bytes]]:
    rng = random.Random(seed)
    added = []
    for _ in range(count):
        payload = rng.randbytes(rng.randrange(size))
        added.append((outbox.add("ipv", payload), "ipv", payload))
    return added


async def stored(ingest: Ingest, device: int = 0) -> list[tuple[int, str, bytes]]:
    rows = await ingest.query(device_id=f"device-{device}", limit=1_000_000)
    return [(received.seq, received.topic, received.payload) for _, received in rows]


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; it is checked after other tasks ran."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition is of an object under test, which sets no event
            await asyncio.sleep(0.001)


class RawDevice:
    """A device that sends the frames that a test gives it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.encoder, self.decoder = Encoder(), Decoder()
        self.frames: list[protocol.Frame] = []
        self.say_version = protocol.PROTOCOL_VERSION

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, authority: TunnelAuthority, port: int, device: int = 0) -> AsyncIterator["RawDevice"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.device_context(device))
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def say(self, *frames: protocol.Frame) -> None:
        self.writer.write(b"".join(self.encoder.encode(frame, version=self.say_version) for frame in frames))

    async def hello(self, device: int = 0, epoch: str = "e") -> protocol.Welcome:
        self.say(protocol.Hello(f"device-{device}", epoch, ""))
        welcome = await self.hear()
        assert isinstance(welcome, protocol.Welcome), welcome
        return welcome

    async def hear(self) -> protocol.Frame | None:
        """Return the next frame, None when the cloud has disconnected."""
        async with asyncio.timeout(10):
            while not self.frames:
                data = await self.reader.read(65536)
                if not data:
                    return None
                self.frames += self.decoder.feed(data)
        return self.frames.pop(0)


def upload(seq: int, size: int = 1) -> protocol.Upload:
    return protocol.Upload(seq, "t", random.Random(seq).randbytes(size), 0)


async def nothing_acked(hello: protocol.Hello) -> ResumePoint:
    """Return the start of an epoch, as a cloud that has stored nothing."""
    return ResumePoint(0, first_link(hello.epoch))


def bare_server(authority: TunnelAuthority, **options: Any) -> TunnelServer:
    """Return a server whose uploads nobody stores and which answers requests with an echo, unless `options` differ."""
    settings: dict[str, Any] = {"resume": nothing_acked, "on_request": echo}
    options.setdefault("ssl_context", authority.server_context())
    return TunnelServer(**{**settings, **options})


class GatedHandler:
    """A handler of requests that records what it starts, ends and stops, and waits for a gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.started: list[str] = []
        self.ended: list[str] = []
        self.stopped: list[str] = []

    async def __call__(self, device_id: str, topic: str, payload: bytes) -> bytes:
        self.started.append(topic)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped.append(topic)
            raise
        self.ended.append(topic)
        return b"done"
