"""Frames of the tunnel (§5.2): messages to bytes and back, without I/O.

A frame on the wire is a header and a body, big-endian throughout:

    body length, 4 bytes | kind, 1 byte | flags, 1 byte | dictionary, 2 bytes | body

The body holds the message's fields in their order in `walle.protocol`: first the fixed part, 8 bytes for each int
(signed) and float and a 4-byte length for each text and byte string, then those strings one after the other. Flag 1:
the body is one zstd frame that states its content size. `dictionary` is the number of its zstd dictionary, 0 for none.
"""

import contextlib
import dataclasses
import math
import struct
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import zstandard

from walle import protocol
from walle.errors import PipelineError

MAX_BODY_BYTES = 8 << 20  # of a body, as sent and as decompressed
MAX_PAYLOAD_BYTES = MAX_BODY_BYTES - 4096  # leaves room for a topic and the fixed part
COMPRESS_FROM_BYTES = 256  # below this zstd's own header outweighs the gain

_HEADER = struct.Struct(">IBBH")
_HEADER_BYTES = _HEADER.size
_COMPRESSED = 1


class FrameError(PipelineError):
    """Bytes that are not a frame, or a message that does not fit into one. `part` names the fault."""

    def __init__(self, part: str, what: str) -> None:
        super().__init__(f"tunnel frame, {part}: {what}")
        self.part = part
        self.what = what


class _Kind:
    """The layout of one message's fields in a body."""

    def __init__(self, number: int, message: type[protocol.Frame]) -> None:
        fields = dataclasses.fields(message)
        codes = {int: "q", float: "d", str: "I", bytes: "I"}
        self.number = number
        self.message: type[protocol.Frame] = message
        self.name = message.__name__
        self.names = [field.name for field in fields]
        self.types: list[Any] = [field.type for field in fields]
        self.head = struct.Struct(">" + "".join(codes[kind] for kind in self.types))
        self.strings = [(index, kind is str) for index, kind in enumerate(self.types) if kind in (str, bytes)]
        self.floats = [index for index, kind in enumerate(self.types) if kind is float]
        get = attrgetter(*self.names)
        self.values: Callable[[Any], tuple[Any, ...]] = get if len(fields) > 1 else lambda frame: (get(frame),)

    def pack(self, frame: protocol.Frame) -> bytes:
        values = list(self.values(frame))
        strings = []
        for index, is_text in self.strings:
            value = values[index]
            if type(value) is not self.types[index]:
                what = f"must be {self.types[index].__name__}, is {type(value).__name__}"
                raise FrameError(f"{self.name}.{self.names[index]}", what)
            try:
                data = value.encode() if is_text else value
            except UnicodeEncodeError as error:
                raise FrameError(f"{self.name}.{self.names[index]}", f"cannot be UTF-8 ({error})") from error
            strings.append(data)
            values[index] = len(data)
        self._check_floats(values)
        try:
            return b"".join((self.head.pack(*values), *strings))
        except struct.error as error:
            raise FrameError(self.name, f"a field is not a number of 64 bits ({error})") from error

    def unpack(self, body: bytes) -> protocol.Frame:
        at = self.head.size
        if len(body) < at:
            raise FrameError(self.name, f"body of {len(body)} bytes, at least {at} are needed")
        values: list[Any] = list(self.head.unpack_from(body))
        for index, is_text in self.strings:
            end = at + values[index]
            data = body[at:end]
            try:
                values[index] = data.decode() if is_text else data
            except UnicodeDecodeError as error:
                raise FrameError(f"{self.name}.{self.names[index]}", f"is not UTF-8 ({error})") from error
            at = end
        if at != len(body):
            raise FrameError(self.name, f"body of {len(body)} bytes, its fields need {at}")
        self._check_floats(values)
        make: Callable[..., protocol.Frame] = self.message
        return make(*values)

    def _check_floats(self, values: list[Any]) -> None:
        for index in self.floats:
            value = values[index]
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise FrameError(f"{self.name}.{self.names[index]}", f"{value!r} is not a finite number")


