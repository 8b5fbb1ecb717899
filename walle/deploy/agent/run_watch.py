"""Sequential test of a version's failure rate on one device, against that of the version before it. Pure.

A run fails or not. Allowed is a rate `a`: `ALLOWED`, or what the version before failed at here, where that is more. Two
bets are kept against "the rate is at most a", each a likelihood ratio for a greater rate, which is multiplied at each
run and begins again at 1 when it falls below. Their mean is an e-detector: by Ville's inequality for the
Shiryaev-Roberts sum that bounds it, a version that fails at `a` or less is found bad within n runs with a probability
of at most n / EVIDENCE, whatever n is and however often it is looked at (Shin, Ramdas, Rinaldo, "E-detectors: a
nonparametric framework for sequential change detection", 2023). A version that goes bad after a million good runs is
found as soon as one that was bad from its first.

The state is two logarithms and a few counts. The rate of the version before is an upper bound that holds with a
probability of 1 - `_DOUBT`; it plays no part where it is below `ALLOWED`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

ALLOWED = 0.1  # share of a version's runs that may fail here, whatever the one before did
EVIDENCE = 1e7  # evidence at which a version is left
_SHARES = (0.5, 0.2)  # places between the allowed rate and 1: the rates that the two bets are for
_DOUBT = 1e-3  # probability that the version before fails more often than the bound on its rate
_MOST = 2.0  # times the rate that was seen of the version before, at most: after a few runs the bound is near 1
_NEARLY_ALL = 0.99  # allowed rate above which nothing can be found
_ENOUGH = 30  # runs of the version before, for a rate of its own: after fewer, what it was allowed holds on
_STEPS = 40  # steps of the bisection


@dataclasses.dataclass(frozen=True)
class RunCounts:
    """Runs of a version on this device, and how many of them failed."""

    runs: int = 0
    failed: int = 0


@dataclasses.dataclass(frozen=True)
class RunWatch:
    """Counts of a version, and the logarithms of the two bets that it fails more often than `allowed`."""

    counts: RunCounts = RunCounts()
    allowed: float = ALLOWED
    bets: tuple[float, float] = (0.0, 0.0)

    def next(self) -> Self:
        """Return the watch of a version that replaces this one."""
        runs, failed = self.counts.runs, self.counts.failed
        if runs < _ENOUGH:
            return type(self)(allowed=self.allowed)
        return type(self)(allowed=max(ALLOWED, min(_upper(runs, failed), _MOST * failed / runs)))

    def again(self) -> Self:
        """Return the watch of the same version when it is activated once more: it is judged by later runs."""
        return dataclasses.replace(self, bets=(0.0, 0.0))

    def run(self, *, ok: bool) -> Self:
        """Return the watch after one more run."""
        counts = RunCounts(self.counts.runs + 1, self.counts.failed + (not ok))
        first, second = (
            max(0.0, bet) + _gain(self.allowed, share, ok=ok) for bet, share in zip(self.bets, _SHARES, strict=True)
        )
        return dataclasses.replace(self, counts=counts, bets=(first, second))

    @property
    def is_bad(self) -> bool:
        """Return whether the version fails more often than allowed, with an error of known probability."""
        top = max(self.bets)
        return top + math.log(sum(math.exp(bet - top) for bet in self.bets) / len(self.bets)) >= math.log(EVIDENCE)

    @property
    def words(self) -> str:
        """The finding in words, for a reason."""
        counts = self.counts
        return f"{counts.failed} of its {counts.runs} runs here failed, where {self.allowed:.3g} of them may"

    def to_plain(self) -> dict[str, Any]:
        counts = [self.counts.runs, self.counts.failed]
        return {"counts": counts, "allowed": self.allowed, "bets": list(self.bets)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the watch of `to_plain`. Raises ValueError, TypeError or KeyError for anything else."""
        runs, failed = plain["counts"]
        allowed, (first, second) = plain["allowed"], plain["bets"]
        if not (type(runs) is type(failed) is int and 0 <= failed <= runs):
            raise ValueError(f"counts are {plain['counts']!r}")
        if not (ALLOWED <= allowed <= 1 and all(math.isfinite(bet) for bet in (first, second))):
            raise ValueError(f"a rate or a bet is out of range: {plain!r}")
        return cls(RunCounts(runs, failed), float(allowed), (float(first), float(second)))


def _gain(allowed: float, share: float, *, ok: bool) -> float:
    """Return the logarithm of the likelihood ratio of a run, for a rate that is `share` of the way up to 1."""
    if allowed >= _NEARLY_ALL:
        return 0.0
    rate = allowed + share * (1 - allowed)
    return math.log((1 - rate) / (1 - allowed)) if ok else math.log(rate / allowed)


def _upper(runs: int, failed: int) -> float:
    """Return the greatest rate that these runs do not contradict, by Chernoff's bound at `_DOUBT`."""
    seen, limit = failed / runs, -math.log(_DOUBT) / runs
    low, high = seen, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(seen, middle) <= limit else (low, middle)
    return high


def _divergence(seen: float, rate: float) -> float:
    """Return the relative entropy of two coins, in nats."""
    if rate >= 1.0:
        return 0.0 if seen >= 1.0 else math.inf
    found = 0.0
    if seen > 0:
        found += seen * math.log(seen / rate)
    if seen < 1:
        found += (1 - seen) * math.log((1 - seen) / (1 - rate))
    return found
