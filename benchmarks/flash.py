"""Bytes that a device writes to flash for a user's events at their real pace, against the bytes of events and features.

Events of generated shoppers go through journal, stream engine and feature store; a clock that only the events' own
times move starts every sync and transaction when it would start on a phone. The bytes are those that Linux counts for
this process (`write_bytes` of /proc/self/io): pages handed to the disk, without the file system's own metadata.

    python -m benchmarks.flash [--visits 200] [--sync 5,1,0] [--json]
"""

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from apps.ipv.generator import ShoppingEvents
from benchmarks.headline import print_headline
from walle.base.clock import ManualClock
from walle.pipeline.events.event import PAGE_EXIT
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import TriggerCondition

_FEATURE_BYTES = 1150  # about those of the IPV feature
_ACK_S = 0.5  # time from a feature to its acknowledgement


def written_bytes() -> int:
    """Return how many bytes this process has handed to disks.

    Raises:
        OSError: the system does not count them.
    """
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "write_bytes":
            return int(value)
    raise OSError("/proc/self/io does not count written bytes")


async def measure(folder: Path, visits: int, sync_interval_s: float) -> dict[str, Any]:
    """Return the bytes of events, features and writes of one device's first `visits` page visits."""

    async def run(task: str, trigger: Trigger) -> TaskOutput:  # noqa: ARG001 -- the signature of a runner
        return TaskOutput(os.urandom(_FEATURE_BYTES))

    clock = ManualClock(ShoppingEvents(1, "device-0").start_ms / 1000)
    payload_bytes = done = events = 0
    before = written_bytes()
    async with (
        FeatureStore(folder / "features.db", clock=clock) as store,
        EventJournal(folder / "events", sync_interval_s=sync_interval_s, clock=clock) as journal,
    ):
        engine = StreamEngine(store, run)
        engine.add_task("ipv", TriggerCondition(("page_exit",)))
        for _, event in ShoppingEvents(1, "device-0"):
            await clock.advance(max(0.0, event.ts_ms / 1000 - clock.time()))
            payload_bytes += event.size_bytes()
            events += 1
            position = journal.append(event)
            await journal.synced()
            await engine.on_event(event, position)
            if event.event_id == PAGE_EXIT:
                payload_bytes += _FEATURE_BYTES
                await engine.settle()
                await clock.advance(_ACK_S)
                await store.flush()
                store.forget(store.state.last_seq)
                journal.trim(store.state.resume_from)
                done += 1
                if done == visits:
                    break
        await engine.close()
    written = written_bytes() - before
    return {
        "sync_interval_s": sync_interval_s,
        "visits": visits,
        "events": events,
        "payload_bytes": payload_bytes,
        "written_bytes": written,
        "ratio": written / payload_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--visits", type=int, default=200)
    parser.add_argument("--sync", default="5,1,0", help="sync intervals of the journal, in seconds")
    parser.add_argument("--folder", type=Path, help="on the disk in question; the temporary folder if not given")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for interval_s in map(float, arguments.sync.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            rows.append(asyncio.run(measure(Path(folder), arguments.visits, interval_s)))
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print("journal synced every   events  events and features  written  ratio")
    for row in rows:
        print(
            f"{row['sync_interval_s']:>16.1f} s {row['events']:>10} {row['payload_bytes'] / 1e6:>17.2f} MB"
            f" {row['written_bytes'] / 1e6:>5.2f} MB {row['ratio']:>5.1f}"
        )
    row = rows[0]
    print_headline(
        f"bytes written to flash for a byte of events and features, journal synced each {row['sync_interval_s']:g} s",
        unit="bytes",
        better="lower",
        ours=row["ratio"],
    )


if __name__ == "__main__":
    main()
