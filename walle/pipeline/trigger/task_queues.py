"""Queues of a stream's tasks: their common bound of bytes, and where the stream waits, defers or drops (ADR 18)."""

from collections.abc import Callable, Iterable, Mapping

from walle.pipeline.events.event import Event
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.events.ticks import Tick
from walle.pipeline.events.transient_events import RecordedEvent, TransientEvent
from walle.pipeline.trigger.stream_time import can_fall_behind, may_trigger
from walle.pipeline.trigger.task_queue import DeferredTrigger, QueuedTrigger, TaskQueue
from walle.protocol import QueuePolicy, TriggerCondition

type OnDrop = Callable[[str, QueuedTrigger | DeferredTrigger], None]


class TaskQueues:
    """The queues of tasks with triggers, `by_task`.

    Args:
        max_bytes: bound on all triggers in memory; beyond it the largest queue falls behind, waits or drops.
        on_drop: called with (task, trigger) for each trigger that is dropped.
    """

    def __init__(self, max_bytes: int, on_drop: OnDrop) -> None:
        self.by_task: dict[str, TaskQueue] = {}
        self.journal: EventJournal | None = None
        self._max_bytes = max_bytes
        self._on_drop = on_drop

    @property
    def size_bytes(self) -> int:
        """An upper bound on what all triggers keep in memory."""
        return sum(queue.size_bytes for queue in self.by_task.values())

    @property
    def has_excess(self) -> bool:
        return self.size_bytes > self._max_bytes

    def firsts(self) -> dict[str, QueuedTrigger | DeferredTrigger]:
        """Return the oldest trigger of each task that is not done."""
        return {task: first for task, queue in self.by_task.items() if (first := queue.first) is not None}

    def can_defer(self, event: Event | Tick, position: int | None) -> bool:
        """Return whether the journal has all of the event, so that a task may take it later."""
        if self.journal is None or position is None or isinstance(event, TransientEvent | RecordedEvent):
            return False
        return self.journal.has(position)

    def must_wait(
        self, event: Event | Tick, position: int | None, conditions: Mapping[str, TriggerCondition], *, can_wait: bool
    ) -> bool:
        """Return whether a queue without room holds the stream, before the event is taken.

        A full queue holds entries only that may trigger its task.
        """
        if isinstance(event, RecordedEvent):  # a recorded event triggers nothing
            return False
        is_recorded = self.can_defer(event, position)

        def can_defer(task: str) -> bool:
            return is_recorded and (task not in conditions or can_fall_behind(conditions[task]))

        for task, queue in self.by_task.items():
            if (
                (queue.is_full or (queue.deferred and not can_defer(task)))
                and queue.holds(can_wait=can_wait)
                and not (can_defer(task) and self._may_fall_behind(queue))
                and task in conditions
                and may_trigger(conditions[task], event)
            ):
                return True
        if self.size_bytes < self._max_bytes:
            return False
        largest = _largest(self.by_task.values())
        if largest is None or (can_defer(largest.task) and self._may_fall_behind(largest)):
            return False
        return largest.holds(can_wait=can_wait)

    def add(
        self, task: str, policy: QueuePolicy, queued: QueuedTrigger, *, can_wait: bool, can_defer: bool
    ) -> TaskQueue:
        """Add a trigger to the task's queue, or defer it; a queue without room drops one by its policy.

        Return the queue.
        """
        queue = self.by_task.get(task)
        if queue is None:
            queue = self.by_task[task] = TaskQueue(task, policy)
        if queue.deferred and not can_defer:  # a new trigger would overtake the deferred ones
            self._on_drop(task, queued)
            return queue
        may_fall_behind = can_defer and self._may_fall_behind(queue)
        has_room = not queue.triggers or (not queue.is_full and self.size_bytes + queued.size_bytes <= self._max_bytes)
        if queue.deferred or (may_fall_behind and not has_room):
            queue.add(DeferredTrigger.of(queued))
        else:
            queue.add(queued)
        if queue.waiting > queue.policy.queue and not may_fall_behind and not queue.holds(can_wait=can_wait):
            self._drop_one(queue)
        return queue

    def drop_excess(self, *, can_wait: bool) -> None:
        """Drop triggers beyond the bound of bytes, of queues that do not hold the stream in place of it."""
        while self.has_excess:
            largest = _largest(queue for queue in self.by_task.values() if not queue.holds(can_wait=can_wait))
            if largest is None:
                break
            self._drop_one(largest)

    def set_policy(self, task: str, policy: QueuePolicy) -> None:
        """Change the policy of a task's queue, if it has one, and drop what the policy does not keep."""
        queue = self.by_task.get(task)
        if queue is None:
            return
        queue.policy = policy
        while not queue.blocks and queue.waiting > policy.queue:
            self._drop_one(queue)

    def remove_empty(self, queue: TaskQueue) -> bool:
        """Remove a queue without triggers; return whether it was removed."""
        if queue.first is not None or self.by_task.get(queue.task) is not queue:
            return False
        del self.by_task[queue.task]
        return True

    def _may_fall_behind(self, queue: TaskQueue) -> bool:
        """Return whether the task may leave one more event to the journal."""
        if not queue.blocks or self.journal is None or queue.has_ended:
            return False
        return len(queue.deferred) < queue.MAX_DEFERRED and not self.journal.is_half_full

    def _drop_one(self, queue: TaskQueue) -> None:
        self._on_drop(queue.task, queue.drop_one())


def _largest(queues: Iterable[TaskQueue]) -> TaskQueue | None:
    """Return the queue with waiting triggers that keeps most bytes."""
    waiting = (queue for queue in queues if queue.waiting)
    return max(waiting, key=lambda queue: queue.size_bytes, default=None)
