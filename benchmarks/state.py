"""Rates of a cloud's state in files and in PostgreSQL: transitions, reports of devices, enrolments and revocations.

`python benchmarks/state.py --database postgresql://USER@HOST/EMPTY` measures both on this machine, `--seconds` each.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.headline import print_headline
from walle.base.clock import SystemClock
from walle.cloud import CloudHome
from walle.cloud.folder.state import NodeState, node_state
from walle.deploy.releases.journal import Journal
from walle.deploy.releases.release import Effect, Pause, Release
from walle.deploy.releases.request import ReleaseRequest
from walle.protocol import Outcome, OutcomeBatch, OutcomeKind, Profile
from walle.store.lease import MONITOR, RELEASES

WRITERS = 8  # releases that change at once
DEVICES = 50_000
THREADS = 4  # threads of an identity node
BATCH = 2_000  # devices that are heard of between two writes of the registry
CLOCK = SystemClock()


@asynccontextmanager
async def opened(folder: Path, database: str, lease: str) -> AsyncIterator[NodeState]:
    async with node_state(CloudHome(folder, database=database), lease, CLOCK) as state:
        yield state


async def transitions_s(journal: Journal, seconds: float, writers: int) -> float:
    """Return the transitions per second, each with one effect that is deleted afterwards."""
    until_s, count = time.perf_counter() + seconds, 0

    async def change(number: int) -> None:
        nonlocal count
        request = ReleaseRequest(scenario="shop", task=f"t{number}", version="v1")
        release = Release(id=f"r{number}", number=number, request=request, created_s=1.0, updated_s=1.0)
        while time.perf_counter() < until_s:
            (pending,) = await journal.record(release, Pause(1.0), (Effect.PUBLISH,))
            await journal.strike(pending)
            release = dataclasses.replace(release, revision=release.revision + 1)
            count += 1

    first = await journal.draw("release", writers)
    await asyncio.gather(*(change(first + number) for number in range(writers)))
    return count / seconds


async def devices_s(state: NodeState, seconds: float) -> float:
    """Return the devices per second, each of which sends a new profile and a report of one task."""
    began_s, count = time.perf_counter(), 0
    async with state.registry(CLOCK, flush_s=1e9) as registry:
        while time.perf_counter() - began_s < seconds:
            for number in range(count, count + BATCH):
                device_id = f"device-{number % DEVICES:06}"
                profile = Profile(device_id, f"10.{count}", {"os": "linux", "ram": 4}, {"shop/ipv": "v1"})
                registry.note({device_id: profile.to_header().encode()})
                run = Outcome(task="shop/ipv", version="v1", release="r1", kind=OutcomeKind.RUN, ok=3, failed=0)
                registry.take(OutcomeBatch(device_id, f"b{number}", (run,)))
            await registry.flush()
            count += BATCH
        seen = time.perf_counter() - began_s
        assert registry.unlisted == 0
    return count / seen


class Rate(NamedTuple):
    """Runs of a work in a second and in all, and the CPU time of this process for each, in milliseconds."""

    each_s: float
    runs: int
    cpu_ms: float


def rate(seconds: float, threads: int, most: int, work: Callable[[int], object]) -> Rate:
    """Return the rate of `work` on `threads` at once, which runs with each number once.

    It ends after `seconds`, or `most` numbers.
    """
    numbers, began_s, cpu_s = itertools.count(), time.perf_counter(), time.process_time()

    def one(_: int) -> int:
        count = 0
        while time.perf_counter() - began_s < seconds and (number := next(numbers)) < most:
            work(number)
            count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(one, range(threads)))
    return Rate(done / (time.perf_counter() - began_s), done, 1000 * (time.process_time() - cpu_s) / done)


def identities_s(home: CloudHome, seconds: float) -> list[Rate]:
    """Return enrolments and revocations, each of a device of its own: both by one, and both by THREADS at once."""
    store, key = home.identities(), os.urandom(91)  # the key has the size of one of P-256
    found = []
    for threads in (1, THREADS):
        token = store.make_token(uses=100_000, life_s=86_400.0)  # one token, as an image of a fleet has it

        def enrol(number: int, threads: int = threads, token: str = token) -> None:
            store.certify(f"device-{threads}-{number:06}", key, token, expires_s=CLOCK.time() + 86_400.0)

        def revoke(number: int, threads: int = threads) -> None:
            store.revoke(f"device-{threads}-{number:06}", "stolen")

        enrolled = rate(seconds, threads, 100_000, enrol)
        found += [enrolled, rate(seconds, threads, enrolled.runs, revoke)]
    return found


async def measure(folder: Path, database: str, seconds: float) -> tuple[float, float, float]:
    async with opened(folder, database, RELEASES) as state:
        one = await transitions_s(state.journal, seconds, 1)
        several = await transitions_s(state.journal, seconds, WRITERS)
    async with opened(folder, database, MONITOR) as state:
        return one, several, await devices_s(state, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", default="", help="URL of an empty PostgreSQL database; none: files only")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"{'state in':12} {'transitions/s':>14} {f'by {WRITERS} at once':>14} {'devices/s':>10}")
    places = {"files": ""} | ({"PostgreSQL": options.database} if options.database else {})
    identities = []
    transitions: dict[str, float | str] = {"PostgreSQL": "not measured: give --database"}
    for name, database in places.items():
        with tempfile.TemporaryDirectory() as folder:
            one, several, devices = asyncio.run(measure(Path(folder), database, options.seconds))
            transitions[name] = one
            print(f"{name:12} {one:14.0f} {several:14.0f} {devices:10.0f}", flush=True)
            with contextlib.closing(CloudHome(Path(folder), database=database)) as home:
                identities.append((name, identities_s(home, options.seconds)))
    more, cpu = f"by {THREADS} at once", "CPU ms"
    print(f"{'state in':12} {'enrolments/s':>14} {cpu:>8} {more:>14} {'revocations/s':>14} {cpu:>8} {more:>14}")
    for name, (enrolled, revoked, enrolled_more, revoked_more) in identities:
        of_enrolments = f"{enrolled.each_s:14.0f} {enrolled.cpu_ms:8.2f} {enrolled_more.each_s:14.0f}"
        of_revocations = f"{revoked.each_s:14.0f} {revoked.cpu_ms:8.2f} {revoked_more.each_s:14.0f}"
        print(f"{name:12} {of_enrolments} {of_revocations}")
    ours = float(transitions.pop("files"))
    what = "transitions of a release in a second, one after the other, state in files"
    print_headline(what, unit="a second", better="higher", ours=ours, peers=transitions)


if __name__ == "__main__":
    main()
