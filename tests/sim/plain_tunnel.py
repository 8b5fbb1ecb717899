"""A second implementation of the tunnel's protocol, written from docs/protocol.md alone; imports nothing of walle.

`PlainDevice` talks to a cloud, `PlainCloud` to devices. Both are small: no outbox file, no backoff, one event loop.
"""

import asyncio
import contextlib
import hashlib
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import zstandard

_KINDS: dict[int, tuple[str, str]] = {  # number: name, and fields as name:type with i, f, t(ext), b(ytes)
    3: ("Upload", "seq:i topic:t payload:b sent_ms:i"),
    4: ("Ack", "seq:i"),
    8: ("Ping", "token:i"),
    9: ("Pong", "token:i"),
    12: (
        "Hello",
        "device_id:t epoch:t token:t protocol:i acked:i acked_chain:i origins:t dictionaries:t",
    ),
    13: ("Welcome", "acked:i window:i chain:i protocol:i window_bytes:i dictionaries:t"),
    14: ("Request", "request_id:i topic:t payload:b priority:i deadline_ms:i"),
    15: ("Response", "request_id:i payload:b error:t code:t"),
    16: ("Refusal", "code:t message:t retry_s:f host:t port:i"),
    17: ("Cancel", "request_id:i"),
    18: ("Drain", "after_s:f spread_s:f host:t port:i"),
    19: ("UploadBatch", ""),
}
for _old, _new, _count in ((5, 14, 3), (6, 15, 3), (7, 16, 3), (10, 12, 7), (11, 13, 3)):
    _KINDS[_old] = (_KINDS[_new][0], " ".join(_KINDS[_new][1].split()[:_count]))
_CODES = {"i": "q", "f": "d", "t": "I", "b": "I"}
MAX_BODY = 8_388_608
MAX_BATCH = 65_536

type Message = tuple[str, dict[str, Any]]


class BadFrameError(Exception):
    """Bytes that are not a frame of the protocol."""


def _fields(kind: int) -> tuple[list[str], str, struct.Struct]:
    names, types = zip(*(field.split(":") for field in _KINDS[kind][1].split()), strict=True)
    return list(names), "".join(types), struct.Struct(">" + "".join(_CODES[code] for code in types))


def _pack(kind: int, values: dict[str, Any]) -> bytes:
    if kind == 19:
        return b"".join(_pack(3, upload) for upload in values["uploads"])
    if values.get("version"):  # an upload in protocol 4
        values = {**values, "topic": f"{values['topic']}\0{values['version']}"}
    names, types, fixed = _fields(kind)
    strings = []
    numbers = []
    for name, code in zip(names, types, strict=True):
        value = values[name]
        if code in "tb":
            strings.append(value.encode() if code == "t" else value)
            value = len(strings[-1])
        numbers.append(value)
    return fixed.pack(*numbers) + b"".join(strings)


def _unpack(kind: int, body: bytes, at: int = 0) -> tuple[dict[str, Any], int]:
    names, types, fixed = _fields(kind)
    if len(body) - at < fixed.size:
        raise BadFrameError("the fixed part is cut")
    numbers = fixed.unpack_from(body, at)
    at += fixed.size
    values: dict[str, Any] = {}
    for name, code, number in zip(names, types, numbers, strict=True):
        values[name] = number
        if code in "tb":
            data = body[at : at + number]
            if len(data) < number:
                raise BadFrameError(f"{name} is cut")
            at += number
            values[name] = data.decode() if code == "t" else data
    return values, at


def encode(
    name: str, values: dict[str, Any], *, version: int = 3, dictionary: tuple[int, bytes] | None = None
) -> bytes:
    """Return a frame; it is compressed if `dictionary`, a number and the file, is given, or it is long."""
    kinds = [number for number, (kind, _) in _KINDS.items() if kind == name]
    kind = min(kinds) if version == 2 else max(kinds)
    body, flags, number = _pack(kind, values), 0, 0
    if dictionary is not None:
        number = dictionary[0]
        learned = zstandard.ZstdCompressionDict(dictionary[1])
        body, flags = zstandard.ZstdCompressor(dict_data=learned).compress(body), 1
    elif len(body) > 1000:
        body, flags = zstandard.compress(body), 1
    return struct.pack(">IBBH", len(body), kind, flags, number) + body


def _versioned(upload: dict[str, Any]) -> dict[str, Any]:
    """Return an upload of protocol 4, whose topic may have a version behind it."""
    topic, _, version = upload["topic"].partition("\0")
    return {**upload, "topic": topic, "version": version}


def decode(frame: bytes, dictionaries: dict[int, bytes] | None = None, *, version: int = 3) -> Message:
    """Return the message of one whole frame."""
    length, kind, flags, number = struct.unpack_from(">IBBH", frame)
    body = frame[8:]
    if kind not in _KINDS or flags > 1 or length != len(body) or (number and not flags):
        raise BadFrameError(f"header {frame[:8].hex()}")
    if flags:
        limit = MAX_BATCH if kind == 19 else MAX_BODY
        if not 0 <= zstandard.frame_content_size(body) <= limit:
            raise BadFrameError("the content size is missing or too large")
        learned = zstandard.ZstdCompressionDict((dictionaries or {})[number]) if number else None
        body = zstandard.ZstdDecompressor(dict_data=learned).decompress(body, allow_extra_data=False)
    if kind == 19:
        uploads: list[dict[str, Any]] = []
        at = 0
        while at < len(body) or not uploads:
            upload, at = _unpack(3, body, at)
            uploads.append(upload if version < 4 else _versioned(upload))
        return "UploadBatch", {"uploads": uploads}
    values, end = _unpack(kind, body)
    if end != len(body):
        raise BadFrameError("bytes are left over")
    return _KINDS[kind][0], _versioned(values) if kind == 3 and version >= 4 else values


