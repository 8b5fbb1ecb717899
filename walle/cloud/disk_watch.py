"""The cloud's disk and the head of its audit log, for /healthz and /metrics."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from walle.deploy.cloud.audit import AuditError, AuditHead
from walle.deploy.cloud.disk_space import RESERVE_BYTES
from walle.deploy.cloud.metrics import gauge, gauge_of


class DiskWatch:
    """Free space of the disk of a cloud's folder, and the last signed head in its audit log."""

    def __init__(self, folder: Path, audit_head: Path) -> None:
        self._folder = folder
        self._audit_head = audit_head

    def health(self) -> Mapping[str, Any]:
        """Return the free space. A full disk refuses what needs space; the parts that fail say so themselves."""
        return {"ok": True, "free_bytes": self._disk()[0]}

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape. A log without a head has no series."""
        free_bytes, size_bytes = self._disk()
        number, at_s = gauge("walle_audit_head_records"), gauge("walle_audit_head_timestamp_seconds")
        try:
            head = AuditHead.load(self._audit_head)
        except AuditError:
            pass  # nothing was recorded yet, or `walle audit verify` tells what is wrong
        else:
            number.add_metric([], head.number)
            at_s.add_metric([], head.at_s)
        return [
            gauge_of("walle_disk_free_bytes", free_bytes),
            gauge_of("walle_disk_size_bytes", size_bytes),
            gauge_of("walle_disk_reserve_bytes", RESERVE_BYTES),
            number,
            at_s,
        ]

    def _disk(self) -> tuple[int, int]:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
