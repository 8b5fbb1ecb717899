"""Devices that upload through the real tunnel, one visit after the other: encodings of visits, or raw events.

Devices take turns, and each waits for the cloud's acknowledgement before it plays on, so that no upload shares a frame
with a later one: a user's visits are 20 s apart.
"""

import asyncio
import contextlib
import dataclasses
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from apps.ipv.logs import UserVisit
from apps.ipv.make_encoder import write_encoder
from benchmarks.ipv_pipelines.receiver import Receiver
from walle.cli.task.folder import read_folder
from walle.pipeline import FeatureStore, Outbox, StreamEngine, TunnelClient
from walle.pipeline.events.event import PAGE_EXIT, Event
from walle.pipeline.trigger.stream_engine import TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Manifest
from walle.task.format.bundle import TaskVersion, build_bundle, unpack
from walle.task.run.runner import TaskRunner
from walle.trust.signing import Signer

TASK_FOLDER = Path(__file__).parents[2] / "apps" / "ipv" / "task"
RAW_TOPIC = "raw"


@dataclasses.dataclass(kw_only=True)
class DeviceRun:
    """Measures of devices that made features: `failed` of the visits have none. Times in ms, CPU in seconds."""

    visits: int = 0
    failed: int = 0
    cpu_s: float = 0.0
    feature_ms: list[float] = dataclasses.field(default_factory=list)  # page exit to feature and encoding in the store
    cloud_ms: list[float] = dataclasses.field(default_factory=list)  # page exit to acknowledgement, on disk there


def build_task(folder: Path) -> tuple[Path, Manifest]:
    """Return the IPV task laid out in `folder` as a device has it, with its manifest."""
    source = folder / "ipv"
    shutil.copytree(TASK_FOLDER, source, ignore=shutil.ignore_patterns("__pycache__"))
    write_encoder(source / "resources" / "encoder.walle")
    bundle = build_bundle(TaskVersion.parse(read_folder(source)), Signer.generate())
    unpack(bundle.manifest, bundle.blobs, folder / "files")
    return folder / "files", bundle.manifest


@contextlib.asynccontextmanager
async def _connected(
    device_id: str, folder: Path, receiver: Receiver
) -> AsyncIterator[tuple[FeatureStore, TunnelClient]]:
    async with FeatureStore(folder / f"{device_id}.db") as store:
        client = TunnelClient(
            Outbox(store),
            device_id=device_id,
            host="127.0.0.1",
            port=receiver.port,
            ssl_context=receiver.authority.device_context(device_id),
        )
        running = asyncio.create_task(client.run())
        try:
            yield store, client
        finally:
            await client.close()
            await asyncio.gather(running, return_exceptions=True)


async def run_devices(users: Iterable[tuple[str, Sequence[Event]]], receiver: Receiver, folder: Path) -> DeviceRun:
    """Play each user's events into a device of its own, with the task in a VM; upload each encoding at once."""
    measures = DeviceRun()
    files, manifest = build_task(folder)
    runner = TaskRunner(1)
    await runner.load(files, manifest)

    async def run(_task: str, trigger: Trigger) -> TaskOutput:
        return await runner.run(files, manifest, trigger, {"performance": "middle"}, {})

    try:
        for user, events in users:
            async with _connected(user, folder, receiver) as (store, client):
                engine = StreamEngine(store, run)
                engine.add_task(manifest.name, manifest.trigger)
                started_cpu_s = time.process_time()
                for position, event in enumerate(events):
                    started_s = time.perf_counter()
                    await engine.on_event(event, position)
                    if event.event_id == PAGE_EXIT:
                        await engine.settle()
                        measures.visits += 1
                        measures.feature_ms.append((time.perf_counter() - started_s) * 1000)
                        await store.flush()
                        await client.drained()
                        measures.cloud_ms.append((time.perf_counter() - started_s) * 1000)
                measures.cpu_s += time.process_time() - started_cpu_s
                measures.failed += engine.counts.failures
                await engine.close()
    finally:
        await runner.close()
    return measures


async def upload_raw(
    users: Iterable[tuple[str, Sequence[Sequence[Event]]]], receiver: Receiver, folder: Path
) -> tuple[int, float]:
    """Upload batches of raw events of each user; return how many batches, and the CPU seconds of the devices."""
    batches, cpu_s = 0, 0.0
    for user, theirs in users:
        async with _connected(user, folder, receiver) as (store, client):
            started_cpu_s = time.process_time()
            for batch in theirs:
                payload: list[dict[str, Any]] = [event.to_dict() for event in batch]
                await store.put(RAW_TOPIC, payload)
                await store.flush()
                await client.drained()
                batches += 1
            cpu_s += time.process_time() - started_cpu_s
    return batches, cpu_s


def by_user(visits: Iterable[UserVisit]) -> dict[str, list[Event]]:
    """Return each user's events of visits that follow one another, in order."""
    found: dict[str, list[Event]] = {}
    for user, visit in visits:
        found.setdefault(user, []).extend(visit)
    return found
