"""Frames of the tunnel (§5.2): messages to bytes and back, without I/O.

A frame on the wire is a header and a body (`walle.pipeline.tunnel.layouts`), big-endian throughout:

    body length, 4 bytes | kind, 1 byte | flags, 1 byte | dictionary, 2 bytes | body

Flag 1: the body is one zstd frame that states its content size. `dictionary` is the number of its zstd dictionary in
this connection, 0 for none. docs/protocol.md is the full description.
"""

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import zstandard

from walle import protocol
from walle.engine_ext import _core
from walle.pipeline.tunnel.dictionaries import Dictionary
from walle.pipeline.tunnel.layouts import (
    BATCH,
    BY_MESSAGE,
    BY_NUMBER,
    MAX_BATCH_BODY_BYTES,
    MAX_BODY_BYTES,
    UPLOAD,
    FrameError,
    Kind,
    UploadFields,
    batch_fields,
    split_version,
    upload_fields,
)

__all__ = [
    "COMPRESS_FROM_BYTES",
    "MAX_BATCH_BODY_BYTES",
    "MAX_BODY_BYTES",
    "MAX_PAYLOAD_BYTES",
    "Decoder",
    "Encoder",
    "FrameError",
    "UnknownDictionaryError",
    "UploadFields",
]

MAX_PAYLOAD_BYTES = MAX_BODY_BYTES - 4096  # leaves room for a topic and the fixed part
COMPRESS_FROM_BYTES = 256  # below this zstd's own header outweighs the gain
DICTIONARY_FROM_BYTES = 48  # the same with a dictionary

_HEADER = struct.Struct(">IBBH")
_HEADER_BYTES = _HEADER.size
_COMPRESSED = 1


class UnknownDictionaryError(FrameError):
    """A frame that was compressed with a dictionary on which the two sides of its connection did not agree."""


class Encoder:
    """An encoder of messages into bytes.

    It keeps no state between frames: one encoder, with one zstd context, may serve all connections of a thread.
    """

    def __init__(self, *, level: int = 3) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True)

    def encode(
        self,
        frame: protocol.Frame,
        *,
        version: int = protocol.PROTOCOL_VERSION,
        number: int = 0,
        dictionary: Dictionary | None = None,
    ) -> bytes:
        """Return the frame's bytes; a body that zstd makes smaller is sent compressed.

        `version` is the protocol of the connection. The body may be compressed with `dictionary`, which has the given
        `number` in the connection.

        Raises:
            FrameError: a field is of the wrong type or size, the body is too long, or the version has no such message.
        """
        kind = BY_MESSAGE[version].get(type(frame))
        if kind is None:
            raise FrameError(type(frame).__name__, f"is not a message of protocol {version}")
        body: bytes = kind.pack(frame)
        if len(body) > kind.max_body_bytes:
            raise FrameError(kind.name, f"body of {len(body)} bytes, at most {kind.max_body_bytes} can be sent")
        flags = used = 0
        if len(body) >= (COMPRESS_FROM_BYTES if dictionary is None else DICTIONARY_FROM_BYTES):
            packed = (self._compressor if dictionary is None else dictionary.compressor).compress(body)
            if len(packed) < len(body):
                body, flags, used = packed, _COMPRESSED, number
        return b"".join((_HEADER.pack(len(body), kind.number, flags, used), body))


def _versioned(frame: protocol.Frame) -> protocol.Frame:
    """Return an Upload or UploadBatch with the versions out of the topics; any other message unchanged."""
    match frame:
        case protocol.Upload():
            topic, version = split_version(frame.topic)
            return dataclasses.replace(frame, topic=topic, version=version)
        case protocol.UploadBatch():
            return protocol.UploadBatch(tuple(cast("protocol.Upload", _versioned(one)) for one in frame.uploads))
        case _:
            return frame


