"""Pace of refused requests: a device that sends many of them is read more slowly.

A refused request costs a frame, a look-up and an answer. The device's connection is not read for a while, so that what
it sends further stays on its side; nothing is lost, and its uploads wait with it.
"""

from walle.base.clock import Clock

BURST = 50  # refused requests that a device may send without a pause
PER_S = 5.0  # refused requests that a device may add in a second
_MAX_DEVICES = 10_000  # devices known at once; above, those with fewest refused requests are forgotten


class RefusalPace:
    """Refused requests of each device, as a token bucket."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[str, tuple[float, float]] = {}  # requests that count still, as of a time

    def note(self, device_id: str) -> float:
        """Count a refused request; return for how many seconds the device is not to be read, 0 for not at all."""
        now_s = self._clock.monotonic()
        count = self._count(device_id, now_s) + 1
        self._refused[device_id] = count, now_s
        if len(self._refused) > _MAX_DEVICES:
            counts = {one: self._count(one, now_s) for one in self._refused}
            for one in sorted(counts, key=counts.__getitem__)[: _MAX_DEVICES // 2]:
                del self._refused[one]
        return max(0.0, (count - BURST) / PER_S)

    def _count(self, device_id: str, now_s: float) -> float:
        count, at_s = self._refused.get(device_id, (0.0, now_s))
        return max(0.0, count - (now_s - at_s) * PER_S)
