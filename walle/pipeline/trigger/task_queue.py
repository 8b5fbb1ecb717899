"""The bounded queue of one task's triggers, with the task's position in the stream (ADR 18, 23)."""

import asyncio
import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from walle.engine_ext._core import PageVisit
from walle.pipeline.events.event import Event
from walle.pipeline.stream.events import encode_events
from walle.pipeline.trigger.sequences import RecentEvents
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import FullPolicy, QueuePolicy


@dataclasses.dataclass(frozen=True, slots=True)
class Trigger:
    """The cause of a run: the event that completed the task's condition, and the events before it.

    `page_events` are the events of the event's page visit from its enter to this event; after an exit, the whole visit.
    `visit` says what they are: "whole"; "cut" if the visit was evicted from the page sequence, when they are this event
    alone; "none" if the event has no page or its page has no open visit, when they are empty. Of a window they are its
    events, and "cut" says that some were evicted. `recent` is the
    time-level sequence, this event included. `arrived_s` is when the event arrived, by the monotonic clock, and
    `came_s` by the wall clock. `step` is the number of triggers that the task had at this position before it: timers
    may be due at an event that triggers it too. `is_timer`: a timer made the event (`walle.pipeline.trigger.timers`).
    """

    event: Event
    position: int
    page_events: tuple[Event, ...]
    recent: RecentEvents | tuple[Event, ...]
    visit: str = "whole"
    arrived_s: float = 0.0
    came_s: float = 0.0
    step: int = 0
    is_timer: bool = False

    @classmethod
    def of(
        cls, event: Event, position: int, visit: PageVisit | None, events: EventStream, arrival: tuple[float, float]
    ) -> Self:
        """Return the trigger of the event that `events` were fed last; `arrival` is (wall clock, monotonic)."""
        came_s, arrived_s = arrival
        state = "none" if visit is None else "cut" if visit.is_cut else "whole"
        return cls(event, position, tuple(visit.events) if visit else (), events.view(), state, arrived_s, came_s)

    @property
    def event_id(self) -> str:
        return self.event.event_id

    @property
    def ts_ms(self) -> int:
        return self.event.ts_ms

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
    `FeatureStore.resume_from` do. `size_bytes` is an upper bound on what it keeps in memory.
    """

    trigger: Trigger
    came_s: float
    needed_from: int
    cut_visits: tuple[str, ...]
    cooldowns: Mapping[str, int]
    size_bytes: int

    @property
    def position(self) -> int:
        return self.trigger.position

    @property
    def step(self) -> int:
        return self.trigger.step


@dataclasses.dataclass(frozen=True, slots=True)
class DeferredTrigger:
    """A trigger of a task that fell behind, without its events: a `TriggerReader` makes them again from the journal.

    The fields are those of `QueuedTrigger` and of its trigger. `timer` is the event that a timer made; the journal does
    not have it.
    """

    event_id: str
    ts_ms: int
    position: int
    came_s: float
    arrived_s: float
    needed_from: int
    cut_visits: tuple[str, ...]
    cooldowns: Mapping[str, int]
    step: int
    timer: Event | None
    size_bytes: int

    _SIZE_BYTES: ClassVar[int] = 316  # size of this object, at most; what it refers to is shared, but for `timer`

    @classmethod
    def of(cls, queued: QueuedTrigger) -> Self:
        trigger = queued.trigger
        return cls(
            trigger.event_id,
            trigger.ts_ms,
            trigger.position,
            queued.came_s,
            trigger.arrived_s,
            queued.needed_from,
            queued.cut_visits,
            queued.cooldowns,
            trigger.step,
            trigger.event if trigger.is_timer else None,
            cls._SIZE_BYTES + (trigger.event.size_bytes() if trigger.is_timer else 0),
        )


class TaskQueue:
    """One task's triggers, oldest first. The first one runs, the others wait; the policy bounds those that wait.

    `triggers` are in memory with their events. Those after them are `deferred`, if the task fell behind: there are none
    in memory after a deferred one.
    """

    MAX_DEFERRED: ClassVar = 16_384  # beyond it the source waits

    def __init__(self, task: str, policy: QueuePolicy) -> None:
        self.task = task
        self.policy = policy
        self.triggers: collections.deque[QueuedTrigger] = collections.deque()
        self.deferred: collections.deque[DeferredTrigger] = collections.deque()
        self.size_bytes = 0
        self.worker: asyncio.Task[None] | None = None
        self.error: Exception | None = None  # why the outputs of the first trigger cannot be put now, or no run starts
        self.has_ended = False  # the engine failed: no run starts
        self.waits_to_retry = False  # pause after `error`
        self.waits_for_cloud = False  # true while the outbox has no room

    @property
    def first(self) -> QueuedTrigger | DeferredTrigger | None:
        """The oldest trigger that is not done."""
        return self.triggers[0] if self.triggers else self.deferred[0] if self.deferred else None

    @property
    def waiting(self) -> int:
        """The number of triggers that wait for their run."""
        return max(0, len(self.triggers) - 1) + len(self.deferred)

    @property
    def is_full(self) -> bool:
        return self.waiting >= self.policy.queue

    @property
    def blocks(self) -> bool:
        """Return whether the policy is to drop nothing."""
        return self.policy.queue_full is FullPolicy.BLOCK

    def holds(self, *, can_wait: bool) -> bool:
        """Return whether the stream waits where this queue has no room, `can_wait` if its source can wait.

        It waits for runs, whose time is bounded, never for the cloud: on a device that is offline other tasks continue.
        """
        return not self.waits_for_cloud and not self.has_ended and (can_wait or self.blocks)

    def add(self, queued: QueuedTrigger | DeferredTrigger) -> None:
        if isinstance(queued, DeferredTrigger):
            self.deferred.append(queued)
        else:
            self.triggers.append(queued)
        self.size_bytes += queued.size_bytes

    def replace_deferred(self, queued: QueuedTrigger) -> None:
        """Put the first deferred trigger, made again, behind those in memory."""
        self.size_bytes += queued.size_bytes - self.deferred.popleft().size_bytes
        self.triggers.append(queued)

    def remove_first(self) -> QueuedTrigger:
        """Remove and return the trigger that has run."""
        queued = self.triggers.popleft()
        self.size_bytes -= queued.size_bytes
        return queued

    def drop_one(self) -> QueuedTrigger | DeferredTrigger:
        """Drop and return the trigger that the policy chooses among those that wait.

        A task that blocks, and waits for the cloud, keeps what came first, as it would if it could hold the stream.
        """
        dropped: QueuedTrigger | DeferredTrigger
        if self.policy.queue_full is FullPolicy.DROP_OLDEST:
            if len(self.triggers) > 1:
                dropped = self.triggers[1]
                del self.triggers[1]
            else:
                dropped = self.deferred.popleft()
        else:
            dropped = self.deferred.pop() if self.deferred else self.triggers.pop()
        self.size_bytes -= dropped.size_bytes
        return dropped

    def drop_deferred(self) -> DeferredTrigger:
        """Drop and return the first deferred trigger, whose event cannot be read."""
        dropped = self.deferred.popleft()
        self.size_bytes -= dropped.size_bytes
        return dropped

    def clear_waiting(self) -> list[QueuedTrigger | DeferredTrigger]:
        """Remove and return the triggers that wait, oldest first."""
        removed: list[QueuedTrigger | DeferredTrigger] = [*list(self.triggers)[1:], *self.deferred]
        while len(self.triggers) > 1:
            self.triggers.pop()
        self.deferred.clear()
        self.size_bytes -= sum(queued.size_bytes for queued in removed)
        return removed
