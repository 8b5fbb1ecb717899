"""Load test of the tunnel: locust users that are devices, against a real `walle cloud` process.

    python -m loadtest.tunnel [--users 100] [--spawn-rate 10] [--seconds 60] [--out FOLDER] [--json]

Each user is a device with its own outbox, credential and TLS connection. It uploads features, one or a burst at a time,
lets a released task compute in the cloud, and reconnects. Users join at the spawn rate. At the end each device drains
its outbox, the cloud is stopped, and its file is read: each upload must be there once and in order, the answers must
be right, and the counts of both sides must agree. The exit status is 1 after any wrong result or failed call.
"""

import argparse
import importlib.util
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if importlib.util.find_spec("locust") is None:
    sys.exit("the load test needs locust, which is not installed; it is in the extra dev: make setup")

import gevent  # locust is checked first
from locust import User, between, task
from locust.env import Environment

from loadtest import report
from loadtest.cloud_process import CloudError, CloudProcess
from loadtest.device_process import DeviceProcess, call_rows, call_table

_ROOT = Path(__file__).parents[1]
MODULE = "loadtest.devices"


class TunnelUser(User):
    """One device. Its calls follow one another, with a pause."""

    wait_time = between(0.1, 0.5)
    _numbers = itertools.count()

    def on_start(self) -> None:
        self.device_id = f"tunnel-{next(self._numbers)}"
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
        answer = self.environment.tunnel_devices.call(call, self.device_id, **arguments)
        self.environment.events.request.fire(
            request_type="tunnel",
            name=" ".join([call, *(f"{key}={value}" for key, value in arguments.items())]),
            response_time=answer["ms"],
            response_length=arguments.get("size_bytes", 0) * arguments.get("count", 1),
            exception=RuntimeError(answer["error"]) if answer["error"] else None,
            context={},
        )


def play(devices: DeviceProcess, options: argparse.Namespace) -> Environment:
    """Let the users play, and return locust's statistics in their environment."""
    environment = Environment(user_classes=[TunnelUser], stop_timeout=60)  # calls that are under way end first
    environment.tunnel_devices = devices
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


def wrong_uploads(uploads: str | Path, made: dict[str, dict[str, int]]) -> list[str]:
    """Return which uploads in a file or database are not those that the devices made. asyncio needs its own process."""
    checking = subprocess.run(
        [sys.executable, "-m", "loadtest.check", str(uploads)],
        input=json.dumps({device_id: one["made"] for device_id, one in made.items()}),
        capture_output=True,
        text=True,
        check=True,
        cwd=_ROOT,
    )
    return checking.stdout.splitlines()


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return calls, totals, and everything that went wrong."""
    (folder / "devices").mkdir()
    with CloudProcess.start(folder / "cloud") as cloud:
        cloud.release_task()
        wait_until_released(cloud, folder)
        before = cloud.metrics()
        with DeviceProcess.start(MODULE, cloud.join_file, folder / "devices") as devices:
            environment = play(devices, options)
            finished = devices.call("finish")
        if finished["error"]:
            raise CloudError(f"the outboxes did not drain: {finished['error']}")
        made = finished["result"]
        after = cloud.metrics()
        peak_mib = cloud.peak_mib()
        cloud.stop()
        metrics = {key: value - before.get(key, 0) for key, value in after.items()}
        wrong = wrong_uploads(cloud.uploads_db, made)
    failed = [f"{error.name}: {error.error} ({error.occurrences} times)" for error in environment.stats.errors.values()]
    return {
        "users": options.users,
        "devices": len(made),
        "uploads": sum(one["made"] for one in made.values()),
        "answers": sum(one["answered"] for one in made.values()),
        "connections": metrics["walle_tunnel_connections_total"],
        "duplicates": metrics["walle_tunnel_duplicates_total"],
        "cloud_peak_mib": round(peak_mib),
        "calls": call_rows(environment),
        "wrong": [*failed, *wrong_counts(metrics, made), *wrong],
    }


def wait_until_released(cloud: CloudProcess, folder: Path) -> None:
    """Return once the task answers. A simulation in the cloud comes before that.

    Raises:
        CloudError: it does not within a minute.
    """
    probe = folder / "probe"
    probe.mkdir()
    with DeviceProcess.start(MODULE, cloud.join_file, probe) as devices:
        answer = devices.call("join", "probe")
        for _ in range(300):
            if not answer["error"]:
                devices.call("finish")
                return
            gevent.sleep(0.2)
            answer = devices.call("request", "probe")
        raise CloudError(f"the released task does not answer: {answer['error']}")


def table(found: dict[str, Any]) -> str:
    lines = call_table(found["calls"])
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
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="where the page goes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run(options, Path(folder))
        except CloudError as error:
            sys.exit(f"load test: {error}")
    report.write_report(
        options.out,
        "tunnel",
        title="Load test of the tunnel",
        command=f"python -m loadtest.tunnel --users {options.users} --seconds {options.seconds:g}",
        text=table(found),
        summary=f"{found['devices']} devices, {found['uploads']} uploads, {found['answers']} answers",
        wrong=found["wrong"],
    )
    sys.stdout.write((json.dumps(found) if options.json else table(found)) + "\n")
    if found["wrong"] or not found["uploads"] or not found["answers"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