class Decoder:
    """A decoder of one connection's bytes, in chunks of any size, into messages.

    Holds added bytes that were not read yet, and at most one incomplete frame. `add`, `peek` and `next` let a reader
    stop between frames, because few bytes may decompress to many. `max_body_bytes` may be changed between calls: a
    server accepts less before the Hello than after it.
    """

    def __init__(
        self, *, max_body_bytes: int = MAX_BODY_BYTES, decompressor: zstandard.ZstdDecompressor | None = None
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.unpacked_bytes = 0  # bytes decompressed so far, without those of `records`
        self._decompressor = decompressor or zstandard.ZstdDecompressor()
        self.dictionaries = {}
        self.has_versions = False  # the connection has protocol 4, or a later one
        # The latest bytes themselves where no frame was incomplete before them.
        self._buffer: bytes | bytearray | memoryview = b""
        self._at = 0  # start of the next frame
        self._unpacked: bytes | None = None  # next frame's body, if `records` decompressed it and then did not take it
        self._error: FrameError | None = None

    @property
    def dictionaries(self) -> Mapping[int, Dictionary]:
        """The dictionaries of this connection, by their numbers."""
        return self._dictionaries

    @dictionaries.setter
    def dictionaries(self, dictionaries: Mapping[int, Dictionary]) -> None:
        self._dictionaries = dictionaries
        self._decompressors: dict[int, Callable[..., bytes]] = {0: self._decompressor.decompress}
        for number, dictionary in dictionaries.items():
            self._decompressors[number] = dictionary.decompressor.decompress

    @property
    def buffered_bytes(self) -> int:
        """The number of added bytes that were not read yet."""
        return len(self._buffer) - self._at

    @property
    def unfinished(self) -> tuple[int, int]:
        """The bytes of the frame that comes next and those that it lacks; (0, 0) if it is whole, or has not begun.

        Before its header is complete, the frame is its header.
        """
        size_bytes = self.buffered_bytes
        if not size_bytes or self._error is not None:
            return 0, 0
        frame_bytes = _HEADER_BYTES
        if size_bytes >= _HEADER_BYTES:
            frame_bytes += int.from_bytes(self._buffer[self._at : self._at + 4])
        return (0, 0) if frame_bytes <= size_bytes else (frame_bytes, frame_bytes - size_bytes)

    def clear(self) -> None:
        """Drop the bytes that were not read yet."""
        self._unpacked = None
        self._buffer = b""
        self._at = 0

    def trim(self) -> int:
        """Release the bytes that were read, and copy the others from the reader's buffer, which it may use again.

        A body that is decompressed already is dropped: only received bytes are held, and counted by `buffered_bytes`.
        Return how many others there are.
        """
        self._unpacked = None
        rest_bytes = len(self._buffer) - self._at
        if rest_bytes == 0:
            self._buffer = b""
        elif self._at or type(self._buffer) is memoryview:
            self._buffer = bytearray(memoryview(self._buffer)[self._at :])
        self._at = 0
        return rest_bytes

    def feed(self, data: bytes) -> list[protocol.Frame]:
        """Return the messages that `data` completes.

        Raises:
            FrameError: as `next`.
        """
        self.add(data)
        frames = []
        while (frame := self.next()) is not None:
            frames.append(frame)
        return frames

    @property
    def decompressors(self) -> dict[int, Callable[..., bytes]]:
        """The functions that decompress bodies, by the numbers of their dictionaries; 0 is none."""
        return self._decompressors

    def add(self, data: bytes | memoryview, unpacked: bytes | None = None) -> None:
        """Append bytes for `next` to read. Those of a memoryview must stay unchanged until `trim`.

        `unpacked` is the body of the first frame, if nothing is buffered and it was decompressed already.
        """
        if self._error is not None:
            return
        self._unpacked = unpacked
        if self._at == len(self._buffer):
            self._buffer = data
        else:
            rest = self._buffer
            if type(rest) is not bytearray:
                rest = bytearray(memoryview(rest)[self._at :])
            elif self._at:
                del rest[: self._at]
            rest += data
            self._buffer = rest
        self._at = 0

    def peek(self) -> tuple[type[protocol.Frame], int] | None:
        """Return the next message's type and the bytes of its body, decompressed; None if it is incomplete.

        Raises:
            FrameError: as `next`.
        """
        if self._error is None and self.buffered_bytes < _HEADER.size:
            return None
        with self._failing(), memoryview(self._buffer) as view:
            found = self._complete(view)
            if found is None:
                return None
            kind, flags, _, start, end = found
            return kind.message, self._content_size(kind, view[start:end]) if flags else end - start

    def next(self) -> protocol.Frame | None:
        """Return the next message, None if it is incomplete.

        Raises:
            FrameError: the bytes are not a frame. The start of the next frame is unknown: every later call raises the
                same.
        """
        with self._failing(), memoryview(self._buffer) as view:
            found = self._complete(view)
            if found is None:
                return None
            kind, flags, dictionary, start, end = found
            body = view[start:end]
            frame = kind.unpack(self._decompress(kind, body, dictionary) if flags else bytes(body))
            if self.has_versions:
                frame = _versioned(frame)
        self._at = end
        return frame

    def records[Record: tuple[object, ...]](
        self,
        record: type[Record],
        values: tuple[str, str, int],
        seqs: tuple[int, int],
        limit: int,
        limit_bytes: int,
    ) -> tuple[list[Record], int]:
        """Return the uploads that come next, each a `record`, and the bytes of their topics and payloads.

        A record is (device_id, epoch, seq, topic, payload, sent_ms, received_ms, packed, version), of which `values`
        gives all but the upload's own. The native form of `uploads`: it stops where that does, and before a frame with
        a fault or with a number that is not due. `seqs` are the first and the last due. `uploads` reads what it stops
        at.
        """
        if self._error is not None or self._unpacked is not None:
            return [], 0
        limits = (self.max_body_bytes, limit, limit_bytes)
        found, self._at, size_bytes, self._unpacked = _core.scan_uploads(
            self._buffer, self._at, self._decompressors, limits, record, values, seqs, self.has_versions
        )
        return found, size_bytes

    def uploads(self, limit: int, limit_bytes: int) -> list[UploadFields]:
        """Return the fields of the uploads that come next, alone or in batches, without a message each.

        Stops before another message, at an incomplete one, at `limit` uploads, or once their bodies reach
        `limit_bytes`; a batch is not divided. Uploads before a bad frame are returned first; the next call raises.

        Raises:
            FrameError: as `next`.
        """
        if self._error is not None:
            raise self._error
        found: list[UploadFields] = []
        unpacked, self._unpacked = self._unpacked, None  # body of the first frame
        size_bytes, at, last = 0, self._at, len(self._buffer) - _HEADER_BYTES
        # Slices of bytes are bytes; those of a bytearray would be copied twice.
        view = self._buffer if type(self._buffer) is bytes else memoryview(self._buffer)
        try:
            while at <= last and len(found) < limit and size_bytes < limit_bytes:
                length, number, flags, dictionary = _HEADER.unpack_from(view, at)
                if number == UPLOAD.number:
                    kind: Kind = UPLOAD
                elif number == BATCH.number:
                    kind = BATCH
                else:
                    break
                if length > self.max_body_bytes or flags > _COMPRESSED or dictionary or kind is BATCH:
                    self._check_header(length, number, flags, dictionary)
                start = at + _HEADER_BYTES
                end = start + length
                if end > last + _HEADER_BYTES:
                    break
                if unpacked is not None:
                    body, unpacked = unpacked, None
                    self.unpacked_bytes += len(body)
                else:
                    body = self._decompress(kind, view[start:end], dictionary) if flags else bytes(view[start:end])
                if kind is UPLOAD:
                    found.append(upload_fields(body))
                else:
                    found += batch_fields(body)
                size_bytes += len(body)
                at = end
        except FrameError as error:
            if not found:
                self._fail(error)
                raise
            self._at = at
        else:
            self._at = at
        finally:
            if type(view) is memoryview:
                view.release()
        return found

    def _complete(self, view: memoryview) -> tuple[Kind, int, int, int, int] | None:
        """Return kind, flags, dictionary, start and end of the next body, None if it is incomplete."""
        start = self._at + _HEADER.size
        if len(view) < start:
            return None
        length, number, flags, dictionary = _HEADER.unpack_from(view, self._at)
        kind = self._check_header(length, number, flags, dictionary)
        return (kind, flags, dictionary, start, start + length) if len(view) >= start + length else None

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Raise the error of an earlier call, and keep that of this one."""
        if self._error is not None:
            raise self._error
        try:
            yield
        except FrameError as error:
            self._fail(error)
            raise

    def _fail(self, error: FrameError) -> None:
        self._error = error
        self.clear()

    def _check_header(self, length: int, number: int, flags: int, dictionary: int) -> Kind:
        kind = BY_NUMBER.get(number)
        if kind is None:
            raise FrameError("kind", f"{number} is unknown; known are {min(BY_NUMBER)} to {max(BY_NUMBER)}")
        if flags & ~_COMPRESSED:
            raise FrameError(f"{kind.name} flags", f"{flags:#04x} has unknown bits")
        if dictionary and not flags:
            raise FrameError(f"{kind.name} dictionary", f"{dictionary} is named by a body that is not compressed")
        if dictionary and dictionary not in self.dictionaries:
            raise UnknownDictionaryError(
                f"{kind.name} dictionary", f"{dictionary} is not one of this connection's {sorted(self.dictionaries)}"
            )
        if length > (max_bytes := min(kind.max_body_bytes, self.max_body_bytes)):
            raise FrameError(f"{kind.name} length", f"{length} bytes, at most {max_bytes} are accepted")
        return kind

    def _content_size(self, kind: Kind, body: bytes | memoryview) -> int:
        """Return the size that a compressed body states, within the bound."""
        try:
            size = zstandard.frame_content_size(body)
        except zstandard.ZstdError as error:
            raise FrameError(f"{kind.name} body", f"is not one zstd frame ({error})") from error
        if size < 0:
            raise FrameError(f"{kind.name} body", "its zstd frame does not state a content size")
        if size > (max_bytes := min(kind.max_body_bytes, self.max_body_bytes)):
            what = f"unpacks to {size} bytes, at most {max_bytes} are accepted"
            raise FrameError(f"{kind.name} body", what)
        return size

    def _decompress(self, kind: Kind, body: bytes | memoryview, dictionary: int) -> bytes:
        # The stated size is checked before decompression; zstd refuses a frame that then yields another size.
        size = self._content_size(kind, body)
        self.unpacked_bytes += size
        decompressor = self.dictionaries[dictionary].decompressor if dictionary else self._decompressor
        try:
            return decompressor.decompress(body, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise FrameError(f"{kind.name} body", f"is not one zstd frame ({error})") from error
