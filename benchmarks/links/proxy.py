"""An emulated link as a TCP proxy, which needs no right: delay, jitter, loss and rate of a byte stream.

It carries no packets: a lost one is modelled as a delay of its bytes, and of all behind them, by a round trip. What TCP
does when the last packet of an upload is lost (a retransmission timeout) does not occur here; `tun` has it.
"""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator

from benchmarks.links.shape import LinkShape

_PACKET_BYTES = 1448
_KERNEL_BYTES = 8 << 10  # bytes that the proxy's sockets buffer: the rest waits at its sender, as before a real link


class ProxyLink:
    """One link from its own `.port` to `port` on 127.0.0.1."""

    def __init__(self, port: int, shape: LinkShape, rng: random.Random) -> None:
        self.port = 0
        self._to = port
        self._shape = shape
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["ProxyLink"]:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
        server = await asyncio.start_server(self._serve, sock=listener, limit=_PACKET_BYTES)
        self.port = listener.getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()
            for writer in self._writers:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to, limit=_PACKET_BYTES)
        self._writers += (far_writer, writer)
        for one, other in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._carry(one, other)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        free_s = arrives_s = 0.0
        packets: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(self._deliver(packets, writer))
        try:
            while data := await reader.read(_PACKET_BYTES):
                now_s = time.monotonic()
                free_s = max(free_s, now_s) + self._shape.time_on_link_s(len(data))
                delay_s = self._shape.draw_delay_s(self._rng)
                if self._rng.random() < self._shape.loss:
                    delay_s += self._shape.round_trip_s
                arrives_s = max(arrives_s, free_s + delay_s)
                packets.put_nowait((arrives_s, data))
                if free_s > now_s + 0.002:  # shorter sleeps are not exact
                    await asyncio.sleep(free_s - now_s)
            packets.put_nowait((arrives_s, b""))
            await delivering
        except OSError:
            writer.close()
        finally:
            delivering.cancel()

    async def _deliver(self, packets: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        while True:
            arrives_s, data = await packets.get()
            await asyncio.sleep(max(0.0, arrives_s - time.monotonic()))
            if not data:
                writer.close()
                return
            writer.write(data)
