"""A device's way of events, from intake to stored outputs, with several tasks in real VMs and no cloud.

As a program it is a device whose app mixes clicks and frames, in the numbers that come by standard input:
    python -m tests.sim.frame_rig FOLDER
Each number is printed when the event's call has returned; at the end of the input, the outputs of each task.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tests.sim.offline_device import offline_config
from walle.base import plain
from walle.base.clock import SystemClock
from walle.device.event_intake import EventIntake
from walle.engine_ext.vm.host import shared_host
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Manifest
from walle.task.format.bundle import TaskVersion, build_bundle, unpack
from walle.task.format.tree import TaskTree
from walle.task.run.runner import TaskRunner
from walle.trust.signing import Signer
from walle.vm import shared_empty

FRAME = '[task]\nname = "{}"\n[trigger]\nsequence = ["frame"]\n'
SUM = """
    def execute(ctx, trigger):
        image = trigger["event"]["contents"]["image"]
        return {"n": trigger["event"]["contents"]["n"], "sum": int(image.astype("int64").sum())}
"""


@dataclasses.dataclass
class Rig:
    """The parts of the device. Tasks are of the scenario `shop`."""

    intake: EventIntake
    store: FeatureStore
    stream: StreamEngine
    runner: TaskRunner
    history: EventHistory

    async def outputs(self, task: str) -> list[Any]:
        await self.stream.settle()
        return [plain.decode(row.payload) for row in await self.store.query(f"shop/{task}", limit=10_000)]


def laid_out(folder: Path, name: str, main: str, config: str) -> tuple[Path, Manifest]:
    files = {"main.py": textwrap.dedent(main).encode(), "task.toml": config.encode()}
    tree = TaskTree(scenario="shop", task=name, version="v1", commit="c" * 40, files=files)
    bundle = build_bundle(TaskVersion.parse(tree), Signer.generate())
    unpack(bundle.manifest, bundle.blobs, folder)
    return folder, bundle.manifest


@contextlib.asynccontextmanager
async def frame_rig(folder: Path, tasks: Mapping[str, tuple[str, str]], *, vm_host: bool = True) -> AsyncIterator[Rig]:
    """Open the device; `tasks` has main.py and task.toml by name. A run may take a minute by default."""
    clock = SystemClock()
    runner = TaskRunner(8, host=shared_host() if vm_host else None)
    installed: dict[str, tuple[Path, Manifest]] = {}
    for number, (name, (main, config)) in enumerate(tasks.items()):
        place = folder / f"task-{clock.monotonic()}-{number}"
        files, manifest = await asyncio.to_thread(laid_out, place, name, main, config)
        limits = {"deadline_ms": 60_000, **manifest.limits}  # the default, 500 ms, is little on a busy machine
        installed[f"shop/{name}"] = files, dataclasses.replace(manifest, limits=limits)

    async def run(task: str, trigger: Trigger) -> TaskOutput:
        files, manifest = installed[task]
        callbacks: dict[str, Any] = {}
        if manifest.history is not None:
            callbacks["events.history"] = functools.partial(history.query, task, trigger.position)
        return await runner.run(files, manifest, trigger, {"id": "d0"}, callbacks)

    async with FeatureStore(folder / "features.db", clock=clock) as store:
        stream = StreamEngine(store, run, share_arrays=vm_host)
        history = EventHistory(folder / "history.db", clock, position=store.position)
        for task, (files, manifest) in installed.items():
            await runner.load(files, manifest)
            stream.add_task(task, manifest.trigger, manifest.queue_policy)
            history.set_policy(task, manifest.history)
        intake = EventIntake(offline_config(folder), clock, store, stream, history)
        try:
            await intake.start()
            yield Rig(intake, store, stream, runner, history)
        finally:
            await intake.aclose()
            await stream.close()
            await history.aclose()
            await runner.close()


def image_of(number: int) -> Any:
    array = shared_empty((200, 200, 3), "uint8")
    memoryview(array).cast("B")[:] = bytes([number % 256]) * array.size
    return array


def frame_of(number: int) -> Event:
    return Event("frame", "", 1_000_000 + number, {"n": number, "image": image_of(number)})


def mixed_event(number: int) -> Event:
    """Return a click, a frame, a click, and so on."""
    return frame_of(number) if number % 2 else Event("click", "", 1_000_000 + number, {"n": number})


BLOCK = '[limits]\nqueue_full = "block"\n'
MIXED_TASKS = {
    "frames": (SUM, FRAME.format("frames") + BLOCK),
    "clicks": (
        "def execute(ctx, trigger): return trigger['event']['contents']['n']",
        '[task]\nname = "clicks"\n[trigger]\nsequence = ["click"]\n' + BLOCK,
    ),
    # A condition that a frame is a part of, and that a click completes.
    "after_frame": (
        "def execute(ctx, trigger): return [e.contents['n'] for e in ctx.recent][-2:]",
        '[task]\nname = "after_frame"\n[trigger]\nsequence = ["frame", "click"]\n' + BLOCK,
    ),
    # One that a frame in between breaks.
    "two_clicks": (
        "def execute(ctx, trigger): return 1",
        '[task]\nname = "two_clicks"\n[trigger]\nsequence = ["click", "click"]\n',
    ),
}


async def _main(folder: Path) -> None:
    async with frame_rig(folder, MIXED_TASKS) as rig:
        _answer("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            await rig.intake.take_live(mixed_event(int(line)), can_wait=False)
            _answer(str(int(line)))
        _answer(json.dumps({task: await rig.outputs(task) for task in MIXED_TASKS}))


def _answer(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
