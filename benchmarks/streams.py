"""Latency of a task while another one hangs (§5.1): from an event's arrival to its feature.

One device's stream: the task "visits" runs at each page exit, 50 times a second, in a VM. In every second round, the
task "hangs" is triggered once a second and overruns its deadline of 2 s each time, by a sleep or by a loop without end
(`--hang`). Each task has its own queue and its own position in the stream, so that the percentiles of "visits" must be
what they are without the other task. Rounds alternate, so that other load on the machine affects both.

    python benchmarks/streams.py [--rounds 3] [--seconds 10] [--hang sleep|loop] [--json]
    python benchmarks/streams.py --on-event [--rounds 3] [--json]

The second form measures the CPU time of `on_event` itself, with 100 conditions that are matched in part, without a
trigger, with one at every 20th event, and with windows that take all events: of a minute, and of ten minutes that
begin each minute. Both close at every 600th event; the snapshots that are stored for them are in their times.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.headline import print_headline
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.trigger.timers import MAX_TIMERS, Timers
from walle.protocol import Manifest, TriggerCondition
from walle.task.format.bundle import TaskVersion, build_bundle, unpack
from walle.task.format.tree import TaskTree
from walle.task.run.runner import TaskRunner
from walle.trust.signing import Signer

VISITS_A_S = 50
EVENTS_A_VISIT = 10
DEADLINE_MS = 2000
VISITS = """
def execute(ctx, trigger):
    times = [event.ts_ms for event in ctx.events]
    return {"dwell_ms": max(times) - min(times), "clicks": len(ctx.events.key_by("click"))}
