"""Fig. 11: light, middle and heavy tasks on thread-level VMs, on threads under one GIL, and on processes (§4.3, §7.2).

The three tasks run from the same source everywhere. As on a device, one event loop starts them and receives their
results, whatever runs them: VMs, threads of its own interpreter (an executor's, which is how a program without VMs
would do it), or processes behind pipes. One to four tasks at once are that many callers in the loop, each making one
call after another:

- light: the features of one page visit from its events (counts, dwell times, a dict of dicts). Python objects only, a
  tenth of a millisecond or so: what most triggers of the pipeline cost.
- middle: a JSON record of a hundred items is parsed, its numbers become arrays, are normalised and ranked with
  `walle.np`, and the best are returned as JSON: Python and engine alternate, as before and after a model.
- heavy: a 3-layer network on 64 candidates by `walle.np`, then a sampled re-ranking loop in Python: milliseconds,
  mostly arithmetic, as a recommendation model with its post-processing.

Rounds of the ways alternate, so that other load on the machine affects all of them. A task's performance is, as in
the paper, the reciprocal of the time from its call to its result; its gain is that of VMs over that of threads under
the GIL, the median of the rounds. A harder comparison, which the paper does not have, is reported too: threads under
the GIL without calls or results, each running the task in a loop ("bare"). Processes pay for memory with a whole
interpreter each. VMs have the default limits of a task, and calls the default deadline.

VMs run in this process and, as on a device, in a VM host (`benchmarks/vm_host.py` has the costs of one).

Also: the time to create a VM, and from there to the first result of a small task that uses `walle.np`
("until_first_result": in a new interpreter; "after_reset": in one that such a task has used, the reset included); the
memory of a VM as it starts, with a task that uses `walle.np`, and with one that also uses `json`; and a warm call from
asyncio and from C++ (by a caller that spins for the result for 30 µs before it blocks, as a VM does for calls). No
interpreter may be discarded meanwhile.

    python benchmarks/vm.py [--rounds 5] [--seconds 0.4] [--workers 1,2,3,4] [--out out] [--json]
"""

import argparse
import asyncio
import concurrent.futures
import html
import importlib.util
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import vm_host
from benchmarks.headline import print_headline
from walle.engine_ext import _core
from walle.vm import VM, VmHost

TASKS = """
import walle.np as np
import json
import random

EVENTS = [
    {"event_id": ("scroll", "click", "exposure")[n % 3], "item": n * 7 % 40, "ts_ms": n * 130, "depth": n % 10 / 10}
    for n in range(600)
]
RECORD = json.dumps({"items": [{"id": n, "price": n * 37 % 101 + 0.5, "clicks": n * 13 % 17} for n in range(100)]})
_source = random.Random(7)
LAYERS = [
    np.asarray([[_source.gauss(0, 0.1) for _ in range(columns)] for _ in range(rows)], dtype="float32")
    for rows, columns in ((128, 256), (256, 256), (256, 32))
]
CANDIDATES = np.asarray([[_source.random() for _ in range(128)] for _ in range(64)], dtype="float32")


def light():
    per_item, last_ms = {}, 0
    for event in EVENTS:
        item = per_item.setdefault(event["item"], {"count": 0, "dwell_ms": 0, "depth": 0.0})
        item["count"] += 1
        item["dwell_ms"] += event["ts_ms"] - last_ms
        item["depth"] = max(item["depth"], event["depth"])
        last_ms = event["ts_ms"]
    return sum(item["dwell_ms"] for item in per_item.values())


def middle():
    items = json.loads(RECORD)["items"]
    total = 0.0
    for _ in range(4):
        values = np.asarray([[item["price"], item["clicks"]] for item in items], dtype="float32")
        values = (values - np.mean(values, axis=0)) / np.std(values, axis=0)
        scores = np.exp(values[:, 1]) / (1 + np.exp(-values[:, 0]))
        ranked = sorted(zip(scores.tolist(), items), key=lambda pair: -pair[0])
        total += len(json.dumps([{"id": item["id"], "score": round(score, 4)} for score, item in ranked[:20]]))
    return total


def heavy():
    value = CANDIDATES
    for layer in LAYERS:
        value = np.maximum(np.matmul(value, layer), 0)
    rows = value.tolist()
    chosen, best = [], 0.0
    while len(chosen) < 12:
        ranks = []
        for number, row in enumerate(rows):
            if number in chosen:
                continue
            score = sum(row)
            for other in chosen:
                score -= 0.2 * sum(a * b for a, b in zip(row, rows[other]))
            ranks.append((score, number))
        best, number = max(ranks)
        chosen.append(number)
    return best
"""
EMPTY = "def nothing(): return None\n"
NP = f"import walle.np as np\nTOTAL = float(np.sum(np.full(8, 0.5)))\n{EMPTY}"
SMALL = {"empty": EMPTY, "np": NP, "np_json": f"import json\n{NP}"}
LIMITS = {"memory_mb": 32, "log_kb": 64, "output_kb": 1024, "recursion": 1000}  # defaults of task.toml
DEADLINE_S = 0.5
FIRST_CALL_S = 30.0  # deadline of a task's first call in a new VM, which imports and plans, perhaps on a busy machine
NAMES = ("light", "middle", "heavy")
WAYS = ("vm", "host", "gil", "process")
SHOWN = {"vm": "thread-level VMs", "host": "VMs in a VM host", "gil": "threads, one GIL", "process": "processes"}
WARM_CALLS = 3_000

