"""Capacity of one gateway process: requests a second of its CPU time, by kind, and its memory by devices.

    python benchmarks/capacity.py [--seconds 2] [--rounds 3] [--json]

A `walle cloud up` process is kept busy by connections of this process, each of which sends its next request after the
answer to the one before. CPU time is the cloud's whole process: gateway, monitor and release node. Kinds:

- business: a request of the app's own, hello, with an unchanged profile of a device that is up to date; each of many
  devices in turn
- business, new version: the same, by devices that are behind: the answer has a directive
- check-in: a heartbeat, POST /v1/checkin, where the app has no request of its own
- report: a batch of outcomes, POST /v1/outcomes, of a release that is judged
- pull: a shared file of 1 MB, GET /cdn
- push: git push of a version with a model of 1 MB, from the command to its end, compiled and stored
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.fig13.http_pool import Answer, HttpPool  # noqa: E402  # the path must be set first
from benchmarks.headline import print_headline  # noqa: E402
from loadtest.cloud_process import SCENARIO, CloudProcess  # noqa: E402
from loadtest.device_sessions import device_sessions  # noqa: E402
from walle.cli import event_loop  # noqa: E402
from walle.protocol import (  # noqa: E402
    DEVICE_HEADER,
    PROFILE_HEADER,
    Envelope,
    Manifest,
    Profile,
    directives_from_header,
)

_TASK = "ipv"
_CONNECTIONS = 32
_DEVICES = 2_000
_MODEL_BYTES = 1_000_000
_APP = "benchmarks.gateway_push:make_hello"
_MODEL = "resources/model.bin"
_TASK_TOML = f'[task]\nname = "{_TASK}"\n[trigger]\nsequence = ["page_exit"]\n[files]\n"{_MODEL}" = "shared"\n'


def version_files(number: int) -> dict[str, bytes]:
    model = np.random.default_rng(number).bytes(_MODEL_BYTES)
    code = f"def execute(ctx, x):\n    return {number}\n"
    return {"task.toml": _TASK_TOML.encode(), "main.py": code.encode(), _MODEL: model}


class Requests:
    """Endless requests of each kind, by devices in turn."""

    def __init__(self, cloud: CloudProcess, release_id: str) -> None:
        self._release_id = release_id
        self._sessions = device_sessions(cloud.folder, (f"c{number}" for number in range(_DEVICES)))

    def business(self, version: str) -> Iterator[bytes]:
        return itertools.cycle([self._with_profile("GET /hello", number, version) for number in range(_DEVICES)])

    def check_in(self, version: str) -> Iterator[bytes]:
        return itertools.cycle([self._with_profile("POST /v1/checkin", number, version) for number in range(_DEVICES)])

    def _with_profile(self, line: str, number: int, version: str) -> bytes:
        profile = Profile(f"c{number}", "10.1", {"model": "P9", "os": "15"}, {f"{SCENARIO}/{_TASK}": version})
        length = "content-length: 0\r\n" if line.startswith("POST") else ""
        headers = f"{DEVICE_HEADER}: {self._sessions[number]}\r\n{PROFILE_HEADER}: {profile.to_header()}\r\n"
        return f"{line} HTTP/1.1\r\nhost: x\r\n{length}{headers}\r\n".encode()

    def reports(self) -> Iterator[bytes]:
        for batch in itertools.count():
            number = batch % _DEVICES
            named = {"task": f"{SCENARIO}/{_TASK}", "version": "v2", "release": self._release_id, "error": ""}
            outcomes = [{**named, "kind": "installed", "ok": 0, "failed": 0}] if batch < _DEVICES else []
            outcomes.append({**named, "kind": "run", "ok": 3, "failed": 0})
            groups = {"app_version": "10.1", "model": f"P{number % 9}", "os": "15"}
            plain = {"device_id": f"c{number}", "batch_id": f"{batch}", "outcomes": outcomes, "groups": groups}
            body = json.dumps(plain).encode()
            head = f"POST /v1/outcomes HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
            yield f"{head}{DEVICE_HEADER}: {self._sessions[number]}\r\n\r\n".encode() + body


async def saturate(cloud: CloudProcess, requests: Iterator[bytes], status: int, seconds: float) -> tuple[float, float]:
    """Return requests a second of the cloud's CPU time, and of real time. Raises SystemExit on another status."""
    pool = HttpPool(*cloud.address, _CONNECTIONS)
    loop = asyncio.get_running_loop()
    count, wrong = 0, ""
    ends_s = loop.time() + 0.3 + seconds
    done = asyncio.Event()
    under_way = _CONNECTIONS

    def on_answer(answer: Answer) -> None:
        nonlocal count, wrong, under_way
        count += 1
        if answer.status != status:
            wrong = f"answered with {answer.status}, not {status}: {answer.body[:200]!r}"
        if wrong or loop.time() > ends_s:
            under_way -= 1
            if not under_way:
                done.set()
        else:
            pool.request(next(requests), on_answer)

    for _ in range(_CONNECTIONS):
        pool.request(next(requests), on_answer)
    await asyncio.sleep(0.3)
    before, before_s, cpu_s = count, loop.time(), cloud.cpu_s()
    await asyncio.sleep(seconds)
    spent_s, taken_s, made = cloud.cpu_s() - cpu_s, loop.time() - before_s, count - before
    await done.wait()
    pool.close()
    if wrong:
        sys.exit(wrong)
    return made / spent_s, made / taken_s


