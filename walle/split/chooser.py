"""Choice of a cut at a moment: all here, all there, or between, by predicted latency (Neurosurgeon, §5).

Pure: conditions, clock and randomness are arguments. A change of cut must be worth it. When the cloud was late or away
the model runs here, and a probe asks for the link later, after a wait that doubles.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from walle.split.conditions import Conditions
from walle.split.cut import Cut

_LATE_FACTOR = 2.0
_LATE_MS = 100.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Predicted milliseconds of a run with a cut; `cloud_ms` includes the wait in the cloud's queue."""

    device_ms: float
    transfer_ms: float
    cloud_ms: float

    @property
    def total_ms(self) -> float:
        return self.device_ms + self.transfer_ms + self.cloud_ms


@dataclass(frozen=True, slots=True)
class Choice:
    """A cut, its predicted latency, and the reason.

    The caller sends a probe where `is_probe_due`. Without the cloud's answer after `late_after_ms` it calls
    `Chooser.failed` and runs the model here.
    """

    cut: Cut
    latency: Latency
    why: str
    late_after_ms: float
    is_probe_due: bool = False


def latency(cut: Cut, conditions: Conditions, *, is_here: bool, is_quantised: bool = False) -> Latency:
    """Return the predicted latency of a cut.

    Raises:
        ValueError: the link is unknown, and the cut is not all here.
    """
    device_ms = cut.device_us / 1e3 * conditions.device_slower
    if is_here:
        return Latency(device_ms, 0.0, 0.0)
    if conditions.round_trip_ms is None or not conditions.bytes_per_ms:
        raise ValueError("the link is not known: neither its round trip nor its bandwidth was measured")
    size_bytes = (cut.quantised_bytes if is_quantised and cut.place else cut.up_bytes) + cut.down_bytes
    return Latency(
        device_ms,
        conditions.round_trip_ms + size_bytes / conditions.bytes_per_ms,
        conditions.cloud_wait_ms + cut.cloud_us / 1e3 * conditions.cloud_slower,
    )


def latencies(cuts: Sequence[Cut], conditions: Conditions, *, is_quantised: bool = False) -> list[Latency]:
    """Return the predicted latency of each cut, the last of which is all here; with an unknown link only of that."""
    here = latency(cuts[-1], conditions, is_here=True)
    if conditions.round_trip_ms is None or not conditions.bytes_per_ms:
        return [here]
    return [*(latency(one, conditions, is_here=False, is_quantised=is_quantised) for one in cuts[:-1]), here]


def choose(
    cuts: Sequence[Cut],
    conditions: Conditions,
    *,
    current: Cut | None = None,
    least_gain: float = 0.0,
    is_quantised: bool = False,
) -> Choice:
    """Return the cut of the least predicted latency; `current` unless the gain over it is this share or more."""
    found = latencies(cuts, conditions, is_quantised=is_quantised)
    if len(found) == 1:
        return Choice(cuts[-1], found[0], "all here: the link was not measured yet", _late_ms(found[0]))
    best = min(range(len(cuts)), key=lambda at: found[at].total_ms)
    chosen, reason = best, ""
    if current is not None and current in cuts:
        own = cuts.index(current)
        if own != best and found[best].total_ms > (1 - least_gain) * found[own].total_ms:
            chosen = own
            gain = 1 - found[best].total_ms / found[own].total_ms
            reason = f"; kept, as {named(cuts, best)} would gain only {gain:.0%}"
    return Choice(cuts[chosen], found[chosen], _why(cuts, found, chosen) + reason, _late_ms(found[chosen]))


def named(cuts: Sequence[Cut], at: int) -> str:
    """Return a cut in words."""
    if at in {0, len(cuts) - 1}:
        return "all here" if at else "all there"
    return f"a cut after {cuts[at].after}"


