"""Numbers of a gateway over the last hour, for charts: sums over labels, noted every SERIES_S. Pure, bounded."""

import collections
import itertools
from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric

from walle.cloud.dashboard.pages import chart

SERIES_S = 10.0
_POINTS = 360
CHARTS = (  # metric, title, whether it is a counter, of which the rate is shown, the number's divisor, and its unit
    ("walle_tunnel_open_connections", "Devices connected to the tunnel", False, 1, ""),
    ("walle_tunnel_stored", "Uploads stored", True, 1, "/s"),
    ("walle_tunnel_received_bytes", "Data from devices", True, 1000, " KB/s"),
    ("walle_tunnel_lag_seconds", "Age of the oldest upload that is not stored", False, 1, " s"),
    ("walle_profiles", "Profiles checked", True, 1, "/s"),
    ("walle_http_connections", "Connections of HTTP", False, 1, ""),
)


class MetricSeries:
    """The latest numbers of the metrics that are drawn."""

    def __init__(self) -> None:
        self._points: collections.deque[tuple[float, dict[str, float]]] = collections.deque(maxlen=_POINTS)

    def note(self, at_s: float, families: Iterable[Metric]) -> None:
        """Note the metrics of a time, in seconds since the epoch."""
        found = {family.name: family for family in families}
        values = {
            name: sum(sample.value for sample in found[name].samples if not sample.name.endswith("_created"))
            for name, *_ in CHARTS
            if name in found
        }
        self._points.append((at_s, values))

    def charts(self) -> list[dict[str, Any]]:
        """Return a chart of each metric that has two points or more."""
        made = []
        for name, title, is_rate, divisor, unit in CHARTS:
            points = [(at_s, values[name] / divisor) for at_s, values in self._points if name in values]
            if is_rate:
                points = [
                    (at_s, max(0.0, value - before) / (at_s - before_s))
                    for (before_s, before), (at_s, value) in itertools.pairwise(points)
                    if at_s > before_s
                ]
            if len(points) > 1:
                x = [at_s for at_s, _ in points]
                values = [round(value, 3) for _, value in points]
                series = [{"label": "now", "values": values, "color": "busy"}]
                summary = f"{values[-1]:,.6g}{unit}, at most {max(values):,.6g}{unit} in the last hour"
                made.append({"title": title, "summary": summary, "data": chart(x, series, unit=unit)})
        return made
