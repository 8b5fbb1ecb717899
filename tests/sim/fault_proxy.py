"""A TCP proxy on loopback that cuts, delays, drops or flips bytes on command: a bad network."""

import asyncio
import contextlib
from typing import Self


class FaultProxy:
    """A proxy from its own `.port` to `port` on 127.0.0.1.

    `cut_after` and `flip_after` act once, at a byte counted from the call over all connections, "up" towards the
    server or "down" back to the client.
    """

    def __init__(self, port: int) -> None:
        self.target_port = port
        self.delay_s = 0.0
        self.swallow = False  # bytes are dropped, connections stay open: a dead link
        self.refuse = False  # new connections are closed at once
        self._cut_in: dict[str, int] = {}  # way → bytes left until then
        self._flip_in: dict[str, int] = {}
        self.faults = 0  # cuts and flips so far
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut_after(self, way: str, count: int) -> None:
        """Reset the connection that carries the `count`th byte from now, after that byte."""
        self._cut_in[way] = count

    def flip_after(self, way: str, count: int) -> None:
        """Flip a bit of the `count`th byte from now."""
        self._flip_in[way] = count

    def disarm(self) -> None:
        """Forget the cuts and flips that have not acted yet."""
        self._cut_in.clear()
        self._flip_in.clear()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        self._writers.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            if self.refuse:
                return
            other_reader, other = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers.add(other)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, other, "up"))
                group.create_task(self._forward(other_reader, writer, "down"))
        except* OSError:
            pass
        finally:
            for end in (writer, other):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()
                    with contextlib.suppress(OSError):
                        await end.wait_closed()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        while data := await reader.read(65536):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.swallow:
                continue
            flip_in, cut_in = self._flip_in.pop(way, 0), self._cut_in.pop(way, 0)
            if 0 < flip_in <= len(data):
                flipped = bytearray(data)
                flipped[flip_in - 1] ^= 0x01
                data = bytes(flipped)
                self.faults += 1
            elif flip_in:
                self._flip_in[way] = flip_in - len(data)
            if 0 < cut_in <= len(data):
                self.faults += 1
                writer.write(data[:cut_in])
                with contextlib.suppress(OSError):
                    await writer.drain()
                raise ConnectionResetError("cut on command")
            if cut_in:
                self._cut_in[way] = cut_in - len(data)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one end disconnected; the other must too")
