"""Costs of the VM host: its start, calls into it beside calls within one process, and memory of both processes (§4.3).

- start: from nothing to a host that accepts VMs, also without the kernel's layers, and to the first result of a task
  that uses `walle.np`; also after a `kill -9`, from the signal to the next result.
- warm calls without arguments, and of an array of 1 MB that comes back: in this process, in a host, and in a host
  without the kernel's layers. Rounds alternate, so that other load on the machine affects all of them.
- a loop in C in one of four tasks, which costs the host a restart: the longest time between two results of another
  task, which is called again 5 ms after each; and until two idle tasks are loaded in the new host.
- memory of a device's process with ten tasks that use `walle.np`, and of its host: proportional set sizes after a call
  of each task, in a process of its own.

    python benchmarks/vm_host.py [--rounds 20]

`python benchmarks/vm.py` has these figures too.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.headline import print_headline
from walle import np
from walle.engine_ext.vm import host as host_module
from walle.errors import VMError
from walle.pipeline.events.event import Event
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Manifest, TriggerCondition
from walle.task.run.runner import TaskRunner
from walle.vm import VM, HostLost, VmHost, VMPool

TASK = """
import walle.np as np
TOTAL = float(np.sum(np.full(8, 0.5)))
def nothing(): return None
def same(x): return x
"""
LIMITS = {"memory_mb": 32, "log_kb": 64, "output_kb": 2048, "recursion": 1000}
CALLS = 300  # calls of a round
ARRAY_CALLS = 30
STARTS = 10
RESTARTS = 5
TASKS = 10
_DEVICE_TASKS = "--device-tasks"


def middle(values: list[float], digits: int = 1) -> float:
    return round(statistics.median(values), digits)


async def starts(folder: Path) -> dict[str, float]:
    """Return milliseconds of starts of hosts, and of the time without VMs after one was killed."""
    ready_ms, bare_ms, first_ms, again_ms = [], [], [], []
    for _ in range(STARTS):
        with mock.patch.object(host_module, "_readable", list):
            host = VmHost()
            begin = time.perf_counter()
            host.wait_ready()
            bare_ms.append((time.perf_counter() - begin) * 1e3)
        await asyncio.to_thread(host.close)
        host = VmHost()
        begin = time.perf_counter()
        host.wait_ready()
        ready_ms.append((time.perf_counter() - begin) * 1e3)
        await asyncio.to_thread(host.close)
        host = VmHost()
        pool = VMPool(1, host=host)
        begin = time.perf_counter()
        await pool.call(folder, "nothing")
        first_ms.append((time.perf_counter() - begin) * 1e3)
        begin = time.perf_counter()
        killed = host.report().pid
        os.kill(killed, signal.SIGKILL)
        while True:
            with contextlib.suppress(HostLost):  # the task then runs in a process of its own
                await pool.call(folder, "nothing")
                if host.report().pid != killed:
                    break
        again_ms.append((time.perf_counter() - begin) * 1e3)
        pool.close()
        await asyncio.to_thread(host.close)
    return {
        "start_ms_p50": middle(ready_ms),
        "start_ms_max": round(max(ready_ms), 1),
        "start_without_layers_ms_p50": middle(bare_ms),
        "until_first_result_ms_p50": middle(first_ms),
        "killed_until_next_result_ms_p50": middle(again_ms),
        "killed_until_next_result_ms_max": round(max(again_ms), 1),
    }


async def calls(folder: Path, rounds: int) -> dict[str, float]:
    """Return microseconds of warm calls in each place."""
    host, open_host = VmHost(), VmHost()
    host.wait_ready()
    with mock.patch.object(host_module, "_readable", return_value=[]):
        open_host.wait_ready()
    places = {
        "process": VM(folder, limits=LIMITS),
        "host": VM(folder, limits=LIMITS, host=host),
        "host_without_layers": VM(folder, limits=LIMITS, host=open_host),
    }
    array = np.zeros((512, 512), dtype="float32")
    call_us: dict[str, list[float]] = {place: [] for place in places}
    array_us: dict[str, list[float]] = {place: [] for place in places}
    for number in range(rounds):
        for place, vm in list(places.items())[:: 1 if number % 2 == 0 else -1]:
            await vm.call("nothing")
            for _ in range(CALLS):
                begin = time.perf_counter()
                await vm.call("nothing", deadline=0.5)
                call_us[place].append((time.perf_counter() - begin) * 1e6)
            for _ in range(ARRAY_CALLS):
                begin = time.perf_counter()
                await vm.call("same", array, deadline=0.5)
                array_us[place].append((time.perf_counter() - begin) * 1e6)
    found = {}
    for place, times in call_us.items():
        found[f"warm_call_us_p50_{place}"] = middle(times)
        found[f"warm_call_us_p99_{place}"] = round(statistics.quantiles(times, n=100)[98], 1)
        found[f"array_of_1_mb_us_p50_{place}"] = middle(array_us[place])
    for vm in places.values():
        vm.close()
        await vm.wait_closed()
    for one in (host, open_host):
        await asyncio.to_thread(one.close)
    return found


STUCK = """
import itertools
def execute(ctx, trigger): return any(itertools.repeat(0))
"""
EXECUTE = TASK + "def execute(ctx, trigger): return TOTAL\n"


class Runs:
    """A device's task runner with the tasks stuck, called, idle1 and idle2."""

    def __init__(self, folder: Path) -> None:
        self.host = VmHost()
        self.runner = TaskRunner(4, host=self.host)
        self._tasks: dict[str, tuple[Path, Manifest]] = {}
        trigger = TriggerCondition.of(["page_exit"])
        for name in ("called", "idle1", "idle2", "stuck"):
            files = folder / name
            files.mkdir()
            (files / "main.py").write_text(STUCK if name == "stuck" else EXECUTE)
            fields: dict[str, Any] = {"version": "v1", "commit": "", "bytecode": (), "phases": {}, "files": ()}
            manifest = Manifest(scenario="b", task=name, trigger=trigger, limits={"deadline_ms": 250}, **fields)
            self._tasks[name] = files, manifest

    async def load(self) -> None:
        for files, manifest in self._tasks.values():
            await self.runner.load(files, manifest)

    async def run(self, name: str) -> None:
        event = Event("page_exit", "page", 1, {})
        await self.runner.run(*self._tasks[name], Trigger(event, 1, (event,), (event,)), {}, {})

    def loaded(self, name: str) -> bool:
        """Return whether the task has a VM that has loaded it and takes calls."""
        return any(vm.alive and version.owner == f"b/{name}" for vm, version in self.runner._loaded.items())