# The numbers are the wire format: never give one a new meaning. 1 and 2 were Hello and Welcome of protocol 1.
_BY_NUMBER = {
    number: _Kind(number, message)
    for number, message in (
        (3, protocol.Upload),
        (4, protocol.Ack),
        (5, protocol.Request),
        (6, protocol.Response),
        (7, protocol.Refusal),
        (8, protocol.Ping),
        (9, protocol.Pong),
        (10, protocol.Hello),
        (11, protocol.Welcome),
    )
}
_BY_MESSAGE: dict[type[protocol.Frame], _Kind] = {kind.message: kind for kind in _BY_NUMBER.values()}
_UPLOAD = _BY_MESSAGE[protocol.Upload]
_UPLOAD_BYTES = _UPLOAD.head.size
_ACK = struct.Struct(f"{_HEADER.format}q")

type UploadFields = tuple[int, str, bytes, int]
"""The fields of a `protocol.Upload`: seq, topic, payload, sent_ms."""


def _upload_fields(body: bytes) -> UploadFields:
    """Return what `_UPLOAD.unpack` does, without a message."""
    try:
        seq, topic_bytes, payload_bytes, sent_ms = _UPLOAD.head.unpack_from(body)
        topic_end = _UPLOAD_BYTES + topic_bytes
        if topic_end + payload_bytes == len(body):
            return seq, body[_UPLOAD_BYTES:topic_end].decode(), body[topic_end:], sent_ms
    except (UnicodeDecodeError, struct.error):
        pass
    _UPLOAD.unpack(body)  # says what is wrong
    raise AssertionError(body)


def encode_ack(seq: int) -> bytes:
    """Return the frame of a `protocol.Ack`; the server writes many."""
    return _ACK.pack(_ACK.size - _HEADER.size, _BY_MESSAGE[protocol.Ack].number, 0, 0, seq)


