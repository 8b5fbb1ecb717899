"""The tunnel servers of a cloud, as its gateway knows them by their reports: the ring, their state, and how many ended.

A server that has not reported for `GONE_S` leaves the ring; its devices go to the others. A gateway that was started
again hears from servers that follow a ring; it makes one `_SETTLE_S` later, when all have reported.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.metrics.table import counter_of, gauge, gauge_of
from walle.pipeline.ingest.processes import sum_ended
from walle.pipeline.ingest.service import TunnelState
from walle.pipeline.tunnel.server.ring import Ring, RingMember

GONE_S = 5.0
_SETTLE_S = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunnelReport:
    """Report of a tunnel server. `node` is where it runs; `sent_on` counts hellos that it sent to other servers,
    and `generation` is that of the ring that it follows, 0 if none.

    `delays_ms` and `traced` are of the uploads since the report before: see `StoredNotes.take`.
    """

    member: RingMember
    node: str
    is_leaving: bool
    state: TunnelState
    generation: int
    sent_on: int
    delays_ms: list[float]
    traced: list[list[Any]]


@dataclasses.dataclass
class _Server:
    report: TunnelReport
    heard_s: float


class TunnelServers:
    """The servers by name, and the ring of those that take devices. A `WatchedPart` for /healthz and /metrics."""

    def __init__(self, clock: Clock) -> None:
        self.ring = Ring()
        self.lost = 0  # servers that did not report any more, without leaving
        self._clock = clock
        self._settles_s = clock.monotonic()  # earliest time of a ring
        self._followed = 0  # the highest generation of a ring that a server follows
        self._servers: dict[str, _Server] = {}
        self._ended: list[TunnelState] = []
        self._ended_sent_on = 0

    def take(self, report: TunnelReport) -> Ring | None:
        """Take note of a report; return the ring that its server is to follow, None if none is known yet."""
        name = report.member.name
        if not self.ring.generation and not self._servers and report.generation:  # the ring of an earlier gateway
            self._settles_s = self._clock.monotonic() + _SETTLE_S
        known = self._servers.get(name)
        if known is not None and known.report.state.pid != report.state.pid:  # a further process
            self._forget(name)
        self._servers[name] = _Server(report, self._clock.monotonic())
        self._followed = max(self._followed, report.generation)
        self.look()
        return self.ring if self.ring.generation else None

    def look(self) -> bool:
        """Forget servers that do not report, and make the ring of the others; return whether it has changed."""
        now_s = self._clock.monotonic()
        for name in [name for name, one in self._servers.items() if now_s - one.heard_s > GONE_S]:
            self.lost += not self._servers[name].report.is_leaving
            self._forget(name)
        if now_s < self._settles_s or not (self._servers or self.ring.generation):
            return False
        members = tuple(sorted(one.report.member for one in self._servers.values() if not one.report.is_leaving))
        if members == self.ring.members and self.ring.generation >= max(1, self._followed):
            return False
        # By the clock, so that a gateway on another node counts on from there, also where its clock is behind.
        before = max(self.ring.generation, self._followed)
        self.ring = Ring(max(before + 1, int(self._clock.time() * 1000)), members)
        return True

    def _forget(self, name: str) -> None:
        gone = self._servers.pop(name).report
        self._ended = [sum_ended([*self._ended, gone.state])]
        self._ended_sent_on += gone.sent_on

    @property
    def count(self) -> int:
        """The number of servers that report."""
        return len(self._servers)

    def states(self) -> list[TunnelState]:
        """Return the latest state of each server that reports."""
        return [one.report.state for one in self._servers.values()]

    def ended(self) -> list[TunnelState]:
        """Return one state with the counts of all servers that have ended, or none."""
        return self._ended

    def rows(self) -> list[dict[str, Any]]:
        """Return the servers as JSON, by name."""
        rows = []
        for name, one in sorted(self._servers.items()):
            report, state = one.report, one.report.state
            rows.append(
                {
                    "name": name,
                    "node": report.node,
                    "host": report.member.host,
                    "port": report.member.port,
                    "state": "leaving" if report.is_leaving else "serving",
                    "connections": state.open_connections,
                    "stored": state.stored,
                    "queued": state.queued,
                    "lag_s": round(state.lag_s, 3),
                    "sent_on": report.sent_on,
                    "error": state.error,
                }
            )
        return rows

    def health(self) -> Mapping[str, Any]:
        """Return the servers; what fails in one is in the tunnel's own state."""
        return {"ok": True, "generation": self.ring.generation, "lost": self.lost, "servers": self.rows()}

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        connections = gauge("walle_tunnel_server_connections")
        for name, one in sorted(self._servers.items()):
            connections.add_metric([name], one.report.state.open_connections)
        sent_on = self._ended_sent_on + sum(one.report.sent_on for one in self._servers.values())
        return [
            connections,
            gauge_of("walle_tunnel_servers", len(self.ring.members)),
            counter_of("walle_tunnel_servers_lost_total", self.lost),
            counter_of("walle_tunnel_sent_on_total", sent_on),
        ]
