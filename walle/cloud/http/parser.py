"""Parser of a connection's HTTP/1.1 requests: httptools, within limits, one request at a time.

httptools alone has no limit of a header, parses on into the next requests, and takes requests of RTSP and of HTTP/0.9.
So it gets a header once it is whole and begins as one of HTTP/1, and of a body no byte after its end.
"""

import dataclasses
import re
from typing import Protocol

import httptools

_REQUEST_LINE = re.compile(rb"([A-Z-]+) ([!-~]+) HTTP/(1\.[01])\r\n")
_END = b"\r\n\r\n"  # end of a header, and of a body in chunks
_CHUNKS = 256  # chunks of a body from which on their mean size counts
_CHUNK_BYTES = 64  # smallest mean size of a body's chunks: each chunk costs time
_CHUNK_HEADER_BYTES = 32  # cost of each chunk, beside what all of them together may have of extensions and trailers


class RequestError(Exception):
    """Bytes that are not a request of HTTP/1.1 (`status` 400), or a header above the limits (431)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True, slots=True)
class RequestHeader:
    """Header of a request. Names are in lower case, values without spaces around them."""

    method: str
    target: bytes
    version: str
    fields: list[tuple[bytes, bytes]]
    keeps_alive: bool
    expects_continue: bool


class RequestSink(Protocol):
    """Receiver of what a parser finds: a header, parts of its body, and its end."""

    def on_request(self, header: RequestHeader) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...


class RequestParser:
    """Parser of the requests of one connection. After an error it is not used again."""

    def __init__(self, sink: RequestSink, max_header_bytes: int, max_headers: int) -> None:
        self._sink = sink
        self._max_header_bytes = max_header_bytes
        self._max_headers = max_headers
        self._parser = httptools.HttpRequestParser(self)
        self.is_between = True  # requests: the next byte is the first of one
        self._fields: list[tuple[bytes, bytes]] = []
        self._is_header = False
        self._is_ended = True  # no message of httptools is under way
        self._keeps_alive = True  # the latest request, the connection
        self._left_bytes = 0  # rest of a body with a length
        self._tail = b""  # last three bytes of a body in chunks
        self._chunks = self._raw_bytes = self._body_bytes = 0

    def free(self) -> None:
        """Drop what refers to this, so that it is freed at once; nothing is parsed after."""
        del self._parser, self._sink

    def parse(self, data: bytes) -> bytes:
        """Parse a request from its beginning or on, and not the one after it; return the rest of `data`.

        The rest is a header that is not whole, which the caller gives again with more behind it, or what comes after
        the request.

        Raises:
            RequestError: the data is not a request, or its header is too large.
        """
        start = 0
        if self.is_between:
            start = self._parse_header(data)
            if not start:
                return data
        while not self.is_between and start < len(data):
            has_length = self._left_bytes > 0
            end = min(len(data), start + self._left_bytes) if has_length else self._end_of_chunks(data, start)
            self._parse_body(data[start:end])
            start = end
        return data[start:]

    def _parse_header(self, data: bytes) -> int:
        """Parse the header if it is whole; return its size, or 0."""
        if data and not self._keeps_alive:
            raise RequestError(400, "more than the last request")
        size_bytes = data.find(_END) + len(_END)
        is_whole = size_bytes >= len(_END)
        if (size_bytes if is_whole else len(data)) > self._max_header_bytes:
            raise RequestError(431, "too many bytes")
        if data and not b"A" <= data[:1] <= b"Z":
            raise RequestError(400, "no method")
        if not is_whole:
            return 0
        line = _REQUEST_LINE.match(data)
        if line is None:
            raise RequestError(400, "no request line of HTTP/1.1 or HTTP/1.0")
        if data.count(b"\r\n", 0, size_bytes) - 2 > self._max_headers:
            raise RequestError(431, "too many fields")
        self._fields = []
        self._is_header, self._is_ended = True, False
        is_upgrade = False
        try:
            self._parser.feed_data(data[:size_bytes])
        except httptools.HttpParserUpgrade:
            is_upgrade = True
        except httptools.HttpParserError as error:
            raise RequestError(400, str(error)) from error
        self._is_header = False
        method, target, version = line.groups()
        expects_continue = self._check_fields(method, version, is_upgrade=is_upgrade)
        if is_upgrade:  # nothing else is spoken here: httptools is to read what comes next as HTTP
            self._parser = httptools.HttpRequestParser(self)
        self._keeps_alive &= version == b"1.1"
        self.is_between = self._is_ended
        self._sink.on_request(
            RequestHeader(
                method.decode(),
                target,
                version.decode(),
                self._fields,
                self._keeps_alive,
                expects_continue,
            )
        )
        if self.is_between:
            self._sink.on_end()
        return size_bytes

    def _check_fields(self, method: bytes, version: bytes, *, is_upgrade: bool) -> bool:
        """Set how long the body is; return whether the client waits for 100 (Continue)."""
        fields = self._fields
        names = [name for name, _ in fields]
        hosts = names.count(b"host")
        if hosts > 1 or (not hosts and version == b"1.1"):
            raise RequestError(400, "not one Host")
        is_chunked = b"transfer-encoding" in names
        self._left_bytes = 0
        if is_chunked:
            # With a length as well, or in a list, others on the way may see another end of the body.
            values = [value.lower() for name, value in fields if name == b"transfer-encoding"]
            if values != [b"chunked"] or b"content-length" in names or version != b"1.1":
                raise RequestError(400, "a transfer encoding that is not chunked alone, in HTTP/1.1")
            self._tail = b""
            self._chunks = self._raw_bytes = self._body_bytes = 0
        elif b"content-length" in names:
            self._left_bytes = int(fields[names.index(b"content-length")][1])
        has_body = is_chunked or self._left_bytes > 0
        if method == b"CONNECT" or (is_upgrade and has_body):
            raise RequestError(400, "another protocol")
        if self._is_ended is has_body:
            raise RequestError(400, "a body whose end is not clear")
        if b"expect" not in names or version != b"1.1":
            return False
        return fields[names.index(b"expect")][1].lower() == b"100-continue"

    def _end_of_chunks(self, data: bytes, start: int) -> int:
        """Return up to where the data is one request's for certain: all of its ends look the same."""
        tail = self._tail
        across = (tail + data[start : start + 3]).find(_END)
        found = start + across - len(tail) if across >= 0 else data.find(_END, start)
        if across < 0 and found < 0:
            self._tail = (tail + data[start:])[-3:]
            return len(data)
        self._tail = b""
        return found + len(_END)

    def _parse_body(self, data: bytes) -> None:
        has_length = self._left_bytes > 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise RequestError(400, str(error)) from error
        if has_length:
            self._left_bytes -= len(data)
            if self._is_ended is not (self._left_bytes == 0):
                raise RequestError(400, "a body whose end is not clear")
        else:
            self._raw_bytes += len(data)
            spent_bytes = self._raw_bytes - self._body_bytes - _CHUNK_HEADER_BYTES * self._chunks
            if self._chunks >= _CHUNKS and self._body_bytes < _CHUNK_BYTES * self._chunks:
                raise RequestError(400, "tiny chunks")
            if spent_bytes > self._max_header_bytes:
                raise RequestError(400, "extensions of chunks, or trailers, are too large")
        if self._is_ended:
            self.is_between = True
            self._sink.on_end()

    # --- called by httptools ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._is_header:
            raise RequestError(400, "a request within another")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_header:  # else a trailer, which says nothing about the request
            self._fields.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._keeps_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        self._sink.on_body(data)

    def on_chunk_complete(self) -> None:
        self._chunks += 1

    def on_message_complete(self) -> None:
        self._is_ended = True
