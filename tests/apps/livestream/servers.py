"""Small servers of the tests: scripted HTTP answers, and RTSP with a transport stream in interleaved RTP."""

import base64
import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

Script = Callable[[socket.socket, bytes, int], None]  # the connection, the request's head, its number from 0


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    script: Script

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[bytes] = []
        self.lock = threading.Lock()

    def handle_error(self, *_: Any) -> None:
        """Pass over: a client that is closed in the middle is what the tests are about."""


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        head = b""
        while b"\r\n\r\n" not in head:
            data = self.request.recv(65536)
            if not data:
                return
            head += data
        with server.lock:
            server.requests.append(head)
            number = len(server.requests) - 1
        server.script(self.request, head, number)


@contextlib.contextmanager
def serve(script: Script) -> Iterator[tuple[str, list[bytes]]]:
    """Serve connections by the script; yields host:port and the heads of the requests so far."""
    server = _Server()
    server.script = script
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", server.requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chunked(connection: socket.socket, data: bytes, *, size: int = 7777, end: bool = True) -> None:
    """Send a live body: chunks, and the last empty one if it is to end."""
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    if end:
        connection.sendall(b"0\r\n\r\n")


LIVE_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def file_head(data: bytes, request: bytes, etag: str = '"1"') -> tuple[bytes, bytes]:
    """Return the head and the body of the answer of a server of files that takes ranges."""
    start = 0
    for line in request.decode().lower().split("\r\n"):
        if line.startswith("range: bytes="):
            start = int(line.removeprefix("range: bytes=").split("-")[0])
    status = "206 Partial Content" if start else "200 OK"
    extra = f"Content-Range: bytes {start}-{len(data) - 1}/{len(data)}\r\n" if start else ""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(data) - start}\r\nAccept-Ranges: bytes\r\nETag: {etag}\r\n"
        f"{extra}Connection: close\r\n\r\n"
    )
    return head.encode(), data[start:]


def rtsp(stream: bytes, *, stop_after: int | None = None, hold: threading.Event | None = None) -> Script:
    """Return a script that plays an MPEG transport stream over RTSP (RFC 2326) in interleaved RTP (RFC 2250).

    After `stop_after` bytes it sends nothing until `hold` is set; otherwise it ends with the stream.
    """

    def script(connection: socket.socket, head: bytes, _: int) -> None:
        while head:
            method, rest = head.split(b" ", 1)
            sequence = next(line for line in rest.split(b"\r\n") if line.lower().startswith(b"cseq"))
            extra, body = b"", b""
            match method:
                case b"OPTIONS":
                    extra = b"Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
                case b"DESCRIBE":
                    body = b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=test\r\nt=0 0\r\n"
                    body += b"m=video 0 RTP/AVP 33\r\na=control:a\r\n"
                    extra = b"Content-Type: application/sdp\r\n"
                case b"SETUP":
                    extra = b"Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n"
            answer = b"RTSP/1.0 200 OK\r\n" + sequence + b"\r\n" + extra
            connection.sendall(answer + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if method == b"PLAY":
                _play(connection, stream, stop_after, hold)
                return
            head = connection.recv(65536)

    return script


def _play(connection: socket.socket, stream: bytes, stop_after: int | None, hold: threading.Event | None) -> None:
    size = 7 * 188
    for number, at in enumerate(range(0, len(stream), size)):
        if stop_after is not None and at >= stop_after and hold is not None:
            hold.wait(20)
            return
        payload = stream[at : at + size]
        packet = struct.pack(">BBHII", 0x80, 33, number & 0xFFFF, number * 90, 7) + payload
        connection.sendall(struct.pack(">cBH", b"$", 0, len(packet)) + packet)


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()
