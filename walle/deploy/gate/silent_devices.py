"""Silence of single devices that have a release's version, as separate evidence (§6). Pure; bounded memory.

A version that ends the app at its start stops all reports: no run fails, and nothing is refused. So a device is watched
for `wait_s` seconds from its report that it installed the version. It is silent where nothing is heard of it after the
first quarter of that: neither an outcome nor a profile. A phone is switched off at night, and a cloud may be down, so
it is watched beside a device with the version before: the next one to report, within an eighth of the time. Both were
heard when their time began, and both are looked at once, when it ends. The bets are on the difference of the two, which
may be `ALLOWED` in the mean, since that share of the devices may be hostile; the rate of silence itself may be any, and
may change.

A device that found no partner is watched alone. Nothing is known then of how often a healthy one is silent: half of
them may be.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from walle.deploy.gate.mean_bets import MeanBets, best_stakes

ALLOWED = 0.01
MAX_WATCHED = 2_000  # devices of a release with the new version, and as many partners
_GRACE = 1 / 4  # part of the time: reports in it come from the first start
_TOGETHER = 1 / 8  # part of the time in which the partner must report
_ALONE = 0.5  # share of devices without a partner that may be silent
_STAKES = (
    1.9,
    1.0,
    0.4,
)  # bets on differences that are most often 0: for few, more and many silent devices in both versions


@dataclasses.dataclass
class _Watched:
    """A device from `since_s` on, and whether it was heard after its first quarter."""

    device_id: str
    since_s: float
    heard: bool = False

    def to_plain(self) -> list[Any]:
        return [self.device_id, self.since_s, self.heard]


class SilentDevices:
    """Devices that are watched, and the evidence of those whose time is over."""

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.pairs = 0  # pairs whose time is over
        self.silent = 0  # devices of these with the new version
        self.silent_before = 0  # partners of these
        self.alone = 0  # devices without a partner whose time is over
        self.silent_alone = 0
        self._paired = MeanBets((1 + ALLOWED) / 2, _STAKES)
        self._lone = MeanBets(_ALONE, best_stakes(_ALONE, (0.65, 0.8, 0.95)))
        self._known: set[str] = set()  # every device that was ever watched: each is once
        self._seen: dict[str, _Watched] = {}  # those that are watched now
        # Devices of the new version that have no partner yet, the oldest first.
        self._seeking: collections.OrderedDict[str, _Watched] = collections.OrderedDict()
        self._couples: list[tuple[_Watched, _Watched]] = []
        self._single: list[_Watched] = []

    def install(self, device_id: str, now_s: float) -> None:
        """Watch a device that has installed the new version, unless it was watched before."""
        if device_id not in self._known and len(self._known) < 2 * MAX_WATCHED:
            self._seeking[device_id] = self._watch(device_id, now_s)

    def partner(self, device_id: str, now_s: float) -> None:
        """Watch a device that has reported runs of the version before, where one with the new version seeks it."""
        if not self._seeking or device_id in self._known:
            return
        first = next(iter(self._seeking))
        new = self._seeking[first]
        if now_s - new.since_s > self.wait_s * _TOGETHER:
            return  # `look` takes it off
        del self._seeking[first]
        self._couples.append((new, self._watch(device_id, now_s)))

    def _watch(self, device_id: str, now_s: float) -> _Watched:
        self._known.add(device_id)
        watched = self._seen[device_id] = _Watched(device_id, now_s)
        return watched

    def hear(self, device_ids: Iterable[str], now_s: float) -> bool:
        """Take note that something was heard of these devices; return whether that changes anything."""
        changed = False
        for device_id in device_ids:
            seen = self._seen.get(device_id)
            if seen is not None and not seen.heard and now_s - seen.since_s > self.wait_s * _GRACE:
                seen.heard = changed = True
        return changed

    def heard_of(self, device_ids: Mapping[str, object], now_s: float) -> bool:
        """Do as `hear` for many devices, most of which are not watched."""
        return bool(self._seen) and self.hear(self._seen.keys() & device_ids.keys(), now_s)

    def drop_partners(self, leaves: Callable[[str], bool]) -> None:
        """Forget the couples whose partner `leaves`: it is now to get the new version too."""
        kept = []
        for new, old in self._couples:
            if leaves(old.device_id):
                self._forget(new)
                self._forget(old)
                self._known.discard(old.device_id)  # the device may be watched with the new version
            else:
                kept.append((new, old))
        self._couples = kept

    def forget_control(self) -> None:
        """Forget the couples that are watched: the version before is another one."""
        self.drop_partners(lambda _: True)

    def look(self, now_s: float) -> bool:
        """Count the devices whose time is over; return whether there were any."""
        for device_id, new in list(self._seeking.items()):
            if now_s - new.since_s <= self.wait_s * _TOGETHER:
                break
            del self._seeking[device_id]
            self._single.append(new)
        over_s = now_s - self.wait_s
        before = self.pairs + self.alone
        couples, self._couples = self._couples, []
        for new, old in couples:
            if max(new.since_s, old.since_s) > over_s:
                self._couples.append((new, old))
                continue
            self.pairs += 1
            self.silent += not new.heard
            self.silent_before += not old.heard
            self._paired.take((1 + old.heard - new.heard) / 2)
            self._forget(new)
            self._forget(old)
        single, self._single = self._single, []
        for new in single:
            if new.since_s > over_s:
                self._single.append(new)
                continue
            self.alone += 1
            self.silent_alone += not new.heard
            self._lone.take(float(not new.heard))
            self._forget(new)
        return self.pairs + self.alone != before

    def _forget(self, watched: _Watched) -> None:
        self._seen.pop(watched.device_id, None)

    @property
    def log(self) -> float:
        """The logarithm of the evidence that the version silences devices: the mean of both bets."""
        top = max(self._paired.log, self._lone.log)
        return top + math.log((math.exp(self._paired.log - top) + math.exp(self._lone.log - top)) / 2)

    def counts(self) -> dict[str, Any]:
        """Return the counts as JSON. `watched` devices have the new version, and their time is not over."""
        return {
            "watched": len(self._seeking) + len(self._couples) + len(self._single),
            "pairs": self.pairs,
            "silent": self.silent,
            "silent_before": self.silent_before,
            "alone": self.alone,
            "silent_alone": self.silent_alone,
        }

    @property
    def words(self) -> str:
        """The finding in words, for a reason."""
        texts = []
        if self.pairs:
            beside = f"{self.silent_before} of as many with the version before"
            texts.append(f"no report came from {self.silent} of {self.pairs} devices, and from {beside}")
        if self.alone:
            texts.append(f"no report came from {self.silent_alone} of {self.alone} devices without one to compare")
        return f"{'; '.join(texts)}, within {self.wait_s / 3600:.3g} h after they installed it"

    def to_plain(self) -> dict[str, Any]:
        return {
            **self.counts(),
            "paired_bets": self._paired.to_plain(),
            "lone_bets": self._lone.to_plain(),
            "known": sorted(self._known),
            "seeking": [one.to_plain() for one in self._seeking.values()],
            "couples": [[new.to_plain(), old.to_plain()] for new, old in self._couples],
            "single": [one.to_plain() for one in self._single],
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Go on from what `to_plain` gave."""
        self.pairs, self.silent, self.silent_before = plain["pairs"], plain["silent"], plain["silent_before"]
        self.alone, self.silent_alone = plain["alone"], plain["silent_alone"]
        self._paired.restore(plain["paired_bets"])
        self._lone.restore(plain["lone_bets"])
        self._known = set(plain["known"])
        self._seeking = collections.OrderedDict((one[0], _Watched(*one)) for one in plain["seeking"])
        self._couples = [(_Watched(*new), _Watched(*old)) for new, old in plain["couples"]]
        self._single = [_Watched(*one) for one in plain["single"]]
        every = [*self._seeking.values(), *(one for couple in self._couples for one in couple), *self._single]
        self._seen = {one.device_id: one for one in every}
