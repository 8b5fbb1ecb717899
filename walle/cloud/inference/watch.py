"""Health and metrics of fallback inference, for /healthz and /metrics."""

from collections.abc import Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from walle.cloud.inference.counts import InferenceCounts
from walle.cloud.inference.engine import Engine
from walle.cloud.inference.scheduler import Scheduler

_PREFIX = "walle_inference_"
_TOTALS = {
    "requests": "Requests of devices to run a phase",
    "failed": "Requests that were accepted and got an error",
    "repeated": "Requests that ran again because their replica was lost",
    "cancelled": "Requests that nobody waited for any more",
}
_HISTOGRAMS = {
    "batch_sizes": ("batch_size", "Requests of a batch"),
    "waited_s": ("wait_seconds", "Time from a request's arrival to the start of its batch"),
    "latency_s": ("seconds", "Time from a request's arrival to its result"),
}


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
        up = GaugeMetricFamily(f"{_PREFIX}process_up", "Whether a process can be reached", labels=["process"])
        running = GaugeMetricFamily(f"{_PREFIX}process_batches", "Batches that a process runs", labels=["process"])
        labels = ["process", "version"]
        vms = GaugeMetricFamily(f"{_PREFIX}loaded_vms", "VMs that have a version loaded", labels=labels)
        size = GaugeMetricFamily(f"{_PREFIX}loaded_bytes", "Bytes of the files that they have loaded", labels=labels)
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
        labels = ["version"]
        queue = GaugeMetricFamily(f"{_PREFIX}queue_requests", "Requests that wait for a replica", labels=labels)
        running = GaugeMetricFamily(f"{_PREFIX}running_batches", "Batches that run", labels=labels)
        for name, (waiting, batches) in self._scheduler.lanes.items():
            queue.add_metric([name], waiting)
            running.add_metric([name], batches)
        return [queue, running]

    def _counters(self) -> list[Metric]:
        versions = self._scheduler.counts_by_version.versions
        found = []
        for attribute, what in _TOTALS.items():
            counter = CounterMetricFamily(_PREFIX + attribute, what, labels=["version"])
            for name, counts in versions.items():
                counter.add_metric([name], getattr(counts, attribute))
            found.append(counter)
        refused = CounterMetricFamily(f"{_PREFIX}refused", "Requests without a result", labels=["version", "reason"])
        for name, counts in versions.items():
            for reason in InferenceCounts.REASONS:
                refused.add_metric([name, reason], counts.refused[reason])
        lost = CounterMetricFamily(f"{_PREFIX}lost_processes", "Processes that ended or could not be reached")
        lost.add_metric([], self._engine.state().lost)
        loads = CounterMetricFamily(f"{_PREFIX}loads", "Versions to be loaded before a device asks", labels=["result"])
        for result in ("loaded", "room", "failed"):
            loads.add_metric([result], self.loads.get(result, 0))
        return [*found, refused, lost, loads]

    def _histograms(self) -> list[Metric]:
        found: list[Metric] = []
        for attribute, (name, what) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(_PREFIX + name, what, labels=["version"])
            for version, counts in self._scheduler.counts_by_version.versions.items():
                values = getattr(counts, attribute)
                histogram.add_metric([version], values.buckets(), values.total)
            found.append(histogram)
        return found
