"""Task loads and unloads in one process, whose memory must not grow: `python -m tests.sim.vm_cycles --times 10000`."""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.sim.hostile import memory_mb
from tests.sim.vm_task import write_task
from walle.engine_ext import _core
from walle.vm import VM

MAIN = """
import collections, dataclasses, datetime, decimal, enum, json, random, re, typing
import walle.np as np

@dataclasses.dataclass
class Feature:
    name: str
    kept: typing.List[int]

class Kind(enum.Flag):
    one = 1
    other = 2

class Table(collections.UserDict):
    pass

cycle = Table(kept=[bytes(1000) for _ in range(500)])
cycle["me"] = cycle

def run(number):
    decimal.getcontext().prec = 9
    found = re.compile(f"a{number}b+").search(json.dumps({"x": [random.random(), f"a{number}bb"]}))
    return [repr(Feature(found.group(), [1])), float(np.sum(np.ones((8, 8)))), str(datetime.timedelta(number))]
"""
WARM_UP = 200


async def cycles(folder: Path, times: int) -> dict[str, Any]:
    """Return the memory after a warm-up and at the end, in MB, and the counts of interpreters."""
    task = write_task(folder, MAIN)
    before_mb = 0.0
    for number in range(WARM_UP + times):
        if number == WARM_UP:
            before_mb = memory_mb()
        vm = VM(task)
        assert (await vm.call("run", number))[1] == 64
        vm.close()
        assert await vm.wait_closed(60)
    return {"before_mb": before_mb, "after_mb": memory_mb(), "interpreters": _core.vm_counts()}


class Actor:
    """Loads and unloads of tasks inside a Ray actor."""

    def run(self, times: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(cycles(Path(folder), times))


def in_an_actor(times: int) -> dict[str, Any]:
    """Return what `cycles` does in a Ray actor, which then terminates as actors do."""
    import ray

    from walle.actors.wiring import close_ray, start_ray

    start_ray(import_root=Path(__file__).parents[2])
    try:
        actor: Any = ray.remote(Actor).remote()
        found = ray.get(actor.run.remote(times))
        gone = actor.__ray_terminate__.remote()
        ray.wait([gone], timeout=30)
        return found  # type: ignore[no-any-return]
    finally:
        close_ray()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--growth", type=float, default=1.05, help="most growth of memory; inf: under a sanitizer")
    parser.add_argument("--ray", action="store_true", help="in a Ray actor")
    options = parser.parse_args()
    found = in_an_actor(options.times) if options.ray else Actor().run(options.times)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    assert found["after_mb"] < found["before_mb"] * options.growth, f"memory grew by more than {options.growth:g} times"


if __name__ == "__main__":
    main()
