"""Load test of the tunnel: locust users that are devices, against a real `walle cloud` process.

    python -m loadtest.tunnel [--users 100] [--spawn-rate 10] [--seconds 60] [--json]

Each user is a device with its own outbox, credential and TLS connection. It uploads features, one or a burst at a time,
lets a released task compute in the cloud, and reconnects. Users join at the spawn rate. At the end each device drains
its outbox, the cloud is stopped, and its file is read: each upload must be there once and in order, the answers must
be right, and the counts of both sides must agree. The exit status is 1 after any wrong result or failed call.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if importlib.util.find_spec("locust") is None:
    sys.exit("the load test needs locust, which is not installed; install walle[dev]")

import gevent  # locust is checked first
from gevent.event import AsyncResult
from locust import User, between, task
from locust.env import Environment

from loadtest.cloud_process import CloudError, CloudProcess

_ROOT = Path(__file__).parents[1]


class Devices:
    """The process of devices, as locust's users see it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._ids = itertools.count()
        self._waiting: dict[int, AsyncResult] = {}
        self._reading = gevent.spawn(self._read)

    @classmethod
    @contextlib.contextmanager
    def start(cls, join_file: Path, folder: Path) -> Iterator["Devices"]:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "loadtest.devices", str(theirs.fileno()), str(join_file), str(folder)]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=_ROOT) as process, ours:
            theirs.close()
            devices = cls(ours)
            try:
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


class TunnelUser(User):
    """One device. Its calls follow one another, with a pause."""

    wait_time = between(0.1, 0.5)
    _numbers = itertools.count()

    def on_start(self) -> None:
        self.device_id = f"load-{next(self._numbers)}"
        self._call("join")

    @task(8)
    def upload(self) -> None:
        self._call("upload", size_bytes=1_000)

    @task(1)
    def upload_large(self) -> None:
        self._call("upload", size_bytes=30_000)

    @task(2)
    def upload_burst(self) -> None:
        self._call("upload", size_bytes=300, count=50)

    @task(4)
    def request(self) -> None:
        self._call("request")

    @task(1)
    def reconnect(self) -> None:
        self._call("reconnect")

    def _call(self, call: str, **arguments: int) -> None:
        answer = self.environment.devices.call(call, self.device_id, **arguments)
        self.environment.events.request.fire(
            request_type="tunnel",
            name=" ".join([call, *(f"{key}={value}" for key, value in arguments.items())]),
            response_time=answer["ms"],
            response_length=arguments.get("size_bytes", 0) * arguments.get("count", 1),
            exception=RuntimeError(answer["error"]) if answer["error"] else None,
            context={},
        )


def play(devices: Devices, options: argparse.Namespace) -> Environment:
    """Let the users play, and return locust's statistics in their environment."""
    environment = Environment(user_classes=[TunnelUser], stop_timeout=60)  # calls that are under way end first
    environment.devices = devices
    runner = environment.create_local_runner()
    runner.start(options.users, spawn_rate=options.spawn_rate)
    gevent.sleep(options.seconds)
    runner.quit()
    runner.greenlet.join(timeout=90)
    return environment


def wrong_counts(metrics: dict[str, float], made: dict[str, dict[str, int]]) -> list[str]:
    """Return which of the cloud's counts differ from the devices'."""
    uploads = sum(one["made"] for one in made.values())
    answered = sum(one["answered"] for one in made.values())
    agree = {
        "walle_tunnel_stored_total": uploads,
        "walle_tunnel_requests_total": answered + metrics["walle_tunnel_failed_requests_total"],
        "walle_tunnel_queue_uploads": 0,
        "walle_tunnel_pump_failures_total": 0,
    }
    return [
        f"{key} is {metrics[key]:g}, the devices say {value:g}" for key, value in agree.items() if metrics[key] != value
    ]


def rows(environment: Environment) -> list[dict[str, Any]]:
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


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return calls, totals, and everything that went wrong."""
    (folder / "devices").mkdir()
    with CloudProcess.start(folder / "cloud") as cloud:
        cloud.release_task()
        wait_until_released(cloud, folder)
        before = cloud.metrics()
        with Devices.start(cloud.join_file, folder / "devices") as devices:
            environment = play(devices, options)
            finished = devices.call("finish")
        if finished["error"]:
            raise CloudError(f"the outboxes did not drain: {finished['error']}")
        made = finished["result"]
        after = cloud.metrics()
        peak_mib = cloud.peak_mib()
        cloud.stop()
        metrics = {key: value - before.get(key, 0) for key, value in after.items()}
        checking = subprocess.run(
            [sys.executable, "-m", "loadtest.check", str(cloud.uploads_db)],
            input=json.dumps({device_id: one["made"] for device_id, one in made.items()}),
            capture_output=True,
            text=True,
            check=True,
            cwd=_ROOT,
        )
    failed = [f"{error.name}: {error.error} ({error.occurrences} times)" for error in environment.stats.errors.values()]
    return {
        "users": options.users,
        "devices": len(made),
        "uploads": sum(one["made"] for one in made.values()),
        "answers": sum(one["answered"] for one in made.values()),
        "connections": metrics["walle_tunnel_connections_total"],
        "duplicates": metrics["walle_tunnel_duplicates_total"],
        "cloud_peak_mib": round(peak_mib),
        "calls": rows(environment),
        "wrong": [*failed, *wrong_counts(metrics, made), *checking.stdout.splitlines()],
    }


def wait_until_released(cloud: CloudProcess, folder: Path) -> None:
    """Return once the task answers. A simulation in the cloud comes before that.

    Raises:
        CloudError: it does not within a minute.
    """
    probe = folder / "probe"
    probe.mkdir()
    with Devices.start(cloud.join_file, probe) as devices:
        answer = devices.call("join", "probe")
        for _ in range(300):
            if not answer["error"]:
                devices.call("finish")
                return
            gevent.sleep(0.2)
            answer = devices.call("request", "probe")
        raise CloudError(f"the released task does not answer: {answer['error']}")


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{'call':36s}{'count':>8s}{'failed':>8s}{'per s':>8s}{'p50 ms':>9s}{'p95 ms':>9s}{'p99 ms':>9s}{'max ms':>9s}"
    ]
    for row in found["calls"]:
        times = "".join(f"{row[key]:9.0f}" for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms"))
        lines.append(f"{row['call']:36s}{row['count']:8d}{row['failures']:8d}{row['per_s']:8.1f}{times}")
    lines.append(
        f"{found['devices']} devices, {found['connections']:.0f} connections, {found['uploads']} uploads,"
        f" {found['answers']} answers, {found['duplicates']:.0f} repeated uploads dropped,"
        f" peak of the cloud {found['cloud_peak_mib']} MiB"
    )
    wrong = found["wrong"]
    return "\n".join([*lines, *(f"WRONG: {line}" for line in wrong), f"{len(wrong)} wrong results"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100, help="devices (default: %(default)s)")
    parser.add_argument(
        "--spawn-rate", type=float, default=10, help="devices that join a second (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of load (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run(options, Path(folder))
        except CloudError as error:
            sys.exit(f"load test: {error}")
    sys.stdout.write((json.dumps(found) if options.json else table(found)) + "\n")
    if found["wrong"] or not found["uploads"] or not found["answers"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
