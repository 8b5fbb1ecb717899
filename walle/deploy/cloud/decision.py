"""Decision on a profile: the directives that are due to devices of one profile, urgent ones first, cut to a size.

Most of it is the same for all devices with the same tasks, and is kept for them together. The rest depends on the
device's place in a release under way, and is found for each request.
"""

import bisect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, Self

from walle.protocol import Directive


class Target(Protocol):
    """The part of a task's row that is for one group of devices."""

    @property
    def is_open(self) -> bool:
        """Return whether the answer depends on the device's id."""

    def answer(self, device_id: str, have: str) -> Directive | None:
        """Return the directive for a device that has version `have`, None where it has the right one."""

    def is_urgent(self, directive: Directive, have: str) -> bool:
        """Return whether the directive takes a version away: a rollback or a removal."""


type Step = tuple[str, str | None, Target]
"""A task with the version that a group of devices has without an answer, None where that depends on the device."""


class Due(NamedTuple):
    """Directives that are due to a device, each list in the order of the tasks' names."""

    urgent: tuple[Directive, ...] = ()
    ordinary: tuple[Directive, ...] = ()


class _Open(NamedTuple):
    """A task whose directive depends on the device. `refused` is the `order` that it will not carry out."""

    target: Target
    have: str
    refused: str


class Decision(NamedTuple):
    """Directives that are due to devices of a profile; `still_open` are found for each device."""

    urgent: tuple[Directive, ...] = ()
    ordinary: tuple[Directive, ...] = ()
    still_open: tuple[_Open, ...] = ()

    @classmethod
    def of(cls, steps: Iterable[Step], tasks: Mapping[str, str], refused: Mapping[str, str]) -> Self:
        """Return the decision for devices with these versions of tasks that refused these orders (`Directive.order`).

        What a device refused is left out: it would only hide what else is due.
        """
        urgent: list[Directive] = []
        ordinary: list[Directive] = []
        still_open: list[_Open] = []
        for task, settled, target in steps:
            have = tasks.get(task, "")
            if have == settled:
                continue
            if target.is_open:
                still_open.append(_Open(target, have, refused.get(task, "")))
            elif (directive := target.answer("", have)) is not None and directive.order != refused.get(task, ""):
                (urgent if target.is_urgent(directive, have) else ordinary).append(directive)
        return cls(_by_task(urgent), _by_task(ordinary), tuple(still_open))

    @classmethod
    def joined(cls, parts: Iterable["Decision"]) -> Self:
        """Return the decision on all parts of a device's tasks."""
        found = [part for part in parts if part is not NOTHING]
        return cls(
            _by_task(directive for part in found for directive in part.urgent),
            _by_task(directive for part in found for directive in part.ordinary),
            tuple(one for part in found for one in part.still_open),
        )

    def due(self, device_id: str) -> Due:
        """Return the directives for a device."""
        if not self.still_open:
            return Due(self.urgent, self.ordinary)
        urgent: list[Directive] = []
        ordinary: list[Directive] = []
        for target, have, refused in self.still_open:
            directive = target.answer(device_id, have)
            if directive is not None and directive.order != refused:
                (urgent if target.is_urgent(directive, have) else ordinary).append(directive)
        return Due(
            _by_task((*self.urgent, *urgent)) if urgent else self.urgent,
            _by_task((*self.ordinary, *ordinary)) if ordinary else self.ordinary,
        )


NOTHING = Decision()


def _by_task(directives: Iterable[Directive]) -> tuple[Directive, ...]:
    return tuple(sorted(directives, key=lambda one: one.task))


class Place(NamedTuple):
    """Place at which the next answer goes on: after these tasks, in the order of names, and then from the first again.

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
    directive that is larger than an answer goes alone. Each answer goes on in the order of the tasks' names, so that a
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
