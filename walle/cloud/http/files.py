"""Parts of files as answers' bodies, from the disk's cache to the socket by the kernel (sendfile), without TLS.

The ASGI extension `http.response.zerocopysend`. With TLS the bytes must be encrypted in this process: Python's ssl and
aiofastnet do not hand a connection's keys to the kernel, so such answers read the file in pieces.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "http.response.zerocopysend"
SLICE_BYTES = 1 << 20  # most that a socket is given before other connections have a turn

TRANSPORT_SECURITY = (b"strict-transport-security", b"max-age=31536000")
"""Header of all answers over HTTPS: a browser uses nothing else for this host within a year of its last answer."""

type Field = tuple[bytes, bytes]

type NoteStall = Callable[[asyncio.Future[None] | None], None]
"""Called with a future when the client takes nothing; done at the end of the connection. None: it takes bytes again."""


class FileCycle(RequestResponseCycle):
    """An answer of uvicorn that may send files, and has TRANSPORT_SECURITY where the client uses HTTPS.

    `note_stall` is told when the client does not take them.
    """

    def __init__(self, note_stall: NoteStall, **fields: Any) -> None:
        super().__init__(**fields)
        self._note_stall = note_stall

    async def send(self, message: Any) -> None:
        if message["type"] != EXTENSION:
            if message["type"] == "http.response.start" and self.scope["scheme"] == "https":
                message = {**message, "headers": _with_transport_security(message.get("headers", ()))}
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        count = message["count"]
        if not self.response_started or self.chunked_encoding or count > self.expected_content_length:
            raise RuntimeError("a file is sent after a head that has its length")
        await _flush(self.transport, self.flow)
        left = await self._send_file(message["file"].fileno(), message["offset"], count)
        self.expected_content_length -= count
        if left:  # the client is gone
            self.transport.abort()

    async def _send_file(self, file: int, offset: int, count: int) -> int:
        """Send a part of a file; return how many bytes are left, since the connection has ended."""
        out = os.dup(self.transport.get_extra_info("socket").fileno())  # the event loop watches the other for reading
        try:
            while count and not self.disconnected:
                size = min(count, SLICE_BYTES)
                try:
                    if _is_cached(file, offset, size):
                        sent = os.sendfile(out, file, offset, size)
                    else:  # the disk may be slow
                        sent = await asyncio.to_thread(os.sendfile, out, file, offset, size)
                except BlockingIOError:
                    await self._wait_until_writable(out)
                    continue
                except ConnectionError:
                    break
                if not sent:
                    raise OSError("a stored file was cut short while it was being sent")
                offset += sent
                count -= sent
                await asyncio.sleep(0)
        finally:
            os.close(out)
        return count

    async def _wait_until_writable(self, out: int) -> None:
        loop = asyncio.get_running_loop()
        writable: asyncio.Future[None] = loop.create_future()
        loop.add_writer(out, lambda: None if writable.done() else writable.set_result(None))
        self._note_stall(writable)
        try:
            await writable
        finally:
            self._note_stall(None)
            loop.remove_writer(out)


async def _flush(transport: asyncio.Transport, flow: FlowControl) -> None:
    """Return once what was written before has gone to the socket."""
    if transport.get_write_buffer_size():
        transport.set_write_buffer_limits(high=0)
        try:
            await flow.drain()
        finally:
            transport.set_write_buffer_limits()


def _is_cached(file: int, offset: int, size: int) -> bool:
    """Return whether the first and the last byte of a part can be read without the disk."""
    try:
        return all(os.preadv(file, [bytearray(1)], at, os.RWF_NOWAIT) for at in (offset, offset + size - 1))
    except OSError:  # the pages are not in memory, or the file system does not tell
        return False


def _with_transport_security(headers: Iterable[Field]) -> list[Field]:
    """Return the headers of an answer with TRANSPORT_SECURITY once: an edge gateway has it of its gateway."""
    return [*(field for field in headers if field[0].lower() != TRANSPORT_SECURITY[0]), TRANSPORT_SECURITY]
