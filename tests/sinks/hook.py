"""Receiver of webhooks for the tests of sinks."""

import asyncio
import socket
import threading
import time
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

from tests.sinks.sink_samples import wait_until


class Hook:
    """A receiver of webhooks on a port.

    `answers` are given to the next requests, in place of 204, and take nothing; so are the statuses in `refused` to
    requests with a row of that key.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str], int, float]] = []  # idempotency key, headers, rows, time
        self.answers: list[Response] = []
        self.refused: dict[str, int] = {}
        self.delay_s = 0.0
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def keys(self) -> list[str]:
        return [row["key"] for row in self.rows]

    def start(self) -> None:
        app = FastAPI()

        @app.post("/hook")
        async def take(request: Request) -> Response:
            body = await request.json()
            headers = dict(request.headers)
            self.requests.append((headers["idempotency-key"], headers, len(body["rows"]), time.monotonic()))
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.answers:
                return self.answers.pop(0)
            if found := [self.refused[row["key"]] for row in body["rows"] if row["key"] in self.refused]:
                return Response(content="a bad row", status_code=found[0])
            self.rows += body["rows"]
            return Response(status_code=204)

        with socket.create_server(("127.0.0.1", self.port)) as found:
            self.port = found.getsockname()[1]
        config = uvicorn.Config(app, port=self.port, log_level="critical", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_until(lambda: self._server is not None and self._server.started)

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.force_exit = self._server.should_exit = True
            self._thread.join()
        self._server = None
