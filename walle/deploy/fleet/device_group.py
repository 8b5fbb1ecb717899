"""Groups of devices by app version and operating system, on each of which a version is simulated before its release."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from walle.protocol import Attribute, Profile, printable

MAX_GROUPS = 8  # groups of a release: a simulation plays all of its events for each
_LEAST_SHARE = 0.01  # smallest group, as a share of the devices that a policy reaches
_LEAST_DEVICES = 2  # smallest group: one device's claims about itself, alone in a fleet of any size, fail no release
_MAX_PAIRS = 10_000  # different attributes that are counted in a group
_MAX_CHARS = 40  # characters shown of an app version or a system
_MAX_NAMED = 4  # groups without a simulation that are named

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
        return _name(self.app_version, self.os)


@dataclasses.dataclass(frozen=True)
class TargetedGroups:
    """The largest groups that a policy reaches; `others` groups, of `other_devices` in all, are not among them.

    `other_names` are the largest of the others, with their devices.
    """

    groups: tuple[DeviceGroup, ...] = ()
    others: int = 0
    other_devices: int = 0
    other_names: tuple[str, ...] = ()

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
        others = ordered[len(taken) :]
        return cls(
            groups,
            len(others),
            sum(counts[key] for key in others),
            tuple(f"{_name(*key)} ({_devices(counts[key])})" for key in others[:_MAX_NAMED]),
        )


def _name(app_version: str, system: str) -> str:
    return f"app {printable(app_version[:_MAX_CHARS])} on {printable(system[:_MAX_CHARS]) or 'no stated os'}"


def _devices(count: int) -> str:
    return f"{count:,} device{'' if count == 1 else 's'}"


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


def not_simulated_text(groups: int, names: Sequence[str] = ()) -> str:
    """Return for which groups of the devices of a release its version was not simulated, and why.

    `names` are those of the largest of the `groups`; a release of an older walle has none.
    """
    subject = "1 group of devices was" if groups == 1 else f"{groups:,} groups of devices were"
    unnamed = groups - len(names)
    named = ", ".join(names) + (f" and {unnamed:,} more" if unnamed > 0 else "")
    which = f": {named};" if names else ":"
    return (
        f"{subject} not simulated{which} {'it' if groups == 1 else 'each'} has fewer than {_LEAST_DEVICES} devices, has"
        f" less than {100 * _LEAST_SHARE:g} % of the release's devices, or is not among the {MAX_GROUPS} largest"
    )
