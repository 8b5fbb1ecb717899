"""Trigger management and task triggering (§5.1): a trie of trigger conditions with two pending lists.

Matching is in C++ (`walle/engine_ext/src/stream`), one call per event. Its meaning is the slow matcher of
`tests/pipeline/slow_matcher.py`. Cost per event grows with the pending nodes, and with the conditions with
`skip_till_next` in which the event's ids occur; not with the other conditions.

A condition with optional ids has one match for each event that matches its first id: the first of its sequences that is
complete. Without `skip_till_next` it has nodes for each of them, and one word for the matches that have ended. With
`skip_till_next` it is matched without its optional ids, since the others are complete at the same event or earlier.
"""

from typing import Any, Self

from walle.engine_ext import _core
from walle.errors import PipelineError
from walle.pipeline.events.event import MAX_EVENT_BYTES, PAGE_ENTER, PAGE_EXIT, EventError
from walle.pipeline.trigger.sequences import RecentEvents
from walle.protocol import TriggerCondition


class TriggerError(PipelineError):
    """A pair of condition and task that cannot be added, or was not added. Carries `condition` and `task`."""

    def __init__(self, condition: TriggerCondition, task: str, what: str) -> None:
        super().__init__(f"trigger condition {str(condition)!r} of task {task!r}: {what}")
        self.condition = condition
        self.task = task


# Options that the stream engine applies, which are bools. Conditions that differ in them are different pairs here too.
# Those of time and of a key are not matched here: the engine removes them from the condition.
_OTHERS = ("without_visit",)


# The first options that C++ reads, by its order (`TriggerMatching::parse`). Others that it matches follow the bits.
_FIRST = ("within_ms", "skip_till_next", "cooldown_ms", "where")


def _arguments(condition: TriggerCondition, task: str) -> tuple[Any, ...]:
    first = (getattr(condition, key) for key in _FIRST)
    variant = sum(1 << index for index, name in enumerate(_OTHERS) if getattr(condition, name))
    optional = sum(1 << index for index in set(condition.optional))
    later = (getattr(condition, key) for key in TriggerCondition.MATCHED if key not in _FIRST)
    return condition.trigger_ids, task, *first, variant, optional, *later


def _add(trie: "TriggerTrie | EventStream", condition: TriggerCondition, task: str) -> None:
    if not task:
        raise TriggerError(condition, task, "the task has no name")
    trie._add(*_arguments(condition, task))


def _remove(trie: "TriggerTrie | EventStream", condition: TriggerCondition, task: str) -> None:
    if not trie._remove(*_arguments(condition, task)):
        raise TriggerError(condition, task, "is not in the trie")


class TriggerTrie(_core.TriggerTrie):
    """Trigger conditions and the tasks they trigger; both may change between events.

    `feed(event_id, page_id, ts_ms=None, contents=None)` returns the tasks whose condition ends at this event, each
    once, sorted by name. An empty page id matches no trigger id. `feed_many(event_ids, page_ids, times=None,
    contents=None)` takes columns of a batch, and returns two: the indices of events in the batch, and beside each a
    task that this event triggers.

    They raise EventError for an event that is wrong (an empty event id, a time that is none), and ValueError if a
    condition's option needs the event's time or contents and they are not given; nothing is fed then. `pending` is the
    length of the dynamic list: parents of the nodes that the next event may match, and conditions with
    `skip_till_next` of which a match is under way.
    """

    __slots__ = ()

    def __new__(cls) -> Self:
        return super().__new__(cls, EventError)

    def add(self, condition: TriggerCondition, task: str) -> None:
        """Trigger `task` by `condition`, matched by events from now on. Adding a pair again changes nothing.

        Raises:
            TriggerError: the task has no name.
        """
        _add(self, condition, task)

    def remove(self, condition: TriggerCondition, task: str) -> None:
        """Remove the pair at once, and the nodes that no other condition needs.

        Raises:
            TriggerError: the pair was not added.
        """
        _remove(self, condition, task)


class EventStream(_core.EventStream):
    """The trigger trie with the time-level and the page-level sequence behind one call per event (§5.1).

    `feed(position, event, size_bytes=None)` returns the event's page visit, None if its page is not open, and the tasks
    whose condition ends at this event. Positions grow. `recent(count=None)` returns the latest events, oldest first.
    `needed_from` is the smallest position that a sequence or a match under way still needs, None if none does; a match
    with `skip_till_next` needs no event more than `max_span` positions or `max_span_bytes` back. `size_bytes` is
    `event.size_bytes()` if it is not given; `last_size_bytes` is that of the latest event. The meaning is that of
    `tests/pipeline/python_sequences.py`.

    Several pages may be open at once. If one page is open several times, the visit that was entered last gets the
    events and the exit. Beyond a bound, the visit that was entered first is evicted: `visit.evicted`. Its page is known
    until its exit, and its events get a visit with `is_cut`, which has that event alone; at most `max_open` pages are
    known so. `cut_before(position)` returns them as they are before the event at `position`, the next one.
    `restore_cut(pages, position)` lets a replay find them, whatever the replayed events before it cut.

    Args:
        max_events, max_bytes, max_age_ms: bounds of the time-level sequence. An age is counted by event times; 0: none.
        max_open, max_visit_bytes, max_span, max_visit_age_ms: bounds of the open visits; ages as above.
        max_span_bytes: bound of the events of all pages since a visit's enter, which a replay reads: a fourth of what a
            device's event journal holds.

    Raises:
        ValueError: a bound is below 1, or below 0 for an age; from `feed`, a position does not grow.
        EventError: from `feed`, the event is wrong or enormous; it is not fed.
    """

    __slots__ = ("_bounds",)
    _bounds: tuple[tuple[int, int, int], tuple[int, int, int, int, int]]

    def __new__(
        cls,
        *,
        max_events: int = 1000,
        max_bytes: int = 1 << 20,
        max_age_ms: int = 0,
        max_open: int = 64,
        max_visit_bytes: int = 4 << 20,
        max_span: int = 10_000,
        max_visit_age_ms: int = 0,
        max_span_bytes: int = 16 << 20,
    ) -> Self:
        recent = max_events, max_bytes, max_age_ms
        visits = max_open, max_visit_bytes, max_span, max_visit_age_ms, max_span_bytes
        return cls._of(recent, visits)

    @classmethod
    def _of(cls, recent: tuple[int, int, int], visits: tuple[int, int, int, int, int]) -> Self:
        made = super().__new__(cls, EventError, PAGE_ENTER, PAGE_EXIT, MAX_EVENT_BYTES, recent, visits)
        made._bounds = recent, visits
        return made

    def like(self) -> Self:
        """Return one with the same bounds, without events and conditions."""
        return type(self)._of(*self._bounds)

    @property
    def recent_bytes(self) -> int:
        """The size of the events of the time-level sequence."""
        return self.counters()["recent_bytes"]

    def view(self) -> RecentEvents:
        """Return the time-level sequence as it is now, without a copy."""
        return RecentEvents(*self._snapshot())

    def add(self, condition: TriggerCondition, task: str) -> None:
        """As `TriggerTrie.add`."""
        _add(self, condition, task)

    def remove(self, condition: TriggerCondition, task: str) -> None:
        """As `TriggerTrie.remove`."""
        _remove(self, condition, task)
