"""The record of a demo run: samples over time, marks, and the claims that must hold at its end."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample of the fleet and the cloud, taken from `began_s` to `t_s` seconds after the devices were up."""

    began_s: float
    t_s: float
    active: dict[str, int]  # version → devices on which it is active; "" counts devices without one
    produced: int
    received: int
    runs: int
    failed: int
    release: str = ""  # version under release, "" for none
    state: str = ""  # state of that release
    share: float = 0.0  # share of the fleet that it may reach now


@dataclasses.dataclass(frozen=True)
class Mark:
    """A moment that the report's chart marks."""

    t_s: float
    text: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """A condition that must hold, and the value that was found."""

    text: str
    holds: bool
    found: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Items that the cloud ranks for a user by encodings, and the titles of those already in the user's cart."""

    user: str
    visits: int
    cart: list[str]
    items: list[tuple[str, float]]  # title and score, best first


@dataclasses.dataclass(kw_only=True)
class DemoRecord:
    """The whole run. Times in seconds since the devices were up, latencies in milliseconds."""

    devices: int
    seed: int
    machine: str
    samples: list[Sample] = dataclasses.field(default_factory=list)
    marks: list[Mark] = dataclasses.field(default_factory=list)
    claims: list[Claim] = dataclasses.field(default_factory=list)
    recommendations: list[Recommendation] = dataclasses.field(default_factory=list)
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)

    def mark(self, t_s: float, text: str) -> None:
        self.marks.append(Mark(t_s, text))

    def claim(self, text: str, holds: bool, found: object) -> None:
        self.claims.append(Claim(text, holds, str(found)))

    def has_all_on(self, version: str, since_s: float) -> bool:
        """Return whether the latest sample, begun at `since_s` or later, found the version active on every device."""
        if not self.samples or self.samples[-1].began_s < since_s:
            return False
        return self.samples[-1].active == {version: self.devices}

    @property
    def all_hold(self) -> bool:
        return bool(self.claims) and all(claim.holds for claim in self.claims)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "all_hold": self.all_hold}


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of `values` lie (nearest rank); nan for none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
