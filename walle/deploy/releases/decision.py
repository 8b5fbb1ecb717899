"""Decision on a profile: the directives that are due to devices of one profile, urgent ones first, cut to a size.

Most of it is the same for all devices with the same tasks, and is kept for them together. The rest depends on the
device's place in a release under way, and is found for each request.
"""

import bisect
import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, Self

from walle.protocol import Directive

MAX_DUES = 4  # lists of due directives that a decision keeps for outcomes of draws


class Due(NamedTuple):
    """Directives that are due to a device, each list in the order of the tasks' names."""

    urgent: tuple[Directive, ...] = ()
    ordinary: tuple[Directive, ...] = ()


class Draws(Protocol):
    """Draws of devices in the releases under way (`walle.deploy.releases.draws`)."""

    def first(self, device_id: str, groups: bytes) -> bytes:
        """Return for each group of draws, as a byte, which of them first covers the device."""


class Open(NamedTuple):
    """A task of devices with one version, whose directive depends on the device: on the first draw that covers it.

    `outcomes` has the directive for each draw and for none of them, None where nothing is due.
    """

    group: bytes
    outcomes: tuple[Directive | None, ...]
    are_urgent: tuple[bool, ...]


class Target(Protocol):
    """The part of a task's row that is for one group of devices. A device refuses one order, "" for none."""

    def answer(self, have: str) -> Directive | None:
        """Return the directive for all devices that have version `have`, None where they have the right one."""

    def is_urgent(self, directive: Directive, have: str) -> bool:
        """Return whether the directive takes a bad or unwanted version away: a rollback or a removal."""

    def open(self, have: str, refused: str) -> Open:
        """Return what depends on the device. Its group is empty where nothing does: there is one outcome."""


type Step = tuple[str, str, Target]
"""A task with the version that a group of devices has without an answer."""
type OpenStep = tuple[str, Mapping[str, Open], Target]
"""A task whose answer depends on the device, with some of what `open` returns for devices that refuse nothing."""


class Steps(NamedTuple):
    """Steps of a group of devices."""

    settled: tuple[Step, ...] = ()
    still_open: tuple[OpenStep, ...] = ()


class Decision:
    """Directives that are due to devices of a profile: those that are `settled`, and those that depend on the device.

    `groups`, `outcomes` and `are_urgent` are those of the tasks that are still open (`Open`), in the same order.
    """

    __slots__ = ("_dues", "are_urgent", "groups", "outcomes", "settled")

    def __init__(
        self,
        settled: Due,
        groups: bytes,
        outcomes: tuple[tuple[Directive | None, ...], ...],
        are_urgent: tuple[tuple[bool, ...], ...],
    ) -> None:
        self.settled = settled
        self.groups = groups
        self.outcomes = outcomes
        self.are_urgent = are_urgent
        self._dues: dict[bytes, Due] = {}  # by what the draws said: up-to-date devices agree on it; bounded

    @classmethod
    def of(cls, steps: Steps, tasks: Mapping[str, str], refused: Mapping[str, str]) -> "Decision":
        """Return the decision for devices with these versions of tasks that refused these orders (`Directive.order`).

        What a device refused is left out: it would only hide what else is due.
        """
        urgent: list[Directive] = []
        ordinary: list[Directive] = []
        get = tasks.get
        for task, settled, target in steps.settled:
            have = get(task, "")
            if have == settled:
                continue
            directive = target.answer(have)
            if directive is not None and directive.order != refused.get(task, ""):
                (urgent if target.is_urgent(directive, have) else ordinary).append(directive)
        opened: list[Open] | None = None
        if not refused:
            with contextlib.suppress(KeyError):
                opened = [known[get(task, "")] for task, known, _ in steps.still_open]
        if opened is None:
            opened = [target.open(get(task, ""), refused.get(task, "")) for task, _, target in steps.still_open]
        groups, outcomes, are_urgent = zip(*opened, strict=True) if opened else ((), (), ())
        if not all(groups):
            for one in opened:
                if not one.group and (directive := one.outcomes[0]) is not None:
                    (urgent if one.are_urgent[0] else ordinary).append(directive)
            opened = [one for one in opened if one.group]
            groups, outcomes, are_urgent = zip(*opened, strict=True) if opened else ((), (), ())
        if not (urgent or ordinary or groups):
            return NOTHING
        return cls(Due(_by_task(urgent), _by_task(ordinary)), b"".join(groups), outcomes, are_urgent)

    @classmethod
    def joined(cls, parts: Iterable["Decision"]) -> "Decision":
        """Return the decision on all parts of a device's tasks."""
        found = [part for part in parts if part is not NOTHING]
        if not found:
            return NOTHING
        due = Due(
            _by_task(directive for part in found for directive in part.settled.urgent),
            _by_task(directive for part in found for directive in part.settled.ordinary),
        )
        return cls(
            due,
            b"".join([part.groups for part in found]),
            tuple(itertools.chain.from_iterable([part.outcomes for part in found])),
            tuple(itertools.chain.from_iterable([part.are_urgent for part in found])),
        )

    @property
    def size(self) -> int:
        """Return how many directives and open tasks it holds."""
        return len(self.settled.urgent) + len(self.settled.ordinary) + len(self.outcomes)

    def due(self, device_id: str, draws: Draws) -> Due:
        """Return the directives for a device, by the draws of the table from which the decision was made."""
        if not self.groups:
            return self.settled
        found = draws.first(device_id, self.groups)
        due = self._dues.get(found)
        if due is None:
            if len(self._dues) >= MAX_DUES:
                self._dues.clear()
            due = self._dues[found] = self._found(found)
        return due

    def _found(self, found: bytes) -> Due:
        chosen = [outcomes[at] for outcomes, at in zip(self.outcomes, found, strict=True)]
        if not any(chosen):
            return self.settled
        urgent, ordinary = list(self.settled.urgent), list(self.settled.ordinary)
        for are_urgent, at, directive in zip(self.are_urgent, found, chosen, strict=True):
            if directive is not None:
                (urgent if are_urgent[at] else ordinary).append(directive)
        return Due(_by_task(urgent), _by_task(ordinary))


