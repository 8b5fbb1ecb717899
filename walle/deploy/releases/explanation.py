"""Explanation of what a device gets: for each task each release, each term of its policy, in plain words. Pure.

It is computed from the release table that answers the device, so that it says what the gateway does.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from walle.base.version_range import in_range
from walle.deploy.policies.attribute_schema import APP_VERSION, UPLOADED, JoinedProfile, value_of
from walle.deploy.policies.cel_tree import Node
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import RuleError, compile_rule, names_in, unparse
from walle.deploy.releases.release import Release
from walle.deploy.releases.table import ReleaseTable, RowEntry
from walle.protocol import Profile
from walle.trust.audience import share

_MAX_SHOWN = 80  # characters of a device's value


@dataclasses.dataclass(frozen=True)
class TermExplanation:
    """A term of a policy: whether it holds for the device, and what the device says."""

    term: str
    holds: bool
    device: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseExplanation:
    """A release of the task, in the order in which they go: `result` says why the device gets it, or why not."""

    release: str
    version: str  # name with that of the variant: v4@small
    stage: str
    kind: str  # uniform, customised, device-specific
    terms: tuple[TermExplanation, ...]
    applies: bool
    result: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskExplanation:
    """A task of a device: the versions that it has and should have, "" for none. `because` is a sentence."""

    task: str
    has: str
    gets: str
    because: str
    releases: tuple[ReleaseExplanation, ...]

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def explain(
    table: ReleaseTable,
    profile: Profile,
    releases: Sequence[Release],
    scenarios: Collection[str] | None = None,
) -> list[TaskExplanation]:
    """Return what the device gets of each task of the scenarios, None for all, by the table and the releases behind it.

    Releases that are over are left out; those that the table has not yet, or that others hide, come last.
    """
    tasks = dict.fromkeys([*table.rows, *sorted({release.request.name for release in releases if _counts(release)})])
    found = []
    for task in tasks:
        if scenarios is None or task.partition("/")[0] in scenarios:
            known = {release.id: release for release in releases if release.request.name == task and _counts(release)}
            found.append(_explain_task(task, table, profile, known))
    return found


def _counts(release: Release) -> bool:
    return not release.state.terminal


def _explain_task(task: str, table: ReleaseTable, profile: Profile, known: Mapping[str, Release]) -> TaskExplanation:
    has = profile.tasks.get(task, "")
    row = table.rows.get(task)
    gets: RowEntry | None = None
    shown = []
    for entry in row.entries if row is not None else ():
        applies, terms = explain_policy(entry.policy, profile)
        if not applies:
            result = "not for this device: " + "; ".join(f"{one.term} ({one.device})" for one in terms if not one.holds)
        elif gets is not None and gets.directive.release == entry.directive.release:
            result = f"for this device too, but it gets the files of variant {gets.variant}, which goes before"
        elif gets is not None:
            result = f"for this device too, but {gets.directive.release} takes precedence"
        else:
            is_in, result = _admission(entry, profile, has)
            if is_in:
                gets = entry
        name = entry.directive.release
        shown.append(
            ReleaseExplanation(
                release=name,
                version=entry.installed_as,
                stage=known[name].stage if name in known else "full",
                kind=(known[name].request.policy if name in known else entry.policy).tier.words,
                terms=terms,
                applies=applies,
                result=result,
            )
        )
    shown += [
        _outside(release, profile) for name, release in known.items() if all(one.release != name for one in shown)
    ]
    version = gets.installed_as if gets is not None else ""
    if row is None:
        return TaskExplanation(
            task=task,
            has=has,
            gets=has,
            because="no device gets the task yet; it keeps what it has",
            releases=tuple(shown),
        )
    if gets is None:
        because = "no release is for it" + ("; the task is removed at its next request" if has else "")
    else:
        because = f"{gets.directive.release} is the first release that is for it"
        if gets.variant:
            because += f", and variant {gets.variant} the first of its variants"
        because += "; it has the version already" if has == version else "; it gets the version at its next request"
    return TaskExplanation(task=task, has=has, gets=version, because=because, releases=tuple(shown))


def _admission(entry: RowEntry, profile: Profile, has: str) -> tuple[bool, str]:
    """Return whether an entry whose policy is for the device admits it, and why."""
    admission = entry.admission
    if admission is None:
        return True, "it is full, and for this device"
    is_in = entry.admits(profile.device_id, has)
    if profile.device_id in admission.devices:
        why = "it is a beta device of the release"
    elif not admission.share:
        why = f"the release is in beta, and this device is not one of its {len(admission.devices)} devices"
    else:
        place = share(entry.directive.release, profile.device_id)
        why = f"the release is rolled out to places below {admission.share:g}, and this device has place {place:.4f}"
    if admission.open:
        return is_in, why
    kept = "it has the version and keeps it" if is_in else "only devices that have the version keep it"
    return is_in, f"the release is paused or waits for the cloud: {kept}; {why}"


def _outside(release: Release, profile: Profile) -> ReleaseExplanation:
    """Return the explanation of a release that the table does not have."""
    applies, terms = explain_policy(release.request.policy, profile)
    hidden = "a newer release for the same devices, or for all, is full"
    result = (
        hidden if release.admission is not None or release.stage == "full" else "it is not rolled out to any device yet"
    )
    return ReleaseExplanation(
        release=release.id,
        version=release.request.version,
        stage=release.stage,
        kind=release.request.policy.tier.words,
        terms=terms,
        applies=applies,
        result=result,
    )


def explain_policy(policy: Policy, profile: Profile) -> tuple[bool, tuple[TermExplanation, ...]]:
    """Return whether a policy takes a device, and each of its terms."""
    terms = []
    if policy.devices:
        is_named = profile.device_id in policy.devices
        terms.append(TermExplanation(f"is one of {len(policy.devices)} devices", is_named, _shown(profile.device_id)))
    if policy.app_version:
        is_in = in_range(profile.app_version, policy.app_version)
        terms.append(TermExplanation(f"app version {policy.app_version}", is_in, f"has {_shown(profile.app_version)}"))
    if policy.rule:
        try:
            terms += [_term(node, policy, profile) for node in policy.compiled().terms]
        except RuleError as error:
            terms.append(TermExplanation(policy.rule, False, f"the rule is not valid any more: {error.what}"))
    return all(term.holds for term in terms), tuple(terms)


def _term(node: Node, policy: Policy, profile: Profile) -> TermExplanation:
    text = unparse(node)
    holds = compile_rule(text, policy.columns).matches(profile)
    types = dict(policy.columns)
    said = []
    for name in names_in(node):
        value = value_of(profile, name)
        is_uploaded = name.startswith(UPLOADED)
        if name == APP_VERSION:
            said.append(f"{name} is {_shown(value)}")
        elif value is None:
            where = "nothing was uploaded of its" if is_uploaded else "it says no"
            said.append(f"{where} {name.removeprefix(UPLOADED)}, so that the term is unknown")
        elif types[name].take(value) is None:
            said.append(
                f"{name} is {_shown(value)}, which is not of type {types[name].words}, so that the term is unknown"
            )
        elif is_uploaded and isinstance(profile, JoinedProfile) and name in profile.sources:
            said.append(f"{name} is {_shown(value)}, by its {profile.sources[name]}")
        else:
            said.append(f"{name} is {_shown(value)}")
    return TermExplanation(text, holds, ", ".join(said))


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
