"""Sequential tests of a release's guards, on the numbers of devices (§6). Pure; bounded memory.

The unit of evidence is a device, by a metric's value over its first runs. For a relative guard, a device with the new
version is compared with up to PARTNERS devices with the version before, each of which is compared once: those that have
the most groups in common with it (model, system, app version), of MIN_CHOICE or more that wait. Only whether its value
is outside of the bound counts, not how far: values may have any distribution, and one of 1e308 weighs as each other.
For an equal version, device and partner are alike, so that it is the worse one in half of the comparisons at most;
beyond a bound in fewer.

Two bets are kept (`MeanBets`). A step waits for evidence that fewer than half of the comparisons are worse. A version
is rejected where most of them are worse, and there is evidence that this is more than chance: that most are beyond
HALFWAY to the bound. So one that is as good as the version before, or up to halfway worse, is rejected with a
probability of α at most, one beyond the bound is accepted with β at most, and one that is a little beyond it needs no
thousands of devices.
Both bets allow `HOSTILE` of the devices of each version to say anything.

A device may be a partner before its own release step and be compared later: where it is slow, the first comparison
looks better and the second worse. Such pairs vary against each other, and make both bets smaller.
"""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from walle.deploy.gate.guard import Guard
from walle.deploy.gate.mean_bets import MeanBets, best_stakes
from walle.protocol import LATENCY_MS

HOSTILE = 0.01  # share of the devices of each version that may say anything
HALFWAY = 0.5  # part of the way from an equal value to a relative bound
PARTNERS = 3
MIN_CHOICE = 24  # devices of one version that wait before one of them is chosen
MAX_WAITING = 256  # devices of each version that wait for a partner; beyond it the oldest is dropped
MAX_RECENT = 256  # latest values of a metric, of which the median is shown
_STAKES = best_stakes(0.5 + HOSTILE, (0.58, 0.75, 0.95))  # the best ones where these shares of comparisons are worse

type _Device = tuple[Mapping[str, float], frozenset[tuple[str, str]]]


