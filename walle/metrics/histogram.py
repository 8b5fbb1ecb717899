"""Histogram of values, as Prometheus takes it."""

import bisect

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

    def merge(self, other: "Histogram") -> None:
        """Add the values of another histogram with the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def buckets(self) -> list[tuple[str, float]]:
        """Return (bound, count up to it) of each bound, as Prometheus takes them."""
        names = [*map(str, self.bounds), "+Inf"]
        sums, total = [], 0
        for count in self.counts:
            total += count
            sums.append(float(total))
        return list(zip(names, sums, strict=True))
