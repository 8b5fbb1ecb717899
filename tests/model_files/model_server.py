"""An HTTP server on loopback whose answers a test scripts, one function for each request."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Self

type Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class ModelServer:
    """`answers` are used up in order, the last one again and again; `ranges` are the Range headers it got."""

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self.ranges: list[str | None] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.ranges.append(self.headers.get("Range"))
                answer = server.answers[0] if len(server.answers) == 1 else server.answers.pop(0)
                self.close_connection = True
                with contextlib.suppress(ConnectionError):  # the client may end a transfer
                    answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self.address = f"http://127.0.0.1:{self._http.server_address[1]}/models/net.onnx"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextlib.contextmanager
def serving(*answers: Answer) -> Iterator[ModelServer]:
    with ModelServer(list(answers)) as server:
        yield server


def whole(data: bytes, *, says: int | None = None, sends: int | None = None) -> Answer:
    """Answer 200 with the data, `says` as its length, and only `sends` bytes of it."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        if says != -1:
            request.send_header("Content-Length", str(len(data) if says is None else says))
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(data[:sends])

    return answer


def part(data: bytes, *, sends: int | None = None) -> Answer:
    """Answer a request for a part as HTTP says, with only `sends` bytes of the part."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        if wanted is None:
            whole(data, sends=sends)(request)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        request.send_response(206)
        request.send_header("Content-Length", str(len(data) - start))
        request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(data[start:][:sends])

    return answer


def status(code: int, **headers: str) -> Answer:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer
