"""A process of devices, commanded by locust's users over a socket.

locust runs on gevent, which replaces threads and sockets, and asyncio with SQLite threads does not work on that. So the
users send commands as lines of JSON, and a process of asyncio (`loadtest.commands`) executes and times them.
"""

import contextlib
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
from gevent.event import AsyncResult
from locust.env import Environment

_ROOT = Path(__file__).parents[1]


class DeviceProcess:
    """The process of devices, as locust's users see it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._ids = itertools.count()
        self._waiting: dict[int, AsyncResult] = {}
        self._reading = gevent.spawn(self._read)

    @classmethod
    @contextlib.contextmanager
    def start(cls, module: str, join_file: Path, folder: Path) -> Iterator["DeviceProcess"]:
        """Start `python -m module SOCKET_FD JOIN_FILE FOLDER`; kill it at the end of the block."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", module, str(theirs.fileno()), str(join_file), str(folder)]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=_ROOT) as process, ours:
            theirs.close()
            devices = cls(ours)
            try:
                devices.call("ready")  # the start is not part of the load
                yield devices
            finally:
                process.kill()
                devices._reading.kill()
                devices._lines.close()

    def call(self, name: str, device_id: str = "", **arguments: Any) -> dict[str, Any]:
        """Return a command's answer: its milliseconds, its error and its result."""
        number = next(self._ids)
        waiting = self._waiting[number] = AsyncResult()
        command = {"id": number, "call": name, "device": device_id, "arguments": arguments}
        self._connection.sendall(json.dumps(command).encode() + b"\n")
        answer: dict[str, Any] = waiting.get()
        return answer

    def _read(self) -> None:
        for line in self._lines:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set(answer)
        for waiting in self._waiting.values():
            waiting.set({"error": "the process of devices has ended", "ms": 0.0})


def call_rows(environment: Environment) -> list[dict[str, Any]]:
    """Return locust's statistics, a row for each call."""
    stats = environment.stats
    return [
        {
            "call": entry.name,
            "count": entry.num_requests,
            "failures": entry.num_failures,
            "per_s": round(entry.total_rps, 1),
            **{f"p{percent}_ms": entry.get_response_time_percentile(percent / 100) for percent in (50, 95, 99)},
            "max_ms": round(entry.max_response_time),
        }
        for entry in sorted(stats.entries.values(), key=lambda entry: str(entry.name))
    ]


def call_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of text."""
    lines = [
        f"{'call':36s}{'count':>8s}{'failed':>8s}{'per s':>8s}{'p50 ms':>9s}{'p95 ms':>9s}{'p99 ms':>9s}{'max ms':>9s}"
    ]
    for row in rows:
        times = "".join(f"{row[key]:9.0f}" for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms"))
        lines.append(f"{row['call']:36s}{row['count']:8d}{row['failures']:8d}{row['per_s']:8.1f}{times}")
    return lines
