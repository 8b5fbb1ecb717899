"""Numbers of a version's runs between two reports: a device's evidence for the guards of a release (§6). Pure; bounded.

Of the latency, the median is reported: a run that meets a busy phone says nothing of its version. Of what a task
reports by `ctx.metric` it is the mean.
"""

import statistics
from collections import deque
from collections.abc import Mapping

from walle.protocol import LATENCY_MS, Metric, Outcome, mean_with

_MAX_LATENCIES = 64  # the latest of a report


class RunMetrics:
    """Metrics of the runs of one version that ended well since the last report."""

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=_MAX_LATENCIES)
        self._timed = 0
        self._means: dict[str, tuple[int, float]] = {}  # name → runs, mean

    def add(self, values: Mapping[str, float]) -> None:
        """Add the values of a run by name. Names beyond the most that a report takes are left out."""
        for name, value in values.items():
            if name == LATENCY_MS:
                self._latencies.append(value)
                self._timed += 1
            elif name in self._means or len(self._means) < Outcome.MAX_METRICS - 1:
                self._means[name] = mean_with(self._means.get(name, (0, 0.0)), 1, value)

    def to_report(self) -> tuple[Metric, ...]:
        """Return the metrics, the latency first."""
        found = [Metric(name, count, value) for name, (count, value) in self._means.items()]
        if self._timed:
            found.insert(0, Metric(LATENCY_MS, self._timed, statistics.median(self._latencies)))
        return tuple(found)
