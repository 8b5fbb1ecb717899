"""Release table: the cloud's answers to profiles as immutable signed directives, swapped whole in every gateway (§6).

A task's row holds its versions in the order in which they go: the full releases, the releases under way ("candidates"),
and a removal for devices that should have no version. A device gets the first version whose policy is for it and that
is full or admits it. The table grows with releases and policies, never with devices.

**Order.** Device-specific releases go first, then customised ones, then uniform ones (`Policy.tier`); of one tier the
newer release first. So several releases of a task, each for its group of devices, stand side by side, and a uniform
release takes no device from a customised one: that ends by its rollback, or by a newer release of the same policy.

**Serials.** A device follows a directive only if its serial is above every one it has followed for the task. When the
versions of a row change, or its directives near expiry, all of them are signed again with new serials, so that each
is above everything signed before: a rollback reaches every device, and an old candidate moves no device that left it.
Within a row, serials grow from the last version to the first, the way devices normally move; for moves the other way
(a device that left the release's policy) each version also has a `back` directive with a serial above all of these,
which grow from the first version to the last, and the removal has the highest serial. A device that went back and is
again for the earlier version waits for the next signing. An old directive can be replayed, until it expires, to a
device that has not seen a newer one.

**Audience.** Each directive says in what is signed for whom it is, so that a device refuses those of others. A step or
a pause changes that of a candidate, which is then signed again with the serials that it has: its version is the same.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule_index import PolicyIndex
from walle.deploy.releases.decision import Decision, Open, OpenStep, Step, Steps
from walle.deploy.releases.draws import ReleaseDraws, covers, group_of
from walle.deploy.releases.release import Admission, Release, ReleaseState
from walle.deploy.releases.variants import ReleaseVariant
from walle.protocol import Audience, Directive, Profile, installed_name, part_number, version_of
from walle.trust.audience import admitted

MAX_WITHDRAWN = 16  # versions of a task that a row knows to be rolled back
MAX_KNOWN_VERSIONS = 32  # versions of a task in a group of devices: what they get is computed once
MAX_GROUPS = 256  # groups of devices whose plans a table caches, and of those that a row tells apart


@dataclasses.dataclass(frozen=True)
class RowEntry:
    """A version for the devices of `policy`: a full one without `admission`, else the candidate of a release.

    The entries of its variants go before that of the version's own files.
    """

    policy: Policy
    directive: Directive
    back: Directive  # the same version, for devices that return from an earlier entry
    admission: Admission | None = None
    variant: str = ""

    @property
    def installed_as(self) -> str:
        """The version with the variant, as in the profile of a device that has these files."""
        return installed_name(self.directive.version, self.variant)

    def admits(self, device_id: str, have: str) -> bool:
        """Return whether a device of the policy, which has version `have`, gets this version."""
        admission = self.admission
        if admission is None:
            return True
        if not admission.open and version_of(have) != self.directive.version:
            return False
        return covers(admission, self.directive.release, device_id)

    def to_plain(self) -> dict[str, Any]:
        admission = self.admission
        plain: dict[str, Any] = {
            "policy": self.policy.to_plain(),
            "directive": self.directive.to_json(),
            "back": self.back.to_json(),
            "admission": None
            if admission is None
            else {"share": admission.share, "devices": sorted(admission.devices), "open": admission.open},
        }
        return {**plain, "variant": self.variant} if self.variant else plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        admission = plain["admission"]
        return cls(
            Policy.from_plain(plain["policy"]),
            Directive.from_json(plain["directive"]),
            Directive.from_json(plain["back"]),
            None
            if admission is None
            else Admission(admission["share"], frozenset(admission["devices"]), admission["open"]),
            plain.get("variant", ""),
        )


def _entries_of_before(plain: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a row that an older walle stored: at most one candidate, which went first."""
    entries = [{**lane, "admission": None} for lane in plain["lanes"]]
    if candidate := plain["candidate"]:
        admission = {key: candidate[key] for key in ("share", "devices", "open")}
        both = {key: candidate[key] for key in ("policy", "directive")}
        # No entry is before it from which a device could come back to it.
        entries.insert(0, {**both, "back": candidate["directive"], "admission": admission})
    return entries


