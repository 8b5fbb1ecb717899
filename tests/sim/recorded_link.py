"""A TCP relay before a cloud's gateway that keeps every byte of both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from walle.cloud import GatewayAddress


class RecordedLink:
    """Bytes that went to the cloud and came from it, through any connection of `url`."""

    def __init__(self) -> None:
        self.url = ""
        self.sent = bytearray()
        self.received = bytearray()


@contextlib.asynccontextmanager
async def recorded_link(address: GatewayAddress) -> AsyncIterator[RecordedLink]:
    """Give a relay to the gateway's HTTP port; its connections end with the block."""
    link = RecordedLink()
    port = int(address.url.rpartition(":")[2])
    tasks: set[asyncio.Task[None]] = set()

    async def relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(64 << 10):
                kept += data
                sink.write(data)
                await sink.drain()
        sink.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        for one in (relay(reader, upstream_writer, link.sent), relay(upstream_reader, writer, link.received)):
            task = asyncio.ensure_future(one)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    link.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield link
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
