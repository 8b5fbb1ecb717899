"""Time conditions in the stream engine: timers and keyed matches, and what a restart needs to continue them (ADR 19).

A snapshot of the running timers is stored with the position of the stream that it belongs to. A replay begins at or
before the next position, and continues the timers there. A snapshot is taken after `_SNAPSHOT_EVERY` entries and as
many more as it has timers and events of windows, so that its cost per entry is bounded. It is taken earlier where the
entries since the latest one fill a share of the event journal, which keeps them until then. It replaces the stored one
once no trigger up to its position waits for its run: a replay must make those triggers again. It has the pages whose
visits are cut, too: events of such a page start timers, and a replay does not cut the visits that ended before it
begins (ADR 19).
"""

import dataclasses
import logging
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from walle.base import plain
from walle.pipeline.events.event import PAGE_EXIT, Event
from walle.pipeline.events.ticks import Tick
from walle.pipeline.features.task_states import TaskState
from walle.pipeline.trigger.keyed_matches import KeyedMatches
from walle.pipeline.trigger.task_queue import Trigger
from walle.pipeline.trigger.timers import DueTimer, Timers, key_of
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import TriggerCondition, canonical_json, options_of

_LOG = logging.getLogger(__name__)

SNAPSHOT_TASK = "@timers"  # under which the snapshot is stored; no task has such a name
_FORMAT = 1
_SNAPSHOT_EVERY = 64  # entries
_JOURNAL_SHARE = 4  # entries since the latest snapshot may take this part of the journal: a fourth
_ENTRY_BYTES = 24  # size of a tick in the journal, or of an event's head


def uses_time(condition: TriggerCondition) -> bool:
    """Return whether the condition has a part that the trie does not match."""
    return bool(condition.longest_ms or condition.key)


def matching_parts(condition: TriggerCondition) -> list[TriggerCondition]:
    """Return what the trie matches, at most one condition: without the options that the engine applies."""
    if not condition.trigger_ids or _is_keyed_match(condition):
        return []
    options = options_of(TriggerCondition).items()
    unused = {one.field: one.default for key, one in options if key not in TriggerCondition.MATCHED}
    return [dataclasses.replace(condition, **unused)]


def may_trigger(condition: TriggerCondition, entry: Event | Tick) -> bool:
    """Return whether an entry may trigger the condition: by its id, or because a timer is due at its time."""
    if condition.longest_ms:
        return True
    ids = () if isinstance(entry, Tick) else (entry.event_id, entry.page_id, TriggerCondition.WILDCARD)
    return condition.trigger_ids[-1] in ids


def can_fall_behind(condition: TriggerCondition) -> bool:
    """Return whether a trigger can be made again from the journal's events alone: not one with a window's events."""
    return not condition.window_s


def window_trigger(
    due: DueTimer, position: int, step: int, events: EventStream, arrival: tuple[float, float]
) -> tuple[Trigger, int]:
    """Return the trigger of a window that closes before the entry at `position`, and as `timer_trigger`."""
    window = due.window
    assert window is not None
    came_s, arrived_s = arrival
    state = "cut" if window.evicted else "whole"
    event, recent = due.to_event(), events.view()
    trigger = Trigger(event, position, window.events, recent, state, arrived_s, came_s, step, is_timer=True)
    return trigger, event.size_bytes() + events.recent_bytes + window.size_bytes


def timer_trigger(
    event: Event, position: int, step: int, events: EventStream, arrival: tuple[float, float]
) -> tuple[Trigger, int]:
    """Return the trigger of a timer that is due before the entry at `position`, and a bound on the memory it keeps.

    `event` is the timer's. The visit is the open one of its page. `events` have had the entries before `position`.
    """
    visit = events.open_visit(event.page_id) if event.page_id else None
    state = "whole" if visit else "cut" if event.page_id in events.cut_before(position) else "none"
    came_s, arrived_s = arrival
    page_events = tuple(visit.events) if visit else ()
    trigger = Trigger(event, position, page_events, events.view(), state, arrived_s, came_s, step, is_timer=True)
    return trigger, event.size_bytes() + events.recent_bytes + (visit.size_bytes if visit else 0)


def _is_keyed_match(condition: TriggerCondition) -> bool:
    return bool(condition.key) and condition.skip_till_next and len(condition.trigger_ids) > 1


