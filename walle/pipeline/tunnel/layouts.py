"""Layouts of the tunnel's messages (§5.2): the body of each kind of frame, without header and compression.

A body holds a message's fields in their order in `walle.protocol`: first the fixed part, 8 bytes for each int (signed)
and float and a 4-byte length for each text and byte string, then those strings one after the other. The body of an
UploadBatch is the bodies of its uploads, one after the other. From protocol 4 on, a topic may be followed by a NUL and
the version of the task (docs/adr/0022). docs/protocol.md is the full description.
"""

import dataclasses
import math
import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from walle import protocol
from walle.errors import PipelineError

MAX_BODY_BYTES = 8 << 20  # limit of a body, both as sent and as decompressed
VERSION_MARK = "\0"  # separates topic and version: no topic of a device has it
MAX_BATCH_BODY_BYTES = 64 << 10  # limit of an UploadBatch: bounds the number of objects that one frame makes


class FrameError(PipelineError):
    """Bytes that are not a frame, or a message that does not fit into one. `part` names the fault."""

    def __init__(self, part: str, what: str) -> None:
        super().__init__(f"tunnel frame, {part}: {what}")
        self.part = part
        self.what = what


class Kind:
    """The layout of one message's fields in a body.

    `count` is how many of its fields an older protocol sends; the others get `values`, or else their defaults.
    """

    def __init__(self, number: int, message: type[protocol.Frame], count: int | None = None, **values: int) -> None:
        fields = dataclasses.fields(message)[:count]
        self.defaults = values
        codes = {int: "q", float: "d", str: "I", bytes: "I"}
        self.number = number
        self.message: type[protocol.Frame] = message
        self.name = message.__name__
        self.names = [field.name for field in fields]
        self.types: list[Any] = [field.type for field in fields]
        self.head = struct.Struct(">" + "".join(codes[kind] for kind in self.types))
        self.strings = [(index, kind is str) for index, kind in enumerate(self.types) if kind in (str, bytes)]
        self.floats = [index for index, kind in enumerate(self.types) if kind is float]
        get: Callable[[Any], Any] = attrgetter(*self.names) if fields else str
        self.values: Callable[[Any], tuple[Any, ...]] = get if len(fields) > 1 else lambda frame: (get(frame),)
        self.max_body_bytes = MAX_BODY_BYTES

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
        return make(*values, **self.defaults)

    def _check_floats(self, values: list[Any]) -> None:
        for index in self.floats:
            value = values[index]
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise FrameError(f"{self.name}.{self.names[index]}", f"{value!r} is not a finite number")


class UploadKind(Kind):
    """The layout of an Upload. `unpack` leaves topic and version together, since only the protocol tells them apart."""

    def __init__(self, number: int, *, has_versions: bool) -> None:
        super().__init__(number, protocol.Upload, 4)
        if has_versions:
            self.values = _versioned_values


def _versioned_values(upload: protocol.Upload) -> tuple[Any, ...]:
    topic, version = upload.topic, upload.version
    if version:
        if protocol.sound_version(version) != version or "\0" in topic:
            what = f"{topic[:80]!r} and {version[:80]!r} are not a topic without NUL and a version of printable ASCII"
            raise FrameError("Upload.version", what)
        topic = f"{topic}{VERSION_MARK}{version}"
    return upload.seq, topic, upload.payload, upload.sent_ms


def split_version(text: str) -> tuple[str, str]:
    """Return topic and version of a topic's field in protocol 4; the version is "" where it is missing or not valid."""
    topic, _, version = text.partition(VERSION_MARK)
    return topic, protocol.sound_version(version)


