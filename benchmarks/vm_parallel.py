"""Two tasks at once: on two VMs with a GIL each, and on two threads under one GIL (§4.3, Fig. 11).

Each round times the same pure-Python work twice at once, first one way and then the other, so that what else the
machine does falls on both; the ratio is the median of the rounds' ratios. The GIL's side runs in the main interpreter,
from the same source. Also: how long a VM takes to start, and a warm call from asyncio.

    python benchmarks/vm_parallel.py [--rounds 9] [--json]
"""

import argparse
import asyncio
import concurrent.futures
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from walle.vm import VM

WORK = """
def work(rounds):
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total

def nothing():
    return None
"""
STEPS = 1_000_000
CALLS = 5_000


def private_mb() -> float:
    """Return the process's own memory in MB, 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


async def measure(folder: Path, rounds: int) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(WORK, "work", "exec"), namespace)
    work = namespace["work"]
    create_ms, create_mb = [], []
    vms = []
    for _ in range(6):
        before = private_mb()
        vm = VM(folder)
        await vm.call("nothing")
        create_ms.append(vm.create_ms)
        create_mb.append(private_mb() - before)
        vms.append(vm)
    for vm in vms[2:]:
        vm.close()
    one, other = vms[:2]
    ratios, vm_s, gil_s, warm_us = [], [], [], []
    loop = asyncio.get_running_loop()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for _ in range(rounds):
            start = time.perf_counter()
            a, b = await asyncio.gather(one.call("work", STEPS), other.call("work", STEPS))
            vm_s.append(time.perf_counter() - start)
            start = time.perf_counter()
            c, d = await asyncio.gather(*[loop.run_in_executor(threads, work, STEPS) for _ in range(2)])
            gil_s.append(time.perf_counter() - start)
            assert a == b == c == d
            ratios.append(gil_s[-1] / vm_s[-1])
    for _ in range(CALLS):
        start = time.perf_counter()
        await one.call("nothing")
        warm_us.append((time.perf_counter() - start) * 1e6)
    one.close()
    other.close()
    percentiles = statistics.quantiles(warm_us, n=100)
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "rounds": rounds,
        "two_vms_ms": statistics.median(vm_s) * 1000,
        "two_threads_one_gil_ms": statistics.median(gil_s) * 1000,
        "ratio": statistics.median(ratios),
        "warm_call_p50_us": percentiles[49],
        "warm_call_p99_us": percentiles[98],
        "create_ms": statistics.median(create_ms),
        "create_mb": statistics.median(create_mb[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "main.py").write_text(WORK)
        result = asyncio.run(measure(Path(folder), options.rounds))
    if options.json:
        print(json.dumps(result))
        return
    print(f"Python {result['python']}, {result['cores']} cores, {result['rounds']} rounds, medians")
    print(f"two VMs at once                {result['two_vms_ms']:8.1f} ms")
    print(f"two threads under one GIL      {result['two_threads_one_gil_ms']:8.1f} ms")
    print(f"ratio                          {result['ratio']:8.2f}   (+{(result['ratio'] - 1) * 100:.0f} %)")
    print(f"warm call from asyncio, p50    {result['warm_call_p50_us']:8.1f} µs")
    print(f"warm call from asyncio, p99    {result['warm_call_p99_us']:8.1f} µs")
    print(f"VM start                       {result['create_ms']:8.1f} ms")
    print(f"VM memory                      {result['create_mb']:8.1f} MB")


if __name__ == "__main__":
    main()
