"""Counts of fallback inference since its start."""

import collections
import dataclasses
from typing import ClassVar

from walle.metrics.histogram import LATENCIES_S, Histogram

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_COUNTED = 200  # versions


@dataclasses.dataclass
class InferenceCounts:
    """Counts of one version, or of all. `refused` is by reason, one of REASONS.

    "queue" (full), "share" (taken out of a full queue for a device that asks for less), "wait" (it would be too late),
    "expired" (it has become too late), "down" (no replica can be reached).
    """

    REASONS: ClassVar = ("queue", "share", "wait", "expired", "down")

    requests: int = 0
    failed: int = 0
    repeated: int = 0  # requests that ran again because their replica was lost
    cancelled: int = 0
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    batch_sizes: Histogram = dataclasses.field(default_factory=lambda: Histogram(BATCH_SIZES))
    waited_s: Histogram = dataclasses.field(default_factory=lambda: Histogram(LATENCIES_S))  # time before the batch
    latency_s: Histogram = dataclasses.field(default_factory=lambda: Histogram(LATENCIES_S))  # time before the result

    def merge(self, other: "InferenceCounts") -> None:
        """Add the counts of another one."""
        for name in ("requests", "failed", "repeated", "cancelled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused.update(other.refused)
        for name in ("batch_sizes", "waited_s", "latency_s"):
            getattr(self, name).merge(getattr(other, name))


class VersionCounts:
    """Counts by a version's name, of the MAX_COUNTED versions that were asked for last; the others' are one sum."""

    def __init__(self) -> None:
        self.versions: collections.OrderedDict[str, InferenceCounts] = collections.OrderedDict()
        self._held = collections.Counter[str]()
        self._forgotten = InferenceCounts()

    def hold(self, name: str) -> InferenceCounts:
        """Return the counts of a version, to be added to until `release`."""
        self._held[name] += 1
        counts = self.versions.setdefault(name, InferenceCounts())
        self.versions.move_to_end(name)
        if len(self.versions) > MAX_COUNTED:
            oldest = next((one for one in self.versions if one not in self._held), None)
            if oldest is not None:
                self._forgotten.merge(self.versions.pop(oldest))
        return counts

    def release(self, name: str) -> None:
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]

    def total(self) -> InferenceCounts:
        """Return the counts of all versions since the start."""
        total = InferenceCounts()
        for counts in (self._forgotten, *self.versions.values()):
            total.merge(counts)
        return total