type Call = Callable[[str], Awaitable[object]]  # runs the named task once, and returns what it returned


def _load(folder: str) -> Any:
    spec = importlib.util.spec_from_file_location("figure_tasks", f"{folder}/main.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(folder: str) -> None:
    """Run one of the processes: for each line, run the task that it names and write a line."""
    tasks = _load(folder)
    for line in sys.stdin:
        print(json.dumps(getattr(tasks, line.strip())()), flush=True)


@asynccontextmanager
async def callers(way: str, folder: str, count: int) -> AsyncIterator[list[Call]]:
    """Yield `count` ways to call a task, each with a worker of its own."""
    if way == "gil":
        tasks, loop = _load(folder), asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(count) as threads:
            yield [lambda name: loop.run_in_executor(threads, getattr(tasks, name))] * count
    elif way in ("vm", "host"):
        host = VmHost() if way == "host" else None
        vms = [VM(folder, limits=LIMITS, host=host) for _ in range(count)]
        try:
            for vm in vms:
                for name in NAMES:
                    await vm.call(name, deadline=FIRST_CALL_S)
            yield [lambda name, vm=vm: vm.call(name, deadline=DEADLINE_S) for vm in vms]  # type: ignore[misc]
        finally:
            for vm in vms:
                vm.close()
                await vm.wait_closed()
            if host is not None:
                await asyncio.to_thread(host.close)
    else:
        command = [sys.executable, __file__, "--serve", folder]
        pipe = asyncio.subprocess.PIPE
        processes = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(count)]

        async def call(process: asyncio.subprocess.Process, name: str) -> object:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(name.encode() + b"\n")
            return json.loads(await process.stdout.readline())

        try:
            yield [lambda name, process=process: call(process, name) for process in processes]  # type: ignore[misc]
        finally:
            for process in processes:
                await process.communicate()


async def measure(calls: list[Call], name: str, seconds: float) -> tuple[float, list[float]]:
    """Return calls per second of all callers together, and every call's latency in ms."""
    for call in calls:
        await call(name)
    start = time.perf_counter()

    async def work(call: Call) -> list[float]:
        times: list[float] = []
        while (begin := time.perf_counter()) < start + seconds or not times:
            await call(name)
            times.append((time.perf_counter() - begin) * 1e3)
        return times

    every = [time_ms for times in await asyncio.gather(*[work(call) for call in calls]) for time_ms in times]
    return len(every) / (time.perf_counter() - start), every


def measure_bare(function: Callable[[], object], count: int, seconds: float) -> float:
    """Return calls per second of `count` threads that run the function in a loop under one GIL."""

    def work(ready: threading.Barrier) -> int:
        ready.wait()
        done, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until or not done:
            function()
            done += 1
        return done

    function()
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        ready = threading.Barrier(count + 1)
        counts = [threads.submit(work, ready) for _ in range(count)]
        ready.wait()
        start = time.perf_counter()
        total = sum(one.result() for one in counts)
    return total / (time.perf_counter() - start)


async def throughput(folder: str, workers: list[int], rounds: int, seconds: float) -> list[dict[str, Any]]:
    rows = []
    tasks = _load(folder)
    for count in workers:
        async with AsyncExitStack() as held:
            calls = {way: await held.enter_async_context(callers(way, folder, count)) for way in WAYS}
            for name in NAMES:
                expected = {way: await calls[way][0](name) for way in WAYS}
                assert len(set(expected.values())) == 1, expected
                found: dict[str, list[tuple[float, list[float]]]] = {way: [] for way in WAYS}
                bare: list[float] = []
                for number in range(rounds):
                    for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                        found[way].append(await measure(calls[way], name, seconds))
                    bare.append(measure_bare(getattr(tasks, name), count, seconds))
                rows.append(row_of(name, count, found, bare))
    return rows