class GuardTest:
    """The bets of one guard. `compared` devices have counted in them."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.compared = 0
        self.reported = 0  # devices with the new version that reported the metric
        self.reported_before = 0  # devices with the version before that did
        self.worse = 0.0  # worse ones of those compared, each by the share of its comparisons
        self._reset()

    def _reset(self) -> None:
        self._worse = MeanBets(0.5 + HOSTILE, _STAKES)
        self._better = MeanBets(0.5 + HOSTILE, _STAKES)

    def forget(self) -> None:
        """Begin again: the version before is another one."""
        self.compared = self.reported_before = 0
        self.worse = 0.0
        self._reset()

    def compare(self, value: float, before: Sequence[float]) -> None:
        """Count a device, beside those with the version before; they are empty for a bound that is not relative."""
        beside = before or (0.0,)
        worse = sum(self.guard.is_worse(value, one) for one in beside) / len(beside)
        halfway = sum(self.guard.is_worse(value, one, part=HALFWAY) for one in beside) / len(beside)
        self.compared += 1
        self.worse += worse
        self._worse.take(halfway)
        self._better.take(1 - worse)

    def is_bad(self, boundary: float) -> bool:
        return self.reject_log >= boundary and 2 * self.worse > self.compared

    @property
    def reject_log(self) -> float:
        return self._worse.log

    @property
    def accept_log(self) -> float:
        return self._better.log

    def to_plain(self) -> dict[str, Any]:
        counts = [self.compared, self.worse, self.reported, self.reported_before]
        return {"counts": counts, "worse": self._worse.to_plain(), "better": self._better.to_plain()}

    def restore(self, plain: Mapping[str, Any]) -> None:
        self.compared, self.worse, self.reported, self.reported_before = plain["counts"]
        self._worse.restore(plain["worse"])
        self._better.restore(plain["better"])


class GuardTests:
    """The guards of one release, and the latest values of their metrics; of the latency without a guard too."""

    def __init__(self, guards: tuple[Guard, ...]) -> None:
        self.tests = [GuardTest(guard) for guard in guards]
        self.names = frozenset({LATENCY_MS, *(guard.metric for guard in guards)})
        self._relative = [one for one in self.tests if one.guard.is_relative]
        self._recent: dict[str, tuple[deque[float], deque[float]]] = {
            name: (deque(maxlen=MAX_RECENT), deque(maxlen=MAX_RECENT)) for name in sorted(self.names)
        }
        self._new: deque[_Device] = deque(maxlen=MAX_WAITING)
        self._old: deque[_Device] = deque(maxlen=MAX_WAITING)

    def take(
        self, values: Mapping[str, float], groups: Mapping[str, str], *, is_new: bool, has_partners: bool = True
    ) -> None:
        """Take a device that counts. Without partners, relative guards are not judged by it."""
        known = {name: value for name, value in values.items() if name in self.names}
        for name, value in known.items():
            self._recent[name][0 if is_new else 1].append(value)
        for test in self.tests:
            if test.guard.metric not in known:
                continue
            test.reported += is_new
            test.reported_before += not is_new
            if is_new and not test.guard.is_relative:
                test.compare(known[test.guard.metric], ())
        if has_partners and any(test.guard.metric in known for test in self._relative):
            (self._new if is_new else self._old).append((known, frozenset(groups.items())))
            self._match()

    def _match(self) -> None:
        """Compare devices while enough of one version wait for the choice of a partner to be a good one."""
        while self._new and self._old and max(len(self._new), len(self._old)) >= MIN_CHOICE:
            if len(self._old) >= MIN_CHOICE:
                device = self._new.popleft()
                self._compare(device, _take_alike(device, self._old, PARTNERS))
            else:
                device = self._old.popleft()
                self._compare(_take_alike(device, self._new, 1)[0], [device])

    def _compare(self, new: _Device, partners: Sequence[_Device]) -> None:
        for test in self._relative:
            metric = test.guard.metric
            before = [values[metric] for values, _ in partners if metric in values]
            if metric in new[0] and before:
                test.compare(new[0][metric], before)

    def forget_control(self) -> None:
        """Begin again with the relative guards: the version before is another one."""
        self._old.clear()
        self._new.clear()
        for test in self._relative:
            test.forget()
        for _, old in self._recent.values():
            old.clear()

    @property
    def has_waiting_partners(self) -> bool:
        return bool(self._old)

    def medians(self, name: str) -> tuple[float | None, float | None]:
        """Return the median of a metric over the latest devices, with the new version and with the one before."""
        new, old = self._recent[name]
        return statistics.median(new) if new else None, statistics.median(old) if old else None

    def values(self) -> list[dict[str, Any]]:
        """Return what is known of each metric, as JSON."""
        found = []
        for name, (new, old) in self._recent.items():
            if new or old:
                value, before = self.medians(name)
                found.append({"metric": name, "new": value, "control": before, "of_latest": [len(new), len(old)]})
        return found

    def to_plain(self) -> dict[str, Any]:
        return {
            "tests": {str(test.guard): test.to_plain() for test in self.tests},
            "recent": {name: [list(new), list(old)] for name, (new, old) in self._recent.items()},
            "waiting": [
                [[dict(values), sorted(groups)] for values, groups in devices] for devices in (self._new, self._old)
            ],
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Go on from what `to_plain` gave; a guard that is not there begins."""
        for test in self.tests:
            if str(test.guard) in plain["tests"]:
                test.restore(plain["tests"][str(test.guard)])
        for name, (new, old) in plain["recent"].items():
            if name in self._recent:
                self._recent[name][0].extend(new)
                self._recent[name][1].extend(old)
        for devices, kept in zip((self._new, self._old), plain["waiting"], strict=True):
            devices.extend((values, frozenset((key, text) for key, text in groups)) for values, groups in kept)


def _take_alike(device: _Device, others: deque[_Device], most: int) -> list[_Device]:
    """Remove and return those of the others that have the most groups in common with a device, the latest first."""
    alike = [len(groups & device[1]) for _, groups in others]
    best = max(alike)
    chosen = [at for at in range(len(others) - 1, -1, -1) if alike[at] == best][:most]
    found = [others[at] for at in chosen]
    for at in chosen:
        del others[at]
    return found
