"""The last signed head of the audit log, for /metrics."""

from collections.abc import Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.access.audit import THREADS, AuditError, AuditHead, AuditStore
from walle.base.clock import Clock
from walle.metrics.table import gauge

_LOOK_S = 10.0


class AuditWatch:
    """The head that was signed last. Between two looks at the log it is that of the last one."""

    def __init__(self, log: AuditStore, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._head: AuditHead | None = None
        self._error = ""

    async def run(self) -> None:
        """Look at the log again and again, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(_LOOK_S)

    async def look(self) -> None:
        """Read the last head. One that cannot be read stays as it was."""
        try:
            self._head = await THREADS.run(self._log.last_head)
            self._error = ""
        except AuditError as error:  # `walle audit verify` tells what is wrong
            self._error = str(error)

    def health(self) -> Mapping[str, Any]:
        """Return whether the last head could be read."""
        return {"ok": not self._error, "error": self._error}

    def metrics(self) -> list[Metric]:
        """Return number and time of the head; a log without one has no series."""
        number, at_s = gauge("walle_audit_head_records"), gauge("walle_audit_head_timestamp_seconds")
        if self._head is not None:
            number.add_metric([], self._head.number)
            at_s.add_metric([], self._head.at_s)
        return [number, at_s]
