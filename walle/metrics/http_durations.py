"""Durations of HTTP requests by class of route, for /healthz and /metrics."""

import bisect
from collections.abc import Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.metrics.histogram import LATENCIES_S, Histogram
from walle.metrics.table import histogram

ROUTE_CLASSES = (
    "api",
    "business",
    "cdn",
    "cen",
    "git",
    "identity",
    "outcomes",
    "pages",
    "push",
    "refused",
    "watch",
)
_BY_PREFIX = {
    "/v1/checkin": "push",
    "/v1/outcomes": "outcomes",
    "/v1/identity/": "identity",
    "/v1/": "api",
    "/trust/": "identity",
    "/cdn/": "cdn",
    "/cen/": "cen",
    "/git/": "git",
    "/metrics": "watch",
    "/healthz": "watch",
    "/{path:path}": "business",
}
_ENDLESS = ("/v1/releases/{release_id}/stream", "/v1/push-table")  # answers that wait for news, or for the client's end


def route_class(path: str) -> str:
    """Return the class of a route's template, or "" for one whose answers wait by design."""
    if path in _ENDLESS:
        return ""
    return next((name for prefix, name in _BY_PREFIX.items() if path.startswith(prefix)), "pages")


class HttpDurations:
    """A histogram for each class of route."""

    def __init__(self) -> None:
        self._by_class = {name: Histogram(LATENCIES_S) for name in ROUTE_CLASSES}

    def add(self, name: str, duration_s: float) -> None:
        """Count a request of a class; `Histogram.add` written out, as every push answer pays for it."""
        found = self._by_class[name]
        found.counts[bisect.bisect_left(LATENCIES_S, duration_s)] += 1
        found.total += duration_s

    def health(self) -> Mapping[str, Any]:
        """Return nothing that can fail."""
        return {"ok": True}

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape; a class without requests has no series."""
        durations = histogram("walle_http_duration_seconds")
        for name, values in self._by_class.items():
            if any(values.counts):
                durations.add_metric([name], values.buckets(), values.total)
        return [durations]