@dataclasses.dataclass(frozen=True)
class TaskRow:
    """All answers about one task that a device may get."""

    task: str
    entries: tuple[RowEntry, ...]  # sorted in the order in which they go
    removal: Directive
    withdrawn: frozenset[str] = frozenset()  # versions that were rolled back, the latest ones
    contested: frozenset[str] = frozenset()  # versions of which one release was rolled back, and another goes on

    @property
    def candidates(self) -> tuple[RowEntry, ...]:
        """Return the entries of releases under way."""
        return tuple(entry for entry in self.entries if entry.admission is not None)

    @property
    def expires_s(self) -> int:
        return self.removal.expires_s

    @property
    def first_serial(self) -> int:
        """Return the lowest serial of the row's directives."""
        directives = [one for entry in self.entries for one in (entry.directive, entry.back)]
        return min(directive.serial for directive in (self.removal, *directives))

    @property
    def versions(self) -> tuple[Any, ...]:
        """Return what is signed, but for the audiences: where it is equal, the row's serials still hold."""
        return _versions(self.entries)

    def lead(self, entry: RowEntry, have: str) -> Directive:
        """Return the directive that moves a device from version `have` (empty: none) to the entry's."""
        is_before = True
        for other in self.entries:
            is_before = is_before and other is not entry
            if other.installed_as == have:
                return entry.back if is_before else entry.directive
        return entry.back if _number(have) > _number(entry.directive.version) else entry.directive

    def is_urgent(self, directive: Directive, have: str) -> bool:
        """Return whether a directive of the row takes a bad or unwanted version from a device that has `have`.

        A device that goes back from a version which others keep has left their group, by an attribute or a rule. That
        may be a million devices at once, whose version is not a bad one: they are paced as those of a release are.
        """
        version = version_of(have)
        if not directive.version or version in self.withdrawn:
            return True
        if all(directive is not entry.back for entry in self.entries):
            return False
        return version in self.contested or all(version != entry.directive.version for entry in self.entries)

    def to_plain(self) -> dict[str, Any]:
        entries = [entry.to_plain() for entry in self.entries]
        plain: dict[str, Any] = {"task": self.task, "entries": entries, "removal": self.removal.to_json()}
        if self.withdrawn:
            plain["withdrawn"] = sorted(self.withdrawn)
        if self.contested:
            plain["contested"] = sorted(self.contested)
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        entries = plain["entries"] if "entries" in plain else _entries_of_before(plain)
        return cls(
            plain["task"],
            tuple(RowEntry.from_plain(entry) for entry in entries),
            Directive.from_json(plain["removal"]),
            frozenset(plain.get("withdrawn", ())),  # a row of an older walle has none
            frozenset(plain.get("contested", ())),
        )


def _number(installed: str) -> int:
    version = version_of(installed)
    return int(version[1:]) if version[:1] == "v" and version[1:].isascii() and version[1:].isdigit() else 0


def _versions(entries: "Sequence[RowEntry | PlannedEntry]") -> tuple[Any, ...]:
    def facts(entry: "RowEntry | PlannedEntry") -> tuple[Any, ...]:
        one = entry.directive
        signed = (one.version, one.manifest, one.size_bytes, one.url, one.release)
        return entry.policy, entry.variant, entry.admission is None, *signed

    return tuple(map(facts, entries))


