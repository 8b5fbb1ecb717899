"""Sequential tests of a release's guards, on the numbers of devices (§6). Pure; bounded memory.

The unit of evidence is a device, by a metric's value over its first runs. For a relative guard, a device with the new
version is compared with up to PARTNERS devices with the version before, each of which is compared once: those of the
most equal groups (model, system, app version) among the latest. Only whether its value is outside of the bound counts,
not how far: values may have any distribution, and one of 1e308 weighs as each other. For an equal version, device and
partner are alike, so that it is the worse one in half of the comparisons at most; beyond a bound in fewer.

Two bets are kept (`MeanBets`): that more than half of the comparisons are worse, which rejects the version, and that
fewer are, which a step waits for. Both allow `HOSTILE` of the devices of each version to say anything.

A device may be a partner before its own release step and be compared later: where it is slow, the first comparison
looks better and the second worse. Such pairs vary against each other, and make both bets smaller.
"""

import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from walle.deploy.cloud.guard import Guard
from walle.deploy.cloud.mean_bets import MeanBets, best_stakes
from walle.protocol import LATENCY_MS

HOSTILE = 0.01  # share of the devices of each version that may say anything
PARTNERS = 3
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
        self.reported_before = 0  # and with the one before
        self._reset()

    def _reset(self) -> None:
        self._worse = MeanBets(0.5 + HOSTILE, _STAKES)
        self._better = MeanBets(0.5 + HOSTILE, _STAKES)

    def forget(self) -> None:
        """Begin again: the version before is another one."""
        self.compared = self.reported_before = 0
        self._reset()

    def compare(self, share_worse: float) -> None:
        """Count a device, by the share of its comparisons in which it was worse."""
        self.compared += 1
        self._worse.take(share_worse)
        self._better.take(1 - share_worse)

    @property
    def reject_log(self) -> float:
        return self._worse.log

    @property
    def accept_log(self) -> float:
        return self._better.log

    def to_plain(self) -> dict[str, Any]:
        counts = [self.compared, self.reported, self.reported_before]
        return {"counts": counts, "worse": self._worse.to_plain(), "better": self._better.to_plain()}

    def restore(self, plain: Mapping[str, Any]) -> None:
        self.compared, self.reported, self.reported_before = plain["counts"]
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
                test.compare(float(test.guard.is_worse(known[test.guard.metric])))
        if has_partners and any(test.guard.metric in known for test in self._relative):
            self._match((known, frozenset(groups.items())), is_new=is_new)

    def _match(self, device: _Device, *, is_new: bool) -> None:
        """Compare a device with those that wait, or let it wait for one. A device waits or is compared, never both."""
        others = self._old if is_new else self._new
        if not others:
            (self._new if is_new else self._old).append(device)
            return
        equal = sorted(range(len(others)), key=lambda at: (-len(others[at][1] & device[1]), -at))
        chosen = equal[: PARTNERS if is_new else 1]
        partners = [others[at] for at in chosen]
        for at in sorted(chosen, reverse=True):
            del others[at]
        new, old = (device, partners) if is_new else (partners[0], [device])
        for test in self._relative:
            metric = test.guard.metric
            if metric in new[0]:
                beside = [test.guard.is_worse(new[0][metric], one[0][metric]) for one in old if metric in one[0]]
                if beside:
                    test.compare(sum(beside) / len(beside))

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