class Encoder:
    """An encoder of messages into bytes.

    It keeps no state between frames: one encoder, with one zstd context, may serve all connections of a thread.
    """

    def __init__(self, *, level: int = 3) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True)

    def encode(self, frame: protocol.Frame) -> bytes:
        """Return the frame's bytes; a body that zstd makes smaller is sent compressed.

        Raises:
            FrameError: a field is of the wrong type or size, or the body is longer than MAX_BODY_BYTES.
        """
        kind = _BY_MESSAGE[type(frame)]
        body = kind.pack(frame)
        if len(body) > MAX_BODY_BYTES:
            raise FrameError(kind.name, f"body of {len(body)} bytes, at most {MAX_BODY_BYTES} can be sent")
        flags = 0
        if len(body) >= COMPRESS_FROM_BYTES:
            packed = self._compressor.compress(body)
            if len(packed) < len(body):
                body, flags = packed, _COMPRESSED
        return _HEADER.pack(len(body), kind.number, flags, 0) + body


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
        self._decompressor = decompressor or zstandard.ZstdDecompressor()
        self._buffer: bytes | bytearray = b""  # the latest bytes themselves where no frame was incomplete before them
        self._at = 0  # where the next frame begins
        self._error: FrameError | None = None

    @property
    def buffered_bytes(self) -> int:
        """The number of added bytes that were not read yet."""
        return len(self._buffer) - self._at

    def clear(self) -> None:
        """Drop the bytes that were not read yet."""
        self._buffer = b""
        self._at = 0

    def trim(self) -> None:
        """Release the bytes that were read; a reader that waits for more holds only the others."""
        if self._at:
            rest = memoryview(self._buffer)[self._at :]
            self._buffer = bytearray(rest) if rest else b""
            self._at = 0

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

    def add(self, data: bytes) -> None:
        """Append bytes for `next` to read."""
        if self._error is not None:
            return
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
            kind, flags, start, end = found
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
            kind, flags, start, end = found
            frame = kind.unpack(self._decompress(kind, view[start:end]) if flags else bytes(view[start:end]))
        self._at = end
        return frame

    def uploads(self, limit: int, limit_bytes: int) -> list[UploadFields]:
        """Return the fields of the uploads that come next, without a message each.

        Stops before another message, at an incomplete one, at `limit` uploads, or once their payloads reach
        `limit_bytes`. Uploads before a bad frame are returned first; the next call raises.

        Raises:
            FrameError: as `next`.
        """
        if self._error is not None:
            raise self._error
        found: list[UploadFields] = []
        size_bytes, at, last = 0, self._at, len(self._buffer) - _HEADER_BYTES
        # Slices of bytes are bytes; those of a bytearray would be copied twice.
        view = self._buffer if type(self._buffer) is bytes else memoryview(self._buffer)
        try:
            while at <= last and len(found) < limit and size_bytes < limit_bytes:
                length, number, flags, dictionary = _HEADER.unpack_from(view, at)
                if number != _UPLOAD.number:
                    break
                if length > self.max_body_bytes or flags > _COMPRESSED or dictionary:
                    self._check_header(length, number, flags, dictionary)
                start = at + _HEADER_BYTES
                end = start + length
                if end > last + _HEADER_BYTES:
                    break
                body = self._decompress(_UPLOAD, view[start:end]) if flags else bytes(view[start:end])
                fields = _upload_fields(body)
                found.append(fields)
                size_bytes += len(fields[2])
                at = end
        except FrameError as error:
            self._fail(error)
            if not found:
                raise
        else:
            self._at = at
        finally:
            if type(view) is memoryview:
                view.release()
        return found

    def _complete(self, view: memoryview) -> tuple[_Kind, int, int, int] | None:
        """Return kind, flags, start and end of the next body, None if it is incomplete."""
        start = self._at + _HEADER.size
        if len(view) < start:
            return None
        length, number, flags, dictionary = _HEADER.unpack_from(view, self._at)
        kind = self._check_header(length, number, flags, dictionary)
        return (kind, flags, start, start + length) if len(view) >= start + length else None

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

    def _check_header(self, length: int, number: int, flags: int, dictionary: int) -> _Kind:
        kind = _BY_NUMBER.get(number)
        if kind is None:
            raise FrameError("kind", f"{number} is unknown; known are {min(_BY_NUMBER)} to {max(_BY_NUMBER)}")
        if flags & ~_COMPRESSED:
            raise FrameError(f"{kind.name} flags", f"{flags:#04x} has unknown bits")
        if dictionary:
            raise FrameError(f"{kind.name} dictionary", f"{dictionary} is unknown")
        if length > self.max_body_bytes:
            raise FrameError(f"{kind.name} length", f"{length} bytes, at most {self.max_body_bytes} are accepted")
        return kind

    def _content_size(self, kind: _Kind, body: bytes | memoryview) -> int:
        """Return the size that a compressed body states, within the bound."""
        try:
            size = zstandard.frame_content_size(body)
        except zstandard.ZstdError as error:
            raise FrameError(f"{kind.name} body", f"is not one zstd frame ({error})") from error
        if size < 0:
            raise FrameError(f"{kind.name} body", "its zstd frame does not state a content size")
        if size > self.max_body_bytes:
            what = f"unpacks to {size} bytes, at most {self.max_body_bytes} are accepted"
            raise FrameError(f"{kind.name} body", what)
        return size

    def _decompress(self, kind: _Kind, body: bytes | memoryview) -> bytes:
        # The stated size is checked before decompression; zstd refuses a frame that then yields another size.
        size = self._content_size(kind, body)
        try:
            return self._decompressor.decompress(body, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise FrameError(f"{kind.name} body", f"is not one zstd frame ({error})") from error
