"""Reports of outcomes at a high rate: connections that each send the next report after the answer to the one before.

    python -m loadtest.report_load URL CLOUD_FOLDER RELEASE_ID [--seconds 4] [--connections 512]

The devices are not enrolled; their sessions are signed with the cloud's key. Each report has an installation, at first,
and three runs of the release. It prints JSON: how many were answered, and what else came.
"""

import argparse
import asyncio
import collections
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.fig13.http_pool import Answer, HttpPool
from loadtest.cloud_process import SCENARIO, TASK, VERSION
from loadtest.device_sessions import device_sessions
from walle.cli import event_loop
from walle.protocol import DEVICE_HEADER

_RUNS = 3  # runs in a report
_DEVICES = 2_000


def reports(sessions: list[str], release_id: str) -> Iterator[bytes]:
    """Yield requests, each with another report, by devices in turn."""
    for number in itertools.count():
        device = number % len(sessions)
        named = {"task": f"{SCENARIO}/{TASK}", "version": VERSION, "release": release_id, "error": ""}
        outcomes = [{**named, "kind": "installed", "ok": 0, "failed": 0}] if number < len(sessions) else []
        outcomes.append({**named, "kind": "run", "ok": _RUNS, "failed": 0})
        groups = {"app_version": "10.1", "model": f"P{device % 9}", "os": "15"}
        plain = {"device_id": f"r{device}", "batch_id": f"{number}", "outcomes": outcomes, "groups": groups}
        body = json.dumps(plain).encode()
        head = f"POST /v1/outcomes HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        yield f"{head}{DEVICE_HEADER}: {sessions[device]}\r\n\r\n".encode() + body


async def send(url: str, requests: Iterator[bytes], seconds: float, connections: int) -> collections.Counter[int]:
    """Return the number of answers by status."""
    parts = urlsplit(url)
    pool = HttpPool(parts.hostname or "", parts.port or 80, connections)
    loop = asyncio.get_running_loop()
    found = collections.Counter[int]()
    ends_s = loop.time() + seconds
    done = asyncio.Event()
    left = connections

    def on_answer(answer: Answer) -> None:
        nonlocal left
        found[answer.status] += 1
        if loop.time() < ends_s:
            pool.request(next(requests), on_answer)
        else:
            left -= 1
            if not left:
                done.set()

    for _ in range(connections):
        pool.request(next(requests), on_answer)
    await done.wait()
    pool.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("release_id")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=512)
    options = parser.parse_args()
    sessions = device_sessions(options.folder, [f"r{number}" for number in range(_DEVICES)])
    requests = reports(sessions, options.release_id)
    found = event_loop.run(send(options.url, requests, options.seconds, options.connections))
    answered = found.pop(204, 0)
    sys.stdout.write(json.dumps({"answered": answered, "runs": _RUNS * answered, "others": found}) + "\n")


if __name__ == "__main__":
    main()
