"""Sequential tests of the failure rate of a new version against the version before it, by devices. Pure.

An observation is what one device reported: the failures `f` among its first `n` runs. `f` is cut at `cap(n)`, a fifth
of the runs, so that one device weighs little whatever it says. A sample is the number of devices of each (n, f): the
tests depend on nothing else, so not on the order in which devices report.

Each test is a bet: a wealth that begins with 1, is multiplied by 1 + λ(f - a) at each device, and cannot grow in the
mean where the expected failures of a device are a or fewer. By Ville's inequality such a wealth ever reaches 1/α with
a probability of at most α, however often it is looked at (Waudby-Smith and Ramdas, "Estimating means of bounded random
variables by betting", JRSS B 2024). Nothing is assumed of a device's runs among themselves.

The rate of the version before is unknown. A test therefore takes the least wealth over all rates m that it may have:
for each m, the wealth of the bet on the new version, times that of a bet that the version before has another rate than
m (Turner, Ly, Grünwald, "Generic E-variables for exact sequential k-sample tests", 2024). Between two points of the
grid each bet is made against the end that is worse for it, so that the grid costs power, not validity.
"""

import bisect
import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Iterator, Mapping

type Sample = Mapping[tuple[int, int], int]
"""Number of devices that reported f failures, cut, in n runs: (n, UNITS · f rounded) → count."""

type Parts = tuple[float, ...]

UNITS = 100  # parts of a failure: only some of a long report count
_GRID = 192
_TOP = 0.9  # greatest rate of the grid
_UNKNOWN_TOP = 0.1  # greatest rate assumed of a version before that has reported nothing yet
_IDLE_REJECT = 0.02  # share of the wealth that is not bet on the version before
_IDLE_ACCEPT = 0.8
_NEARLY_ALL = 0.98
_BOLDNESS = 0.95  # part of the bet that would lose everything at one observation


def cap(n: int) -> int:
    """Return the most failures that count among n runs of a device."""
    return max(1, math.ceil(n / 5))


@dataclasses.dataclass(frozen=True)
class RateTest:
    """Test of the failure rate of one run.

    `floor` is the rate that is always allowed. A version is bad where its rate is `gap` above that of the version
    before, or above `floor` if that is greater. `hostile` is the share of devices whose reports are disregarded when a
    version is to be rejected. Bets are made that a bad version is `higher` parts of the gap above a rate that the
    version before may have, and that the latter is `lower` parts of that rate below it.
    """

    floor: float
    gap: float
    hostile: float
    higher: Parts = (0.9, 0.5)
    lower: Parts = (0.3, 0.6)

    def reject_log(self, new: Sample, old: Sample | None, *, below: float = -math.inf) -> float:
        """Return the logarithm of the evidence that `new` has a higher rate than `old` and than the floor.

        Without `old`, None, there is no version before, and the floor alone counts. The least over the grid is not
        looked for any further once it is under `below`.
        """
        least = self._up(new, self.floor)
        if old is None or least < below:
            return least
        for low, high in _intervals_from(_pooled(new, old), self.floor, _TOP if old else _UNKNOWN_TOP):
            unlike = _total(old, _Bet.LOWER_THAN_BEFORE, low, 0.0, self.gap, self.lower, idle=_IDLE_REJECT)
            least = min(least, self._up(new, high) + unlike)
            if least < below:
                break
        return least

    def accept_log(self, new: Sample, old: Sample | None, *, below: float = -math.inf) -> float:
        """Return the logarithm of the evidence that `new` has a rate less than `gap` above `old` or the floor."""
        old = old or {}
        least = math.inf
        floor = ((self.floor, self.floor),)
        between = math.sqrt(self.floor * max(self.floor, _pooled({}, old)))
        for low, high in itertools.chain(floor, _intervals_from(between, self.floor, _TOP)):
            unlike = _total(old, _Bet.HIGHER, high, 0.0, self.gap, self.higher, idle=_IDLE_ACCEPT)
            least = min(least, _total(new, _Bet.LOWER, low + self.gap, 0.0, self.gap, self.higher) + unlike)
            if least < below or not old:
                break
        return least

    def _up(self, new: Sample, rate: float) -> float:
        return _total(new, _Bet.HIGHER, rate, self.hostile, self.gap, self.higher)


