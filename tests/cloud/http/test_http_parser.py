"""The parser of requests, by itself and beside h11: what one takes, the other does not take for other requests."""

import dataclasses

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from walle.cloud.http.parser import RequestError, RequestHeader, RequestParser

MAX_HEADER_BYTES = 4096
MAX_HEADERS = 20
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclasses.dataclass
class Found:
    """A request: what an app and the limits see of it."""

    method: str
    target: bytes
    version: str
    fields: list[tuple[bytes, bytes]]  # h11 writes `chunked` in lower case
    body: bytes = b""
    is_whole: bool = False


class Sink:
    def __init__(self) -> None:
        self.found: list[Found] = []
        self.headers: list[RequestHeader] = []

    def on_request(self, header: RequestHeader) -> None:
        assert all(one.is_whole for one in self.found)
        self.headers.append(header)
        fields = [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in header.fields]
        self.found.append(Found(header.method, header.target, header.version, fields))

    def on_body(self, data: bytes) -> None:
        assert not self.found[-1].is_whole
        self.found[-1].body += data

    def on_end(self) -> None:
        self.found[-1].is_whole = True


def parse(pieces: list[bytes]) -> tuple[Sink, int]:
    """Parse as a connection does; return what was found, and the status of the error, 0 if none."""
    sink = Sink()
    parser = RequestParser(sink, MAX_HEADER_BYTES, MAX_HEADERS)
    data = b""
    try:
        for piece in pieces:
            data += piece
            while data:
                rest = parser.parse(data)
                if rest == data:
                    break
                data = rest
    except RequestError as error:
        return sink, error.status
    return sink, 0


def parse_by_h11(sent: bytes) -> list[Found]:
    """Return the requests that h11 finds before its first error."""
    found: list[Found] = []
    connection = h11.Connection(h11.SERVER, MAX_HEADER_BYTES)
    connection.receive_data(sent)
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                fields = [(name.lower(), value) for name, value in event.headers]
                found.append(Found(event.method.decode(), event.target, event.http_version.decode(), fields))
            elif isinstance(event, h11.Data):
                found[-1].body += event.data
            elif isinstance(event, h11.EndOfMessage):
                found[-1].is_whole = True
                connection.send(h11.Response(status_code=204, headers=[]))
                connection.send(h11.EndOfMessage())
            elif event is h11.PAUSED:
                connection.start_next_cycle()
            else:
                return found
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return found


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2_0\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length:\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: a\r\ncontent-length: 2\r\n\r\nab",
        b"CONNECT a:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\nb: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\n host: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\na: b\0c\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\na: b\rc\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        b"GET / HTTP/0.9\r\nhost: x\r\n\r\n",
        b"GET / RTSP/1.0\r\nhost: x\r\n\r\n",
        b"SOURCE / ICE/1.0\r\nhost: x\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET  / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"get / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\r\n" + GET,
        b"\x16\x03\x01",
        CHUNKED + b"3\nabc\n0\n\n",
        CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"-1\r\n\r\n",
        CHUNKED + b"11111111111111111\r\n\r\n",
        CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    ],
)
def test_an_ambiguous_request_is_refused(sent: bytes) -> None:
    """In one piece, byte by byte, and behind another request."""
    for pieces in ([sent], [bytes([one]) for one in sent], [GET + sent]):
        sink, status = parse(pieces)
        assert status == 400
        assert len([one for one in sink.found if one.is_whole]) == (pieces[0] == GET + sent)


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (CHUNKED + b"3;a=b\r\nabc\r\n0\r\nauthorization: x\r\nhost: y\r\n\r\n", b"abc"),
        (CHUNKED + b"8\r\n\r\n\r\n\r\n\r\n\r\n1\r\n\r\r\n0;x\r\n\r\n", b"\r\n\r\n\r\n\r\n\r"),
        (b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 4 \t\r\n\r\n" + GET[:4], GET[:4]),
    ],
)
def test_a_body_ends_where_it_ends_however_it_comes_and_trailers_are_no_headers(sent: bytes, body: bytes) -> None:
    for cut in range(len(sent + GET)):
        whole = sent + GET
        sink, status = parse([whole[:cut], whole[cut:]])
        assert status == 0
        assert [(one.body, one.is_whole) for one in sink.found] == [(body, True), (b"", True)]
        assert all(name != b"authorization" for name, _ in sink.found[0].fields)


def test_a_request_for_another_protocol_is_answered_as_one_of_http() -> None:
    upgrade = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n\r\n"
    sink, status = parse([upgrade + GET + upgrade + GET])
    assert (len(sink.found), status) == (4, 0)