@dataclasses.dataclass(frozen=True)
class PlannedEntry:
    """An unsigned `RowEntry`."""

    policy: Policy
    directive: Directive
    back: Directive
    admission: Admission | None
    variant: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowPlan:
    """An unsigned row, computed from a task's releases by `plan_row`."""

    task: str
    entries: tuple[PlannedEntry, ...]  # sorted in the order in which they go
    url: str
    withdrawn: frozenset[str] = frozenset()
    contested: frozenset[str] = frozenset()

    @property
    def serials(self) -> int:
        """Return how many serials `sign` uses."""
        return 2 * len(self.entries) + 1

    def keeps(self, row: TaskRow, sign: Callable[[Directive], Directive]) -> TaskRow | None:
        """Return `row` with this plan's admissions, None where its directives must be signed with new serials."""
        if row.versions != _versions(self.entries):
            return None

        def again(signed: Directive, planned: Directive) -> Directive:
            if signed.audience == planned.audience:
                return signed
            return sign(dataclasses.replace(signed, audience=planned.audience))

        entries = tuple(
            RowEntry(
                entry.policy,
                again(entry.directive, planned.directive),
                again(entry.back, planned.back),
                planned.admission,
                planned.variant,
            )
            for entry, planned in zip(row.entries, self.entries, strict=True)
        )
        return dataclasses.replace(row, entries=entries, withdrawn=self.withdrawn, contested=self.contested)

    def sign(self, sign: Callable[[Directive], Directive], first_serial: int, expires_s: int) -> TaskRow:
        """Return the row, signed with the serials from `first_serial` on, which must be above all drawn before."""
        numbers = iter(range(first_serial, first_serial + self.serials))

        def signed(directive: Directive) -> Directive:
            return sign(dataclasses.replace(directive, serial=next(numbers), expires_s=expires_s))

        there = [signed(entry.directive) for entry in reversed(self.entries)][::-1]
        again = [signed(entry.back) for entry in self.entries]
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
                audience=Audience(but_not=_checkable(self.entries)),
            )
        )
        entries = tuple(
            RowEntry(entry.policy, forward, backward, entry.admission, entry.variant)
            for entry, forward, backward in zip(self.entries, there, again, strict=True)
        )
        return TaskRow(self.task, entries, removal, self.withdrawn, self.contested)


def plan_row(task: str, releases: Iterable[Release], url: str) -> RowPlan:
    """Return the plan of a task's row from its releases: the full ones, and those under way that devices may have.

    A full release hides the older ones of the same policy; where it is for all devices, it hides all that would go
    after it. What is hidden is left out.
    """
    of_task = list(releases)
    ordered = sorted(of_task, key=lambda release: (release.request.policy.tier, release.number), reverse=True)
    entries: list[PlannedEntry] = []
    full: set[Policy] = set()
    for release in ordered:
        policy, admission = release.request.policy, release.admission
        is_full = release.state is ReleaseState.FULL
        if policy in full or not (is_full or admission):
            continue
        admission = None if is_full else admission
        own = ReleaseVariant("", policy, release.manifest, release.size_bytes)
        for one in (*release.variants, own):
            directive = Directive(
                task=task,
                version=release.request.version,
                manifest=one.manifest,
                size_bytes=one.size_bytes,
                serial=0,
                expires_s=0,
                url=url,
                release=release.id,
                audience=_audience(one.policy, admission, release.id, entries),
            )
            back = directive
            if is_full:  # going back to it installs nothing new for a release, so it carries none to be counted for
                back = dataclasses.replace(directive, release="", audience=_audience(one.policy, None, "", entries))
            entries.append(PlannedEntry(one.policy, directive, back, admission, one.name))
        if is_full:
            full.add(policy)
            if policy.takes_all:
                break
    offered = {entry.directive.version for entry in entries}
    latest = sorted((one.number, one.request.version) for one in of_task if one.state is ReleaseState.ROLLED_BACK)
    rolled_back = frozenset(version for _, version in latest[-MAX_WITHDRAWN:])
    return RowPlan(
        task=task,
        entries=tuple(entries),
        url=url,
        withdrawn=rolled_back - offered,
        contested=rolled_back & offered,
    )