async def restarts(folder: Path) -> dict[str, float]:
    """Return milliseconds around restarts of a host in which a call cannot be stopped."""
    longest_ms, idle_ms = [], []
    for number in range(RESTARTS):
        (folder / f"r{number}").mkdir()
        runs = Runs(folder / f"r{number}")
        await runs.load()
        stuck = asyncio.create_task(runs.run("stuck"))
        last_s = until_s = time.perf_counter()
        longest_s = retired_s = moved_s = 0.0
        while not moved_s or last_s < until_s:
            await runs.run("called")
            now_s = time.perf_counter()
            if not retired_s and (runs.host.report().restarts or not runs.loaded("idle1")):
                retired_s = last_s  # the last result of the old host
            longest_s = max(longest_s, now_s - last_s)
            last_s = now_s
            if runs.host.report().restarts and not moved_s and runs.loaded("idle1") and runs.loaded("idle2"):
                moved_s, until_s = now_s, now_s + 0.5
            await asyncio.sleep(0.005)
        with contextlib.suppress(VMError):
            await stuck
        longest_ms.append(longest_s * 1e3)
        idle_ms.append((moved_s - retired_s) * 1e3)
        await runs.runner.close()
        await asyncio.to_thread(runs.host.close)
    return {
        "stuck_longest_between_results_ms_p50": middle(longest_ms),
        "stuck_longest_between_results_ms_max": round(max(longest_ms), 1),
        "stuck_until_idle_tasks_are_loaded_ms_p50": middle(idle_ms),
    }


def proportional_mb(pid: int | str) -> float:
    """Return a process's memory, with its share of what it shares; 0 where the system does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def device_tasks(folder: Path) -> dict[str, float]:
    """Return the memory of this process, which has imported what a device does, and of its host, with ten tasks."""
    import walle.device  # noqa: F401 -- part of what is measured

    folders = []
    for number in range(TASKS):
        one = folder / f"t{number}"
        one.mkdir()
        (one / "main.py").write_text(TASK)
        folders.append(one)
    host = VmHost()
    pool = VMPool(TASKS, host=host)
    for one in folders:
        await pool.call(one, "nothing")
    found = {"device": proportional_mb("self"), "host": proportional_mb(host.report().pid)}
    pool.close()
    host.close()
    return found


def measure(rounds: int) -> dict[str, Any]:
    """Return all figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.py").write_text(TASK)
        found = {**asyncio.run(starts(folder)), **asyncio.run(restarts(folder)), **asyncio.run(calls(folder, rounds))}
    done = subprocess.run([sys.executable, __file__, _DEVICE_TASKS], capture_output=True, text=True, check=True)
    memory = json.loads(done.stdout)
    found |= {f"mb_with_{TASKS}_tasks_{part}": round(mb, 1) for part, mb in memory.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(_DEVICE_TASKS, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device_tasks:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(device_tasks(Path(folder)))))
        return
    found = measure(options.rounds)
    for key, value in found.items():
        print(f"{key:44s}{value}")
    print_headline(
        "warm call of a task in the VM host, median",
        unit="µs",
        better="lower",
        ours=found["warm_call_us_p50_host"],
        peers={"VM in the app's process": found["warm_call_us_p50_process"]},
    )


if __name__ == "__main__":
    main()
