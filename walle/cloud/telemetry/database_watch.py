"""The database that has a cloud's state, for /healthz, /metrics and `walle cloud status`."""

import time
from collections.abc import Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.cloud.folder.folder import CloudHome
from walle.errors import DeployError
from walle.metrics.table import counter_of, gauge_of
from walle.store.lease import MONITOR, RELEASES, LeaseState

_LOOK_S = 2.0
_LATE_S = 6.0  # time without an answer: a look that was begun has not ended


class DatabaseWatch:
    """State of the database, and its leases, as `run` found them last."""

    def __init__(self, home: CloudHome, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._answered_s = clock.monotonic()
        self._error = ""
        self._took_s = 0.0
        self._outages = 0
        self._leases: dict[str, LeaseState] | None = None  # None before the first look

    async def run(self) -> None:
        """Look at the database again and again, until cancelled."""
        from walle.store.postgres_database import PostgresDatabase
        from walle.store.postgres_leases import PostgresLeases

        while True:
            try:
                async with PostgresDatabase(self._home.database_url, connections=1, retry_s=0.0) as database:
                    leases = PostgresLeases(database)
                    while True:
                        await self._look(leases)
                        await self._clock.sleep(_LOOK_S)
            except DeployError as error:
                self._note(getattr(error, "why", str(error)))
            await self._clock.sleep(_LOOK_S)

    async def _look(self, leases: Any) -> None:
        began_s = time.monotonic()
        found = {name: await leases.state(name) for name in (RELEASES, MONITOR)}
        self._took_s = time.monotonic() - began_s
        self._leases = {name: state for name, state in found.items() if state is not None}
        self._answered_s = self._clock.monotonic()
        self._error = ""

    def _note(self, error: str) -> None:
        self._outages += not self._error
        self._error = error

    def _away_s(self) -> float:
        """Return the seconds for which it has not answered, 0 while it does."""
        silent_s = self._clock.monotonic() - self._answered_s
        return silent_s if self._error or silent_s > _LOOK_S + _LATE_S else 0.0

    def _is_full(self) -> bool:
        from walle.store.postgres_connection import outage_of, without_password

        return outage_of(without_password(self._home.database_url)).is_full

    def health(self) -> Mapping[str, Any]:
        """Return whether the database answers and has room; `away_s` is for how long it has not answered."""
        away_s = self._away_s()
        error = self._error or ("does not answer" if away_s else "")
        if not error and self._is_full():
            error = "its disk is full"
        return {"ok": not error, "error": error, "away_s": round(away_s, 1), "took_ms": round(self._took_s * 1e3, 1)}

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        return [
            gauge_of("walle_database_up", int(not self._away_s())),
            gauge_of("walle_database_answer_seconds", self._took_s),
            counter_of("walle_database_outages_total", self._outages),
        ]

    async def leases(self) -> dict[str, LeaseState] | None:
        """Return the leases, None where the database does not tell now."""
        return None if self._away_s() else self._leases
