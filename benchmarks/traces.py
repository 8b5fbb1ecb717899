"""Cost of traces (`walle cloud up --traces`): CPU time of a push answer and of an upload, off, at 1 % and at all.

    python -m benchmarks.traces [--rounds 20] [--answers 4000] [--uploads 6400] [--json]

- push answer: the push answer around an app that says hello (`WallePush`), without a server: a device that is up to
  date, and one that is behind in one of its ten tasks, so that its answer carries a directive. Microseconds of CPU.
- upload: 64 uploads of 1 KB at a time, stored durably in SQLite (`Ingest.accept`) and then passed to the tracer as the
  gateway does, which sends its spans to a receiver of OTLP in another process. Microseconds of CPU, all threads.

What is compared alternates, round by round; figures are medians, with the least and the most beside them.
"""

import argparse
import asyncio
import http.server
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import rules
from benchmarks.gateway_push import hello
from benchmarks.headline import print_headline
from walle.base.asgi import ASGIApp
from walle.base.clock import SystemClock
from walle.cloud.telemetry.tracing import Tracer, exporter
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.middleware import WallePush
from walle.deploy.releases.table import ReleaseTable
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.received import Received
from walle.protocol import PROFILE_HEADER, TASKS_HEADER, Profile

_RATIOS = {"off": 0.0, "1 %": 0.01, "all": 1.0}
_BATCH = 64
_DEVICES = 50
_TASKS = 10
_UPLOAD_BYTES = 1_000


def _app(table: ReleaseTable, ratio: float, address: str) -> ASGIApp:
    answerer = Answerer(table, trace_ratio=ratio)
    if ratio:
        answerer.on_directives = Tracer(ratio, exporter(address), SystemClock()).answered
    return WallePush(hello, answerer, lambda _: "d")


async def answer_us(app: ASGIApp, *, is_behind: bool, answers: int) -> float:
    """Return the microseconds of CPU time of one answer to a device with ten tasks."""
    tasks = {f"shop/task-{number}": "v0" if is_behind and number == 0 else "v1" for number in range(_TASKS)}
    profile = Profile("d", "10.3", {"model": "P9"}, tasks).to_header().encode()
    scope = {"type": "http", "method": "GET", "path": "/hello", "headers": [(PROFILE_HEADER.lower().encode(), profile)]}
    has_directive: list[bool] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            has_directive.append(any(name == TASKS_HEADER.lower().encode() for name, _ in message["headers"]))

    began_s = time.thread_time()
    for _ in range(answers):
        await app(scope, receive, send)
    spent_s = time.thread_time() - began_s
    if has_directive != [is_behind] * answers:
        raise RuntimeError(f"answers to a device that is behind: {is_behind}, with directives: {set(has_directive)}")
    return spent_s / answers * 1e6


class _Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def _receive(said: Connection) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    said.send(server.server_port)
    server.serve_forever()


async def upload_us(ratio: float, address: str, uploads: int) -> float:
    """Return the microseconds of CPU time of one upload, the time of sending its spans included."""
    payload = os.urandom(_UPLOAD_BYTES)
    tracer = Tracer(ratio, exporter(address), SystemClock()) if ratio else None
    with tempfile.TemporaryDirectory() as folder:
        async with Ingest(Path(folder) / "uploads.db") as ingest:
            began_s = time.process_time()
            for first in range(0, uploads, _BATCH):
                now_ms = time.time_ns() // 1_000_000
                batch = [
                    Received(f"d{number % _DEVICES}", "e", 1 + number // _DEVICES, "shop/ipv", payload, now_ms, now_ms)
                    for number in range(first, first + _BATCH)
                ]
                await ingest.accept(batch)
                if tracer is not None:
                    tracer.stored(batch, time.time())
            if tracer is not None:
                await asyncio.to_thread(tracer.close)
            return (time.process_time() - began_s) / uploads * 1e6


def _row(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--answers", type=int, default=4_000, help="of each round (default: %(default)s)")
    parser.add_argument("--uploads", type=int, default=6_400, help="of each round (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    mine, theirs = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs,), daemon=True)
    receiver.start()
    address = f"http://127.0.0.1:{mine.recv()}"
    table = rules.table_of(lambda number: Policy() if number < _TASKS else Policy(f">=9.{number},<10"), 348, 0)
    apps = {name: _app(table, ratio, address) for name, ratio in _RATIOS.items()}
    current, behind, uploads = ({name: list[float]() for name in _RATIOS} for _ in range(3))
    for number in range(options.rounds):
        for name in list(_RATIOS)[:: 1 if number % 2 else -1]:
            for kind, is_behind in ((current, False), (behind, True)):
                kind[name].append(asyncio.run(answer_us(apps[name], is_behind=is_behind, answers=options.answers)))
            uploads[name].append(asyncio.run(upload_us(_RATIOS[name], address, options.uploads)))
    receiver.terminate()
    found = {
        "push answer, up to date": {name: _row(values) for name, values in current.items()},
        "push answer, behind": {name: _row(values) for name, values in behind.items()},
        "upload": {name: _row(values) for name, values in uploads.items()},
    }
    if options.json:
        print(json.dumps(found))
        return
    for title, rows in found.items():
        print(f"{title + ', CPU us':40s}{'median':>10s}{'least':>10s}{'most':>10s}")
        for name, row in rows.items():
            print(f"  traces {name:31s}" + "".join(f"{value:10.2f}" for value in row.values()))
    print_headline(
        "push answer to a device that is behind, CPU time with 1 % traced",
        unit="µs",
        better="lower",
        ours=statistics.median(behind["1 %"]),
        peers={"without traces": statistics.median(behind["off"])},
    )


if __name__ == "__main__":
    main()
