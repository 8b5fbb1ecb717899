"""Interval between two reports of a device, by which all devices together report a given number of times a second.

It depends on how many devices report, and on nothing else: not on what they report, so that it changes no verdict
(docs/adr/0009-push-at-fleet-size.md).
"""

import math

from walle.base.clock import Clock
from walle.deploy.fleet.device_count import DeviceCount

LONGEST_S = (
    900  # a release must not wait longer for its first reports; it is also the time in which devices are counted
)
_COUNT_S = 1.0  # interval between two updates of the estimate; each takes a millisecond


class ReportPace:
    """The interval for `per_s` reports a second. Memory is bounded whatever the number of devices."""

    def __init__(self, per_s: float, clock: Clock) -> None:
        self._per_s = per_s
        self._clock = clock
        self._began_s = clock.monotonic()
        self._now = DeviceCount()
        self._before = 0  # devices in the LONGEST_S before `_began_s`
        self._looked_s = -math.inf
        self._interval_s = 1

    def note(self, device_id: str) -> None:
        """Take note of a device that reports."""
        passed_s = self._clock.monotonic() - self._began_s
        if passed_s >= LONGEST_S:
            self._before = len(self._now) if passed_s < 2 * LONGEST_S else 0
            self._now = DeviceCount()
            self._began_s += passed_s
        self._now.add(device_id)

    @property
    def interval_s(self) -> int:
        """Return whole seconds, from 1 to LONGEST_S: more devices than fit into that exceed the bound."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= _COUNT_S:
            self._looked_s = now_s
            devices = max(self._before, len(self._now))
            self._interval_s = max(1, min(LONGEST_S, math.ceil(devices / self._per_s)))
        return self._interval_s
