"""CPU time per video frame from the app to its tasks in VMs, beside that of copying the frame once (§5.1, §4.3).

An app passes frames of 1280 x 720 x 3 bytes as events, each of which triggers every task; a task reads one pixel, and
the app passes the next frame when all tasks have run. Ways, in turns, so that other load affects all of them:

- none: the same events without the frame, VMs in a host: the cost of events, triggers, runs and results.
- shared: frames of `walle.vm.shared_empty`, VMs in a host. They are not copied.
- ordinary: NumPy arrays, VMs in a host. They are copied once, into memory that the host has mapped.
- each: NumPy arrays, copied for each task into memory of its own: as before shared buffers (ADR 20).
- process: NumPy arrays, VMs in this process. They are not copied.

Figures are CPU time of device and host together, in microseconds per frame, the median of the rounds; `over_none` is
what the frame adds. `memcpy_us` is the copy of a frame into memory that was written before, in this process.

    python benchmarks/frames.py [--rounds 7] [--frames 60]
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.headline import print_headline
from walle.base.clock import SystemClock
from walle.engine_ext.vm.host import shared_host
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Manifest, TriggerCondition
from walle.task.run.runner import TaskRunner
from walle.vm import shared_empty

SHAPE = (720, 1280, 3)
TASKS = (1, 4)
TASK = """
def execute(ctx, trigger):
    image = trigger["event"]["contents"].get("image")
    if image is not None:
        image[360, 640, 1]
"""
WAYS = ("none", "shared", "ordinary", "each", "process")
_FRAMES_IN_TURN = 4  # frames that the app has, as a decoder has


def host_cpu_s() -> float:
    """Return the CPU time of the host's threads so far."""
    threads = Path(f"/proc/{shared_host().report().pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


@contextlib.asynccontextmanager
async def device(folder: Path, way: str, tasks: int) -> AsyncIterator[StreamEngine]:
    """Open an engine whose tasks run in VMs."""
    in_host = way != "process"
    runner = TaskRunner(tasks, host=shared_host() if in_host else None)
    (folder / way).mkdir(exist_ok=True)
    (folder / way / "main.py").write_text(TASK)
    condition = TriggerCondition.of(["frame"])
    manifests = {
        f"s/{number}": Manifest(
            scenario="s",
            task=f"{number}",
            version="v1",
            commit="",
            bytecode=(),
            trigger=condition,
            phases={},
            files=(),
            limits={"deadline_ms": 5000},
        )
        for number in range(tasks)
    }

    async def run(task: str, trigger: Trigger) -> TaskOutput:
        return await runner.run(folder / way, manifests[task], trigger, {}, {})

    async with FeatureStore(folder / f"{way}-{tasks}.db", clock=SystemClock()) as store:
        engine = StreamEngine(store, run, share_arrays=way in ("shared", "ordinary", "none"))
        for task in manifests:
            engine.add_task(task, condition)
        try:
            yield engine
        finally:
            await engine.close()
            await runner.close()


async def play(engine: StreamEngine, contents: list[dict[str, Any]], frames: int) -> float:
    """Return CPU seconds of device and host, for `frames` frames."""
    before = time.process_time() + host_cpu_s()
    for number in range(frames):
        await engine.on_event(Event("frame", "", number, contents[number % len(contents)]))
        await engine.settle()
    return time.process_time() + host_cpu_s() - before


def contents_of(way: str) -> list[dict[str, Any]]:
    if way == "none":
        return [{"second": number} for number in range(_FRAMES_IN_TURN)]
    make: Callable[[], Any] = (
        (lambda: shared_empty(SHAPE, "uint8")) if way == "shared" else (lambda: np.empty(SHAPE, "uint8"))
    )
    images = [make() for _ in range(_FRAMES_IN_TURN)]
    for number, image in enumerate(images):
        np.asarray(image)[:] = number
    return [{"image": image, "second": number} for number, image in enumerate(images)]


def memcpy_us(rounds: int) -> float:
    *sources, target = (np.full(SHAPE, value, "uint8") for value in range(_FRAMES_IN_TURN + 1))
    times = []
    for _ in range(rounds):
        before = time.process_time_ns()
        for number in range(48):
            np.copyto(target, sources[number % _FRAMES_IN_TURN])
        times.append((time.process_time_ns() - before) / 48e3)
    return statistics.median(times)


async def measure(folder: Path, rounds: int, frames: int) -> dict[str, Any]:
    shared_host().wait_ready()
    found: dict[str, Any] = {"frame_bytes": int(np.prod(SHAPE)), "memcpy_us": round(memcpy_us(rounds), 1)}
    for tasks in TASKS:
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        async with contextlib.AsyncExitStack() as stack:
            engines = {way: await stack.enter_async_context(device(folder, way, tasks)) for way in WAYS}
            contents = {way: contents_of(way) for way in WAYS}
            for way in WAYS:
                await play(engines[way], contents[way], 2 * _FRAMES_IN_TURN)
            for number in range(rounds):
                for way in WAYS[:: 1 if number % 2 else -1]:
                    times[way].append(await play(engines[way], contents[way], frames) / frames * 1e6)
        for way in WAYS:
            found[f"{way}_{tasks}_us"] = round(statistics.median(times[way]), 1)
            if way in ("shared", "ordinary", "each"):
                more_us = [us - none for us, none in zip(times[way], times["none"], strict=True)]
                found[f"{way}_{tasks}_over_none_us"] = round(statistics.median(more_us), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--frames", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walle-frames-") as folder:
        found = asyncio.run(measure(Path(folder), arguments.rounds, arguments.frames))
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write("\n")
    tasks = TASKS[-1]
    print_headline(
        f"frame of 1280 x 720 to {tasks} tasks in a VM host, shared, CPU time",
        unit="µs",
        better="lower",
        ours=found[f"shared_{tasks}_us"],
        peers={"copied for each task": found[f"each_{tasks}_us"], "events without a frame": found[f"none_{tasks}_us"]},
    )


if __name__ == "__main__":
    main()
