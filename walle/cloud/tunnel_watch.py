"""Health and metrics of a gateway's tunnel, for /healthz and /metrics."""

from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from walle.pipeline.tunnel.ingest import PumpStatus
from walle.pipeline.tunnel.server import TunnelServer

LAG_LIMIT_S = 30.0  # an upload that waits longer means that the pump, its disk or its consumer hangs
_COUNTS = {
    "connections": "Connections of devices that were accepted",
    "uploads": "Uploads that were received",
    "duplicates": "Uploads that were received again and dropped",
    "requests": "Requests of devices",
    "failed_requests": "Requests that were answered with an error",
    "pauses": "Times that a connection was not read until there was room",
    "bytes_in": "Bytes received from devices",
    "bytes_out": "Bytes sent to devices",
}


class TunnelWatch:
    """The state of a tunnel server and of the pump that stores its uploads."""

    def __init__(self, server: TunnelServer, pump: PumpStatus) -> None:
        self._server = server
        self._pump = pump

    @property
    def lag_s(self) -> float:
        """The age of the oldest upload that is not stored, 0 without one."""
        oldest_ms = self._server.oldest_ms
        return 0.0 if oldest_ms is None else max(0.0, self._server.clock.time() - oldest_ms / 1000)

    def health(self) -> dict[str, Any]:
        """Return the state as JSON; `ok` is False while uploads are not stored, and `error` says why."""
        server, pump, lag_s = self._server, self._pump, self.lag_s
        error = pump.error
        if not error and not pump.is_running:
            error = "the pump does not run"
        if not error and lag_s > LAG_LIMIT_S:
            error = f"an upload has waited for {lag_s:.0f} s, more than {LAG_LIMIT_S:.0f} s"
        return {
            "ok": not error,
            "error": error,
            "pump": "storing" if pump.is_storing else "failing" if pump.is_running else "stopped",
            "queued": server.queued,
            "lag_s": round(lag_s, 3),
            "stored": pump.stored,
            "connections": server.counts.open,
            "held_bytes": server.budget.held_bytes,
            "refusals": dict(server.counts.refusals),
        }

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        server, pump, counts = self._server, self._pump, self._server.counts
        gauges = {
            "pump_up": ("1 while uploads are stored, 0 while they are not", int(pump.is_storing)),
            "queue_uploads": ("Uploads that wait to be stored", server.queued),
            "lag_seconds": ("Age of the oldest upload that is not stored", self.lag_s),
            "open_connections": ("Connections of devices that are open", counts.open),
        }
        found: list[Metric] = []
        for name, (what, value) in gauges.items():
            gauge = GaugeMetricFamily(f"walle_tunnel_{name}", what)
            gauge.add_metric([], value)
            found.append(gauge)
        held = GaugeMetricFamily("walle_tunnel_held_bytes", "Bytes held for devices", labels=["account"])
        for account in ("buffered", "requests", "uploads"):
            held.add_metric([account], getattr(server.budget, account))
        totals = {name: (what, getattr(counts, name)) for name, what in _COUNTS.items()}
        totals["stored"] = ("New uploads that were stored", pump.stored)
        totals["pump_failures"] = ("Failures to store uploads", pump.total_failures)
        for name, (what, value) in totals.items():
            counter = CounterMetricFamily(f"walle_tunnel_{name}", what)
            counter.add_metric([], value)
            found.append(counter)
        refusals = CounterMetricFamily("walle_tunnel_refusals", "Connections refused or closed", labels=["reason"])
        for reason, count in sorted(counts.refusals.items()):
            refusals.add_metric([reason], count)
        return [*found, held, refusals]