def next_chain(chain: int, upload: dict[str, Any]) -> int:
    """Return the chain value after an upload."""
    topic = upload["topic"].encode()
    checksum = zlib.crc32(struct.pack(">qI", upload["sent_ms"], len(topic)) + topic + upload["payload"])
    return (chain * 2654435761 + checksum) % (2**61 - 1)


class _End:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int = 3) -> None:
        self.reader, self.writer, self.version = reader, writer, version
        self.dictionaries: dict[int, bytes] = {}

    def say(self, name: str, *, number: int = 0, **values: Any) -> None:
        dictionary = (number, self.dictionaries[number]) if number else None
        self.writer.write(encode(name, values, version=self.version, dictionary=dictionary))

    async def hear(self) -> Message | None:
        """Return the next message, None at the end of the connection."""
        try:
            header = await self.reader.readexactly(8)
            length = struct.unpack_from(">I", header)[0]
            if length > MAX_BODY:
                raise BadFrameError(f"{length} bytes")
            return decode(header + await self.reader.readexactly(length), self.dictionaries, version=self.version)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


class PlainDevice(_End):
    """A device; `hello` and `upload` keep the numbers."""

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, port: int, context: ssl.SSLContext, version: int = 3) -> AsyncIterator["PlainDevice"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            yield cls(reader, writer, version)
        finally:
            writer.transport.abort()

    async def hello(
        self, device_id: str, epoch: str, *, acked: int = 0, chain: int = 0, files: Sequence[bytes] = ()
    ) -> Message | None:
        digests = [hashlib.sha256(data).hexdigest() for data in files]
        self.say(
            "Hello", device_id=device_id, epoch=epoch, token="", protocol=self.version, acked=acked,
            acked_chain=chain, origins="", dictionaries=",".join(digests),
        )  # fmt: skip
        heard = await self.hear()
        if heard is not None and heard[0] == "Welcome" and heard[1].get("dictionaries"):
            for number in map(int, heard[1]["dictionaries"].split(",")):
                self.dictionaries[number] = files[number - 1]
        return heard


class PlainCloud:
    """A cloud in memory: stores uploads, answers requests with `on_request`, and keeps what it heard."""

    def __init__(self, context: ssl.SSLContext, *, window: int = 10, version: int = 4) -> None:
        self.uploads: dict[tuple[str, str], list[dict[str, Any]]] = {}  # by device and epoch
        self.chains: dict[tuple[str, str], int] = {}
        self.files: dict[str, bytes] = {}  # dictionaries, by digest
        self.heard: list[Message] = []
        self.ends: list[_End] = []
        self.window, self.window_bytes, self.version = window, 100_000, version
        self.on_request: Callable[[dict[str, Any]], Awaitable[bytes]] | None = None
        self.port = 0
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator["PlainCloud"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for end in self.ends:
                end.writer.transport.abort()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = _End(reader, writer, self.version)
        self.ends.append(end)
        heard = await end.hear()
        if heard is None or heard[0] != "Hello":
            return
        hello = heard[1]
        self.heard.append(heard)
        shown = writer.get_extra_info("peercert")["subjectAltName"]
        if shown != (("URI", f"urn:walle:device:1:{hello['device_id']}"),):
            end.say("Refusal", code="identity", message="unknown", retry_s=-1.0, host="", port=0)
            writer.close()
            return
        stream = (hello["device_id"], hello["epoch"])
        kept = self.uploads.setdefault(stream, [])
        chain = self.chains.setdefault(stream, zlib.crc32(hello["epoch"].encode()))
        digests = hello["dictionaries"].split(",") if hello["dictionaries"] else []
        end.dictionaries = {n: self.files[digest] for n, digest in enumerate(digests, 1) if digest in self.files}
        end.say(
            "Welcome", acked=len(kept), window=self.window, chain=chain, protocol=self.version,
            window_bytes=self.window_bytes, dictionaries=",".join(map(str, end.dictionaries)),
        )  # fmt: skip
        while (heard := await end.hear()) is not None:
            self.heard.append(heard)
            name, values = heard
            if name in ("Upload", "UploadBatch"):
                for upload in values["uploads"] if name == "UploadBatch" else [values]:
                    if upload["seq"] == len(kept) + 1:
                        kept.append(upload)
                        self.chains[stream] = next_chain(self.chains[stream], upload)
                end.say("Ack", seq=len(kept))
            elif name == "Request" and self.on_request is not None:
                task = asyncio.create_task(self._answer(end, values))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif name == "Ping":
                end.say("Pong", token=values["token"])

    async def _answer(self, end: _End, request: dict[str, Any]) -> None:
        assert self.on_request is not None
        end.say("Response", request_id=request["request_id"], payload=await self.on_request(request), error="", code="")
