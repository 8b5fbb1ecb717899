"""Devices of a fleet over HTTP: they check in, pull, verify hashes and report at the fleet's times, in scaled time.

Each is a few numbers here, and not a `walle.device.Device`, so that thousands fit in one process. What they send and
read is the protocol's own, over real connections to a real cloud.
"""

import asyncio
import dataclasses
import hashlib
import json
import statistics
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fig13.cloud import APP_VERSION, NAME, NEW, OLD
from benchmarks.fig13.fleet import Fleet, device_id
from benchmarks.fig13.http_pool import Answer, HttpPool
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, Envelope, Manifest, Profile, directives_from_header

_CONNECTIONS = 48
_TASKS = b"x-walle-tasks"


@dataclasses.dataclass
class Traffic:
    """Counts of what was sent, and answers that are wrong: `wrong` has the first few."""

    checkins: int = 0
    reports: int = 0
    pulled_files: int = 0
    pulled_bytes: int = 0
    late_ms: list[float] = dataclasses.field(default_factory=list)  # delays of requests, behind their time
    wrong: list[str] = dataclasses.field(default_factory=list)


class RealDevices:
    """All devices of `fleet`, at `speed` simulated seconds a second. Runs of the new version fail at `new_rate`."""

    def __init__(
        self,
        fleet: Fleet,
        sessions: list[str],
        pool: HttpPool,
        *,
        release_id: str,
        speed: float,
        new_rate: float,
        old_rate: float,
        horizon_s: float,
    ) -> None:
        self.fleet = fleet
        self.traffic = Traffic()
        self.installed_s = np.full(fleet.count, np.inf, np.float32)
        self.left_s = np.full(fleet.count, np.inf, np.float32)
        self._sessions = sessions
        self._pool = pool
        self._release_id = release_id
        self._speed = speed
        self._rates = {OLD: old_rate, NEW: new_rate}
        self._horizon_s = horizon_s
        self._have = [OLD] * fleet.count
        self._reported = fleet.runs_until(np.arange(fleet.count), 0.0).tolist()  # runs that are reported, or of before
        self._confirms = [False] * fleet.count  # the next report says that the version is installed
        self._pulls: dict[int, asyncio.Task[None]] = {}
        self._began_s = 0.0
        self._batches = 0
        self._open_requests = 0
        self._heads: dict[tuple[int, str], bytes] = {}  # heads of a device's requests with a version
        self.most_waiting = 0  # requests that waited for a connection at once

    @property
    def now_s(self) -> float:
        """The simulated time."""
        return (asyncio.get_running_loop().time() - self._began_s) * self._speed

    async def play(self) -> None:
        """Let every device send its requests until the horizon."""
        times, devices, runs = self._schedule()
        self._began_s = asyncio.get_running_loop().time()
        at = 0
        while at < len(times):
            now_s = self.now_s
            while at < len(times) and times[at] <= now_s:
                self._check_in(devices[at], times[at], runs[at])
                at += 1
            self.most_waiting = max(self.most_waiting, self._pool.waiting)
            if at < len(times):
                await asyncio.sleep(max(0.002, (times[at] - self.now_s) / self._speed))
        for _ in range(500):  # answers that are under way; not longer, as the cloud may be lost
            if not (self._pulls or self._open_requests):
                break
            await asyncio.sleep(0.01)
        for task in self._pulls.values():
            task.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)

    def _schedule(self) -> tuple[list[float], list[int], list[int]]:
        """Return the times of all requests in order, their devices, and how many runs these have made by then."""
        devices = np.arange(self.fleet.count)
        at_s: NDArray[np.float64] = np.zeros(self.fleet.count)
        found_s, found = [], []
        while len(devices):
            at_s = self.fleet.next_request(devices, at_s)
            left = at_s < self._horizon_s
            devices, at_s = devices[left], at_s[left]
            found_s.append(at_s)
            found.append(devices)
        times, all_devices = np.concatenate(found_s), np.concatenate(found)
        order = np.argsort(times, kind="stable")
        times, all_devices = times[order], all_devices[order]
        return times.tolist(), all_devices.tolist(), self.fleet.runs_until(all_devices, times).tolist()

    def _check_in(self, number: int, due_s: float, runs: int) -> None:
        have = self._have[number]
        head = self._heads.get((number, have))
        if head is None:
            profile = Profile(device_id(number), APP_VERSION, {"os": "15"}, {NAME: have}).to_header()
            session = self._sessions[number]
            text = (
                f"GET /hello HTTP/1.1\r\nhost: x\r\n{DEVICE_HEADER}: {session}\r\n{PROFILE_HEADER}: {profile}\r\n\r\n"
            )
            head = self._heads[number, have] = text.encode()
        self._open_requests += 1
        self.traffic.checkins += 1
        self.traffic.late_ms.append((self.now_s - due_s) / self._speed * 1000)
        self._pool.request(head, lambda answer: self._on_checkin(number, answer))
        self._report(number, runs)

    def _on_checkin(self, number: int, answer: Answer) -> None:
        self._open_requests -= 1
        if answer.status != 200:
            self._note(f"{device_id(number)}: a check-in was answered with {answer.status} {answer.body[:100]!r}")
            return
        header = answer.header(_TASKS)
        if not header:
            return
        for directive in directives_from_header(header):
            if directive.version == OLD:
                self._go_back(number)
            elif number not in self._pulls and self._have[number] == OLD:
                pull = self._pull(number, directive.url, directive.manifest)
                self._pulls[number] = asyncio.create_task(pull)

    def _go_back(self, number: int) -> None:
        if number in self._pulls:
            self._pulls.pop(number).cancel()
        if self._have[number] == NEW:  # the version before is still there
            now_s = self.now_s
            self._have[number], self._confirms[number] = OLD, False
            self._reported[number] = self._runs(number, now_s)
            self.left_s[number] = now_s

    async def _pull(self, number: int, url: str, manifest: str) -> None:
        await asyncio.sleep(float(self.fleet.pull_s[number]) / self._speed)
        envelope = await self._get(url, manifest)
        if envelope is None:
            del self._pulls[number]
            return
        manifest_bytes = Envelope.from_bytes(envelope).payload
        for digest in dict.fromkeys(entry.sha256 for entry in Manifest.from_bytes(manifest_bytes).files):
            if await self._get(url, digest) is None:
                del self._pulls[number]
                return
        now_s = self.now_s
        self._have[number], self._confirms[number] = NEW, True
        self._reported[number] = self._runs(number, now_s)
        self.installed_s[number] = now_s
        del self._pulls[number]

    async def _get(self, url: str, digest: str) -> bytes | None:
        """Return a file, None where it did not come or is not the one of this name."""
        answer = await self._pool.get(f"GET {url}/{digest} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        self.traffic.pulled_files += 1
        self.traffic.pulled_bytes += len(answer.body)
        if answer.status != 200 or hashlib.sha256(answer.body).hexdigest() != digest:
            self._note(f"a file was answered with {answer.status} and {len(answer.body)} bytes that are not {digest}")
            return None
        return answer.body

    def _report(self, number: int, until: int) -> None:
        """Send the runs up to a number, each once, and that the version is installed."""
        version, first = self._have[number], self._reported[number]
        runs = max(until - first, 0)
        failed = sum(self.fleet.fails(number, run, self._rates[version]) for run in range(first, first + runs))
        release = self._release_id if version == NEW else ""
        named = {"task": NAME, "version": version, "release": release, "error": ""}
        outcomes: list[dict[str, Any]] = []
        if self._confirms[number]:
            outcomes.append({**named, "kind": "installed", "ok": 0, "failed": 0})
        if runs:
            outcomes.append({**named, "kind": "run", "ok": runs - failed, "failed": failed})
        if not outcomes:
            return
        self._confirms[number], self._reported[number] = False, first + runs
        self._batches += 1
        body = json.dumps({"device_id": device_id(number), "batch_id": f"{self._batches}", "outcomes": outcomes})
        head = (
            f"POST /v1/outcomes HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
            f"{DEVICE_HEADER}: {self._sessions[number]}\r\n\r\n{body}"
        )
        self.traffic.reports += 1
        self._open_requests += 1
        self._pool.request(head.encode(), self._on_report)

    def _on_report(self, answer: Answer) -> None:
        self._open_requests -= 1
        if answer.status != 204:
            self._note(f"a report was answered with {answer.status} {answer.body[:100]!r}")

    def _runs(self, number: int, at_s: float) -> int:
        return int(self.fleet.runs_until(np.array([number]), at_s)[0])

    def _note(self, what: str) -> None:
        if len(self.traffic.wrong) < 20:
            self.traffic.wrong.append(what)

    def late_ms(self) -> dict[str, float]:
        """Return how late the requests were sent."""
        cuts = statistics.quantiles(self.traffic.late_ms, n=100)
        return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1)}
