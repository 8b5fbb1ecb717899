"""Health and metrics of a gateway's tunnel, over all its processes, for /healthz and /metrics."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from walle.pipeline.tunnel.service import TunnelState

LAG_LIMIT_S = 30.0  # an upload that waits longer means that the pump, its disk or its consumer hangs
_COUNTS = {
    "connections": "Connections of devices that were accepted",
    "uploads": "Uploads that were received",
    "duplicates": "Uploads that were received again and dropped",
    "requests": "Requests of devices",
    "failed_requests": "Requests that were answered with an error",
    "expired_requests": "Requests whose deadline passed before their answer",
    "cancelled_requests": "Requests that devices cancelled",
    "resumed": "Connections whose TLS session was resumed",
    "pauses": "Times that a connection was not read until there was room",
    "bytes_in": "Bytes received from devices",
    "bytes_out": "Bytes sent to devices",
}


class TunnelWatch:
    """The state of the tunnel processes. `states` returns those of the running ones, `ended` the others' counts."""

    def __init__(
        self,
        states: Callable[[], Sequence[TunnelState]],
        *,
        processes: int = 1,
        ended: Callable[[], Sequence[TunnelState]] = tuple,
        restarts: Callable[[], int] = int,
        hangs: Callable[[], int] = int,
    ) -> None:
        self._states = states
        self._processes = processes
        self._ended = ended
        self._restarts = restarts
        self._hangs = hangs

    def health(self) -> dict[str, Any]:
        """Return the state as JSON; `ok` is False while uploads are not stored, and `error` says why."""
        states = self._states()
        error = "" if states else "no tunnel process runs"
        for state in states:
            error = error or _error(state)
        is_running = all(state.is_running for state in states) and bool(states)
        is_storing = is_running and not any(state.error for state in states)
        return {
            "ok": not error,
            "error": error,
            "pump": "storing" if is_storing else "failing" if is_running else "stopped",
            "queued": sum(state.queued for state in states),
            "lag_s": round(_lag_s(states), 3),
            "stored": sum(state.stored for state in [*states, *self._ended()]),
            "connections": sum(state.open_connections for state in states),
            "held_bytes": sum(state.held_bytes for state in states),
            "refusals": self._refusals(states),
            "processes": {
                "running": len(states),
                "wanted": self._processes,
                "restarts": self._restarts(),
                "hangs": self._hangs(),
            },
        }

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        states = self._states()
        all_states = [*states, *self._ended()]
        storing = bool(states) and all(state.is_running and not state.error for state in states)
        gauges = {
            "pump_up": ("1 while uploads are stored, 0 while they are not", int(storing)),
            "queue_uploads": ("Uploads that wait to be stored", sum(state.queued for state in states)),
            "lag_seconds": ("Age of the oldest upload that is not stored", _lag_s(states)),
            "open_connections": (
                "Connections of devices that are open",
                sum(state.open_connections for state in states),
            ),
            "processes": ("Tunnel processes that run", len(states)),
        }
        found: list[Metric] = []
        for name, (what, value) in gauges.items():
            gauge = GaugeMetricFamily(f"walle_tunnel_{name}", what)
            gauge.add_metric([], value)
            found.append(gauge)
        held = GaugeMetricFamily("walle_tunnel_held_bytes", "Bytes held for devices", labels=["account"])
        for account in ("buffered", "requests", "uploads"):
            held.add_metric([account], sum(state.held[account] for state in states))
        totals = {
            name: (what, sum(state.counts.get(name, 0) for state in all_states)) for name, what in _COUNTS.items()
        }
        totals["stored"] = ("New uploads that were stored", sum(state.stored for state in all_states))
        totals["pump_failures"] = ("Failures to store uploads", sum(state.pump_failures for state in all_states))
        totals["hangs"] = ("Tunnel processes that were killed because they did not report", self._hangs())
        totals["restarts"] = ("Tunnel processes that ended and were started again", self._restarts())
        for name, (what, value) in totals.items():
            counter = CounterMetricFamily(f"walle_tunnel_{name}", what)
            counter.add_metric([], value)
            found.append(counter)
        refusals = CounterMetricFamily("walle_tunnel_refusals", "Connections refused or closed", labels=["reason"])
        for reason, count in sorted(self._refusals(states).items()):
            refusals.add_metric([reason], count)
        return [*found, held, refusals]

    def _refusals(self, states: Sequence[TunnelState]) -> dict[str, int]:
        sums = collections.Counter[str]()
        for state in [*states, *self._ended()]:
            sums.update(state.refusals)
        return dict(sums)


def _lag_s(states: Sequence[TunnelState]) -> float:
    return max((state.lag_s for state in states), default=0.0)


def _error(state: TunnelState) -> str:
    """Return why uploads are not stored, empty while they are."""
    if state.error:
        return state.error
    if not state.is_running:
        return "the pump does not run"
    if state.lag_s > LAG_LIMIT_S:
        return f"an upload has waited for {state.lag_s:.0f} s, more than {LAG_LIMIT_S:.0f} s"
    return ""