NOTHING = Decision(Due(), b"", (), ())


def _by_task(directives: Iterable[Directive]) -> tuple[Directive, ...]:
    return tuple(sorted(directives, key=lambda one: one.task))


class Place(NamedTuple):
    """Place at which the next answer continues: after these tasks, in the order of names, then from the first again.

    Where a rollback and another directive do not fit into one answer, they take turns; `is_ordinary_next` tells whose.
    """

    urgent: str = ""
    ordinary: str = ""
    is_ordinary_next: bool = False

    def to_text(self) -> str:
        return json.dumps([self.urgent, self.ordinary, self.is_ordinary_next], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the place; the first one where the text is not one, since it comes from a device."""
        try:
            place = json.loads(text)
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(place, list) or [type(one) for one in place] != [str, str, bool]:
            return cls()
        return cls(*place)


def cut(
    due: Due, place: Place, size_of: Callable[[Directive], int], max_bytes: int
) -> tuple[list[Directive], Place | None]:
    """Return the directives of an answer of `max_bytes` that begins at `place`, and the next place; None: it has all.

    Rollbacks and removals come first. Where they fill the answer, a quarter of it is left to the others, and a
    directive that is larger than an answer goes alone. Each answer continues in the order of tasks' names, so that a
    device that follows the places is sent each directive within twice as many answers as directives are due to it,
    whichever of them it cannot carry out and however the table changes.
    """
    if sum(map(size_of, due.urgent)) + sum(map(size_of, due.ordinary)) <= max_bytes:
        return [*due.urgent, *due.ordinary], None
    urgent, ordinary = _rotated(due.urgent, place.urgent), _rotated(due.ordinary, place.ordinary)
    reserve = max(max_bytes // 4, size_of(ordinary[0])) if ordinary else 0
    if urgent and ordinary and size_of(urgent[0]) + size_of(ordinary[0]) > max_bytes:
        if place.is_ordinary_next:
            return [ordinary[0]], Place(place.urgent, ordinary[0].task)
        return [urgent[0]], Place(urgent[0].task, place.ordinary, is_ordinary_next=True)
    chosen, left = _first(urgent, size_of, max_bytes - reserve)
    more, _ = _first(ordinary, size_of, left + reserve)
    return [*chosen, *more], Place(
        chosen[-1].task if chosen else place.urgent, more[-1].task if more else place.ordinary
    )


def _rotated(directives: tuple[Directive, ...], after: str) -> tuple[Directive, ...]:
    at = bisect.bisect_right(directives, after, key=lambda one: one.task)
    return directives[at:] + directives[:at]


def _first(
    directives: tuple[Directive, ...], size_of: Callable[[Directive], int], room: int
) -> tuple[list[Directive], int]:
    """Return the first directives that fit, at least one, and the room that is left."""
    chosen: list[Directive] = []
    for directive in directives:
        size = size_of(directive)
        if chosen and size > room:
            break
        chosen.append(directive)
        room -= size
    return chosen, room
