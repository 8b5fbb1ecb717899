"""Delay, jitter, loss, rate and queue of one direction of a link; computes when each packet arrives."""

import dataclasses
import random
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkShape:
    """A link. All values are of one direction, and the same in both.

    A packet is delayed by `delay_ms` plus a uniform random part of -`jitter_ms` to `jitter_ms`, and never overtakes an
    earlier one. Each is lost with probability `loss`, and dropped when `queue_bytes` wait for the link's rate.
    """

    delay_ms: float = 50.0
    jitter_ms: float = 20.0
    loss: float = 0.01
    bits_per_s: float = 10e6
    queue_bytes: int = 128 << 10  # about the bandwidth times the round trip of the other defaults

    def __str__(self) -> str:
        return (
            f"{self.delay_ms:g} ± {self.jitter_ms:g} ms one way, {100 * self.loss:g} % loss of packets,"
            f" {self.bits_per_s / 1e6:g} Mbit/s in each direction, queue of {self.queue_bytes >> 10} KiB"
        )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def round_trip_s(self) -> float:
        """The mean round trip of a lone small packet."""
        return 2 * self.delay_ms / 1000

    def time_on_link_s(self, size_bytes: int) -> float:
        return size_bytes * 8 / self.bits_per_s

    def draw_delay_s(self, rng: random.Random) -> float:
        return max(0.0, self.delay_ms + rng.uniform(-self.jitter_ms, self.jitter_ms)) / 1000


class Direction:
    """The packets of one direction. Times are of any monotonic clock."""

    def __init__(self, shape: LinkShape, rng: random.Random) -> None:
        self.packets = self.lost = self.overflowed = 0
        self._shape = shape
        self._rng = rng
        self._free_s = 0.0  # the link has sent everything that entered it
        self._arrives_s = 0.0  # arrival of the latest packet

    def send(self, size_bytes: int, now_s: float) -> float | None:
        """Return when a packet that enters now arrives, None if it does not."""
        shape = self._shape
        self.packets += 1
        waiting_s = max(0.0, self._free_s - now_s)
        if waiting_s > shape.time_on_link_s(shape.queue_bytes):
            self.overflowed += 1
            return None
        self._free_s = now_s + waiting_s + shape.time_on_link_s(size_bytes)
        if self._rng.random() < shape.loss:  # lost on the air: the packet has used its share of the rate
            self.lost += 1
            return None
        self._arrives_s = max(self._arrives_s, self._free_s + shape.draw_delay_s(self._rng))
        return self._arrives_s

    def counts(self) -> dict[str, int]:
        return {"packets": self.packets, "lost": self.lost, "overflowed": self.overflowed}
