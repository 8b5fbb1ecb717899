"""The simulation test of a version before its release (§6): its bundle, run in the cloud's own compute container.

The version is laid out as on a device and plays the events that its author pushed with it, once for each of a few kinds
of device. What a phase escalates is run here too, as fallback inference would.
"""

import asyncio
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from walle import plain
from walle.deploy.cloud.bundle import Bundle, unpack
from walle.deploy.cloud.release_service import SimulationResult
from walle.errors import VMError
from walle.pipeline.event_log import EventLog
from walle.pipeline.store import FeatureStore
from walle.pipeline.stream_engine import StreamEngine, TaskOutput, Trigger
from walle.protocol import Attribute
from walle.task_runner import Host, TaskRunner

# The kinds of device that every version is tried on; a task sees them as `ctx.device`.
DEVICE_KINDS: tuple[Mapping[str, Attribute], ...] = (
    {"id": "simulated-low", "os": "android", "performance": "low"},
    {"id": "simulated-high", "os": "ios", "performance": "high"},
)
_ENOUGH_FAILURES = 10  # a version that overruns its deadline at every event must come to an end all the same


class Simulator:
    """Runs bundles in VMs of its own. `vms` bounds how many at once."""

    def __init__(self, vms: int) -> None:
        self._device = TaskRunner(vms)
        self._cloud = TaskRunner(vms)

    async def run(
        self, bundle: Bundle, events: bytes | None, kinds: Sequence[Mapping[str, Attribute]] = DEVICE_KINDS
    ) -> SimulationResult:
        """Play `events` (JSON lines; None for none) through the bundle on each kind of device.

        A version that does not load fails, and so does one any of whose runs fails; it is not played on after ten
        failures. Without events it passes by loading.
        """
        with tempfile.TemporaryDirectory(prefix="walle-simulation-") as folder:
            files = Path(folder) / "task"
            await asyncio.to_thread(unpack, bundle.manifest, bundle.blobs, files)
            try:
                await self._device.load(files, bundle.manifest)
            except VMError as error:
                return SimulationResult(ok=False, runs=0, failures=1, first_error=str(error))
            if events is None:
                return SimulationResult(ok=True, runs=0, failures=0)
            log = Path(folder) / "events.jsonl"
            log.write_bytes(events)
            runs = 0
            errors: list[str] = []
            for number, kind in enumerate(kinds):
                database = Path(folder) / f"features-{number}.db"
                runs += await self._play(bundle, files, EventLog(log), database, kind, errors)
            if runs == 0:
                return SimulationResult(False, 0, 1, _why_none(bundle, log))
            return SimulationResult(not errors, runs, len(errors), errors[0] if errors else "")

    async def _play(
        self,
        bundle: Bundle,
        files: Path,
        log: EventLog,
        database: Path,
        kind: Mapping[str, Attribute],
        errors: list[str],
    ) -> int:
        """Return how many runs the events trigger on a kind of device; what fails goes to `errors`."""
        manifest = bundle.manifest

        async def escalate(phase: str, payload: Any) -> Any:
            crossed = plain.decode(plain.encode(payload))  # as through the tunnel, which takes plain data only
            return plain.decode(plain.encode(await self._cloud.phase(files, manifest, phase, crossed, kind)))

        async def run(_task: str, trigger: Trigger) -> TaskOutput:
            host: Host = {"escalate": escalate, "store.query": functools.partial(_query, store)}
            return await self._device.run(files, manifest, trigger, kind, host)

        def note(_task: str, ok: bool, error: Exception | None) -> None:
            if not ok:
                errors.append(str(error))

        async with FeatureStore(database) as store:
            engine = StreamEngine(store, run, on_outcome=note)
            engine.add_task(manifest.name, manifest.trigger)
            for position, event in log:
                if len(errors) >= _ENOUGH_FAILURES:
                    break
                await engine.on_event(event, position)
            return engine.counts.triggers

    async def close(self) -> None:
        await self._device.close()
        await self._cloud.close()


async def _query(store: FeatureStore, topic: str, since_ms: int = 0, limit: int = 100) -> list[Any]:
    return [plain.decode(feature.payload) for feature in await store.query(topic, since_ms, limit)]


def _why_none(bundle: Bundle, path: Path) -> str:
    """Say why no event of a log triggered anything."""
    log = EventLog(path)
    events = sum(1 for _ in log)
    what = f"none of {events} simulated events met the trigger condition {bundle.manifest.trigger}"
    if log.reports:
        first = log.reports[0]
        what += f"; {sum(log.skipped.values())} lines were skipped, the first is line {first.line}: {first.reason}"
    return what
