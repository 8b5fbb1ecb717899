"""The disk of the cloud's folder, for /healthz and /metrics."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from walle.metrics.table import gauge_of
from walle.store.disk_space import RESERVE_BYTES


class DiskWatch:
    """Free space of the disk of a cloud's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def health(self) -> Mapping[str, Any]:
        """Return the free space. A full disk refuses what needs space; the parts that fail say so themselves."""
        return {"ok": True, "free_bytes": self._disk()[0]}

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        free_bytes, size_bytes = self._disk()
        return [
            gauge_of("walle_disk_free_bytes", free_bytes),
            gauge_of("walle_disk_size_bytes", size_bytes),
            gauge_of("walle_disk_reserve_bytes", RESERVE_BYTES),
        ]

    def _disk(self) -> tuple[int, int]:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