class BatchKind(Kind):
    """The layout of an UploadBatch."""

    def __init__(self, number: int, upload: UploadKind) -> None:
        super().__init__(number, protocol.UploadBatch, 0)
        self.max_body_bytes = MAX_BATCH_BODY_BYTES
        self._upload = upload

    def pack(self, frame: protocol.Frame) -> bytes:
        if not isinstance(frame, protocol.UploadBatch) or not frame.uploads:
            raise FrameError(self.name, "needs one upload at least")
        return b"".join(map(self._upload.pack, frame.uploads))

    def unpack(self, body: bytes) -> protocol.Frame:
        return protocol.UploadBatch(tuple(protocol.Upload(*fields) for fields in batch_fields(body)))


# The numbers are the wire format: never give one a new meaning. 1 and 2 were Hello and Welcome of protocol 1.
UPLOAD = UploadKind(3, has_versions=False)
ACK = Kind(4, protocol.Ack)
BATCH = BatchKind(19, UPLOAD)
_UPLOAD_OF_4 = UploadKind(3, has_versions=True)
_SHARED = (ACK, Kind(8, protocol.Ping), Kind(9, protocol.Pong))
_OF_2 = (
    Kind(5, protocol.Request, 3),
    Kind(6, protocol.Response, 3),
    Kind(7, protocol.Refusal, 3),
    Kind(10, protocol.Hello, 7),
    Kind(11, protocol.Welcome, 3, protocol=2),
)
_OF_3 = (
    Kind(12, protocol.Hello),
    Kind(13, protocol.Welcome),
    Kind(14, protocol.Request),
    Kind(15, protocol.Response),
    Kind(16, protocol.Refusal),
    Kind(17, protocol.Cancel),
    Kind(18, protocol.Drain),
)
_KINDS: dict[int, tuple[Kind, ...]] = {
    2: (*_SHARED, *_OF_2, UPLOAD),
    3: (*_SHARED, *_OF_3, UPLOAD, BATCH),
    4: (*_SHARED, *_OF_3, _UPLOAD_OF_4, BatchKind(19, _UPLOAD_OF_4)),
}
BY_NUMBER = {kind.number: kind for version in (2, 3) for kind in _KINDS[version]}
BY_MESSAGE = {version: {kind.message: kind for kind in kinds} for version, kinds in _KINDS.items()}
_UPLOAD_BYTES = UPLOAD.head.size

type UploadFields = tuple[int, str, bytes, int]
"""The fields of a `protocol.Upload` as they are in a body: seq, topic (see `split_version`), payload, sent_ms."""


def upload_fields(body: bytes) -> UploadFields:
    """Return what `UPLOAD.unpack` does, without a message."""
    try:
        seq, topic_bytes, payload_bytes, sent_ms = UPLOAD.head.unpack_from(body)
        topic_end = _UPLOAD_BYTES + topic_bytes
        if topic_end + payload_bytes == len(body):
            return seq, body[_UPLOAD_BYTES:topic_end].decode(), body[topic_end:], sent_ms
    except (UnicodeDecodeError, struct.error):
        pass
    UPLOAD.unpack(body)  # says what is wrong
    raise AssertionError(body)


def batch_fields(body: bytes) -> list[UploadFields]:
    """Return the fields of each upload in the body of an UploadBatch.

    Raises:
        FrameError: the body is empty, or not a sequence of uploads.
    """
    if not body:
        raise FrameError(BATCH.name, "body of 0 bytes, one upload at least is needed")
    found = []
    at, end = 0, len(body)
    while at < end:
        start = at + _UPLOAD_BYTES
        if start > end:
            raise FrameError(BATCH.name, f"its last upload has {end - at} bytes, at least {_UPLOAD_BYTES} are needed")
        seq, topic_bytes, payload_bytes, sent_ms = UPLOAD.head.unpack_from(body, at)
        topic_end = start + topic_bytes
        at = topic_end + payload_bytes
        if at > end:
            raise FrameError(BATCH.name, f"upload {seq} needs {at - end} bytes more than the body has")
        try:
            topic = body[start:topic_end].decode()
        except UnicodeDecodeError as error:
            raise FrameError(f"{BATCH.name}.topic", f"is not UTF-8 ({error})") from error
        found.append((seq, topic, body[topic_end:at], sent_ms))
    return found