def test_headers_are_bounded_by_bytes_and_number() -> None:
    room = MAX_HEADER_BYTES - len(GET) - len(b"a: \r\n")
    for size_bytes, status in ((room, 0), (room + 1, 431)):
        header = GET[:-2] + b"a: " + b"b" * size_bytes + b"\r\n\r\n"
        assert parse([header])[1] == status
        assert parse([header[start : start + 1000] for start in range(0, len(header), 1000)])[1] == status
    for number, status in ((MAX_HEADERS - 1, 0), (MAX_HEADERS, 431)):
        assert parse([GET[:-2] + b"a: b\r\n" * number + b"\r\n"])[1] == status
    assert parse([b"G" * (MAX_HEADER_BYTES + 1)])[1] == 431


def test_tiny_chunks_extensions_and_trailers_are_bounded() -> None:
    assert parse([CHUNKED + b"1\r\na\r\n" * 254 + b"0\r\n\r\n"])[1] == 0
    assert parse([CHUNKED + b"1\r\na\r\n" * 256])[1] == 400
    assert parse([CHUNKED + b"40\r\n" + b"a" * 64 + b"\r\n", (b"40\r\n" + b"a" * 64 + b"\r\n") * 1000])[1] == 0
    for endless in (b"1;" + b"a" * 5000, b"0\r\n" + b"a: b\r\n" * 900):
        assert parse([CHUNKED + endless])[1] == 400


# Parts of which requests are made, such as differ between parsers.
_TEXT = st.sampled_from(
    b"GET|POST| |  |/|/a?b|HTTP/1.1|HTTP/1.0|\r\n|\n|\r|\t|:|: |x|host: x\r\n|Content-Length: 3\r\n|"
    b"content-length: 0\r\n|"
    b"content-length|transfer-encoding|Transfer-Encoding: chunked\r\n|chunked|identity|,|3\r\nabc\r\n|"
    b"0\r\n\r\n|abc|\0|\xff|"
    b"connection: close\r\n|Expect: 100-continue\r\n|a: b\r\n|a:\r\n| c\r\n|;e=f|\r\n\r\n|"
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".split(b"|")
)
_LINES = st.sampled_from(
    b"Content-Length: 3|content-length: 03|Content-Length: 0|Transfer-Encoding: chunked|a: b|A:|"
    b"transfer-encoding: Chunked|"
    b"a: b |a:\tb|connection: close|connection: upgrade|upgrade: x|Expect: 100-continue|host: y|a: b\n| a: b|a : b|"
    b"content-length: 3, 3|cookie: a; b".split(b"|")
)
_BODIES = st.sampled_from(
    b"|abc|3\r\nabc\r\n0\r\n\r\n|3;x=y\r\nabc\r\n0\r\nt: u\r\n\r\n|0\r\n\r\n|00\r\n\r\n|"
    b"A\r\n0123456789\r\n0\r\n\r\n|"
    b"2\r\n\r\n\r\n0\r\n\r\n|3\r\nabc0\r\n\r\n|0003\r\nabc\r\n0\r\n\r\n".split(b"|")
)
_REQUEST_LINES = st.sampled_from(
    [b"GET / HTTP/1.1", b"POST /a?b HTTP/1.1", b"GET /%41#c HTTP/1.0", b"GET http://x/ HTTP/1.1"]
)


@st.composite
def _request(draw: st.DrawFn) -> bytes:
    line = draw(
        st.sampled_from([b"GET / HTTP/1.1", b"POST /a?b HTTP/1.1", b"GET /%41#c HTTP/1.0", b"GET http://x/ HTTP/1.1"])
    )
    lines = [b"host: x", *draw(st.lists(_LINES, max_size=3))]
    return b"\r\n".join([line, *lines]) + b"\r\n\r\n" + draw(_BODIES)


_SENT = st.one_of(
    st.lists(_request(), min_size=1, max_size=3).map(b"".join),
    st.lists(_TEXT, max_size=12).map(lambda parts: b"GET / HTTP/1.1\r\nhost: x\r\n" + b"".join(parts)),
    st.lists(_TEXT, max_size=12).map(b"".join),
)


@settings(max_examples=1500, deadline=None)
@given(_SENT, st.lists(st.integers(1, 200), max_size=4))
@example(GET + GET, [3])
def test_accepted_bytes_are_the_same_requests_to_h11(sent: bytes, cuts: list[int]) -> None:
    """However the bytes come. What this parser refuses, h11 may take: nothing comes after it, since the two agree."""
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(sent[start : start + cut])
        start += cut
    sink, _ = parse([*pieces, sent[start:]])
    by_h11 = parse_by_h11(sent)
    for mine, theirs in zip(sink.found, by_h11, strict=False):
        if not mine.is_whole or not theirs.is_whole:
            break
        assert mine == theirs
    assert len([one for one in sink.found if one.is_whole]) <= len([one for one in by_h11 if one.is_whole])
