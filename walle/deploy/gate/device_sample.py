"""Sample of devices: the first runs of each, and the counts that the tests of a release need. Pure; bounded memory.

What a device reports waits until it has made enough runs, or until it settles. It then counts once and is remembered
only by name, so that nothing that it reports later changes the sample.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from walle.deploy.gate.rate_test import UNITS, Sample, cap
from walle.protocol import FailureClass, Outcome, mean_with

_ROUNDING = 1e-9

type Group = tuple[str, str]  # key and value, such as os and 12


@dataclasses.dataclass(frozen=True)
class Observation:
    """Failures among the first runs of a device; a part of one where a report had more runs than were needed."""

    runs: int
    failed: float
    refused: bool = False  # the device refused the version, or left it
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)  # metrics of the runs that ended well

    @property
    def broken(self) -> bool:
        return self.refused or 2 * self.failed >= self.runs


@dataclasses.dataclass
class _Waiting:
    """A device that has confirmed the installation and does not count yet."""

    ok: float = 0.0
    failed: float = 0.0
    given: int = 0  # runs that count already, in a trial
    since_s: float | None = None  # time of its first runs
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metrics: dict[str, tuple[int, float]] = dataclasses.field(default_factory=dict)  # name → runs, mean

    def take_metrics(self, outcome: Outcome, names: frozenset[str]) -> None:
        for one in outcome.metrics:
            if one.name in names:
                self.metrics[one.name] = mean_with(self.metrics.get(one.name, (0, 0.0)), one.count, one.value)

    @property
    def values(self) -> dict[str, float]:
        return {name: mean for name, (_, mean) in self.metrics.items()}


class DeviceSample:
    """Devices, by what their first runs were. `changed` and `touched` are set, and cleared by the owner.

    `changed`: an observation was added. `touched`: anything was.
    """

    def __init__(self) -> None:
        self.runs: dict[tuple[int, int], int] = {}  # see `Sample`
        self.groups: dict[Group, list[int]] = {}  # → devices that are not broken, and that are
        self.broken = 0
        self.devices = 0  # observations: in a trial, a device gives several
        self.members = 0  # devices that gave any
        self.executions = 0.0
        self.failed = 0.0
        self.changed = False
        self.touched = False
        self.metrics: frozenset[str] = frozenset()  # names of those that observations have
        self._waiting: dict[str, _Waiting] = {}
        # Those of `_waiting` that have reported no run, the first has waited longest.
        self._silent: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._done: set[str] = set()
        self._hindered: dict[str, FailureClass] = {}

    # --- devices ---

    def admit(self, device_id: str, limit: int) -> None:
        """Wait for the runs of a device. Of too many that report none, the one that waits longest is forgotten.

        A device that has reported runs keeps its place until it counts: in a large fleet, more devices than `limit`
        are admitted before the first of them has made its runs, and none would ever count.
        """
        if device_id in self._done or device_id in self._waiting or len(self._done) >= limit:
            return
        self._hindered.pop(device_id, None)
        if len(self._waiting) >= limit:
            silent = next(iter(self._silent), None)
            if silent is None:
                return
            del self._silent[silent], self._waiting[silent]
        self._waiting[device_id] = _Waiting()
        self._silent[device_id] = None
        self.touched = True

    def run(
        self, device_id: str, outcome: Outcome, groups: Mapping[str, str], now_s: float, *, runs: int
    ) -> Iterator[Observation]:
        """Yield the observation of `runs` runs that a report completes, if it does.

        Of a report that has more runs than are needed, the failures count in proportion.
        """
        device = self._waiting.get(device_id)
        left = outcome.ok + outcome.failed
        if device is None or left == 0:
            return
        self.touched = True
        if device.since_s is None:
            device.since_s, device.groups = now_s, groups
            self._silent.pop(device_id, None)
        taken = min(left, runs - device.ok - device.failed)
        device.failed += taken * outcome.failed / left
        device.ok += taken * outcome.ok / left
        device.take_metrics(outcome, self.metrics)
        if device.ok + device.failed > runs - _ROUNDING:
            self._end(device_id)
            self.members += 1
            yield Observation(runs, device.failed, metrics=device.values)

    def run_each(self, device_id: str, outcome: Outcome, limit: int) -> Iterator[Observation]:
        """Yield an observation for each of the first `limit` runs of a device, as in a trial."""
        device = self._waiting.get(device_id)
        count = outcome.ok + outcome.failed
        if device is None or count == 0:
            return
        self.touched = True
        self._silent.pop(device_id, None)
        self.members += device.given == 0
        taken = min(count, limit - device.given)
        failed = round(outcome.failed * taken / count)
        device.given += taken
        if device.given >= limit:
            self._end(device_id)
        for number in range(taken):
            yield Observation(1, float(number >= taken - failed))

    def break_off(self, device_id: str, runs: int, limit: int) -> Iterator[Observation]:
        """Yield the observation of a device that refused or left the version, unless it counts already."""
        if device_id in self._done or len(self._done) >= limit:
            return
        known = self._waiting.get(device_id)
        self.members += known is None or known.given == 0
        self._end(device_id)
        yield Observation(runs, runs, refused=True)

    def hinder(self, device_id: str, what: FailureClass, limit: int, *, left: bool) -> None:
        """Note that a device cannot have the version for a reason that says nothing of it; if it `left` it, no longer.

        It does not count until it confirms the installation, and neither does one that counts already.
        """
        if device_id in self._done or (device_id in self._waiting and not left):
            return
        self._waiting.pop(device_id, None)
        self._silent.pop(device_id, None)
        if device_id in self._hindered or len(self._hindered) < limit:
            self._hindered[device_id] = what
            self.changed = self.touched = True

    def settle(self, before_s: float) -> Iterator[tuple[Observation, Mapping[str, str]]]:
        """Yield the observations of devices whose first runs were reported before `before_s`, with their groups."""
        ready = [
            one for one, device in self._waiting.items() if device.since_s is not None and device.since_s <= before_s
        ]
        for device_id in ready:
            device = self._waiting[device_id]
            runs = round(device.ok + device.failed)
            self._end(device_id)
            if runs >= 1:
                self.members += 1
                yield Observation(runs, device.failed, metrics=device.values), device.groups

    def _end(self, device_id: str) -> None:
        self._waiting.pop(device_id, None)
        self._silent.pop(device_id, None)
        self._hindered.pop(device_id, None)
        self._done.add(device_id)
        self.touched = True

    # --- counts ---

    def note(self, observation: Observation, groups: Sequence[Group]) -> None:
        """Count an observation of a device of these groups."""
        cell = (observation.runs, min(UNITS * cap(observation.runs), round(UNITS * observation.failed)))
        self.runs[cell] = self.runs.get(cell, 0) + 1
        self.devices += 1
        self.broken += observation.broken
        self.executions += observation.runs
        self.failed += observation.failed
        for group in groups:
            counts = self.groups.setdefault(group, [0, 0])
            counts[observation.broken] += 1
        self.changed = True

    @property
    def by_broken(self) -> Sample:
        """The sample in which a device is one run, which failed if the device is broken."""
        return _cells(self.devices - self.broken, self.broken)

    def by_group(self, group: Group) -> Sample:
        """Return the devices of a group as `by_broken`."""
        return _cells(*self.groups.get(group, (0, 0)))

    def by_hindered(self, what: FailureClass) -> Sample:
        """Return the devices as `by_broken`, with those that are hindered by something in place of broken ones."""
        return _cells(len(self._waiting) + len(self._done), sum(one is what for one in self._hindered.values()))

    @property
    def hindered(self) -> int:
        return len(self._hindered)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def counts(self) -> dict[str, Any]:
        """Return the counts as JSON. `waiting` devices have confirmed the installation and do not count yet.

        `hindered` ones cannot install it, for a reason that says nothing of it.
        """
        return {
            "devices": self.members,
            "broken": self.broken,
            "runs": round(self.executions),
            "failed": round(self.failed, 2),
            "waiting": len(self._waiting),
            "hindered": len(self._hindered),
        }

    def end(self) -> list[str]:
        """Forget the devices, which cannot count any more, and keep the counts. Return their ids."""
        devices = [*self._waiting, *self._done]
        self._waiting.clear()
        self._silent.clear()
        self._done.clear()
        self._hindered.clear()
        return devices

    def to_plain(self) -> dict[str, Any]:
        return {
            "runs": [[n, failed, count] for (n, failed), count in sorted(self.runs.items())],
            "groups": [[*group, *counts] for group, counts in self.groups.items()],
            "broken": self.broken,
            "devices": self.devices,
            "members": self.members,
            "executions": self.executions,
            "failed": self.failed,
            "waiting": {
                one: [device.ok, device.failed, device.given, device.since_s, dict(device.groups), device.metrics]
                for one, device in self._waiting.items()
            },
            "done": sorted(self._done),
            "hindered": {one: what.value for one, what in self._hindered.items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        sample = cls()
        sample.runs = {(n, failed): count for n, failed, count in plain["runs"]}
        sample.groups = {(key, value): [sound, broken] for key, value, sound, broken in plain["groups"]}
        sample.broken, sample.devices = plain["broken"], plain["devices"]
        sample.members = plain["members"]
        sample.executions, sample.failed = plain["executions"], plain["failed"]
        sample._waiting = {one: _Waiting(*values) for one, values in plain["waiting"].items()}
        for device in sample._waiting.values():  # evidence of before has no metrics, and in JSON pairs are lists
            device.metrics = {name: (runs, mean) for name, (runs, mean) in device.metrics.items()}
        silent = [one for one, device in sample._waiting.items() if device.since_s is None and not device.given]
        sample._silent = collections.OrderedDict.fromkeys(silent)
        sample._done = set(plain["done"])
        hindered = plain.get("hindered", {})  # older evidence lacks it
        sample._hindered = {one: FailureClass(what) for one, what in hindered.items()}
        return sample


def _cells(sound: int, broken: int) -> dict[tuple[int, int], int]:
    return {cell: count for cell, count in (((1, 0), sound), ((1, UNITS), broken)) if count}