def superseded(of_task: Iterable[Release], keep_versions: int) -> dict[str, int]:
    """Return the full releases to which fewer than `keep_versions` rollbacks do not lead any device, by their ids.

    The value is how many versions are before each: full releases of the same policy, or for all devices, that
    `plan_row` puts before it. All of these have to be rolled back before a device is led to it.
    """
    full = [one for one in of_task if one.state is ReleaseState.FULL]
    found = {}
    for release in full:
        policy = release.request.policy
        before = {
            one.request.version
            for one in full
            if (one.request.policy.tier, one.number) > (policy.tier, release.number)
            and (one.request.policy == policy or one.request.policy.takes_all)
        }
        if len(before) >= keep_versions and not release.bakes:
            found[release.id] = len(before)
    return found


def versions_behind(release: Release, of_task: Iterable[Release]) -> frozenset[str]:
    """Return the versions of full releases that go after `release`: it takes their place on the devices that it is for.

    Versions of more specific releases, which it takes no device from, and those under way are not among them.
    """
    entries = plan_row(release.request.name, of_task, "").entries
    at = next((at for at, entry in enumerate(entries) if entry.directive.release == release.id), len(entries))
    return frozenset(entry.directive.version for entry in entries[at + 1 :] if entry.admission is None)


def _audience(
    policy: Policy, admission: Admission | None, release_id: str, earlier: Sequence[PlannedEntry]
) -> Audience:
    """Return the devices of an entry, as far as a device can check it: not its rule, nor those of earlier entries."""
    is_open = admission is None or admission.open
    if policy.devices:
        named = [device for device in policy.devices if admission is None or covers(admission, release_id, device)]
        audience = admitted(release_id, 0.0, named, app_version=policy.app_version, is_open=is_open)
    elif admission is not None:
        devices = admission.devices
        audience = admitted(release_id, admission.share, devices, app_version=policy.app_version, is_open=is_open)
    else:
        audience = Audience(app_version=policy.app_version)
    return dataclasses.replace(audience, but_not=_checkable(earlier))


def _checkable(entries: Iterable[PlannedEntry]) -> tuple[str, ...]:
    """Return the ranges of the full entries that a device can check whole: those by app version alone."""
    policies = (entry.policy for entry in entries if entry.admission is None)
    return tuple(policy.app_version for policy in policies if policy == Policy(policy.app_version))


def _held(row: TaskRow, manifests: Collection[str]) -> TaskRow:
    releases = {entry.directive.release for entry in row.candidates if entry.directive.manifest in manifests}
    entries = tuple(
        dataclasses.replace(entry, admission=dataclasses.replace(entry.admission, open=False))
        if entry.admission is not None and entry.directive.release in releases
        else entry
        for entry in row.entries
    )
    return dataclasses.replace(row, entries=entries)


class _Target:
    """The part of a row that is for one group of devices: `full` is the first full entry, after the candidates.

    The candidates are with the numbers of their draws.
    """

    def __init__(self, row: TaskRow, candidates: tuple[tuple[int, RowEntry], ...], full: RowEntry | None) -> None:
        self._row = row
        self._candidates = candidates
        self._full = full
        self.known: dict[str, Open] = {}  # plans for devices that refuse nothing, by their version; bounded

    def answer(self, have: str) -> Directive | None:
        if self._full is None:
            return self._row.removal if have else None
        return None if have == self._full.installed_as else self._row.lead(self._full, have)

    def is_urgent(self, directive: Directive, have: str) -> bool:
        return self._row.is_urgent(directive, have)

    def open(self, have: str, refused: str) -> Open:
        found = self.known.get(have)
        if found is not None and not refused:
            return found
        numbers: list[int] = []
        outcomes: list[Directive | None] = []
        for number, entry in self._candidates:
            is_open = entry.admission is not None and entry.admission.open
            # Where no device gets anything new, one whose variant is another one by now keeps what it has.
            is_there = have == entry.installed_as or (not is_open and version_of(have) == entry.directive.version)
            if is_there or is_open:
                numbers.append(number)
                outcomes.append(None if is_there else self._row.lead(entry, have))
        outcomes.append(self.answer(have))
        outcomes = [None if one is not None and one.order == refused else one for one in outcomes]
        urgent = tuple(one is not None and self.is_urgent(one, have) for one in outcomes)
        found = Open(group_of(numbers), tuple(outcomes), urgent)
        if not refused:
            if len(self.known) >= MAX_KNOWN_VERSIONS:
                self.known.clear()
            self.known[have] = found
        return found


