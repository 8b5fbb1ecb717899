"""Known conditions of a cut model: the link, the cloud and the device, from measurements that age.

Neurosurgeon (§5) reads the network's and the server's present state before each run. Here both are medians of recent
measurements, in which one counts half as much after each half-life. Pure: the caller gives the times and the clock.
"""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass, field

_MOST = 64  # measurements that are kept
_LEAST_BYTES = 4096  # smaller transfers say nothing of the bandwidth
_MOST_WEIGHT_BYTES = 256 << 10  # a larger transfer tells the bandwidth no better
_LEAST_PACE = 1e-9  # milliseconds for a byte
_LEAST_SHARE = 0.05  # least share of a transfer that counts as time beyond the round trip


class Recent:
    """Exponentially weighted quantiles of measurements: one counts half as much as one `half_life_s` later."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._found: collections.deque[tuple[float, float, float]] = collections.deque(maxlen=_MOST)

    def add(self, value: float, now_s: float, weight: float = 1.0) -> None:
        """Record a measurement; one that says more has a greater weight."""
        if math.isfinite(value):
            self._found.append((now_s, value, weight))

    def quantile(self, share: float = 0.5) -> float | None:
        """Return the least value that this share of the weight does not exceed; None without measurements."""
        if not self._found:
            return None
        latest_s = max(time_s for time_s, *_ in self._found)
        weighted = sorted(
            (value, weight * 0.5 ** ((latest_s - time_s) / self._half_life_s)) for time_s, value, weight in self._found
        )
        wanted = share * sum(weight for _, weight in weighted)
        passed = 0.0
        for value, weight in weighted:
            passed += weight
            if passed >= wanted:
                return value
        return weighted[-1][0]

    def age_s(self, now_s: float) -> float:
        """Return the seconds since the latest measurement; infinity without one."""
        return now_s - self._found[-1][0] if self._found else math.inf


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions under which a cut is chosen; where round trip or bandwidth is None, nothing runs in the cloud.

    `device_slower` and `cloud_slower` multiply the times that the cuts have. `bytes_per_ms` is of both directions.
    """

    round_trip_ms: float | None
    bytes_per_ms: float | None
    device_slower: float = 1.0
    cloud_slower: float = 1.0
    cloud_wait_ms: float = 0.0


@dataclass(slots=True)
class Record:
    """Measurements of one device and one model; `conditions` gives what they say."""

    half_life_s: float = 4.0
    compute_half_life_s: float = 30.0
    _round_trips: Recent = field(init=False)
    _paces: Recent = field(init=False)
    _device: Recent = field(init=False)
    _cloud: Recent = field(init=False)
    _waits: Recent = field(init=False)

    def __post_init__(self) -> None:
        self._round_trips, self._paces = Recent(self.half_life_s), Recent(self.half_life_s)
        self._waits = Recent(self.half_life_s)
        self._device, self._cloud = Recent(self.compute_half_life_s), Recent(self.compute_half_life_s)

    def saw_round_trip(self, took_ms: float, now_s: float) -> None:
        """Record an exchange of small messages, a heartbeat of the tunnel for example."""
        self._round_trips.add(took_ms, now_s)

    def saw_transfer(self, size_bytes: int, took_ms: float, now_s: float) -> None:
        """Record bytes of both directions, and the time of the exchange without the cloud's own."""
        if size_bytes < _LEAST_BYTES:
            self.saw_round_trip(took_ms, now_s)
            return
        round_trip_ms = self._round_trips.quantile() or 0.0
        low, high = self._round_trips.quantile(0.25) or 0.0, self._round_trips.quantile(0.75) or 0.0
        beyond_ms = max(took_ms - round_trip_ms, 0.5 * (high - low), _LEAST_SHARE * took_ms)
        self._paces.add(beyond_ms / size_bytes, now_s, min(size_bytes, _MOST_WEIGHT_BYTES))

    def saw_device(self, took_ms: float, expected_us: float, now_s: float) -> None:
        """Record a run on the device, and the time that the cuts have for it; one without either says nothing."""
        if expected_us > 0 and took_ms > 0:
            self._device.add(1e3 * took_ms / expected_us, now_s)

    def saw_cloud(self, took_ms: float, waited_ms: float, expected_us: float, now_s: float) -> None:
        """Record a run in the cloud and its wait in the queue, both as the cloud reports them."""
        self._waits.add(waited_ms, now_s)
        if expected_us > 0:
            self._cloud.add(1e3 * took_ms / expected_us, now_s)

    def link_age_s(self, now_s: float) -> float:
        """Return the seconds since bandwidth was last measured."""
        return self._paces.age_s(now_s)

    def conditions(self) -> Conditions:
        """Return the medians of all that is recorded."""
        pace, device, cloud = self._paces.quantile(), self._device.quantile(), self._cloud.quantile()
        return Conditions(
            self._round_trips.quantile(),
            None if pace is None else 1 / max(pace, _LEAST_PACE),
            1.0 if device is None else device,
            1.0 if cloud is None else cloud,
            self._waits.quantile() or 0.0,
        )