def measure(seconds: float, rounds: int, folder: Path) -> dict[str, Any]:
    """Return the medians of each kind, and the memory before and after _DEVICES devices were heard of."""
    rates: dict[str, list[tuple[float, float]]] = {}
    with CloudProcess.start(folder, f"--business-app={_APP}") as cloud:
        pushes = [cloud.push(_TASK, f"v{number}", version_files(number)) for number in range(1, 4)]
        full = cloud.start_release(_TASK, "v1", beta=0, steps=[1.0])
        cloud.wait_release(full, ["gray 1.0"])
        small_mib = cloud.resident_mib()
        requests = Requests(cloud, full)
        report = requests.reports()
        kinds: dict[str, tuple[Callable[[], Iterator[bytes]], int]] = {
            "business": (lambda: requests.business("v1"), 200),
            "business, new version": (lambda: requests.business(""), 200),
            "check-in": (lambda: requests.check_in("v1"), 204),
            "report": (lambda: report, 204),
            "pull": (lambda: itertools.repeat(file_request), 200),
        }
        file_request = event_loop.run(_file_request(cloud, requests))
        for _ in range(rounds):
            for kind, (make, status) in kinds.items():
                found = event_loop.run(saturate(cloud, make(), status, seconds))
                rates.setdefault(kind, []).append(found)
        large_mib = cloud.resident_mib()
        cloud.stop()
    return {
        "per_cpu_s": {kind: round(statistics.median(one for one, _ in found)) for kind, found in rates.items()},
        "per_s": {kind: round(statistics.median(one for _, one in found)) for kind, found in rates.items()},
        "pull_mb": _MODEL_BYTES / 1e6,
        "push_s": round(statistics.median(pushes), 2),
        "resident_mib": [round(small_mib), round(large_mib)],
        "devices": _DEVICES,
    }


async def _file_request(cloud: CloudProcess, requests: Requests) -> bytes:
    """Return a request for the model of the version under release."""
    pool = HttpPool(*cloud.address, 1)
    answer = await pool.get(next(requests.business("")))
    (directive,) = directives_from_header(answer.header(b"x-walle-tasks"))
    envelope = await pool.get(f"GET {directive.url}/{directive.manifest} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    pool.close()
    manifest = Manifest.from_bytes(Envelope.from_bytes(envelope.body).payload)
    (model,) = (entry for entry in manifest.files if entry.size_bytes == _MODEL_BYTES)
    return f"GET {directive.url}/{model.sha256} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each kind in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.seconds, options.rounds, Path(folder) / "cloud")
    if options.json:
        print(json.dumps(found))
        return
    for kind, rate in found["per_cpu_s"].items():
        each = f" ({rate * found['pull_mb']:,.0f} MB/s)" if kind == "pull" else ""
        print(f"{kind:24s}{rate:10,d} a second of CPU time{each}; {found['per_s'][kind]:,d} a second as it was loaded")
    print(f"git push of a version with {found['pull_mb']:g} MB: {found['push_s']} s")
    before, after = found["resident_mib"]
    print(f"resident memory: {before} MiB, {after} MiB after {found['devices']:,d} devices and this load")
    what = "business requests with a profile in a second of a whole cloud's CPU time"
    print_headline(what, unit="a second", better="higher", ours=found["per_cpu_s"]["business"])


if __name__ == "__main__":
    main()
