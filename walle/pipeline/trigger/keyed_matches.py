"""Matches of trigger conditions with `skip_till_next` and a `key`: one match under way for each value of the key.

The meaning is that of a condition without a key, on the events of each value by themselves. Matches of one value that
wait for the same trigger id are one: the latest of their first times decides, as `within_ms` asks for the shortest.
Optional ids are not matched: the others are complete at the same event or earlier, and that ends the match.
"""

import collections
from typing import Any

from walle.pipeline.events.event import Event
from walle.pipeline.trigger.timers import Key, key_of
from walle.protocol import TriggerCondition

MAX_KEYS = 1_000  # limit of one task; above, the value that was used least recently is evicted
MAX_KEY_BYTES = 1 << 20  # limit for those keys of one task that are text
_NUMBER_BYTES = 16

type _Waiting = list[int | None]  # index: ids that have matched, less 1; value: the first event's time, None if none


class _TaskMatches:
    """The matches under way of one task, by key, the key that was used least recently first."""

    def __init__(self, condition: TriggerCondition) -> None:
        self.condition = condition
        self.ids = condition.required_ids
        self.of_key: dict[Key, _Waiting] = {}
        self.size_bytes = 0

    def feed(self, event: Event) -> bool:
        """Return whether a match ends at the event."""
        condition = self.condition
        key = key_of(condition.key, event.contents)
        if key is None:
            return False
        ids, where = self.ids, condition.where
        known = self.of_key.pop(key, None)
        waiting: _Waiting = [None] * (len(ids) - 1) if known is None else known
        self.size_bytes -= 0 if known is None else _size_bytes(key)
        has_ended = False
        for index in range(len(ids) - 1, -1, -1):  # backwards: an event moves each match by one id
            first_ms = waiting[index - 1] if index else event.ts_ms
            if first_ms is None or ids[index] not in (TriggerCondition.WILDCARD, event.event_id, event.page_id):
                continue
            is_last = index == len(ids) - 1
            if is_last and where is not None and not where(event.contents):
                continue
            if index:
                waiting[index - 1] = None
            if is_last:
                has_ended = has_ended or not condition.within_ms or event.ts_ms - first_ms <= condition.within_ms
            else:
                other_ms = waiting[index]
                waiting[index] = first_ms if other_ms is None else max(first_ms, other_ms)
        if any(first_ms is not None for first_ms in waiting):
            self.of_key[key] = waiting
            self.size_bytes += _size_bytes(key)
        return has_ended

    def evict(self) -> int:
        """Remove the matches of keys beyond the bounds, and return the number of keys."""
        count = 0
        while len(self.of_key) > MAX_KEYS or self.size_bytes > MAX_KEY_BYTES:
            key = next(iter(self.of_key))
            del self.of_key[key]
            self.size_bytes -= _size_bytes(key)
            count += 1
        return count


class KeyedMatches:
    """The matches under way of all tasks whose condition has `skip_till_next` and a `key`.

    `evicted` counts keys whose matches were removed at a bound, by task. An event costs a look-up of its ids, and a
    step for each task whose condition has one of them.
    """

    def __init__(self) -> None:
        self.evicted: collections.Counter[str] = collections.Counter()
        self._tasks: dict[str, _TaskMatches] = {}
        self._of_id: dict[str, list[str]] = {}

    def add_task(self, task: str, condition: TriggerCondition) -> None:
        """Match the condition from the next event on."""
        self._tasks[task] = _TaskMatches(condition)
        for trigger_id in set(condition.required_ids):
            self._of_id.setdefault(trigger_id, []).append(task)

    def remove_task(self, task: str) -> None:
        """Remove the task's matches; an unknown task is not an error."""
        matches = self._tasks.pop(task, None)
        for trigger_id in set(matches.ids) if matches else ():
            self._of_id[trigger_id].remove(task)
            if not self._of_id[trigger_id]:
                del self._of_id[trigger_id]

    def feed(self, event: Event) -> set[str]:
        """Return the tasks of which a match ends at the event."""
        if not self._tasks:
            return set()
        found: set[str] = set()
        for trigger_id in {event.event_id, event.page_id, TriggerCondition.WILDCARD} & self._of_id.keys():
            found.update(self._of_id[trigger_id])
        ended = {task for task in found if self._tasks[task].feed(event)}
        for task in found:
            if count := self._tasks[task].evict():
                self.evicted[task] += count
        return ended

    def to_plain(self) -> dict[str, Any]:
        """Return the matches under way as plain data."""
        return {task: list(matches.of_key.items()) for task, matches in self._tasks.items() if matches.of_key}

    def restore(self, value: dict[str, Any], task: str) -> None:
        """Continue the task's matches from what `to_plain` returned."""
        matches = self._tasks.get(task)
        for (kind, key), waiting in value.get(task, ()) if matches else ():
            assert matches is not None
            matches.of_key[kind, key] = list(waiting)
            matches.size_bytes += _size_bytes((kind, key))


def _size_bytes(key: Key) -> int:
    return len(key[1]) if key[0] == "text" else _NUMBER_BYTES