class _RowSteps:
    """The steps of one row, by the policies that take a device, as bits. `draws`: the number of its first draw."""

    def __init__(self, row: TaskRow, bits: Mapping[Policy, int], draws: int) -> None:
        self.row = row
        self.mask = 0
        for entry in row.entries:
            self.mask |= bits[entry.policy]
        self.known: dict[int, tuple[Step | None, OpenStep | None]] = {}
        self._bits = bits
        self._first_draw = draws

    def step(self, found: int) -> tuple[Step | None, OpenStep | None]:
        """Return the step for devices that these policies, some of the row's, take, of either kind, and keep it."""
        candidates: list[tuple[int, RowEntry]] = []
        full: RowEntry | None = None
        number = self._first_draw
        for entry in self.row.entries:
            if found & self._bits[entry.policy]:
                if entry.admission is None:
                    full = entry
                    break
                if all(one.directive.release != entry.directive.release for _, one in candidates):
                    candidates.append((number, entry))  # the first of its variants
            number += entry.admission is not None
        target = _Target(self.row, tuple(candidates), full)
        task = self.row.task
        made: tuple[Step | None, OpenStep | None]
        if candidates:
            made = None, (task, target.known, target)
        else:
            made = (task, full.installed_as if full is not None else "", target), None
        if len(self.known) >= MAX_GROUPS:
            self.known.clear()
        self.known[found] = made
        return made


