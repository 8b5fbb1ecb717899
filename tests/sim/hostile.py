"""Hostile tasks in a device's VMs: `python -m tests.sim.hostile`, or `--seconds 600` for a soak.

Without options each hostile task runs once on a device's VM host, beside an honest task, and a table says what
contained it (`tests.sim.containment`). With `--seconds` they run again and again in random order in one pool, beside
an honest task whose calls must come back in time and right throughout.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tests.sim import containment
from tests.sim.hostile_tasks import ACCESS, ATTACKS, ESCAPES, HONEST, LIMITS, UNSTOPPABLE
from tests.sim.vm_task import write_task
from walle.engine_ext import _core
from walle.errors import VMError
from walle.vm import HostLost, VmHost, VMPool

DEADLINE_S = 0.25


class Task:
    """A task with limits, in the form that a pool takes."""

    def __init__(self, folder: Path, name: str, limits: dict[str, int]) -> None:
        self.folder = folder
        self.name = name
        self.limits = limits


def tasks_in(folder: Path, attacks: Mapping[str, str] = ATTACKS) -> tuple[list[Task], Task]:
    """Return every hostile task and the honest one."""
    bad = [
        Task(write_task(folder / f"bad{number}", ACCESS + attack), name, LIMITS)
        for number, (name, attack) in enumerate(attacks.items())
    ]
    return bad, Task(write_task(folder / "honest", HONEST), "honest", {})


def memory_mb() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024


async def storm(
    folder: Path, seconds: float, seed: int, vms: int = 3, *, host: VmHost | None = None, only: Collection[str] = ()
) -> dict[str, Any]:
    """Run hostile tasks for `seconds`, and return the outcomes; `only` those named, if any are.

    In a host, UNSTOPPABLE and ESCAPES are among them, and an honest call that was lost with the host is made again.

    Raises:
        AssertionError: an honest call gave something else.
        VMError: an honest call failed.
    """
    bad, honest = tasks_in(folder, ATTACKS if host is None else {**ATTACKS, **UNSTOPPABLE, **ESCAPES})
    bad = [task for task in bad if not only or task.name in only]
    rng = random.Random(seed)
    pool = VMPool(vms, host=host)
    lost = 0
    until = time.monotonic() + seconds
    outcomes: dict[str, dict[str, int]] = {task.name: {} for task in bad}
    latencies_ms: list[float] = []

    async def attack_pool() -> None:
        turn: list[Task] = []
        while time.monotonic() < until or turn:
            if not turn:
                turn = rng.sample(bad, len(bad))
            task = turn.pop()
            try:
                await pool.call(task, "run", deadline=DEADLINE_S)
                outcome = "ok"
            except VMError as error:
                outcome = type(error).__name__
                outcome += f" {error.type_name}" if hasattr(error, "type_name") else ""
                outcome += f" {error.limit}" if hasattr(error, "limit") else ""
            outcomes[task.name][outcome] = outcomes[task.name].get(outcome, 0) + 1

    async def call_honest(number: int) -> Any:
        nonlocal lost
        while True:
            try:
                return json.loads(await pool.call(honest, "run", number))
            except HostLost:
                lost += 1

    async def run_honest() -> None:
        number = 0
        while not attacking.done():
            number += 1
            begin = time.perf_counter()
            found = await call_honest(number)
            latencies_ms.append((time.perf_counter() - begin) * 1e3)
            assert found == {"sum": 3 * number + 3, "len": 2, "is": True}, found
            await asyncio.sleep(0.01)

    attacking = asyncio.gather(attack_pool(), attack_pool())
    await asyncio.gather(attacking, run_honest())
    pool.close()
    latencies_ms.sort()
    return {
        "outcomes": outcomes,
        "hostile_calls": sum(sum(counts.values()) for counts in outcomes.values()),
        "honest_calls": len(latencies_ms),
        "honest_calls_lost": lost,
        "host_restarts": 0 if host is None else host.report().restarts,
        "honest_p50_ms": round(latencies_ms[len(latencies_ms) // 2], 2),
        "honest_max_ms": round(latencies_ms[-1], 1),
        "interpreters": _core.vm_counts(),
        "retired": _core.vm_retired_threads(),
        "abandoned": _core.vm_abandoned_threads(),
        "rss_mb": round(memory_mb(), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0, help="of a soak; without it each task runs once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--host", action="store_true", help="the soak in a VM host, with loops in C and escapes")
    parser.add_argument("--only", default="", help="of the table: tasks whose name has this text")
    options = parser.parse_args()
    if not options.seconds:
        sys.exit(containment.show(options.only))
    host = VmHost() if options.host else None
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(storm(Path(folder), options.seconds, options.seed, host=host))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
