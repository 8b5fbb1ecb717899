"""Counts of fallback inference since its start."""

import bisect
import collections
import dataclasses

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts of values up to each of `bounds`, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return (bound, count up to it) of each bound, as Prometheus takes them."""
        names = [*map(str, self.bounds), "+Inf"]
        sums, total = [], 0
        for count in self.counts:
            total += count
            sums.append(float(total))
        return list(zip(names, sums, strict=True))


@dataclasses.dataclass
class InferenceCounts:
    """`refused` by reason: "queue", "wait" (it would be too late) and "expired" (it has become too late)."""

    requests: int = 0
    failed: int = 0
    repeated: int = 0  # that ran again because their replica was lost
    cancelled: int = 0
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    batch_sizes: Histogram = dataclasses.field(default_factory=lambda: Histogram(BATCH_SIZES))
    latency_s: Histogram = dataclasses.field(default_factory=lambda: Histogram(LATENCIES_S))  # of results
