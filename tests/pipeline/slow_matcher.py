"""The meaning of trigger conditions and their options: every condition against every event, with no shared state."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from walle.protocol import TriggerCondition


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """One event, as conditions see it."""

    event_id: str
    page_id: str
    ts_ms: int = 0
    contents: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def matches(trigger_id: str, event: Occurrence) -> bool:
    return trigger_id in {TriggerCondition.WILDCARD, event.event_id, event.page_id}


def sequences(condition: TriggerCondition) -> list[tuple[str, ...]]:
    """Return the sequences that a condition stands for: with and without each of its optional ids."""
    choices = [[(), (one,)] if at in condition.optional else [(one,)] for at, one in enumerate(condition.trigger_ids)]
    return [tuple(itertools.chain(*choice)) for choice in itertools.product(*choices)]


class Watch:
    """One condition of one task, and the events since it was added.

    A match begins at each event that matches the first id. It ends where the first of the sequences is complete: the
    others are not matched from that first event any more.
    """

    def __init__(self, condition: TriggerCondition) -> None:
        self.condition = condition
        self.sequences = sequences(condition)
        self.events: list[Occurrence] = []
        self.ended: set[int] = set()  # numbers of first events whose match has ended; of consecutive events
        self.open: list[tuple[int, tuple[str, ...], int]] = []  # first event, sequence, number of events matched
        self.last_trigger_ms: int | None = None

    def feed(self, event: Occurrence) -> bool:
        """Return whether the event triggers the task."""
        self.events.append(event)
        firsts = self._skipping(event) if self.condition.skip_till_next else self._consecutive(event)
        within_ms, cooldown_ms = self.condition.within_ms, self.condition.cooldown_ms
        if not any(not within_ms or event.ts_ms - self.events[first].ts_ms <= within_ms for first in firsts):
            return False
        if cooldown_ms and self.last_trigger_ms is not None and abs(event.ts_ms - self.last_trigger_ms) < cooldown_ms:
            return False
        self.last_trigger_ms = event.ts_ms
        return True

    def _passes(self, event: Occurrence) -> bool:
        return self.condition.where is None or self.condition.where(event.contents)

    def _consecutive(self, event: Occurrence) -> set[int]:
        """Return the first events of the matches that end at the latest event."""
        firsts = set()
        for ids in self.sequences if self._passes(event) else ():
            latest = self.events[-len(ids) :]
            if len(latest) == len(ids) and all(map(matches, ids, latest)):
                firsts.add(len(self.events) - len(ids))
        firsts -= self.ended
        self.ended |= firsts
        return firsts

    def _skipping(self, event: Occurrence) -> set[int]:
        """Return the first events of the matches that end at the latest event."""
        firsts, still_open = set(), []
        for first, ids, matched in [*self.open, *((len(self.events) - 1, ids, 0) for ids in self.sequences)]:
            is_last = matched == len(ids) - 1
            if not matches(ids[matched], event) or (is_last and not self._passes(event)):
                if matched:
                    still_open.append((first, ids, matched))
            elif is_last:
                firsts.add(first)
            else:
                still_open.append((first, ids, matched + 1))
        self.open = [one for one in still_open if one[0] not in firsts]
        return firsts


class SlowMatcher:
    """All conditions, each by itself."""

    def __init__(self) -> None:
        self.watches: dict[tuple[TriggerCondition, str], Watch] = {}

    def __len__(self) -> int:
        return len(self.watches)

    def add(self, condition: TriggerCondition, task: str) -> None:
        self.watches.setdefault((condition, task), Watch(condition))

    def remove(self, condition: TriggerCondition, task: str) -> None:
        del self.watches[condition, task]

    def feed(self, event: Occurrence) -> list[str]:
        return sorted({task for (_, task), watch in self.watches.items() if watch.feed(event)})
