"""Health and metrics of fallback inference, for /healthz and /metrics."""

from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from walle.cloud.inference.engine import Engine
from walle.cloud.inference.scheduler import Scheduler

_REASONS = ("queue", "wait", "expired")


class InferenceWatch:
    """The state of a scheduler and its engine."""

    def __init__(self, scheduler: Scheduler, engine: Engine) -> None:
        self._scheduler = scheduler
        self._engine = engine

    def health(self) -> dict[str, Any]:
        """Return the state as JSON; `ok` is False while no replica can run anything."""
        state, counts = self._engine.state(), self._scheduler.counts
        return {
            "ok": state.replicas > 0,
            "error": "" if state.replicas else f"none of {state.wanted} replica processes can be reached",
            "replicas": {"running": state.replicas, "wanted": state.wanted, "lost": state.lost},
            "queued": self._scheduler.waiting,
            "running": self._scheduler.running,
            "refused": {reason: counts.refused[reason] for reason in _REASONS},
        }

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        state, scheduler = self._engine.state(), self._scheduler
        counts = scheduler.counts
        gauges = {
            "queue_requests": ("Requests that wait for a replica", scheduler.waiting),
            "running_batches": ("Batches that run", scheduler.running),
            "replicas": ("Processes with replicas that can be reached", state.replicas),
            "loaded_vms": ("VMs that have a version loaded", state.loaded_vms),
            "loaded_bytes": ("Bytes of the files of the versions that they have loaded", state.loaded_bytes),
        }
        totals = {
            "requests": ("Requests of devices to run a phase", counts.requests),
            "failed": ("Requests that were accepted and got an error", counts.failed),
            "repeated": ("Requests that ran again because their replica was lost", counts.repeated),
            "cancelled": ("Requests that nobody waited for any more", counts.cancelled),
            "lost_replicas": ("Processes with replicas that ended or could not be reached", state.lost),
        }
        found: list[Metric] = []
        for name, (what, value) in gauges.items():
            gauge = GaugeMetricFamily(f"walle_inference_{name}", what)
            gauge.add_metric([], value)
            found.append(gauge)
        for name, (what, value) in totals.items():
            counter = CounterMetricFamily(f"walle_inference_{name}", what)
            counter.add_metric([], value)
            found.append(counter)
        refused = CounterMetricFamily("walle_inference_refused", "Requests that were not run", labels=["reason"])
        for reason in _REASONS:
            refused.add_metric([reason], counts.refused[reason])
        sizes = HistogramMetricFamily("walle_inference_batch_size", "Requests of a batch")
        sizes.add_metric([], counts.batch_sizes.buckets(), counts.batch_sizes.total)
        latency = HistogramMetricFamily("walle_inference_seconds", "Time from a request's arrival to its result")
        latency.add_metric([], counts.latency_s.buckets(), counts.latency_s.total)
        return [*found, refused, sizes, latency]
