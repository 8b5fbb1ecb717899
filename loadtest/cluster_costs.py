"""CPU time of each of a cloud's processes by kind of request, with one kind at a time."""

import collections
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent

from loadtest.cloud_process import CloudProcess
from loadtest.cpu_times import CpuTimes
from loadtest.device_process import DeviceProcess

_DEVICES = 32  # devices that ask at once
_SETTLE_S = 1.0  # what the cloud still does for requests that are answered, such as batches and watches


class Costs:
    """Measures costs with devices of both kinds of load test; many reports are of the release `release_id`."""

    def __init__(
        self,
        cloud: CloudProcess,
        uploading: DeviceProcess,
        deploying: DeviceProcess,
        release_id: str,
        postgres: int = 0,
    ) -> None:
        self._failed = collections.Counter[str]()
        self._cloud = cloud
        self._uploading = uploading
        self._deploying = deploying
        self._release_id = release_id
        self._postgres = postgres
        self._newcomers: Iterator[str] = (f"new-{number}" for number in itertools.count())

    def measure(self, seconds: float) -> list[dict[str, Any]]:
        """Return a row for each kind: its name, the number of requests, and CPU seconds by role; `idle` by second."""
        agents, tunnels = ([f"cost-{kind}-{number}" for number in range(_DEVICES)] for kind in ("agent", "tunnel"))
        self._each(tunnels, lambda device: self._call(self._uploading, "join", device))
        self._each(agents, self._join)
        return [
            self._row("idle", seconds, agents[:1], lambda _: gevent.sleep(0.2)),
            self._row("check-in", seconds, agents, self._checkin),
            self._row("check-in and report", seconds, agents, self._report),
            self._reports(seconds),
            self._row("new device: enrolment, check-in, pull of 300 KB", seconds, agents, self._newcomer),
            self._row("upload of 1 KB", seconds, tunnels, self._upload),
            self._row("answer of a cloud task", seconds, tunnels, self._request),
        ]

    @property
    def wrong(self) -> list[str]:
        """The calls that failed, each kind once."""
        return [f"{what} ({times} times)" for what, times in self._failed.items()]

    def _row(self, kind: str, seconds: float, devices: list[str], play: Callable[[str], None]) -> dict[str, Any]:
        gevent.sleep(_SETTLE_S)
        named = self._cloud.roles()
        before, began_s = CpuTimes.read(named, self._postgres), time.monotonic()
        counts: list[int] = []
        self._each(devices, lambda device: counts.append(self._repeat(began_s + seconds, play, device)))
        gevent.sleep(_SETTLE_S)
        cpu_s = CpuTimes.read(named, self._postgres).since(before)
        return {"kind": kind, "count": sum(counts), "seconds": round(time.monotonic() - began_s, 2), "cpu_s": cpu_s}

    def _reports(self, seconds: float) -> dict[str, Any]:
        """Return the row of reports at a high rate, each of which must count once."""
        gevent.sleep(_SETTLE_S)
        named, counted = self._cloud.roles(), self._runs()
        before, began_s = CpuTimes.read(named, self._postgres), time.monotonic()
        command = [sys.executable, "-m", "loadtest.report_load", self._cloud.url, str(self._cloud.folder)]
        done = subprocess.run(
            [*command, self._release_id, f"--seconds={seconds}"], stdout=subprocess.PIPE, text=True, check=True
        )
        found = json.loads(done.stdout)
        gevent.sleep(_SETTLE_S)
        cpu_s = CpuTimes.read(named, self._postgres).since(before)
        took_s = time.monotonic() - began_s
        if found["others"]:
            self._failed[f"reports at a high rate: answers by status {found['others']}"] += 1
        if (runs := self._runs() - counted) != found["runs"]:
            self._failed[f"reports of {found['runs']} runs were answered, {runs} runs count"] += 1
        kind = "report at a high rate, 512 at once"
        return {"kind": kind, "count": found["answered"], "seconds": round(took_s, 2), "cpu_s": cpu_s}

    def _runs(self) -> int:
        return int(self._cloud.release(self._release_id)["totals"]["ok"])

    def _each(self, devices: list[str], play: Callable[[str], None]) -> None:
        for job in [gevent.spawn(play, device) for device in devices]:
            job.get()

    def _repeat(self, end_s: float, play: Callable[[str], None], device: str) -> int:
        count = 0
        while time.monotonic() < end_s:
            play(device)
            count += 1
        return count

    def _call(self, process: DeviceProcess, name: str, device: str, **arguments: int) -> None:
        answer = process.call(name, device, **arguments)
        if answer["error"]:
            self._failed[f"{name}: {answer['error']}"] += 1

    def _join(self, device: str) -> None:
        self._call(self._deploying, "join", device)
        self._checkin(device)

    def _checkin(self, device: str) -> None:
        self._call(self._deploying, "checkin", device)

    def _upload(self, device: str) -> None:
        self._call(self._uploading, "upload", device, size_bytes=1_000)

    def _request(self, device: str) -> None:
        self._call(self._uploading, "request", device)

    def _report(self, device: str) -> None:
        self._checkin(device)
        self._call(self._deploying, "report", device)

    def _newcomer(self, _: str) -> None:
        self._join(next(self._newcomers))
