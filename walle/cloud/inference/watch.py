"""Health and metrics of fallback inference, for /healthz and /metrics."""

from collections.abc import Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.cloud.inference.counts import InferenceCounts
from walle.cloud.inference.engine import Engine
from walle.cloud.inference.scheduler import Scheduler
from walle.metrics.table import counter, counter_of, gauge, histogram

_PREFIX = "walle_inference_"
_TOTALS = ("requests", "failed", "repeated", "cancelled")
_HISTOGRAMS = {"batch_sizes": "batch_requests", "waited_s": "wait_seconds", "latency_s": "latency_seconds"}


class InferenceWatch:
    """The state of a scheduler and its engine. `loads` counts what was loaded before a device asked, by its end."""

    def __init__(self, scheduler: Scheduler, engine: Engine) -> None:
        self.loads: Mapping[str, int] = {}
        self._scheduler = scheduler
        self._engine = engine

    def health(self) -> dict[str, Any]:
        """Return the state as JSON; `ok` is False while no replica can run anything."""
        state, refused = self._engine.state(), self._scheduler.counts.refused
        return {
            "ok": state.up > 0,
            "error": "" if state.up else f"none of {len(state.processes)} replica processes can be reached",
            "replicas": {"running": state.up, "wanted": len(state.processes), "lost": state.lost},
            "queued": self._scheduler.waiting,
            "running": self._scheduler.running,
            "refused": {reason: refused[reason] for reason in InferenceCounts.REASONS},
        }

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape. `version` is a task with its version, `process` a number from 0."""
        return [*self._gauges(), *self._version_gauges(), *self._counters(), *self._histograms()]

    def _gauges(self) -> list[Metric]:
        state = self._engine.state()
        up, running = gauge(f"{_PREFIX}process_up"), gauge(f"{_PREFIX}process_batches")
        vms, size = gauge(f"{_PREFIX}loaded_vms"), gauge(f"{_PREFIX}loaded_bytes")
        for number, process in enumerate(state.processes):
            up.add_metric([str(number)], process.is_up)
            running.add_metric([str(number)], process.running)
            by_name: dict[str, tuple[int, int]] = {}  # a version that was built twice has two manifests
            for one in process.loaded:
                count, size_bytes = by_name.get(one.name, (0, 0))
                by_name[one.name] = count + one.vms, size_bytes + one.size_bytes
            for name, (count, size_bytes) in by_name.items():
                vms.add_metric([str(number), name], count)
                size.add_metric([str(number), name], size_bytes)
        return [up, running, vms, size]

    def _version_gauges(self) -> list[Metric]:
        queue, running = gauge(f"{_PREFIX}queue_requests"), gauge(f"{_PREFIX}running_batches")
        for name, (waiting, batches) in self._scheduler.lanes.items():
            queue.add_metric([name], waiting)
            running.add_metric([name], batches)
        return [queue, running]

    def _counters(self) -> list[Metric]:
        versions = self._scheduler.counts_by_version.versions
        found = []
        for attribute in _TOTALS:
            total = counter(f"{_PREFIX}{attribute}_total")
            for name, counts in versions.items():
                total.add_metric([name], getattr(counts, attribute))
            found.append(total)
        refused = counter(f"{_PREFIX}refused_total")
        for name, counts in versions.items():
            for reason in InferenceCounts.REASONS:
                refused.add_metric([name, reason], counts.refused[reason])
        lost = counter_of(f"{_PREFIX}lost_processes_total", self._engine.state().lost)
        loads = counter(f"{_PREFIX}loads_total")
        for result in ("loaded", "room", "failed"):
            loads.add_metric([result], self.loads.get(result, 0))
        discarded = counter(f"{_PREFIX}discarded_interpreters_total")
        for name, count in self._engine.state().discarded.items():
            discarded.add_metric([name], count)
        return [*found, refused, lost, loads, discarded]

    def _histograms(self) -> list[Metric]:
        found: list[Metric] = []
        for attribute, name in _HISTOGRAMS.items():
            of_versions = histogram(_PREFIX + name)
            for version, counts in self._scheduler.counts_by_version.versions.items():
                values = getattr(counts, attribute)
                of_versions.add_metric([version], values.buckets(), values.total)
            found.append(of_versions)
        return found
