"""Index of policies: which of them take a device, by one look-up for each attribute instead of one rule after another.

Each term that depends on one attribute (equality, a list, a range of numbers or versions) is turned into the set of
values for which it is true. For each attribute a table maps a value to the policies that the value allows, as bits of
one number; the policies of a device are what all tables allow. CEL evaluates the other terms, of these policies only.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from walle.base.version_range import in_range, plain_numbers
from walle.deploy.policies.attribute_schema import (
    APP_VERSION,
    MAX_VALUE_CHARS,
    UPLOADED,
    Columns,
    ColumnType,
    attributes_of,
)
from walle.deploy.policies.cel_tree import Node
from walle.deploy.policies.evaluated_rules import ColumnRules
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import Rule, RuleError, compile_rule, joined, names_in
from walle.deploy.policies.value_sets import Choice, NumberCut, Ranges, ValueSet, VersionRange, set_of
from walle.protocol import Attribute, Profile

_LOG = logging.getLogger(__name__)
_MAX_VERSIONS = 1024  # versions for which a table remembers its answer


class _Table(Protocol):
    """Table of one attribute. `allowed` returns the policies that a value allows, as bits."""

    def allowed(self, value: Any) -> int: ...


class _Choices:
    def __init__(self, free: int, sets: Sequence[tuple[int, Choice]]) -> None:
        default = free
        for bit, chosen in sets:
            default |= bit if chosen.others else 0
        self._default = default
        self._by_value: dict[Any, int] = {}
        for bit, chosen in sets:
            for value in chosen.values:
                self._by_value[value] = self._by_value.get(value, default) ^ bit

    def allowed(self, value: Any) -> int:
        return self._by_value.get(value, self._default)


class _Order:
    def __init__(self, free: int, sets: Sequence[tuple[int, Ranges]]) -> None:
        allowed = free
        changes: dict[NumberCut, int] = {}
        for bit, ranges in sets:
            allowed |= bit if ranges.starts_in else 0
            for cut in ranges.cuts:
                changes[cut] = changes.get(cut, 0) ^ bit
        self._cuts = sorted(changes)
        self._masks = [allowed]
        for cut in self._cuts:
            allowed ^= changes[cut]
            self._masks.append(allowed)

    def allowed(self, value: Any) -> int:
        return self._masks[bisect_right(self._cuts, (value, 0))]


class _Versions:
    """Versions of digits and points are found by their order; each other one is compared with each range.

    The latest answers are remembered: fleets have few versions.
    """

    def __init__(self, free: int, sets: Sequence[tuple[int, VersionRange]]) -> None:
        ordered = [(bit, ranges) for bit, one in sets if (ranges := one.ranges()) is not None]
        self._order = _Order(free, ordered)
        self._free = free
        self._sets = sets
        self._unordered = [(bit, one) for bit, one in sets if one.ranges() is None]
        self._known: dict[str, int] = {}

    def allowed(self, value: Any) -> int:
        known = self._known.get(value)
        if known is None:
            if len(self._known) >= _MAX_VERSIONS:
                self._known.clear()
            known = self._known[value] = self._found(value)
        return known

    def _found(self, value: str) -> int:
        numbers = plain_numbers(value)
        if numbers is None:
            return self._free | _compared(value, self._sets)
        allowed = self._order.allowed(numbers)
        return allowed | _compared(value, self._unordered) if self._unordered else allowed


def _compared(value: str, sets: Iterable[tuple[int, VersionRange]]) -> int:
    allowed = 0
    known: dict[str, bool] = {}
    for bit, one in sets:
        if one.text not in known:
            known[one.text] = in_range(value, one.text)
        allowed |= bit if known[one.text] != one.others else 0
    return allowed


_TABLES: dict[type[ValueSet], Callable[[int, Any], _Table]] = {
    Choice: _Choices,
    Ranges: _Order,
    VersionRange: _Versions,
}


class PolicyIndex:
    """Index of policies, each once; the bit `1 << n` stands for `policies[n]`.

    `uploaded` are the policies whose rules ask for uploaded attributes.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        everyone = (1 << len(policies)) - 1
        self._everyone = everyone
        self.uploaded = 0
        self._unnamed = everyone
        self._named: dict[str, int] = {}
        # Parts of rules that CEL has to evaluate, by the columns that they read and whether by the app version.
        parts: dict[tuple[Columns, bool], dict[int, Rule]] = {}
        constraints: dict[tuple[str, ColumnType, type[ValueSet]], list[tuple[int, ValueSet]]] = {}
        for number, policy in enumerate(policies):
            bit = 1 << number
            if policy.devices:
                self._unnamed &= ~bit
                for device_id in policy.devices:
                    self._named[device_id] = self._named.get(device_id, 0) | bit
            if policy.app_version:
                key = (APP_VERSION, ColumnType.STRING, VersionRange)
                constraints.setdefault(key, []).append((bit, VersionRange(policy.app_version)))
            if policy.rule:
                try:
                    rule = policy.compiled()
                except RuleError:
                    _LOG.exception(
                        "a rule was valid when its release was made and is invalid now; it matches no device"
                    )
                    self._unnamed &= ~bit
                    self._named = {device_id: named & ~bit for device_id, named in self._named.items()}
                    continue
                self._add_rule(bit, rule, constraints, parts)
                if policy.needs_uploaded:
                    self.uploaded |= bit
        self._tables: list[tuple[str, ColumnType, int, _Table]] = []
        self._uploaded_tables: list[tuple[str, ColumnType, int, _Table]] = []
        for (column, kind, of), sets in constraints.items():
            remaining = sets
            while remaining:  # a policy may have several sets of a column: each further one gets a table of its own
                taken: dict[int, ValueSet] = {}
                rest = []
                for bit, one in remaining:
                    if bit in taken:
                        rest.append((bit, one))
                    else:
                        taken[bit] = one
                free = everyone
                for bit in taken:
                    free &= ~bit
                filled = _TABLES[of](free, list(taken.items()))
                tables = self._uploaded_tables if column.startswith(UPLOADED) else self._tables
                tables.append((column, kind, free, filled))
                remaining = rest
        self._evaluated: list[ColumnRules] = []
        self._uploaded_evaluated: list[ColumnRules] = []
        for (columns, by_version), rules in parts.items():
            is_uploaded = any(name.startswith(UPLOADED) for name, _ in columns)
            evaluated = self._uploaded_evaluated if is_uploaded else self._evaluated
            evaluated.append(ColumnRules(columns, rules, by_version=by_version))

    def _add_rule(
        self,
        bit: int,
        rule: Rule,
        constraints: dict[tuple[str, ColumnType, type[ValueSet]], list[tuple[int, ValueSet]]],
        parts: dict[tuple[Columns, bool], dict[int, Rule]],
    ) -> None:
        types = {APP_VERSION: ColumnType.STRING, **dict(rule.columns)}
        rest: dict[frozenset[str], list[Node]] = {}  # what the tables do not say, by the columns that are read
        for term in rule.terms:
            found = set_of(term, rule.columns)
            if found is None:
                rest.setdefault(frozenset(names_in(term)), []).append(term)
            else:
                constraints.setdefault((found[0], types[found[0]], type(found[1])), []).append((bit, found[1]))
        for names, terms in rest.items():
            columns = tuple((name, kind) for name, kind in rule.columns if name in names)
            part = compile_rule(joined(terms), columns)
            parts.setdefault((columns, APP_VERSION in names), {})[bit] = part

    def matching(self, profile: Profile) -> int:
        """Return the policies that take a device, as bits."""
        policies = self.by_attributes(profile.app_version, profile.attributes) & self.by_device(profile.device_id)
        return self.by_uploaded(profile, policies) if policies & self.uploaded else policies

    def by_device(self, device_id: str) -> int:
        """Return the policies that take a device of this id, as far as the id tells."""
        return self._unnamed | self._named.get(device_id, 0) if self._named else self._unnamed

    def by_attributes(self, app_version: str, attributes: Mapping[str, Attribute]) -> int:
        """Return the policies that take devices with these attributes, whatever their ids and what was uploaded."""
        found = self._everyone
        for column, kind, free, table in self._tables:
            if column == APP_VERSION:
                found &= table.allowed(app_version) if len(app_version) <= MAX_VALUE_CHARS else free
                continue
            value = kind.take(attributes.get(column))
            found &= free if value is None else table.allowed(value)
        if self._evaluated:
            profile = Profile("", app_version, attributes)
            for rules in self._evaluated:
                if wanted := found & rules.mask:
                    found ^= wanted ^ rules.holding(profile, wanted)
        return found

    def by_uploaded(self, profile: Profile, found: int) -> int:
        """Return those of the policies `found` that take a device by what was uploaded of it too."""
        _, uploaded = attributes_of(profile)
        for column, kind, free, table in self._uploaded_tables:
            value = kind.take(uploaded.get(column))
            found &= free if value is None else table.allowed(value)
        for rules in self._uploaded_evaluated:
            if wanted := found & rules.mask:
                found ^= wanted ^ rules.holding(profile, wanted)
        return found
