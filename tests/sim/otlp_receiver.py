"""A receiver of OTLP over HTTP: it decodes what is exported, by OpenTelemetry's own protocol files."""

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Spans:
    """Spans that came so far. `url` is the receiver's address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.all: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self.services: set[str] = set()
        self.status = 200  # status of the answers; with another one, nothing is taken
        self.may_answer = threading.Event()
        self.may_answer.set()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            values = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.services.add(values["service.name"])
            for scope in resource.scope_spans:
                self.all.extend(scope.spans)

    def traces(self) -> dict[bytes, dict[str, list[Span]]]:
        """Return the spans of each trace by their names."""
        found: dict[bytes, dict[str, list[Span]]] = {}
        for span in self.all:
            found.setdefault(span.trace_id, {}).setdefault(span.name, []).append(span)
        return found


@contextmanager
def otlp_receiver() -> Iterator[Spans]:
    """Serve POST /v1/traces on a port of this host."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces", self.path
            spans.headers.append({key.lower(): value for key, value in self.headers.items()})
            spans.may_answer.wait()
            if spans.status == 200:
                spans.take(body)
            self.send_response(spans.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, _format: str, *_args: object) -> None:
            """Write nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    spans = Spans(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield spans
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
