"""A device's intake and engine that take one burst of live events, in a process that may be killed.

    python -m tests.sim.burst_player FOLDER QUEUE EVENTS

Writes "run" at each run of the task `visit`, and "done" once all features are stored.
"""

import asyncio
import sys
from pathlib import Path

from tests.sim.offline_device import offline_config
from walle.base.clock import SystemClock
from walle.device.event_intake import EventIntake
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import QueuePolicy, TriggerCondition


def burst(count: int) -> list[Event]:
    """Return visits of ten events, eight of which are clicks."""
    kinds = ("page_enter", *["click"] * 8, "page_exit")
    return [Event(kinds[n % 10], f"page/{n // 10 % 7}", 1_000_000 + n, {"n": n}) for n in range(count)]


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def run(task: str, trigger: Trigger) -> TaskOutput:
    """Return what a task sees: the positions of the visit's events, and of the latest ones."""
    await asyncio.sleep(0)
    if task == "visit":
        say("run")
    visit = [event.contents["n"] for event in trigger.page_events]
    recent = [event.contents["n"] for event in trigger.recent]
    return TaskOutput([trigger.position, trigger.visit, visit, recent[0], recent[-1], len(recent)])


async def main(folder: Path, queue: int, count: int) -> None:
    clock, policy = SystemClock(), QueuePolicy(queue=queue)
    async with FeatureStore(folder / "features.db", clock=clock, threshold=20, interval_s=0.004) as store:
        stream = StreamEngine(store, run)
        stream.add_task("visit", TriggerCondition.of(["page_exit"]), policy)
        stream.add_task("clicks", TriggerCondition.of(["click", "click"]), policy)
        stream.add_task("calm", TriggerCondition(("click",), cooldown_ms=100), policy)
        history = EventHistory(folder / "history.db", clock, position=store.position)
        intake = EventIntake(offline_config(folder), clock, store, stream, history)
        await intake.start()
        if not (folder / "taken").exists():
            events = burst(count)
            intake_call = asyncio.create_task(intake.take_all_live(events))
            (folder / "taken").touch()  # the call records all events before it first waits for a task
            await intake_call
        await stream.settle()
        await store.flush()
        await intake.aclose()
        await stream.close()
        await history.aclose()
    say("done")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
