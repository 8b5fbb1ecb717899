"""Messages between a cloud's main process and its tunnel processes: plain data with a length before it, over pipes."""

import asyncio
import struct
import sys
from typing import Any, Self

from walle.base import plain
from walle.errors import PipelineError

_LENGTH = struct.Struct(">I")


class ChannelError(PipelineError):
    """A message that is not one: the processes run different versions, or something wrote to the pipe."""


class Channel:
    """Two pipes. Messages are lists of plain data whose first item says what they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def of_stdio(cls) -> Self:
        """Return the channel of a process to the one that started it."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), sys.stdout
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def receive(self) -> list[Any] | None:
        """Return the next message, None when the other process has ended."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            message = plain.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        except plain.PlainDataError as error:
            raise ChannelError(f"a message between processes cannot be read: {error}") from error
        if not isinstance(message, list) or not message:
            raise ChannelError(f"a message between processes is a {type(message).__name__}")
        return message

    async def send(self, *message: Any) -> None:
        """Send a message; do nothing if the other process has ended."""
        data = plain.encode(list(message))
        try:
            self._writer.write(_LENGTH.pack(len(data)) + data)
            await self._writer.drain()
        except OSError:
            pass  # `receive` reports the end