class ReleaseTable:
    """Every task's row; immutable. `generation` grows with each table: an older table never replaces a newer one.

    `timestamp` is the value of X-Walle-Trust that goes with every answer; a table with a later one may be equal else.
    """

    def __init__(self, generation: int = 0, rows: Sequence[TaskRow] = (), timestamp: str = "") -> None:
        self.generation = generation
        self.timestamp = timestamp
        self.rows: Mapping[str, TaskRow] = {row.task: row for row in rows}
        policies = dict.fromkeys(entry.policy for row in rows for entry in row.entries)
        self._bits = {policy: 1 << number for number, policy in enumerate(policies)}
        # Policies that take a group of devices, as bits, and a count of parts → the steps of each part; bounded.
        self._plans: dict[tuple[int, int], tuple[Steps, ...]] = {}
        self._numbers: dict[int, list[int]] = {}  # count of parts → the part of each row

    @functools.cached_property
    def index(self) -> PolicyIndex:
        """The index of the table's policies; `bit_of` is a policy's."""
        return PolicyIndex(tuple(self._bits))

    @functools.cached_property
    def _row_steps(self) -> list[_RowSteps]:
        found = []
        draws = 0
        for row in self.rows.values():
            found.append(_RowSteps(row, self._bits, draws))
            draws += len(row.candidates)
        return found

    @functools.cached_property
    def draws(self) -> ReleaseDraws:
        """Return the draws of the releases under way, those of each row in its order."""
        entries = (entry for row in self.rows.values() for entry in row.entries)
        return ReleaseDraws([(one.directive.release, one.admission) for one in entries if one.admission is not None])

    def bit_of(self, policy: Policy) -> int:
        """Return the bit of a policy of the table in what `index.matching` returns."""
        return self._bits[policy]

    def restamped(self, generation: int, timestamp: str) -> Self:
        """Return the table with another generation and timestamp, and all that is cached for its rows."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.generation, made.timestamp = generation, timestamp
        return made

    @property
    def candidates(self) -> tuple[str, ...]:
        """The manifests of the versions of releases under way, without those of their variants."""
        under_way = (entry for row in self.rows.values() for entry in row.candidates)
        return tuple(entry.directive.manifest for entry in under_way if not entry.variant)

    @property
    def served(self) -> tuple[str, ...]:
        """The manifests of which phases in the cloud have the files, those of releases under way first."""
        every = [entry for row in self.rows.values() for entry in row.entries]
        return tuple(dict.fromkeys([*self.candidates, *(one.directive.manifest for one in every if not one.variant)]))

    @property
    def manifests(self) -> tuple[str, ...]:
        """The manifests of all versions that a device may get, variants too, those of releases under way first."""
        every = [entry.directive.manifest for row in self.rows.values() for entry in row.entries]
        return tuple(dict.fromkeys([*self.candidates, *every]))

    @property
    def floor(self) -> int:
        """The lowest serial of the table's directives, 1 without any."""
        return min((row.first_serial for row in self.rows.values()), default=1)

    def floors(self, count: int) -> dict[str, int]:
        """Return the lowest serial of each of the `count` tasks whose rows were signed last."""
        firsts = sorted(((row.first_serial, row.task) for row in self.rows.values()), reverse=True)
        return {task: serial for serial, task in firsts[:count]}

    def hold(self, manifests: Collection[str]) -> "ReleaseTable":
        """Return the table in which only devices that have these candidates keep them, and no other gets one.

        Their variants are held with them.
        """
        if not any(manifest in manifests for manifest in self.candidates):
            return self
        return ReleaseTable(self.generation, [_held(row, manifests) for row in self.rows.values()], self.timestamp)

    def without_uploaded(self) -> "ReleaseTable":
        """Return the table without the tasks that a gateway cannot decide on which has no uploaded attributes.

        To it a device of such a rule is not of it: it would take the rule's version from the device.
        """
        rows = [row for row in self.rows.values() if not any(entry.policy.needs_uploaded for entry in row.entries)]
        return self if len(rows) == len(self.rows) else ReleaseTable(self.generation, rows, self.timestamp)

    def answer(self, profile: Profile) -> tuple[Directive, ...]:
        """Return the directives for a device, the urgent ones first; empty where its versions are up to date.

        Tasks that are not in the table are ignored.
        """
        (steps,) = self.steps(self.index.matching(profile), 1)
        due = Decision.of(steps, profile.tasks, {}).due(profile.device_id, self.draws)
        return due.urgent + due.ordinary

    def steps(self, found: int, parts: int) -> tuple[Steps, ...]:
        """Return the steps of devices that these policies take, by the part of `parts` in which the task is."""
        plans = self._plans.get((found, parts))
        if plans is None:
            settled: list[list[Step]] = [[] for _ in range(parts)]
            still_open: list[list[OpenStep]] = [[] for _ in range(parts)]
            for steps, number in zip(self._row_steps, self._part_numbers(parts), strict=True):
                bits = found & steps.mask
                one, another = steps.known.get(bits) or steps.step(bits)
                if one is not None:
                    settled[number].append(one)
                elif another is not None:
                    still_open[number].append(another)
            if len(self._plans) >= MAX_GROUPS:  # made-up profiles can evict real groups, which are then planned again
                self._plans.clear()
            made = zip(settled, still_open, strict=True)
            plans = self._plans[found, parts] = tuple(Steps(tuple(some), tuple(others)) for some, others in made)
        return plans

    def _part_numbers(self, parts: int) -> list[int]:
        numbers = self._numbers.get(parts)
        if numbers is None:
            numbers = self._numbers[parts] = [part_number(task, parts) for task in self.rows]
        return numbers

    def to_plain(self) -> dict[str, Any]:
        rows = [row.to_plain() for row in self.rows.values()]
        return {"generation": self.generation, "rows": rows, "timestamp": self.timestamp}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(plain["generation"], [TaskRow.from_plain(row) for row in plain["rows"]], plain["timestamp"])

    def __reduce__(self) -> tuple[Any, ...]:
        return ReleaseTable, (self.generation, tuple(self.rows.values()), self.timestamp)
