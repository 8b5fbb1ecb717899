"""CPU time of a run of a task with a large state (§5.1): without options, with a TTL, and with eviction at its bound.

The state has 1,000 entries in 58 KB, of which each run changes one. The task runs in this process, so that the time is
that of the engine and the store: decoding and encoding the state, comparing its entries, and its transaction. Rounds
alternate, so that other load on the machine affects all of them.

    python -m benchmarks.task_state [--rounds 10] [--runs 150] [--json]
"""

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.headline import print_headline
from walle.base import plain
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_states import TaskState
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import FullStatePolicy, StatePolicy, TriggerCondition

ENTRIES = 1_000
WARM_UP = 20
POLICIES = {
    "no options": StatePolicy(),
    "ttl_s": StatePolicy(ttl_s=86_400),
    "evict, below the bound": StatePolicy(on_full=FullStatePolicy.EVICT),
    "evict, at the bound": StatePolicy(on_full=FullStatePolicy.EVICT, max_bytes=50_000),
}


async def measure(policy: StatePolicy, runs: int) -> float:
    """Return the median CPU time of a run, in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        async with FeatureStore(Path(folder) / "features.db") as store:

            async def run(task: str, trigger: Trigger) -> TaskOutput:
                active = store.task_states.active(task)
                assert active is not None
                state = active.value_at(policy, trigger.ts_ms)
                state[f"k{trigger.position:04}"] = f"{trigger.position + ENTRIES:050}"
                return TaskOutput(1, state=state, state_policy=policy)

            engine = StreamEngine(store, run)
            engine.add_task("t", TriggerCondition(("click",), without_visit=True))
            value = {f"k{number:04}": f"{number:050}" for number in range(ENTRIES)}
            store.activate_state(TaskState(task="t", version=1, data=plain.encode(value)))
            times_s = []
            for position in range(runs):
                start_s = time.process_time()
                await engine.on_event(Event("click", "", 1_000_000 + position, {}), position, can_wait=True)
                await engine.settle()
                times_s.append(time.process_time() - start_s)
            await engine.close()
    return statistics.median(times_s[WARM_UP:]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # evictions warn
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    for _ in range(options.rounds):
        for name, policy in POLICIES.items():
            found[name].append(asyncio.run(measure(policy, options.runs)))
    medians = {name: statistics.median(times_us) for name, times_us in found.items()}
    if options.json:
        print(json.dumps({"entries": ENTRIES, "cpu_us_per_run": medians}))
        return
    for name, median_us in medians.items():
        print(f"{name:24} {median_us:7.0f} µs of CPU time a run")
    what = f"CPU time of a run with a state of {ENTRIES:,} entries and a TTL"
    peers = {"the same state without options": medians["no options"]}
    print_headline(what, unit="µs", better="lower", ours=medians["ttl_s"], peers=peers)


if __name__ == "__main__":
    main()