"""
HANGS = {
    "sleep": "import time\ndef execute(ctx, trigger):\n    time.sleep(60)\n",
    "loop": "def execute(ctx, trigger):\n    while True:\n        pass\n",
}
TRIGGERS = {"visits": PAGE_EXIT, "hangs": "tick"}


def installed(folder: Path, task: str, main: str) -> tuple[Path, Manifest]:
    """Lay a task version out as on a device."""
    config = (
        f'[task]\nname = "{task}"\n[trigger]\nsequence = ["{TRIGGERS[task]}"]\n[limits]\ndeadline_ms = {DEADLINE_MS}\n'
        'queue_full = "drop-oldest"\n'
    )
    files = {"task.toml": config.encode(), "main.py": main.encode()}
    tree = TaskTree(scenario="shop", task=task, version="v1", commit="c" * 40, files=files)
    bundle = build_bundle(TaskVersion.parse(tree), Signer.generate())
    unpack(bundle.manifest, bundle.blobs, folder / task)
    return folder / task, bundle.manifest


async def play(folder: Path, seconds: float, hang: str | None) -> tuple[list[float], int]:
    """Return the latencies of "visits" in ms, and how many runs of "hangs" ended."""
    mains = {"visits": VISITS} | ({"hangs": HANGS[hang]} if hang else {})
    tasks = {task: installed(folder, task, main) for task, main in mains.items()}
    latencies: list[float] = []
    arrived: dict[str, float] = {}
    runner = TaskRunner(len(tasks))
    for files, manifest in tasks.values():
        await runner.load(files, manifest)
    hung = 0

    async def run(task: str, trigger: Trigger) -> TaskOutput:
        arrived[task] = trigger.arrived_s
        return await runner.run(*tasks[task], trigger, {}, {})

    def on_outcome(task: str, ok: bool, error: Exception | None) -> None:
        nonlocal hung
        if task == "visits":
            assert ok, error
            latencies.append((store.clock.monotonic() - arrived[task]) * 1e3)
        else:
            assert not ok
            hung += 1

    async with FeatureStore(folder / "features.db") as store:
        engine = StreamEngine(store, run, on_outcome=on_outcome)
        for task, (_, manifest) in tasks.items():
            engine.add_task(task, manifest.trigger, manifest.queue_policy)
        start_s = time.perf_counter()
        for visit in range(int(seconds * VISITS_A_S)):
            await asyncio.sleep(max(0.0, start_s + visit / VISITS_A_S - time.perf_counter()))
            if visit % VISITS_A_S == 0:
                await engine.on_event(Event("tick", "", visit, {}))
            kinds = [PAGE_ENTER, *["click"] * (EVENTS_A_VISIT - 2), PAGE_EXIT]
            for kind in kinds:
                await engine.on_event(Event(kind, f"item/{visit}", visit * 20, {"n": visit}))
        while "visits" in engine.queued:  # noqa: ASYNC110 - `settle` would wait for the other task too
            await asyncio.sleep(0.001)
        assert engine.counts.dropped["visits"] == 0
        await engine.close()
    await runner.close()
    return latencies, hung


def shopping(count: int) -> list[Event]:
    """Return events of visits of 20 events each."""
    rng, events = random.Random(1), list[Event]()
    for visit in range(count // 20):
        page, start_ms = f"item/{visit % 50}", visit * 2000
        events.append(Event(PAGE_ENTER, page, start_ms, {"from": "home"}))
        for part in range(18):
            contents = {"item": {"id": str(visit), "price": 3.5}, "x": part, "y": 0.25}
            kind = rng.choice(["page_scroll", "exposure", "click"])
            events.append(Event(kind, page, start_ms + 100 * part, contents))
        events.append(Event(PAGE_EXIT, page, start_ms + 1900, {}))
    return events


WINDOWS = {
    "minutes": TriggerCondition.of([], window_s=60, grace_s=10),
    "sliding": TriggerCondition.of([], window_s=600, window_every_s=60),
}


async def on_event_us(count: int, tasks: Mapping[str, TriggerCondition]) -> float:
    """Return the CPU time of the process per event, in µs."""

    async def run(_task: str, _trigger: Trigger) -> TaskOutput:
        return TaskOutput()

    with tempfile.TemporaryDirectory(prefix="walle-streams-") as folder:
        async with FeatureStore(Path(folder) / "features.db") as store:
            engine = StreamEngine(store, run)
            for number in range(100):
                engine.add_task(f"idle{number}", TriggerCondition.of(["click", f"never{number}"]))
            for task, condition in tasks.items():
                engine.add_task(task, condition)
            events = shopping(count)
            start_s = time.process_time()
            for event in events:
                await engine.on_event(event, can_wait=True)
            await engine.settle()
            return (time.process_time() - start_s) / len(events) * 1e6


def timer_us(count: int) -> dict[str, float]:
    """Return the CPU time in µs of a timer that is started, moved and due, beside `count` others, of tasks with 1,000.

    A moved timer is that of a quiet page at an event of the page.
    """
    timers, tasks = Timers(), [f"task{number}" for number in range(count // MAX_TIMERS)]
    for task in tasks:
        timers.add_task(task, TriggerCondition.of(["cart"], absent="buy", absent_s=600, key="item"))
    timers.advance(0)
    carts = [Event("cart", "", number, {"item": number}) for number in range(MAX_TIMERS)]
    start_s = time.process_time()
    for cart in carts:
        timers.advance(cart.ts_ms)
        for task in tasks:
            timers.start_absence(task, cart)
    started_s = time.process_time() - start_s
    timers.add_task("pages", TriggerCondition(("exit",), idle_s=10_000))
    views = [Event("view", f"page{number % 50}", 1_000 + number, {}) for number in range(20_000)]
    start_s = time.process_time()
    for view in views:
        timers.advance(view.ts_ms)
        timers.feed(view, has_visit=True, is_open=True)
    moved_s = time.process_time() - start_s
    start_s = time.process_time()
    due = timers.advance(1_000_000)
    due_s = time.process_time() - start_s
    assert len(due) == count
    times = {"started_us": started_s / count, "moved_us": moved_s / len(views), "due_us": due_s / count}
    return {what: seconds * 1e6 for what, seconds in times.items()}


def percentiles(latencies: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    return {"p50_ms": round(cuts[49], 3), "p99_ms": round(cuts[98], 3), "max_ms": round(max(latencies), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--hang", choices=sorted(HANGS), default="sleep")
    parser.add_argument("--on-event", action="store_true", help="measure the CPU time of on_event instead")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--timers", action="store_true", help="measure the CPU time of timers instead")
    args = parser.parse_args()
    if args.timers:
        for count in (1_000, 100_000):
            rounds_of = [timer_us(count) for _ in range(args.rounds)]
            best = {key: round(min(one[key] for one in rounds_of), 2) for key in rounds_of[0]}
            show({"timers": count, **best}, as_json=args.json)
        return
    if args.on_event:
        rounds = {
            what: [asyncio.run(on_event_us(40_000, tasks)) for _ in range(args.rounds)]
            for what, tasks in (
                ("without_trigger", {}),
                ("every_20th", {"visits": TriggerCondition.of([PAGE_EXIT])}),
                ("tumbling_windows", {"minutes": WINDOWS["minutes"]}),
                ("sliding_windows", {"sliding": WINDOWS["sliding"]}),
            )
        }
        show({f"{what}_us": round(min(found), 2) for what, found in rounds.items()}, as_json=args.json)
        return
    alone: list[float] = []
    beside: list[float] = []
    hung = 0
    for _ in range(args.rounds):
        for hang, latencies in ((None, alone), (args.hang, beside)):
            with tempfile.TemporaryDirectory(prefix="walle-streams-") as folder:
                more, ended = asyncio.run(play(Path(folder), args.seconds, hang))
            latencies.extend(more)
            hung += ended
    result: dict[str, Any] = {
        "alone": percentiles(alone),
        f"beside a task that hangs ({args.hang})": percentiles(beside),
        "runs": len(alone) + len(beside),
        "hung_runs": hung,
        "p99_difference_ms": round(percentiles(beside)["p99_ms"] - percentiles(alone)["p99_ms"], 3),
    }
    show(result, as_json=args.json)
    if not args.json:
        print_headline(
            f"event to feature beside a task that hangs in a {args.hang}, p99",
            unit="ms",
            better="lower",
            ours=percentiles(beside)["p99_ms"],
            peers={"without that task": percentiles(alone)["p99_ms"]},
        )


def show(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for what, value in result.items():
        print(f"{what}: {value}")


if __name__ == "__main__":
    main()
