"""Release table: the cloud's answers to profiles as immutable signed directives, swapped whole in every gateway (§6).

A task's row holds its current versions ("lanes": the full releases, newest first; a device takes the first whose policy
is for it), the candidate of the release under way, and a removal for devices that should have no version. The table
grows with releases and policies, never with devices.

**Serials.** A device follows a directive only if its serial is above every one it has followed for the task. When the
versions of a row change, or its directives near expiry, all of them are signed again with new serials, so that each
is above everything signed before: a rollback reaches every device, and an old candidate moves no device that left it.
Within a row, serials grow from the oldest lane to the candidate, the way devices normally move; for moves the other way
(a device that left the release's policy) each lane also has a `back` directive with a serial above the candidate's,
and the removal has the highest serial. A device that went back and is again in the newer lane waits for the next
signing. An old directive can be replayed, until it expires, to a device that has not seen a newer one.

**Audience.** Each directive says in what is signed for whom it is, so that a device refuses those of others. A step or
a pause changes the candidate's: it is then signed again with the serial that it has, since its version is the same.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from walle.deploy.audience import admitted, share
from walle.deploy.cloud.policy import Policy
from walle.deploy.cloud.release import Admission, Release
from walle.protocol import Audience, Directive, Profile

MAX_GROUPS = 256  # groups of devices whose plans a table caches


@dataclasses.dataclass(frozen=True)
class Lane:
    """A version that is current for the devices of `policy`."""

    policy: Policy
    directive: Directive
    back: Directive  # the same version, for devices that return from a later one

    def to_plain(self) -> dict[str, Any]:
        return {
            "policy": self.policy.to_plain(),
            "directive": self.directive.to_json(),
            "back": self.back.to_json(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(
            Policy(**plain["policy"]), Directive.from_json(plain["directive"]), Directive.from_json(plain["back"])
        )


@dataclasses.dataclass(frozen=True)
class ReleaseCandidate:
    """The version of a release under way, and who may have it."""

    policy: Policy
    directive: Directive
    admission: Admission

    def admits(self, device_id: str, have: str) -> bool:
        """Return whether a device of the policy, which has version `have`, belongs to the candidate."""
        admission = self.admission
        if not admission.open and have != self.directive.version:
            return False
        return device_id in admission.devices or (
            admission.share > 0 and share(self.directive.release, device_id) < admission.share
        )

    def to_plain(self) -> dict[str, Any]:
        return {
            "policy": self.policy.to_plain(),
            "directive": self.directive.to_json(),
            "share": self.admission.share,
            "devices": sorted(self.admission.devices),
            "open": self.admission.open,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(
            Policy(**plain["policy"]),
            Directive.from_json(plain["directive"]),
            Admission(plain["share"], frozenset(plain["devices"]), plain["open"]),
        )


@dataclasses.dataclass(frozen=True)
class TaskRow:
    """All answers about one task that a device may get."""

    task: str
    lanes: tuple[Lane, ...]  # newest first
    candidate: ReleaseCandidate | None
    removal: Directive

    @property
    def expires_s(self) -> int:
        return self.removal.expires_s

    @property
    def first_serial(self) -> int:
        """Return the lowest serial of the row's directives."""
        directives = [self.removal, *(one for lane in self.lanes for one in (lane.directive, lane.back))]
        if self.candidate is not None:
            directives.append(self.candidate.directive)
        return min(directive.serial for directive in directives)

    @property
    def versions(self) -> tuple[Any, ...]:
        """Return what is signed, but for the audiences: where it is equal, the row's serials still hold."""
        return _versions(
            [(lane.policy, lane.directive) for lane in self.lanes],
            (self.candidate.policy, self.candidate.directive) if self.candidate else None,
        )

    def back_to(self, lane: Lane, have: str) -> Directive:
        """Return the directive that moves a device from version `have` (empty: none) to the lane's."""
        later = [self.candidate.directive.version] if self.candidate else []
        for other in self.lanes:
            if other is lane:
                break
            later.append(other.directive.version)
        return lane.back if have in later or _number(have) > _number(lane.directive.version) else lane.directive

    def to_plain(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "lanes": [lane.to_plain() for lane in self.lanes],
            "candidate": self.candidate.to_plain() if self.candidate else None,
            "removal": self.removal.to_json(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(
            plain["task"],
            tuple(Lane.from_plain(lane) for lane in plain["lanes"]),
            ReleaseCandidate.from_plain(plain["candidate"]) if plain["candidate"] else None,
            Directive.from_json(plain["removal"]),
        )


def _number(version: str) -> int:
    return int(version[1:]) if version[:1] == "v" and version[1:].isascii() and version[1:].isdigit() else 0


def _versions(lanes: Sequence[tuple[Policy, Directive]], candidate: tuple[Policy, Directive] | None) -> tuple[Any, ...]:
    def facts(policy: Policy, directive: Directive) -> tuple[Any, ...]:
        return policy, directive.version, directive.manifest, directive.size_bytes, directive.url, directive.release

    return tuple(facts(*lane) for lane in lanes), facts(*candidate) if candidate else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowPlan:
    """An unsigned row, computed from a task's releases by `plan_row`."""

    task: str
    lanes: tuple[tuple[Policy, Directive], ...]
    candidate: tuple[Policy, Directive] | None
    admission: Admission | None
    url: str

    @property
    def serials(self) -> int:
        """Return how many serials `sign` uses."""
        return 2 * len(self.lanes) + 2

    def keeps(self, row: TaskRow, sign: Callable[[Directive], Directive]) -> TaskRow | None:
        """Return `row` with this plan's admission, None where all its directives must be signed with new serials."""
        if row.versions != _versions(self.lanes, self.candidate):
            return None
        if row.candidate is None or self.candidate is None or self.admission is None:
            return row
        directive, audience = row.candidate.directive, self.candidate[1].audience
        if directive.audience != audience:
            directive = sign(dataclasses.replace(directive, audience=audience))
        candidate = ReleaseCandidate(row.candidate.policy, directive, self.admission)
        return dataclasses.replace(row, candidate=candidate)

    def sign(self, sign: Callable[[Directive], Directive], first_serial: int, expires_s: int) -> TaskRow:
        """Return the row, signed with the serials from `first_serial` on, which must be above all drawn before."""
        numbers = iter(range(first_serial, first_serial + self.serials))

        def signed(directive: Directive, **changes: Any) -> Directive:
            return sign(dataclasses.replace(directive, serial=next(numbers), expires_s=expires_s, **changes))

        forward = [signed(directive) for _, directive in reversed(self.lanes)][::-1]
        serial = next(numbers)  # the candidate's, skipped where there is none
        candidate = None
        if self.candidate is not None and self.admission is not None:
            policy, directive = self.candidate
            signed_directive = sign(dataclasses.replace(directive, serial=serial, expires_s=expires_s))
            candidate = ReleaseCandidate(policy, signed_directive, self.admission)
        # Going back installs nothing new for a release, so it carries no release to be counted for.
        back = [signed(directive, release="") for _, directive in reversed(self.lanes)][::-1]
        lanes = tuple(
            Lane(policy, there, again) for (policy, _), there, again in zip(self.lanes, forward, back, strict=True)
        )
        removal = signed(
            Directive(
                task=self.task,
                version="",
                manifest="",
                size_bytes=0,
                serial=0,
                expires_s=0,
                url=self.url,
                release="",
                audience=Audience(but_not=_checkable([policy for policy, _ in self.lanes])),
            )
        )
        return TaskRow(self.task, lanes, candidate, removal)


def plan_row(task: str, full: Sequence[Release], active: Release | None, url: str) -> RowPlan:
    """Return the plan of a task's row from its full releases, newest first, and the one under way.

    A full release hides the older ones for the devices of its policy; where it is for all devices, or for the same
    as an older one, the hidden ones are left out.
    """

    def directive(release: Release, audience: Audience) -> Directive:
        return Directive(
            task=task,
            version=release.request.version,
            manifest=release.manifest,
            size_bytes=release.size_bytes,
            serial=0,
            expires_s=0,
            url=url,
            release=release.id,
            audience=audience,
        )

    lanes: list[tuple[Policy, Directive]] = []
    for release in full:
        policy = release.request.policy
        if all(policy != newer for newer, _ in lanes):
            others = _checkable([newer for newer, _ in lanes])
            lanes.append((policy, directive(release, Audience(app_version=policy.app_version, but_not=others))))
        if policy.takes_all:
            break
    admission = active.admission if active else None
    candidate = None
    if active and admission:
        policy = active.request.policy
        audience = admitted(
            active.id, admission.share, admission.devices, app_version=policy.app_version, is_open=admission.open
        )
        candidate = policy, directive(active, audience)
    return RowPlan(task=task, lanes=tuple(lanes), candidate=candidate, admission=admission, url=url)


def _checkable(policies: Sequence[Policy]) -> tuple[str, ...]:
    """Return the ranges of the policies that a device can check whole: those by app version alone."""
    return tuple(policy.app_version for policy in policies if policy == Policy(policy.app_version))


def _held(row: TaskRow, manifests: Collection[str]) -> TaskRow:
    candidate = row.candidate
    if candidate is None or candidate.directive.manifest not in manifests:
        return row
    closed = dataclasses.replace(candidate.admission, open=False)
    return dataclasses.replace(row, candidate=dataclasses.replace(candidate, admission=closed))


@dataclasses.dataclass(frozen=True)
class _Target:
    """The part of a row that is for one group of devices."""

    row: TaskRow
    lane: Lane | None
    version: str  # the lane's, empty without one
    candidate: ReleaseCandidate | None

    def answer(self, device_id: str, have: str) -> Directive | None:
        if self.candidate is not None and self.candidate.admits(device_id, have):
            return None if have == self.candidate.directive.version else self.candidate.directive
        if have == self.version:
            return None
        return self.row.removal if self.lane is None else self.row.back_to(self.lane, have)


class ReleaseTable:
    """Every task's row; immutable. `generation` grows with each table: an older table never replaces a newer one.

    `timestamp` is the value of X-Walle-Trust that goes with every answer; a table with a later one may be equal else.
    """

    def __init__(self, generation: int = 0, rows: Sequence[TaskRow] = (), timestamp: str = "") -> None:
        self.generation = generation
        self.timestamp = timestamp
        self.rows: Mapping[str, TaskRow] = {row.task: row for row in rows}
        self._plans: dict[str, tuple[_Target, ...]] = {}  # group of devices → its targets; bounded

    @property
    def candidates(self) -> tuple[str, ...]:
        """The manifests of the versions of releases under way."""
        return tuple(row.candidate.directive.manifest for row in self.rows.values() if row.candidate)

    @property
    def manifests(self) -> tuple[str, ...]:
        """The manifests of all versions that a device may get, those of releases under way first."""
        lanes = [lane.directive.manifest for row in self.rows.values() for lane in row.lanes]
        return tuple(dict.fromkeys([*self.candidates, *lanes]))

    @property
    def floor(self) -> int:
        """The lowest serial of the table's directives, 1 without any."""
        return min((row.first_serial for row in self.rows.values()), default=1)

    def floors(self, count: int) -> dict[str, int]:
        """Return the lowest serial of each of the `count` tasks whose rows were signed last."""
        firsts = sorted(((row.first_serial, row.task) for row in self.rows.values()), reverse=True)
        return {task: serial for serial, task in firsts[:count]}

    def hold(self, manifests: Collection[str]) -> "ReleaseTable":
        """Return the table in which only devices that have these candidates keep them, and no other gets one."""
        if not any(manifest in manifests for manifest in self.candidates):
            return self
        return ReleaseTable(self.generation, [_held(row, manifests) for row in self.rows.values()], self.timestamp)

    def answer(self, profile: Profile) -> tuple[Directive, ...]:
        """Return the directives for a device; empty where its versions are up to date.

        Tasks that are not in the table are ignored.
        """
        group = Policy.group(profile)
        targets = self._plans.get(group)
        if targets is None:
            targets = self._plan(profile)
            if len(self._plans) >= MAX_GROUPS:  # forged versions can evict real ones, which are then computed again
                self._plans.clear()
            self._plans[group] = targets
        have = profile.tasks
        answers = []
        for target in targets:
            version = have.get(target.row.task, "")
            if version == target.version and target.candidate is None:
                continue
            directive = target.answer(profile.device_id, version)
            if directive is not None:
                answers.append(directive)
        return tuple(answers)

    def _plan(self, profile: Profile) -> tuple[_Target, ...]:
        targets = []
        for row in self.rows.values():
            lane = next((lane for lane in row.lanes if lane.policy.matches(profile)), None)
            candidate = row.candidate if row.candidate and row.candidate.policy.matches(profile) else None
            targets.append(_Target(row, lane, lane.directive.version if lane else "", candidate))
        return tuple(targets)

    def to_plain(self) -> dict[str, Any]:
        rows = [row.to_plain() for row in self.rows.values()]
        return {"generation": self.generation, "rows": rows, "timestamp": self.timestamp}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(plain["generation"], [TaskRow.from_plain(row) for row in plain["rows"]], plain["timestamp"])

    def __reduce__(self) -> tuple[Any, ...]:
        return ReleaseTable, (self.generation, tuple(self.rows.values()), self.timestamp)