def row_of(
    name: str, count: int, found: dict[str, list[tuple[float, list[float]]]], bare: list[float]
) -> dict[str, Any]:
    row: dict[str, Any] = {"task": name, "workers": count}
    for way in WAYS:
        latencies = sorted(time_ms for _, times in found[way] for time_ms in times)
        row[f"{way}_per_s"] = round(statistics.median(rate for rate, _ in found[way]), 2)
        row[f"{way}_p50_ms"] = round(latencies[len(latencies) // 2], 3)
        row[f"{way}_p99_ms"] = round(latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)], 3)
    row["bare_gil_per_s"] = round(statistics.median(bare), 2)
    for way in ("host", "gil", "process"):
        gains = [statistics.fmean(others) / statistics.fmean(mine) - 1
                 for (_, mine), (_, others) in zip(found["vm"], found[way], strict=True)]  # fmt: skip
        row[f"gain_over_{way}_percent"] = round(statistics.median(gains) * 100, 1)
    over_bare = [rate / other - 1 for (rate, _), other in zip(found["vm"], bare, strict=True)]
    row["gain_over_bare_gil_percent"] = round(statistics.median(over_bare) * 100, 1)
    return row


def private_mb() -> float:
    """Return the process's own memory in MB, or 0 where the system does not report it."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


async def fresh(folder: Path) -> tuple[dict[str, Any], list[VM]]:
    """Return the cost of VMs of a task, each in a new interpreter, and the VMs."""
    create_ms, first_ms, create_mb, vms = [], [], [], []
    for _ in range(8):
        before, begin = private_mb(), time.perf_counter()
        vm = VM(folder, limits=LIMITS)
        await vm.call("nothing", deadline=DEADLINE_S)
        first_ms.append((time.perf_counter() - begin) * 1e3)
        create_ms.append(vm.create_ms)
        create_mb.append(private_mb() - before)
        vms.append(vm)
    return {
        "create_ms_min": round(min(create_ms), 2),
        "create_ms_p50": round(statistics.median(create_ms), 2),
        "until_first_result_ms_min": round(min(first_ms), 2),
        "until_first_result_ms_p50": round(statistics.median(first_ms), 2),
        "mb_each_beyond_the_first": round(statistics.median(create_mb[1:]), 2),
    }, vms


async def single(folders: dict[str, Path]) -> dict[str, Any]:
    """Return the cost of one VM: of creation, memory, reset and calls."""
    found, held = {}, []
    for name, one in folders.items():
        found[name], vms = await fresh(one)
        held += vms
    for vm in held:
        vm.close()
        await vm.wait_closed()
    folder = folders["np"]
    again_ms = []
    for _ in range(200):
        begin = time.perf_counter()
        vm = VM(folder, limits=LIMITS)
        await vm.call("nothing", deadline=DEADLINE_S)
        vm.close()
        await vm.wait_closed()
        again_ms.append((time.perf_counter() - begin) * 1e3)
    vm = VM(folder, limits=LIMITS)
    await vm.call("nothing")
    warm_us = []
    for _ in range(WARM_CALLS):
        begin = time.perf_counter()
        await vm.call("nothing", deadline=DEADLINE_S)
        warm_us.append((time.perf_counter() - begin) * 1e6)
    native_us = await asyncio.to_thread(vm._core.round_trips, "nothing", WARM_CALLS)
    vm.close()
    await vm.wait_closed()
    counts = _core.vm_counts()
    if counts["discarded"]:
        sys.exit(f"vm: {counts['discarded']} interpreters were discarded, the last because {counts['discard_reason']}")
    return {
        **found["np"],
        "mb_each_beyond_the_first_empty": found["empty"]["mb_each_beyond_the_first"],
        "mb_each_beyond_the_first_with_json": found["np_json"]["mb_each_beyond_the_first"],
        "after_reset_ms_p50": round(statistics.median(again_ms), 2),
        "warm_call_asyncio_us_p50": round(statistics.median(warm_us), 1),
        "warm_call_cpp_us_p50": round(statistics.median(native_us), 1),
        "warm_call_cpp_us_p10": round(statistics.quantiles(native_us, n=10)[0], 1),
        "vms": counts,
    }


def draw(result: dict[str, Any], out: Path) -> None:
    """Write vm.png, and vm.html with the same picture and the table."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = result["rows"]
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.5), sharex=True)
    for column, name in enumerate(NAMES):
        mine = [row for row in rows if row["task"] == name]
        counts = [row["workers"] for row in mine]
        for way in WAYS:
            axes[0][column].plot(counts, [row[f"{way}_per_s"] for row in mine], marker="o", label=SHOWN[way])
            axes[1][column].plot(counts, [row[f"{way}_p50_ms"] for row in mine], marker="o", label=SHOWN[way])
        axes[0][column].set_title(f"{name} task")
        axes[1][column].set_xlabel("workers at once")
        axes[0][column].set_xticks(counts)
        for row_of_axes in axes:
            row_of_axes[column].set_ylim(bottom=0)
            row_of_axes[column].grid(alpha=0.3)
    axes[0][0].set_ylabel("calls per second")
    axes[1][0].set_ylabel("latency, p50, ms")
    axes[0][0].legend()
    figure.suptitle(f"Fig. 11: {result['cores']} cores, Python {result['python']}, {result['rounds']} rounds, medians")
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "vm.png", dpi=120)
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    plt.close(figure)
    svg = picture.getvalue()
    heads = list(rows[0])
    table = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
    lines = "".join("<tr>" + "".join(f"<td>{row[head]}</td>" for head in heads) + "</tr>" for row in rows)
    one = "".join(f"<tr><td>{html.escape(key)}</td><td>{value}</td></tr>" for key, value in result["vm"].items())
    (out / "vm.html").write_text(
        "<!doctype html><meta charset='utf-8'><title>Walle: thread-level VMs</title>"
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:.2em .7em;text-align:right}</style>"
        f"<h1>Thread-level VMs (Fig. 11)</h1>{svg[svg.index('<svg') :]}<table><tr>{table}</tr>{lines}</table>"
        f"<h2>One VM</h2><table>{one}</table>"
    )


