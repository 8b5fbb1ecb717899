"""The bounded queue of one task's triggers, with the task's position in the stream (ADR 90)."""

import asyncio
import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from walle.pipeline.events import Event
from walle.pipeline.sequences import RecentEvents
from walle.pipeline.stream import encode_events
from walle.protocol import FullPolicy, QueuePolicy


@dataclasses.dataclass(frozen=True, slots=True)
class Trigger:
    """The cause of a run: the event that completed the task's condition, and the events before it.

    `page_events` are the events of the event's page visit from its enter to this event; after an exit, the whole visit.
    `visit` says what they are: "whole"; "cut" if the visit was evicted from the page sequence, when they are this event
    alone; "none" if the event has no page or its page has no open visit, when they are empty. `recent` is the
    time-level sequence, this event included. `arrived_s` is when the event arrived, by the monotonic clock, and
    `came_s` by the wall clock.
    """

    event: Event
    position: int
    page_events: tuple[Event, ...]
    recent: RecentEvents | tuple[Event, ...]
    visit: str = "whole"
    arrived_s: float = 0.0
    came_s: float = 0.0

    def to_plain(self) -> dict[str, Any]:
        """Return the trigger as plain data, without `recent` and the times.

        `page_events` are as `encode_events` returns them.
        """
        return {
            "event": self.event.to_dict(),
            "position": self.position,
            "page_events": encode_events(self.page_events),
            "visit": self.visit,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class QueuedTrigger:
    """A trigger in the queues of its tasks, with what a replay needs to make it again.

    `needed_from`, `cut_visits` and `cooldowns` describe the stream before its event, as `ReplayState` and
    `FeatureStore.resume_from` do. `size_bytes` is an upper bound on what it keeps in memory. `step` is the number of
    triggers that the task had at this position before it: timers may be due at an event that triggers it too.
    """

    trigger: Trigger
    came_s: float
    needed_from: int
    cut_visits: tuple[str, ...]
    cooldowns: Mapping[str, int]
    size_bytes: int
    step: int = 0

    @property
    def position(self) -> int:
        return self.trigger.position


class TaskQueue:
    """One task's triggers, oldest first. The first one runs, the others wait; the policy bounds those that wait.

    `dropped` counts triggers that the policy dropped, `uploads_dropped` outputs that are stored but not uploaded.
    """

    def __init__(self, task: str, policy: QueuePolicy) -> None:
        self.task = task
        self.policy = policy
        self.triggers: collections.deque[QueuedTrigger] = collections.deque()
        self.size_bytes = 0
        self.dropped = 0
        self.uploads_dropped = 0
        self.worker: asyncio.Task[None] | None = None
        self.error: Exception | None = None  # why the outputs of the first trigger cannot be put now, or no run starts
        self.waits_to_retry = False  # after `error`
        self.waits_for_cloud = False  # for room in the outbox

    @property
    def waiting(self) -> int:
        """The number of triggers that wait for their run."""
        return max(0, len(self.triggers) - 1)

    @property
    def is_full(self) -> bool:
        return self.waiting >= self.policy.queue

    def holds(self, *, can_wait: bool) -> bool:
        """Return whether the stream waits where this queue has no room, `can_wait` if its source can wait.

        It waits for runs, whose time is bounded, never for the cloud: on a device that is offline other tasks go on.
        """
        return not self.waits_for_cloud and (can_wait or self.policy.queue_full is FullPolicy.BLOCK)

    def add(self, queued: QueuedTrigger) -> None:
        self.triggers.append(queued)
        self.size_bytes += queued.size_bytes

    def remove_first(self) -> QueuedTrigger:
        """Remove and return the trigger that has run."""
        queued = self.triggers.popleft()
        self.size_bytes -= queued.size_bytes
        return queued

    def drop_one(self) -> QueuedTrigger:
        """Drop, count and return the trigger that the policy chooses among those that wait.

        A task that blocks, and waits for the cloud, keeps what came first, as it would if it could hold the stream.
        """
        index = 1 if self.policy.queue_full is FullPolicy.DROP_OLDEST else -1
        dropped = self.triggers[index]
        self.size_bytes -= dropped.size_bytes
        del self.triggers[index]
        self.dropped += 1
        return dropped

    def clear_waiting(self) -> list[QueuedTrigger]:
        """Remove and return the triggers that wait, without counting them."""
        removed = [self.triggers.pop() for _ in range(self.waiting)]
        self.size_bytes -= sum(queued.size_bytes for queued in removed)
        return removed
