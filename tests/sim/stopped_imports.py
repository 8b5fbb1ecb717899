"""Library imports of task code that are stopped at random moments: `python -m tests.sim.stopped_imports --times 2000`.

Each round takes a new interpreter, in which nothing is loaded yet, and has a task use every library module and every
part of `walle.np` and `walle.cv` in random order. Each first use is stopped at a random moment: its call is cancelled
or has a short deadline, or it begins near the task's memory or recursion limit. The same use must then work in the same
VM, and, once the VM has ended, all of them in the interpreter's next one.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.sim.vm_task import in_fresh_interpreter, in_interpreter, write_task
from walle.engine_ext import _core, cv, np
from walle.engine_ext.vm.imports import ALLOWED_IMPORTS
from walle.errors import VMError
from walle.vm import VM, DeadlineExceeded, LimitExceeded, TaskError

CAUSES = ("cancel", "deadline", "memory", "recursion")
_LIMITS: Mapping[str, dict[str, int]] = {"memory": {"memory_mb": 16}, "recursion": {"recursion": 300}}
_LONGEST_S = 0.01  # longest delay before a stop; most imports take less
_STOPS = 4  # stops of one use, in succession
_USES = 24  # uses in one round: what comes later is loaded already
_PARTS = {
    **{f"np.{part}": names.split() for part, names in np._MODULES.items()},
    **{f"np.{part}": [f"{part}.__name__"] for part in np._SUBMODULES},
    **{f"cv.{part}": list(names) for part, names in cv._PARTS.items()},
    "cv.constants": ["COLOR_BGR2GRAY", "INTER_LINEAR"],
}
# Functions of the library that import others when they are called.
_INDIRECT = {
    "functools.singledispatch": "import functools\n    return functools.singledispatch(len).registry[object] is len",
    "datetime.strptime": "import datetime\n    return str(datetime.datetime.strptime('2020', '%Y'))",
    "typing.runtime_checkable": "import typing\n    return isinstance(3, typing.SupportsInt)",
}

_MAIN = """
kept = []

def deep(depth, name):
    return deep(depth - 1, name) if depth else globals_[name]()

def fill(kb, name):
    kept.append([bytes(1 << 10) for _ in range(kb)])
    try:
        return globals_[name]()
    finally:
        kept.clear()
"""


def uses() -> dict[str, str]:
    """Return a function body for each library module and part, which returns what was loaded as text."""
    found = {
        name: f"import {name} as it\n    return [item for item in dir(it) if type(getattr(it, item)) is not type(it)]"
        for name in sorted(ALLOWED_IMPORTS)
        if not name.startswith("walle.")
    }
    for part, names in _PARTS.items():
        module = part.partition(".")[0]
        got = ", ".join(f"str({module}.{name})[:9]" for name in names)
        found[f"walle.{part}"] = f"import walle.{module} as {module}\n    return [{got}]"
    return {**found, **_INDIRECT}


def write_uses(folder: Path) -> Path:
    """Write the task: one function for each use, `use_N`."""
    functions = [f"def use_{number}():\n    {body}\n" for number, body in enumerate(uses().values())]
    table = "globals_ = {" + ", ".join(f"'use_{number}': use_{number}" for number in range(len(functions))) + "}\n"
    return write_task(folder, "\n".join([*functions, table, _MAIN]))


async def _stop(vm: VM, cause: str, function: str, rng: random.Random) -> bool:
    """Begin the use, stopped at a random moment for the given cause; return whether it was stopped."""
    delay_s = rng.uniform(0, _LONGEST_S) ** 2 / _LONGEST_S  # short ones are more frequent, as short imports are
    if cause == "cancel":
        call = asyncio.ensure_future(vm.call(function))
        await asyncio.sleep(delay_s)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        return call.cancelled()
    try:
        if cause == "deadline":
            await vm.call(function, deadline=delay_s)
        elif cause == "memory":
            await vm.call("fill", rng.randrange(8 << 10, 15 << 10), function)
        else:
            await vm.call("deep", rng.randrange(270, 320), function)
    except (DeadlineExceeded, LimitExceeded):
        return True
    return False


async def stop_imports(folder: Path, cause: str, seed: int, reference: Mapping[str, Any]) -> dict[str, Any]:
    """Run one round; return the number of uses and of stopped ones, and what was wrong afterwards.

    `reference` is what the functions return where nothing is stopped, see `whole_imports`.
    """
    rng = random.Random(seed)
    functions = rng.sample(sorted(reference), _USES)
    discarded = _core.vm_counts()["discarded"]
    wrong: list[str] = []
    attempts = stopped = 0
    limits = _LIMITS.get(cause, {})
    async with in_fresh_interpreter(folder, limits=limits) as vm:
        for function in functions:
            for _ in range(_STOPS):
                attempts += 1
                try:
                    was_stopped = await _stop(vm, cause, function, rng)
                except TaskError as error:  # a stop before this one spoiled it
                    wrong.append(f"seed {seed}, {cause}: {function} raised {str(error)[:300]}")
                    break
                stopped += was_stopped
                if not was_stopped:
                    break
            if rng.random() < 0.5:  # otherwise the next stop follows
                wrong += await _compare(vm, [function], reference, f"seed {seed}, {cause}: the same use in the same VM")
        vm.close()
        assert await vm.wait_closed(60)
        counts = _core.vm_counts()
        if counts["discarded"] != discarded:
            wrong.append(f"seed {seed}, {cause}: the interpreter was discarded: {counts['discard_reason']}")
        async with in_interpreter(folder) as next_vm:  # the same interpreter: the others are in use
            wrong += await _compare(next_vm, functions, reference, f"seed {seed}, {cause}: the next VM")
    return {"attempts": attempts, "stopped": stopped, "wrong": wrong}


async def _compare(vm: VM, functions: list[str], reference: Mapping[str, Any], where: str) -> list[str]:
    wrong = []
    for function in functions:
        try:
            found = await vm.call(function, deadline=60)
        except VMError as error:
            wrong.append(f"{where}: {function} raised {str(error)[:300]}")
        else:
            if found != reference[function]:
                wrong.append(f"{where}: {function} returned {found}, not {reference[function]}")
    return wrong


async def whole_imports(folder: Path) -> dict[str, Any]:
    """Return what each function of the task returns where nothing is stopped; all run in one new interpreter."""
    async with in_fresh_interpreter(folder) as vm:
        names = [f"use_{number}" for number in range(len(uses()))]
        for name in names:
            await vm.call(name)
        return {name: await vm.call(name) for name in names}


async def campaign(folder: Path, times: int, seed: int) -> dict[str, Any]:
    """Stop at least `times` first uses, and return the counts and everything that was wrong."""
    write_uses(folder)
    reference = await whole_imports(folder)
    stops: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    wrong: list[str] = []
    began = time.monotonic()
    while attempts.total() < times:
        cause = CAUSES[seed % len(CAUSES)]
        found = await stop_imports(folder, cause, seed, reference)
        stops[cause] += found["stopped"]
        attempts[cause] += found["attempts"]
        wrong += found["wrong"]
        seed += 1
    took_s = round(time.monotonic() - began, 1)
    return {"attempts": dict(attempts), "stopped": dict(stops), "seconds": took_s, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2_000, help="first uses that are to be stopped")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(campaign(Path(folder), options.times, options.seed))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    if found["wrong"]:
        sys.exit(f"{len(found['wrong'])} uses of a library were wrong after one was stopped")


if __name__ == "__main__":
    main()
