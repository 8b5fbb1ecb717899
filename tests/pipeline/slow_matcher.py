"""The meaning of trigger conditions and their options: every condition against every event, with no shared state."""

import dataclasses
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


class Watch:
    """One condition of one task, and the events since it was added."""

    def __init__(self, condition: TriggerCondition) -> None:
        self.condition = condition
        self.events: list[Occurrence] = []
        self.open: list[tuple[int, int]] = []  # time of the first event, events matched so far
        self.last_trigger_ms: int | None = None

    def feed(self, event: Occurrence) -> bool:
        """Return whether the event triggers the task."""
        ends = self._skipping(event) if self.condition.skip_till_next else self._consecutive(event)
        within_ms, cooldown_ms = self.condition.within_ms, self.condition.cooldown_ms
        if not any(not within_ms or event.ts_ms - first_ms <= within_ms for first_ms in ends):
            return False
        if cooldown_ms and self.last_trigger_ms is not None and abs(event.ts_ms - self.last_trigger_ms) < cooldown_ms:
            return False
        self.last_trigger_ms = event.ts_ms
        return True

    def _consecutive(self, event: Occurrence) -> list[int]:
        self.events.append(event)
        ids, where = self.condition.trigger_ids, self.condition.where
        latest = self.events[-len(ids) :]
        whole = len(latest) == len(ids) and all(map(matches, ids, latest))
        return [latest[0].ts_ms] if whole and (where is None or where(event.contents)) else []

    def _skipping(self, event: Occurrence) -> list[int]:
        ids, where = self.condition.trigger_ids, self.condition.where
        ends, still_open = [], []
        for first_ms, matched in [*self.open, (event.ts_ms, 0)]:
            is_last = matched == len(ids) - 1
            if not matches(ids[matched], event) or (is_last and where is not None and not where(event.contents)):
                if matched:
                    still_open.append((first_ms, matched))
            elif is_last:
                ends.append(first_ms)
            else:
                still_open.append((first_ms, matched + 1))
        self.open = still_open
        return ends


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
