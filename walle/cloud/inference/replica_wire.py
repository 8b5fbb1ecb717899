"""Frames between the scheduler's process and a replica's, over a Unix socket, or TLS between nodes.

A frame is two lengths of 4 bytes, a head and a body. The head is a list of plain data, whose first item says what it
is; the body has payloads or results one after the other, as they came from the device or go to it: they are not encoded
again. Both ends are the same version of walle, and nobody else can connect (`replica_address`).

    to the replica       ["run", number, sha256, phase, max_batch, [[device, left_s or None, length], ...]] and payloads
                         ["cancel", number], ["ping"]
                         ["load", number, sha256, may_unload], ["keep", [sha256, ...]]
                         ["part", number, size, error text] and the bytes that were fetched, of a file of this size
    from the replica     ["hello", vms]
                         ["ran", number, max_batch, [[kind, length], ...]] and results
                         ["load", number, kind, error text]
                         ["loaded", [[sha256, name, vms, bytes], ...], {name: discarded interpreters}], when what is
                         loaded has changed
                         ["pong"]
                         ["fetch", number, sha256, offset], on a node without the cloud's folder

`kind` is "" for a result, and for an error, whose text is in the body, "late" or "failed"; for a version to load "room"
where what is used takes all room.
"""

import asyncio
import contextlib
import struct
from collections.abc import Sequence
from typing import Any

from walle.base import plain
from walle.errors import DeployError

_LENGTHS = struct.Struct("<II")
_MAX_HEAD = 16 << 20
_MAX_BODY = 1 << 30  # limit of a batch's results, each of which has its task's output_kb


class WireError(DeployError):
    """A frame that is not one: the processes run different versions of walle."""


class FrameStream:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> tuple[list[Any], memoryview] | None:
        """Return the head and body of the next frame, None when the connection has ended.

        Raises:
            WireError: it cannot be read.
        """
        try:
            head_size, body_size = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            if head_size > _MAX_HEAD or body_size > _MAX_BODY:
                raise WireError(f"a frame of {head_size} and {body_size} bytes between processes")
            data = memoryview(await self._reader.readexactly(head_size + body_size))
        except (asyncio.IncompleteReadError, OSError):
            return None
        try:
            head = plain.decode(data[:head_size])
        except plain.PlainDataError as error:
            raise WireError(f"a frame between processes cannot be read: {error}") from error
        if not isinstance(head, list) or not head:
            raise WireError(f"the head of a frame between processes is a {type(head).__name__}")
        return head, data[head_size:]

    def send(self, head: Sequence[Any], body: Sequence[bytes | memoryview] = ()) -> None:
        """Send a frame; it is dropped if the connection has ended, which `receive` reports."""
        packed = plain.encode(list(head))
        size_bytes = sum(map(len, body))
        if self._writer.is_closing():
            return
        self._writer.writelines([_LENGTHS.pack(len(packed), size_bytes), packed, *body])

    async def drain(self) -> None:
        """Wait until the other end takes more."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        """Close after what was sent; with TLS the other end must say that it has read it, for some seconds."""
        self._writer.close()

    def abort(self) -> None:
        """Close at once; what was not sent yet is dropped, and the other end is not asked."""
        self._writer.transport.abort()


def parts(body: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Return the parts of a body. Raises WireError if it does not have these lengths."""
    found, begin = [], 0
    for length in lengths:
        found.append(body[begin : begin + length])
        begin += length
    if begin != len(body) or min(lengths, default=0) < 0:
        raise WireError(f"a body of {len(body)} bytes between processes has parts of {begin}")
    return found
