"""Distinct failures of a release: reports grouped by kind of outcome, type of error and place, in bounded memory.

Reports are hostile input. A release keeps MAX_GROUPS groups; a failure that is new then replaces the group of the
fewest devices, of those the one that was reported least recently. A device can therefore displace only groups of as few
devices as its own, and not an error that many devices report. What was displaced is counted in `others`.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Self

from walle.deploy.fleet.device_count import DeviceCount
from walle.protocol import Failure, FailureClass, Outcome

MAX_GROUPS = 20
_EXACT_DEVICES = 64  # beyond it their number is an estimate, within about 6 %
_INDEX_BITS = 8
_MAX_COUNT = 10**15
_VARYING = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """A distinct failure of a release, as it is shown. `example` is the latest report of it, by `device_id`.

    `kind` is "run", "rejected" or "reverted", the latter two with what is at fault where it is not the version, as in
    "rejected (cloud)". Times are in seconds since the epoch, when the cloud took the reports.
    """

    kind: str
    example: Failure
    device_id: str
    count: int
    devices: int
    first_s: float
    last_s: float

    def to_plain(self) -> dict[str, Any]:
        """Return the group as JSON, with the fields of its example beside its own."""
        plain = dataclasses.asdict(self)
        return {**plain.pop("example"), **plain}


@dataclasses.dataclass(kw_only=True)
class _Group:
    kind: str
    example: Failure
    device_id: str
    count: int
    devices: DeviceCount
    first_s: float
    last_s: float


class FailureGroups:
    """The groups of one release. `others` counts failures without a group: those of groups that were displaced."""

    def __init__(self) -> None:
        self.others = 0
        self._groups: dict[tuple[str, ...], _Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def take(self, device_id: str, outcome: Outcome, now_s: float) -> None:
        """Count the failures of an outcome; those that it counts and does not describe are in `others`."""
        failures = outcome.failures
        if not failures and outcome.error:  # the device does not describe its failures, or they are not of task code
            count = max(1, outcome.failed)
            known = Failure(error_type="", error=outcome.error, place=outcome.place, log=outcome.log, count=count)
            failures = (known,)
        at_fault = outcome.failure_class
        kind = outcome.kind.value + (f" ({at_fault})" if at_fault is not FailureClass.VERSION else "")
        left = outcome.failed  # a forged report may describe more failures than it counts
        for failure in failures:
            count = min(failure.count, max(1, left))
            left = max(0, left - count)
            self._add(device_id, kind, dataclasses.replace(failure, count=count), now_s)
        self.others = min(_MAX_COUNT, self.others + left)

    def all(self) -> list[FailureGroup]:
        """Return the groups, those of most devices and failures first."""
        shown = [
            FailureGroup(
                kind=group.kind,
                example=group.example,
                device_id=group.device_id,
                count=group.count,
                devices=len(group.devices),
                first_s=group.first_s,
                last_s=group.last_s,
            )
            for group in self._groups.values()
        ]
        return sorted(shown, key=lambda group: (-group.devices, -group.count, group.first_s))

    def _add(self, device_id: str, kind: str, failure: Failure, now_s: float) -> None:
        key = _key(kind, failure)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._displace()
            group = self._groups[key] = _Group(
                kind=kind,
                example=failure,
                device_id=device_id,
                count=0,
                devices=DeviceCount(exact=_EXACT_DEVICES, index_bits=_INDEX_BITS),
                first_s=now_s,
                last_s=now_s,
            )
        group.example, group.device_id, group.last_s = failure, device_id, now_s
        group.count = min(_MAX_COUNT, group.count + failure.count)
        group.devices.add(device_id)

    def _displace(self) -> None:
        key = min(self._groups, key=lambda each: (len(self._groups[each].devices), self._groups[each].last_s))
        self.others = min(_MAX_COUNT, self.others + self._groups.pop(key).count)

    def to_plain(self) -> dict[str, Any]:
        groups = [
            {
                "kind": group.kind,
                "example": dataclasses.asdict(group.example),
                "device_id": group.device_id,
                "count": group.count,
                "devices": group.devices.to_plain(),
                "first_s": group.first_s,
                "last_s": group.last_s,
            }
            for group in self._groups.values()
        ]
        return {"others": self.others, "groups": groups}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        failures = cls()
        failures.others = plain["others"]
        for one in plain["groups"]:
            devices = DeviceCount.from_plain(one["devices"], exact=_EXACT_DEVICES, index_bits=_INDEX_BITS)
            group = _Group(**{**one, "example": Failure(**one["example"]), "devices": devices})
            failures._groups[_key(group.kind, group.example)] = group
        return failures


def _key(kind: str, failure: Failure) -> tuple[str, ...]:
    """Return what failures of a group have in common: type and place, or else the text without its numbers."""
    if failure.error_type and failure.place:
        return kind, failure.error_type, failure.place
    return kind, failure.error_type, failure.place, _VARYING.sub("0", failure.error)