class _Bet(enum.IntEnum):
    """Kind of a bet: by how much the truth may differ from the rate that is bet against."""

    HIGHER = enum.auto()
    LOWER = enum.auto()
    LOWER_THAN_BEFORE = enum.auto()


@functools.lru_cache(maxsize=64)
def _intervals(floor: float, top: float) -> tuple[tuple[float, float], ...]:
    if floor >= top:
        return ()
    edges = [floor * (top / floor) ** (step / _GRID) for step in range(_GRID + 1)]
    return tuple(itertools.pairwise(edges))


def _intervals_from(rate: float, floor: float, top: float) -> Iterator[tuple[float, float]]:
    """Yield the intervals, first that of `rate`, where the evidence may be least, so that few are looked at."""
    every = _intervals(floor, top)
    first = min(bisect.bisect(every, (rate, top)), len(every) - 1)
    return itertools.chain(every[first : first + 1], every)


def _pooled(new: Sample, old: Sample) -> float:
    """Return the rate of failed runs in both samples."""
    runs = failed = 0
    for sample in (new, old):
        for (n, f), count in sample.items():
            runs += n * count
            failed += f * count
    return failed / (UNITS * runs) if runs else 0.0


def _total(
    sample: Sample, kind: _Bet, rate: float, hostile: float, gap: float, parts: Parts, *, idle: float = 0.0
) -> float:
    """Return the logarithm of the mean wealth of the bets of a kind against a rate.

    The share `idle` of the wealth is not bet at all.
    """
    if not sample:
        return 0.0
    counts = sample.values()
    growths = [_growths(n, f, kind, rate, hostile, gap, parts) for n, f in sample]
    logs = [math.sumprod(growth, counts) for growth in zip(*growths, strict=True)]
    top = max(0.0, *logs) if idle else max(logs)
    kept = idle * math.exp(-top) if idle else 0.0
    return top + math.log(kept + (1 - idle) / len(logs) * math.fsum([math.exp(one - top) for one in logs]))


@functools.lru_cache(maxsize=1 << 16)
def _growths(n: int, f: int, kind: _Bet, rate: float, hostile: float, gap: float, parts: Parts) -> list[float]:
    """Return the logarithms by which a device changes the wealth of each bet."""
    return [math.log1p(stake * (f / UNITS - mean)) for stake, mean in _bets(n, kind, rate, hostile, gap, parts)]


@functools.lru_cache(maxsize=16_384)
def _bets(n: int, kind: _Bet, rate: float, hostile: float, gap: float, parts: Parts) -> tuple[tuple[float, float], ...]:
    """Return stake λ and mean a of the bets on devices of n runs: for small differences, and for great ones."""
    most = cap(n)
    if kind is _Bet.HIGHER:
        mean = min(most, n * rate) + hostile * most
        higher = [*(_cut_mean(n, min(1.0, rate + part * gap)) for part in parts), (mean + most) / 2]
        return tuple((min(_stake(mean, other - mean, most), _BOLDNESS / mean), mean) for other in higher)
    mean = min(_cut_mean(n, min(1.0, rate)), most * _NEARLY_ALL)
    if kind is _Bet.LOWER:
        differences = [mean - _cut_mean(n, max(0.0, rate - gap)), 3 * mean / 4]
    else:
        differences = [part * mean for part in parts]
    boldest = _BOLDNESS / (most - mean)
    return tuple((-min(_stake(mean, one, most), boldest), mean) for one in differences)


def _stake(mean: float, difference: float, most: int) -> float:
    """Return Kelly's stake against `mean` where the truth differs by `difference`, for observations from 0 to `most`.

    It is 0, no bet, where the truth is on the other side, or where nothing can be above the mean.
    """
    return max(0.0, difference) / (mean * (1 - mean / most)) if 0 < mean < most else 0.0


@functools.lru_cache(maxsize=4096)
def _cut_mean(n: int, rate: float) -> float:
    """Return the expected failures, cut, in n independent runs."""
    most = cap(n)
    below = [math.comb(n, f) * rate**f * (1 - rate) ** (n - f) for f in range(min(most, n + 1))]
    return sum(f * p for f, p in enumerate(below)) + most * (1 - sum(below))
