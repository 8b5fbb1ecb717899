"""Groups of devices by app version and operating system, on each of which a version is simulated before its release."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Self

from walle.protocol import Attribute, Profile, printable

MAX_GROUPS = 8  # groups of a release: a simulation plays all of its events for each
_LEAST_SHARE = 0.01  # smallest group, as a share of the devices that a policy reaches
_LEAST_DEVICES = 2  # smallest group: one device's claims about itself, alone in a fleet of any size, fail no release
_MAX_PAIRS = 10_000  # different attributes that are counted in a group
_MAX_CHARS = 40  # characters shown of an app version or a system

type _Key = tuple[str, str]  # app version and system
type _Pair = tuple[str, str, Attribute]  # name, type and value of an attribute


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """Devices of one app version and system, "" where they do not say.

    `attributes` has for each attribute the value that most of them have: what a single device says decides nothing.
    """

    app_version: str
    os: str
    devices: int = 0
    attributes: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)

    @property
    def device(self) -> dict[str, Attribute]:
        """The device that stands for the group, as its task sees it (`ctx.device`)."""
        own: dict[str, Attribute] = {"app_version": self.app_version, **({"os": self.os} if self.os else {})}
        return {**self.attributes, **own, "id": f"simulated-{self.app_version}-{self.os or 'unknown'}"}

    @property
    def name(self) -> str:
        return f"app {printable(self.app_version[:_MAX_CHARS])} on {printable(self.os[:_MAX_CHARS]) or 'no stated os'}"


@dataclasses.dataclass(frozen=True)
class TargetedGroups:
    """The largest groups that a policy reaches; `others` groups, of `other_devices` in all, are not among them."""

    groups: tuple[DeviceGroup, ...] = ()
    others: int = 0
    other_devices: int = 0

    @classmethod
    def of(cls, profiles: Iterable[Profile], most: int = MAX_GROUPS) -> Self:
        """Return the groups of these devices, the largest first, at most `most`."""
        counts: collections.Counter[_Key] = collections.Counter()
        pairs: collections.defaultdict[_Key, collections.Counter[_Pair]] = collections.defaultdict(collections.Counter)
        for profile in profiles:
            system = profile.attributes.get("os", "")
            key = profile.app_version, system if isinstance(system, str) else ""
            counts[key] += 1
            for name, value in profile.attributes.items():
                pair = name, type(value).__name__, value
                if pair in pairs[key] or len(pairs[key]) < _MAX_PAIRS:
                    pairs[key][pair] += 1
        least = max(_LEAST_DEVICES, _LEAST_SHARE * counts.total())
        ordered = sorted(counts, key=lambda key: (-counts[key], key))
        taken = [key for key in ordered[:most] if counts[key] >= least]
        groups = tuple(
            DeviceGroup(app_version=key[0], os=key[1], devices=counts[key], attributes=_usual(pairs[key]))
            for key in taken
        )
        return cls(groups, len(ordered) - len(taken), counts.total() - sum(counts[key] for key in taken))


def _usual(pairs: collections.Counter[_Pair]) -> dict[str, Attribute]:
    """Return the most frequent value of each attribute."""
    found: dict[str, Attribute] = {}
    for (name, _, value), _ in pairs.most_common():
        found.setdefault(name, value)
    return found


@dataclasses.dataclass(frozen=True)
class GroupResult:
    """Runs of a version on the device that stands for a group. `played` is False where there was no time for it."""

    app_version: str
    os: str
    devices: int
    runs: int = 0
    failures: int = 0
    played: bool = True


def not_simulated_text(groups: int) -> str:
    """Return why a version was not simulated for some groups of the devices that its release is for."""
    subject = (
        "1 group of devices was not simulated: it"
        if groups == 1
        else f"{groups} groups of devices were not simulated: each"
    )
    return (
        f"{subject} has fewer than {_LEAST_DEVICES} devices, has less than {100 * _LEAST_SHARE:g} % of the release's"
        f" devices, or is not among the {MAX_GROUPS} largest"
    )