class StreamTime:
    """The time conditions of an engine's tasks. `is_used`: there are some; without them no other call is needed.

    `max_journal_bytes` is the bound of the journal that keeps the entries since the stored snapshot, None without one.

    Args:
        stored: the snapshot of an earlier process, None without one.
        resume_from: the position at which the replay begins.
        steps: `ReplayState.steps` of the earlier process; the engine removes those that do not hold any more.
    """

    def __init__(self, stored: bytes | None, resume_from: int, steps: Mapping[str, int]) -> None:
        self.is_used = False
        self.max_journal_bytes: int | None = None
        self.replay_steps = dict(steps)
        self.timers = Timers()
        self._matches = KeyedMatches()
        self._conditions: dict[str, TriggerCondition] = {}
        self._restored: Mapping[str, Any] | None = None
        if stored is not None:
            value = plain.decode(stored)
            # Without the entries from "floor" on, a replay has not the snapshot's visits. An older walle wrote none.
            if value["format"] == _FORMAT and value.get("floor", value["position"] + 1) >= resume_from:
                self._restored = value
            else:  # another walle wrote the file since, or its latest transactions were lost
                _LOG.warning(
                    "the stored timers are not continued: they are of an earlier position, or of another walle"
                )
        self._floor = resume_from  # position from which the stored snapshot needs a replay
        # A snapshot that waits for triggers up to its position: this, where a replay begins for it, and its bytes.
        self._candidate: tuple[int, int, bytes] | None = None
        self._entries = _SNAPSHOT_EVERY  # entries since the latest snapshot; the first one is due at once
        self._bytes = 0  # bytes of entries since the stored snapshot
        self._candidate_bytes = 0  # bytes of entries from the stored snapshot to the candidate

    @property
    def cut_visits(self) -> tuple[tuple[str, ...], int] | None:
        """The pages with a cut visit at the snapshot, and the position from which on a replay finds them so.

        None if no snapshot is to be continued, or an older walle made it.
        """
        if self._restored is None or "cut" not in self._restored:
            return None
        return tuple(self._restored["cut"]), self._restored["position"] + 1

    @property
    def running(self) -> int:
        """The number of running timers."""
        return len(self.timers)

    def next_due_ms(self, next_position: int) -> int | None:
        """Return the time of the stream at which the next timer is due, None without timers.

        `next_position` is that of the next entry.
        """
        self._restore_before(next_position)
        return self.timers.next_due_ms

    def now_ms(self, next_position: int) -> int | None:
        """Return the time of the stream before the entry at `next_position`, None before the first entry."""
        self._restore_before(next_position)
        return self.timers.now_ms

    def evicted(self) -> dict[str, int]:
        """Return the timers and keyed matches that were removed at a bound, by task."""
        return dict(self.timers.evicted + self._matches.evicted)

    def late(self) -> dict[str, int]:
        """Return how often an event came too late for a window, by task."""
        return dict(self.timers.late)

    def evicted_events(self) -> dict[str, int]:
        """Return the events of windows that were removed at a bound, by task."""
        return dict(self.timers.evicted_events)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def set_task(self, task: str, condition: TriggerCondition | None, next_position: int) -> bool:
        """Give the task this condition in place of the one before; None removes it. An equal one changes nothing.

        Return `is_used`.
        """
        if condition is not None and not uses_time(condition):
            condition = None
        before = self._conditions.get(task)
        if before == condition:
            return self.is_used
        if before is not None:
            del self._conditions[task]
            self.timers.remove_task(task)
            self._matches.remove_task(task)
        if condition is not None:
            if not self.is_used:
                if self._restored is not None and next_position > self._restored["position"] + 1:
                    self._restored = None  # tasks without a time condition since then: the timers are not needed
                if self._restored is None:
                    self._floor, self._bytes = next_position, 0
            self._conditions[task] = condition
            self.timers.add_task(task, condition)
            if _is_keyed_match(condition):
                self._matches.add_task(task, condition)
        # The stored snapshot lacks the task, or has its former condition. One that waits would give its timers back to
        # a task that is removed and added again.
        self._entries += _SNAPSHOT_EVERY
        self._candidate = None
        self.is_used = bool(self._conditions)
        return self.is_used

    # --- entries ------------------------------------------------------------------------------------------------------

    def advance(self, position: int, ts_ms: int) -> list[DueTimer]:
        """Take the time of the entry at `position`; return the timers that are due before it, in order."""
        self._entries += 1
        self._bytes += _ENTRY_BYTES
        self._restore_before(position)
        return [] if self._restored is not None else self.timers.advance(ts_ms)

    def feed(self, event: Event, *, has_visit: bool, tasks: list[str], events: EventStream) -> list[str]:
        """Take an event after `advance` and `events.feed`; return the tasks that it triggers.

        `tasks` are those whose sequence ends here by the trie.
        """
        self._bytes += events.last_size_bytes
        if self._restored is not None:
            return [task for task in tasks if task not in self._conditions]
        is_open = event.event_id != PAGE_EXIT or events.open_visit(event.page_id) is not None
        self.timers.feed(event, has_visit=has_visit, is_open=is_open, size_bytes=events.last_size_bytes)
        keyed = self._matches.feed(event)
        if not tasks and not keyed:
            return tasks
        return list(self._triggered(event, sorted({*tasks, *keyed}) if keyed else tasks, has_visit, events))

    def _triggered(self, event: Event, tasks: list[str], has_visit: bool, events: EventStream) -> Iterator[str]:
        for task in tasks:
            condition = self._conditions.get(task)
            if condition is None:
                yield task
            elif condition.key and not _is_keyed_match(condition) and not _agree(condition, events):
                continue
            elif not condition.absent:
                yield task
            elif has_visit or not event.page_id or condition.without_visit:
                self.timers.start_absence(task, event)

    def _restore_before(self, position: int) -> None:
        """Continue from the snapshot before the entry at `position`, as far as tasks have the conditions of then."""
        value = self._restored
        if value is None or position <= value["position"]:
            return
        self._restored = None
        found = value["tasks"]
        same = {task for task, condition in self._conditions.items() if found.get(task) == _digest(condition)}
        self.timers = Timers.restored(value["timers"], self._conditions, same)
        for task in same:
            self._matches.restore(value["matches"], task)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def settle(
        self, last: int, resume_from: int, cut_visits: tuple[str, ...], oldest: int | None = None
    ) -> tuple[int, TaskState | None]:
        """Return the position at which a replay begins, and a snapshot that is to be stored with it.

        `last` is the position of the latest entry, `resume_from` where the sequences let the replay begin, `cut_visits`
        the pages whose visit is cut after that entry, and `oldest` the position of the oldest trigger that is not done,
        None if there is none.
        """
        if self._candidate is None and self._restored is None and self._is_due():
            # What comes after a snapshot also depends on matches and visits that are under way, and may end meanwhile.
            floor = min(resume_from, last + 1)
            self._candidate = last, floor, self._encode(last, floor, cut_visits)
            self._entries, self._candidate_bytes = 0, self._bytes
        snapshot = None
        if self._candidate is not None and (oldest is None or oldest > self._candidate[0]):
            _, self._floor, data = self._candidate
            self._candidate = None
            self._bytes -= self._candidate_bytes
            snapshot = TaskState(task=SNAPSHOT_TASK, version=1, data=data)
        return min(resume_from, self._floor), snapshot

    def _is_due(self) -> bool:
        """Return whether it is time for a snapshot."""
        if self.max_journal_bytes is not None and self._bytes * _JOURNAL_SHARE >= self.max_journal_bytes:
            return True
        due = _SNAPSHOT_EVERY + self.running
        return self._entries >= due and self._entries >= due + self.timers.kept_events

    def _encode(self, position: int, floor: int, cut_visits: tuple[str, ...]) -> bytes:
        value = {
            "format": _FORMAT,
            "position": position,
            "floor": floor,
            "cut": cut_visits,
            "tasks": {task: _digest(condition) for task, condition in self._conditions.items()},
            "timers": self.timers.to_plain(),
            "matches": self._matches.to_plain(),
        }
        return plain.encode(value)


def _digest(condition: TriggerCondition) -> int:
    return zlib.crc32(canonical_json(condition.to_json()))


def _agree(condition: TriggerCondition, events: EventStream) -> bool:
    """Return whether the events of a match of consecutive events, the latest ones, have equal values of the key."""
    latest = events.recent(len(condition.trigger_ids))
    keys = {key_of(condition.key, event.contents) for event in latest}
    return len(latest) == len(condition.trigger_ids) and len(keys) == 1 and None not in keys
