"""Health and metrics of a gateway's tunnel, over all its processes, for /healthz and /metrics."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client.core import Metric

from walle.metrics.table import counter, counter_of, gauge, gauge_of
from walle.pipeline.ingest.service import TunnelState

LAG_LIMIT_S = 30.0  # an upload that waits longer means that the pump, its disk or its consumer hangs
_COUNTS = {  # metric → its name in a `TunnelState`
    "connections": "connections",
    "uploads": "uploads",
    "duplicates": "duplicates",
    "requests": "requests",
    "failed_requests": "failed_requests",
    "expired_requests": "expired_requests",
    "cancelled_requests": "cancelled_requests",
    "resumed": "resumed",
    "pauses": "pauses",
    "slowed": "slowed",
    "foreign_uploads": "foreign_uploads",
    "received_bytes": "bytes_in",
    "sent_bytes": "bytes_out",
}


class TunnelWatch:
    """The state of the tunnel processes. `states` returns those of the running ones, `ended` the others' counts.

    There should be `processes`, and as many more as `further` returns.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[TunnelState]],
        *,
        processes: int = 1,
        further: Callable[[], int] = int,
        ended: Callable[[], Sequence[TunnelState]] = tuple,
        restarts: Callable[[], int] = int,
        hangs: Callable[[], int] = int,
    ) -> None:
        self._states = states
        self._processes = processes
        self._further = further
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
                "wanted": self._processes + self._further(),
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
            "pump_up": int(storing),
            "queue_uploads": sum(state.queued for state in states),
            "lag_seconds": _lag_s(states),
            "open_connections": sum(state.open_connections for state in states),
            "processes": len(states),
            "waiting_devices": sum(state.waiting_devices for state in states),
        }
        totals: dict[str, float] = {
            metric: sum(state.counts.get(name, 0) for state in all_states) for metric, name in _COUNTS.items()
        }
        totals |= {
            "queue_wait_seconds": sum(state.waited_s for state in all_states),
            "stored": sum(state.stored for state in all_states),
            "commits": sum(state.commits for state in all_states),
            "pump_failures": sum(state.pump_failures for state in all_states),
            "hangs": self._hangs(),
            "restarts": self._restarts(),
        }
        held = gauge("walle_tunnel_held_bytes")
        for account in ("buffered", "requests", "uploads"):
            held.add_metric([account], sum(state.held[account] for state in states))
        held_back = gauge("walle_tunnel_held_back")
        held_back.add_metric(["queue"], sum(state.for_queue for state in states))
        held_back.add_metric(["memory"], sum(state.for_memory for state in states))
        refusals = counter("walle_tunnel_refusals_total")
        for reason, count in sorted(self._refusals(states).items()):
            refusals.add_metric([reason], count)
        return [
            *(gauge_of(f"walle_tunnel_{name}", value) for name, value in gauges.items()),
            *(counter_of(f"walle_tunnel_{name}_total", value) for name, value in totals.items()),
            held,
            held_back,
            refusals,
        ]

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