def _why(cuts: Sequence[Cut], found: Sequence[Latency], at: int) -> str:
    one = found[at]
    parts = f"device {one.device_ms:.1f}, transfer {one.transfer_ms:.1f}, cloud {one.cloud_ms:.1f}"
    fixed = [f"{named(cuts, other)} {found[other].total_ms:.1f} ms" for other in (0, len(cuts) - 1) if other != at]
    return f"{named(cuts, at)}: {one.total_ms:.1f} ms ({parts}); {', '.join(fixed)}"


def _late_ms(one: Latency) -> float:
    return one.device_ms + _LATE_FACTOR * (one.transfer_ms + one.cloud_ms) + _LATE_MS


@dataclass(frozen=True, slots=True)
class ChooserSettings:
    """`least_gain` is the share of latency that a change of cut gains at least. `probe_s` is the age of a measured
    bandwidth that asks for a probe where the cloud would take twice as long, `least_probe_s` where it would take as
    long. Waits after failures double from the first to the longest.
    """

    least_gain: float = 0.05
    probe_s: float = 10.0
    least_probe_s: float = 5.0
    first_wait_s: float = 2.0
    longest_wait_s: float = 300.0


class Chooser:
    """Choices for one model, one after the other, with the cut before and failures of the cloud."""

    def __init__(
        self,
        cuts: Sequence[Cut],
        rng: random.Random,
        settings: ChooserSettings | None = None,
        *,
        is_quantised: bool = False,
    ) -> None:
        self._cuts = cuts
        self._rng = rng
        self._settings = settings or ChooserSettings()
        self._is_quantised = is_quantised
        self._current: Cut | None = None
        self._failures = 0
        self._away_until_s: float | None = None

    def choose(self, conditions: Conditions, link_age_s: float, now_s: float) -> Choice:
        """Return the choice for a run that begins now; `link_age_s` is the age of the measured bandwidth."""
        here = self._cuts[-1]
        if self._away_until_s is not None:
            found = latency(here, conditions, is_here=True)
            wait_s = max(0.0, self._away_until_s - now_s)
            self._current = None
            why = f"all here: the cloud was late or away, a probe {f'in {wait_s:.0f} s' if wait_s else 'now'}"
            return Choice(here, found, why, _late_ms(found), is_probe_due=not wait_s)
        made = choose(
            self._cuts,
            conditions,
            current=self._current,
            least_gain=self._settings.least_gain,
            is_quantised=self._is_quantised,
        )
        self._current = made.cut
        is_due = made.cut is here and self._is_stale(link_age_s, conditions)
        return Choice(made.cut, made.latency, made.why, made.late_after_ms, is_probe_due=is_due)

    def _is_stale(self, link_age_s: float, conditions: Conditions) -> bool:
        """Return whether a device that computes alone asks for the bandwidth again: the later, the slower the cloud
        would be, and never where no bandwidth would make it faster.
        """
        unlimited = replace(conditions, bytes_per_ms=math.inf, round_trip_ms=conditions.round_trip_ms or 0.0)
        *others, here = latencies(self._cuts, unlimited, is_quantised=self._is_quantised)
        if min(one.total_ms for one in others) >= here.total_ms:
            return False
        *others, here = latencies(self._cuts, conditions, is_quantised=self._is_quantised)
        if not others:
            return True
        times_slower = min(one.total_ms for one in others) / here.total_ms
        probe_s = self._settings.probe_s * math.log2(max(times_slower, 1.0))
        return link_age_s >= min(max(self._settings.least_probe_s, probe_s), self._settings.longest_wait_s)

    def failed(self, now_s: float) -> None:
        """Run here from now on: the cloud's part was late, the link broke, or a probe failed."""
        self._failures += 1
        wait_s = min(self._settings.first_wait_s * 2.0 ** (self._failures - 1), self._settings.longest_wait_s)
        self._away_until_s = now_s + wait_s * self._rng.uniform(0.8, 1.2)  # devices do not come back all at once

    def answered(self) -> None:
        """Choose freely again: the cloud answered a run or a probe in time."""
        self._failures = 0
        self._away_until_s = None
