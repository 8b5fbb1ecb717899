"""One day of one phone: its user's events through journal, engine, task VM, store and tunnel, at compressed time.

The clock of journal and store moves with the events' own times, so that each sync and each transaction happens when it
would happen on the phone. The tunnel runs on the machine's clock. It is open while the user is in a session, which ends
with a pause of 20 minutes.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from benchmarks.ipv_pipelines.device import build_task
from benchmarks.ipv_pipelines.receiver import Receiver
from benchmarks.phone.counters import Relay, peak_memory_bytes, write_back, written_bytes
from walle.base.clock import ManualClock
from walle.pipeline.events.event import PAGE_EXIT, Event
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.tunnel.client.client import TunnelClient
from walle.task.run.runner import TaskRunner

DEVICE = "phone"
SESSION_PAUSE_MS = 1_200_000
DAY_MS = 86_400_000
_ACK_S = 0.5  # time from a feature to its acknowledgement
_WRITE_BACK_S = 30.0  # Linux writes a page back that has been dirty for so long


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The day's costs up to an hour of it. `cpu_s` includes the task VM, which is a thread, and the harness's clock."""

    hour: float
    events: int
    cpu_s: float
    flash_bytes: int
    up_bytes: int
    down_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhoneDay:
    """The costs of a day. `clock_cpu_s` is the CPU that moving the harness's clock takes by itself.

    `feature_bytes` are the payloads of stored features, uploaded or not. `flash_bytes` are pages handed to the disk,
    `up_bytes` and `down_bytes` what was on the wire, TLS included.
    """

    events: int
    visits: int
    failed: int
    uploads: int
    sessions: int
    connections: int
    event_bytes: int
    feature_bytes: int
    clock_cpu_s: float
    flash_bytes: int
    peak_memory_bytes: int
    samples: Sequence[Sample]

    @property
    def total(self) -> Sample:
        return self.samples[-1]

    @property
    def cpu_s(self) -> float:
        """CPU of the device from the first event on, without the harness."""
        return self.total.cpu_s - self.clock_cpu_s


def sessions_of(events: Sequence[Event]) -> list[list[Event]]:
    """Return the events of each session."""
    found = [[events[0]]]
    for before, after in itertools.pairwise(events):
        if after.ts_ms - before.ts_ms >= SESSION_PAUSE_MS:
            found.append([])
        found[-1].append(after)
    return found


async def _clock_cpu_s(events: Sequence[Event]) -> float:
    """Return the CPU seconds that moving the clock by itself takes for these events."""
    clock = ManualClock(events[0].ts_ms / 1000)
    began_s = time.process_time()
    for event in events:
        await clock.advance(max(0.0, event.ts_ms / 1000 - clock.time()))
    return time.process_time() - began_s


def _feature_bytes(path: Path) -> int:
    """Return the bytes of the payloads in a store that is closed."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT coalesce(sum(length(payload)), 0) FROM features").fetchone()[0])


@contextlib.asynccontextmanager
async def _tunnel(store: FeatureStore, receiver: Receiver, port: int) -> AsyncIterator[TunnelClient]:
    client = TunnelClient(
        Outbox(store),
        device_id=DEVICE,
        host="127.0.0.1",
        port=port,
        ssl_context=receiver.authority.device_context(DEVICE),
    )
    running = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        await client.close()
        await asyncio.gather(running, return_exceptions=True)


async def run_day(events: Sequence[Event], folder: Path, *, sync_interval_s: float = 1.0) -> PhoneDay:
    """Play a day's events, in the order of their times, and return its costs."""
    (folder / "task").mkdir()
    files, manifest = build_task(folder / "task")
    device = folder / "device"
    (folder / "cloud").mkdir()
    device.mkdir()
    runner = TaskRunner(1)
    await runner.load(files, manifest)
    event_bytes = visits = done = 0
    samples: list[Sample] = []

    async def run(_task: str, trigger: Trigger) -> TaskOutput:
        return await runner.run(files, manifest, trigger, {"performance": "middle"}, {})

    clock = ManualClock(events[0].ts_ms / 1000)
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(runner.close)
        receiver = await undo.enter_async_context(Receiver(folder / "cloud"))
        relay = undo.enter_context(Relay(receiver.port).open())
        store = await undo.enter_async_context(FeatureStore(device / "features.db", clock=clock))
        journal = await undo.enter_async_context(
            EventJournal(device / "events", sync_interval_s=sync_interval_s, clock=clock)
        )
        engine = StreamEngine(store, run)
        undo.push_async_callback(engine.close)
        engine.add_task(manifest.name, manifest.trigger, manifest.queue_policy)
        began_cpu_s, flash_before = time.process_time(), written_bytes()
        written_back_s = clock.time()

        def sample() -> Sample:
            return Sample(
                hour=(clock.time() - events[0].ts_ms / 1000) / 3600,
                events=done,
                cpu_s=time.process_time() - began_cpu_s - relay.cpu_s,
                flash_bytes=written_bytes() - flash_before,
                up_bytes=relay.up_bytes,
                down_bytes=relay.down_bytes,
            )

        samples.append(sample())
        sessions = sessions_of(events)
        for session in sessions:
            await clock.advance(max(0.0, session[0].ts_ms / 1000 - clock.time()))
            async with _tunnel(store, receiver, relay.port) as client:
                for event in session:
                    await clock.advance(max(0.0, event.ts_ms / 1000 - clock.time()))
                    if clock.time() - written_back_s >= _WRITE_BACK_S:
                        write_back(device)
                        written_back_s = clock.time()
                    event_bytes += event.size_bytes()
                    position = journal.append(event)
                    await journal.synced()
                    await engine.on_event(event, position)
                    done += 1
                    if event.event_id == PAGE_EXIT:
                        await engine.settle()
                        await clock.advance(_ACK_S)
                        await store.flush()
                        await client.drained()
                        journal.trim(store.state.resume_from)
                        visits += 1
            samples.append(sample())
        await store.flush()
        write_back(device)
        samples.append(sample())
        counts = await receiver.counts()
        clock_cpu_s = await _clock_cpu_s(events)
        peak_bytes = peak_memory_bytes()
    return PhoneDay(
        events=done,
        visits=visits,
        failed=engine.counts.failures,
        uploads=counts["uploads"],
        sessions=len(sessions),
        connections=relay.connections,
        event_bytes=event_bytes,
        feature_bytes=_feature_bytes(device / "features.db"),
        clock_cpu_s=clock_cpu_s,
        flash_bytes=samples[-1].flash_bytes,
        peak_memory_bytes=peak_bytes,
        samples=samples,
    )


def play(events: Sequence[Event], sync_interval_s: float) -> PhoneDay:
    """Return the costs of a day that is played in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run_day(events, Path(folder), sync_interval_s=sync_interval_s))
