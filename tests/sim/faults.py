"""Fault campaign of the pipeline: kills, cuts, rollbacks, truncated logs, full disks and flipped bits, at random.

Real processes, files and sockets. Each feature is in the cloud exactly once at the end, or a report of either side
names it, and both sides go on after every fault. A seed repeats the faults in kind, order and size; the processes'
speed is their own, so that a fault may hit another moment.

    python -m tests.sim.faults [--faults 2000] [--seed 1] [--at-once 2] [--json]

One in three worlds is gentle: no file goes back in time or is damaged there, and nothing may be lost or reported.
Exits with 1 if any feature is lost or repeated silently, a side does not go on, or a process ends by itself. The
folders of such worlds are kept. Where the cloud says that its file is damaged, an operator puts the latest copy back.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.fault_disk import enter_mount_namespace
from tests.sim.fault_world import WorldResult, run_world

_FAULTS_PER_WORLD = 30


async def run_worlds(
    folder: Path, faults: int, seed: int, *, at_once: int, can_mount: bool, progress: bool
) -> list[WorldResult]:
    """Return the results of as many worlds as make up the number of faults."""
    authority = folder / "authority"
    TunnelAuthority(authority)
    turns = asyncio.Semaphore(at_once)
    results: list[WorldResult] = []

    async def run(number: int, count: int) -> None:
        async with turns:
            gentle = number % 3 == 0
            where = folder / f"world-{seed}-{number}"
            result = await run_world(
                where, authority, seed * 1_000_003 + number, count, gentle=gentle, can_mount=can_mount
            )
            results.append(result)
            if progress:
                done = sum(one.faults.total() for one in results)
                wrong = "" if result.is_right else f"; world {number} is wrong: {where}"
                sys.stderr.write(f"{done} of {faults} faults{wrong}\n")

    counts = [min(_FAULTS_PER_WORLD, faults - first) for first in range(0, faults, _FAULTS_PER_WORLD)]
    await asyncio.gather(*(run(number, count) for number, count in enumerate(counts)))
    return results


def total(results: list[WorldResult]) -> dict[str, Any]:
    """Return the sums over all worlds."""
    faults = collections.Counter[str]()
    for result in results:
        faults += result.faults
    names = ("made", "once", "lost_named", "twice_named", "reports", "operator_restores")
    return {
        "worlds": len(results),
        "gentle_worlds": sum(result.gentle for result in results),
        "faults": dict(sorted(faults.items())),
        "faults_total": faults.total(),
        **{name: sum(getattr(result, name) for result in results) for name in names},
        "silent": {result.seed: [len(result.silent), *result.silent[:3]] for result in results if result.silent},
        "stuck": {result.seed: result.stuck for result in results if result.stuck},
        "own_ends": {result.seed: result.own_ends for result in results if result.own_ends},
        "alarms_in_gentle_worlds": sum(result.reports for result in results if result.gentle),
        "wrong_worlds": sum(not result.is_right for result in results),
    }


def table(found: dict[str, Any]) -> str:
    width = max(map(len, found["faults"]))
    lines = [f"{kind:{width}s}{count:8d}" for kind, count in found["faults"].items()]
    lines += [f"{'faults':{width}s}{found['faults_total']:8d}"]
    lines += [f"{name}: {found[name]}" for name in found if not name.startswith("faults")]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="worlds at the same time (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    can_mount = enter_mount_namespace()
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="walle-faults-"))
    work = run_worlds(
        folder,
        options.faults,
        options.seed,
        at_once=options.at_once,
        can_mount=can_mount,
        progress=not options.json,
    )
    found = total(asyncio.run(work))
    found["full_disks_by"] = "ENOSPC of a tmpfs" if can_mount else "RLIMIT_FSIZE"
    found["seed"] = options.seed
    found["seconds"] = round(time.monotonic() - began_s)
    if not found["wrong_worlds"]:
        shutil.rmtree(folder / "authority")
        with contextlib.suppress(OSError):
            folder.rmdir()
    sys.stdout.write((json.dumps(found) if options.json else table(found)) + "\n")
    sys.exit(bool(found["wrong_worlds"]))


if __name__ == "__main__":
    main()