def show(result: dict[str, Any]) -> None:
    print(
        f"Python {result['python']}, {result['cores']} cores (load {result['load'][0]:.1f} at the start), "
        f"{result['rounds']} rounds, medians; calls/s (p50 ms)"
    )
    print(
        f"{'task':8s}{'at once':>8s}"
        + "".join(f"{SHOWN[way]:>24s}" for way in WAYS)
        + f"{'over GIL':>10s}{'over bare':>11s}"
    )
    for row in result["rows"]:
        cells = "".join(f"{row[f'{way}_per_s']:14.1f} ({row[f'{way}_p50_ms']:7.2f})" for way in WAYS)
        print(
            f"{row['task']:8s}{row['workers']:8d}{cells}{row['gain_over_gil_percent']:+9.0f}%"
            f"{row['gain_over_bare_gil_percent']:+10.0f}%"
        )
    for part in ("vm", "host"):
        for key, value in result[part].items():
            print(f"{part + ': ' + key:44s}{value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each way in each round")
    parser.add_argument("--workers", default="1,2,3,4")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where vm.json, vm.png and vm.html go")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    workers = [int(count) for count in options.workers.split(",")]
    if options.rounds < 1 or min(workers) < 1:
        sys.exit("vm: give 1 or more rounds and workers")
    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder) / "tasks"
        small = {name: Path(folder) / name for name in SMALL}
        for path, source in ((tasks, TASKS), *((small[name], source) for name, source in SMALL.items())):
            path.mkdir()
            (path / "main.py").write_text(source)
        result = {
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg(),
            "rounds": options.rounds,
            "vm": asyncio.run(single(small)),
            "host": vm_host.measure(options.rounds),
            "rows": asyncio.run(throughput(str(tasks), workers, options.rounds, options.seconds)),
        }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "vm.json").write_text(json.dumps(result, indent=1))
    draw(result, options.out)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
        print_headlines(result["rows"])


def print_headlines(rows: list[dict[str, Any]]) -> None:
    """Print the middle task's gain and its latency, with two callers at once or as many as were measured."""
    (row,) = [row for row in rows if row["task"] == "middle" and row["workers"] == _headline_workers(rows)]
    at_once = f"middle task, {row['workers']} at once"
    what = f"{at_once}, faster in VMs than on threads under one GIL"
    print_headline(what, unit="%", better="higher", ours=row["gain_over_gil_percent"])
    peers = {SHOWN[way]: row[f"{way}_p50_ms"] for way in ("gil", "process")}
    what = f"{at_once}, median from call to result"
    print_headline(what, unit="ms", better="lower", ours=row["vm_p50_ms"], peers=peers)


def _headline_workers(rows: list[dict[str, Any]]) -> int:
    counts = [int(row["workers"]) for row in rows]
    return 2 if 2 in counts else max(counts)


if __name__ == "__main__":
    main()
