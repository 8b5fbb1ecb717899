"""Sets of values of one attribute, in which terms of rules are looked up instead of evaluated."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Self

from walle.base.version_range import cuts_of
from walle.deploy.policies.attribute_schema import APP_VERSION, Columns, ColumnType
from walle.deploy.policies.cel_tree import Node

type NumberCut = tuple[Any, int]
"""A place in an order: just before a value (0), or just after it (1)."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The values of `values`; or, where `others` is set, all but those. For texts and truth values."""

    values: frozenset[Any]
    others: bool = False

    def complement(self) -> Self:
        return dataclasses.replace(self, others=not self.others)

    def union(self, other: "Choice") -> "Choice":
        match self.others, other.others:
            case False, False:
                return Choice(self.values | other.values)
            case True, True:
                return Choice(self.values & other.values, others=True)
            case True, False:
                return Choice(self.values - other.values, others=True)
            case _:
                return Choice(other.values - self.values, others=True)


@dataclasses.dataclass(frozen=True)
class Ranges:
    """The values of an ordered type between the first cut and the second, the third and the fourth, and so on.

    Where `starts_in` is set, those below the first cut too, and so on.
    """

    starts_in: bool
    cuts: tuple[NumberCut, ...]

    def complement(self) -> Self:
        return dataclasses.replace(self, starts_in=not self.starts_in)

    def union(self, other: "Ranges") -> "Ranges":
        inside = starts_in = int(self.starts_in) + int(other.starts_in)
        changes: dict[NumberCut, int] = {}
        for one in (self, other):
            for number, cut in enumerate(one.cuts):
                changes[cut] = changes.get(cut, 0) + (1 if bool(number % 2) == one.starts_in else -1)
        cuts = []
        for cut in sorted(changes):
            before, inside = inside, inside + changes[cut]
            if bool(before) != bool(inside):
                cuts.append(cut)
        return Ranges(bool(starts_in), tuple(cuts))

    @classmethod
    def points(cls, values: Iterable[Any]) -> "Ranges":
        return cls(False, tuple((value, side) for value in sorted(set(values)) for side in (0, 1)))


@dataclasses.dataclass(frozen=True)
class VersionRange:
    """The versions of a range, or, where `others` is set, all texts but those."""

    text: str
    others: bool = False

    def complement(self) -> Self:
        return dataclasses.replace(self, others=not self.others)

    def ranges(self) -> Ranges | None:
        """Return the plain versions of it, in their order; None where no order describes it."""
        found = cuts_of(self.text)
        return Ranges(found[0] != self.others, found[1]) if found is not None else None


type ValueSet = Choice | Ranges | VersionRange


def set_of(node: Node, columns: Columns) -> tuple[str, ValueSet] | None:
    """Return the column on which a term depends and the values of it for which it is true; None for other terms.

    The term is unknown without a value, whatever it is.
    """
    return _set_of(node, {APP_VERSION: ColumnType.STRING, **dict(columns)})


def _set_of(node: Node, types: dict[str, ColumnType]) -> tuple[str, ValueSet] | None:
    if node.kind == "name" and types[str(node.value)] is ColumnType.BOOL:
        return str(node.value), Choice(frozenset({True}))
    if node.kind != "call":
        return None
    parts = node.parts
    match node.value:
        case "!_":
            inner = _set_of(parts[0], types)
            return (inner[0], inner[1].complement()) if inner else None
        case "_&&_":  # De Morgan's law
            both = _united(parts, types, complement=True)
            return (both[0], both[1].complement()) if both else None
        case "_||_":
            return _united(parts, types, complement=False)
        case "version_in" if parts[0].kind == "name":
            return str(parts[0].value), VersionRange(str(parts[1].value))
        case "@in" if parts[0].kind == "name":
            return _equal(str(parts[0].value), [part.value for part in parts[1].parts], types)
        case "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_":
            return _compared(str(node.value), parts, types)
    return None


def _united(parts: Sequence[Node], types: dict[str, ColumnType], *, complement: bool) -> tuple[str, ValueSet] | None:
    found = [_set_of(part, types) for part in parts]
    first, second = found[0], found[1]
    if first is None or second is None or first[0] != second[0]:
        return None
    sets = [one.complement() if complement else one for one in (first[1], second[1])]
    match sets:
        case [Choice() as one, Choice() as other]:
            return first[0], one.union(other)
        case [Ranges() as one, Ranges() as other]:
            return first[0], one.union(other)
    return None


def _equal(name: str, values: list[Any], types: dict[str, ColumnType]) -> tuple[str, ValueSet]:
    if types[name] in (ColumnType.INT, ColumnType.DOUBLE):
        return name, Ranges.points(values)
    return name, Choice(frozenset(values))


def _compared(function: str, parts: Sequence[Node], types: dict[str, ColumnType]) -> tuple[str, ValueSet] | None:
    column, literal = parts
    if column.kind == "literal":
        column, literal = literal, column
        function = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}.get(function, function)
    if column.kind != "name" or literal.kind != "literal":
        return None
    name, value = str(column.value), literal.value
    match function:
        case "_==_" | "_!=_":
            _, chosen = _equal(name, [value], types)
            return name, chosen if function == "_==_" else chosen.complement()
    if types[name] not in (ColumnType.INT, ColumnType.DOUBLE):  # an order of truth values
        return None
    side = 0 if function in ("_<_", "_>=_") else 1
    return name, Ranges(function in ("_<_", "_<=_"), ((value, side),))
