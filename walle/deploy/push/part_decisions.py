"""Decisions on parts of profiles, which devices with the same versions have in common, in bounded memory.

A group of devices are those that the same policies take, and whose profiles have the same number of parts.
"""

from collections.abc import Iterator
from typing import NamedTuple

from walle.deploy.push.known_parts import KnownParts
from walle.deploy.releases.decision import NOTHING, Decision
from walle.deploy.releases.table import MAX_GROUPS, ReleaseTable
from walle.protocol import TaskPart, part_digest, parts_from_header

MAX_DECIDED = 1 << 18  # decisions on parts and on whole profiles, and the directives in them, for all groups of devices
_NO_TASKS = TaskPart()


class Decided(NamedTuple):
    """A decision, and the one device that has named the part or all parts; None for several."""

    decision: Decision
    sender: str | None


type _Group = list[dict[str, Decided]]
"""The decisions of one group of devices: for each part, by its digest."""


class PartDecisions:
    """Decisions of one release table (`clear` for another), at most MAX_DECIDED with what is in them.

    A part that is not in the known `parts` is asked for.
    """

    def __init__(self, parts: KnownParts) -> None:
        self.size = 0  # size of all decisions
        self._parts = parts
        self._groups: dict[tuple[int, int], _Group] = {}  # by policies and count of parts
        self._joined: dict[tuple[int, tuple[str, ...]], Decided] = {}  # the same for all parts of a profile

    def __iter__(self) -> Iterator[Decided]:
        yield from self._joined.values()
        for group in self._groups.values():
            for decided in group:
                yield from decided.values()

    def clear(self) -> None:
        self._groups.clear()
        self._joined.clear()
        self.size = 0

    def find(
        self, table: ReleaseTable, policies: int, digests: tuple[str, ...], sender: str, have: bytes | None
    ) -> tuple[Decided, list[int]]:
        """Return the decision on the parts that are known, and the numbers of the others.

        `have` are parts that the sender sends beside their digests (X-Walle-Have).

        Raises:
            ProtocolError: `have` cannot be read.
        """
        key = policies, digests
        joined = self._joined.get(key)
        if joined is not None and (joined.sender is None or joined.sender == sender):
            return joined, []
        group = self._group(policies, len(digests))
        found: list[Decision] = []
        unknown: list[int] = []
        for number, (digest, decided) in enumerate(zip(digests, group, strict=True)):
            known = decided.get(digest)
            if known is None:
                unknown.append(number)
                continue
            if known.sender != sender and known.sender is not None:
                self._parts.get(digest, sender)  # use keeps the part longer
                decided[digest] = Decided(known.decision, None)
            if known.decision is not NOTHING:
                found.append(known.decision)
        if unknown:
            if have is not None:
                self._take(have, {digests[number] for number in unknown}, sender)
            unknown = self._decide(table, policies, digests, sender, group, unknown, found)
        made = Decided(Decision.joined(found) if found else NOTHING, sender if joined is None else None)
        if not unknown:
            self._count(made.decision)
            self._joined[key] = made
        return made, unknown

    def _group(self, policies: int, count: int) -> _Group:
        group = self._groups.get((policies, count))
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self.clear()
            group = self._groups[policies, count] = [{} for _ in range(count)]
        return group

    def _take(self, have: bytes, named: set[str], sender: str) -> None:
        """Add those of the sent parts that the device has named."""
        for data in parts_from_header(have):
            if part_digest(data) in named:
                self._parts.add(data, sender)

    def _decide(
        self,
        table: ReleaseTable,
        policies: int,
        digests: tuple[str, ...],
        sender: str,
        group: _Group,
        missing: list[int],
        found: list[Decision],
    ) -> list[int]:
        """Add the decisions on these parts to `found`; return the numbers of those that are not known."""
        plans = table.steps(policies, len(digests))
        unknown = []
        for number in missing:
            digest = digests[number]
            part = self._parts.get(digest, sender) if digest else _NO_TASKS
            if part is None:
                unknown.append(number)
                continue
            decision = Decision.of(plans[number], part.tasks, part.refused)
            self._count(decision)
            group[number][digest] = Decided(decision, sender if digest else None)
            if decision is not NOTHING:
                found.append(decision)
        return unknown

    def _count(self, decision: Decision) -> None:
        """Count a decision that is about to be kept; where there are too many, forget all others."""
        size = 1 + decision.size
        if self.size + size > MAX_DECIDED:
            self.clear()
        self.size += size
