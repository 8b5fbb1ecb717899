"""Delays of uploads: from an output, by the device's clock, to its receipt. For /healthz and /metrics."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.metrics.histogram import Histogram
from walle.metrics.table import histogram

# Devices may be offline for days.
_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0, 86_400.0)
_KEPT = 50_000


class UploadDelays:
    """A histogram of all delays, and the latest ones in milliseconds."""

    def __init__(self) -> None:
        self.latest_ms: collections.deque[float] = collections.deque(maxlen=_KEPT)
        self._histogram = Histogram(_BOUNDS_S)

    def add(self, delays_ms: Iterable[float]) -> None:
        """Count the delays of a batch."""
        for delay_ms in delays_ms:
            self.latest_ms.append(delay_ms)
            self._histogram.add(max(0.0, delay_ms / 1000))

    def health(self) -> Mapping[str, Any]:
        """Return nothing that can fail: a device that was offline is late, and no fault of the cloud."""
        return {"ok": True}

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        delays = histogram("walle_upload_delay_seconds")
        delays.add_metric([], self._histogram.buckets(), self._histogram.total)
        return [delays]
