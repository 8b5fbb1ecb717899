"""An emulated mobile link between a device and its cloud: delay, jitter, loss and rate, in a TCP proxy.

A lost packet is what its TCP connection makes of it: its bytes, and all behind them, come a round trip later.
"""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator

_PACKET_BYTES = 1448
_KERNEL_BYTES = 8 << 10  # that the proxy's sockets buffer: the rest waits at its sender, as before a real link


class SlowLink:
    """One link. `delay_s` and `jitter_s` are of one direction, `bytes_per_s` of each, `loss` of a packet."""

    def __init__(
        self, port: int, *, delay_s: float, jitter_s: float, loss: float, bytes_per_s: float, rng: random.Random
    ) -> None:
        self.port = 0
        self._to = port
        self._delay_s = delay_s
        self._jitter_s = jitter_s
        self._loss = loss
        self._bytes_per_s = bytes_per_s
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["SlowLink"]:
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
            for writer in self._writers:  # what a stopped device does not read would keep one open
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to, limit=_PACKET_BYTES)
        self._writers += [writer, far_writer]
        for one, other in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._carry(one, other)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        free_s = arrives_s = 0.0
        packets: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(self._deliver(packets, writer))
        try:
            while data := await reader.read(_PACKET_BYTES):
                now_s = time.monotonic()
                free_s = max(free_s, now_s) + len(data) / self._bytes_per_s
                delay_s = self._delay_s + self._rng.uniform(-self._jitter_s, self._jitter_s)
                if self._rng.random() < self._loss:
                    delay_s += 2 * self._delay_s
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
