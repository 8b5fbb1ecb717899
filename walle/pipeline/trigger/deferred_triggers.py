"""Triggers of a task that fell behind, made again from the device's event journal (ADR 18).

The reader has its own sequences. It feeds them the journal's events from the position on that the first trigger
needs, as a replay after a crash does, and so finds the page visit and the latest events that the trigger had.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable

from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.events.ticks import Tick
from walle.pipeline.trigger.stream_time import timer_trigger
from walle.pipeline.trigger.task_queue import DeferredTrigger, QueuedTrigger, Trigger
from walle.pipeline.trigger.trie import EventStream

_YIELD_EVERY = 256  # events after which the loop's other tasks run


class TriggerReader:
    """The deferred triggers of one task, in the order of their positions.

    Args:
        journal: has the events of all deferred triggers, and those that they need.
        new_sequences: returns sequences without events, with the bounds of the engine's.
    """

    def __init__(self, journal: EventJournal, new_sequences: Callable[[], EventStream]) -> None:
        self._journal = journal
        self._new_sequences = new_sequences
        self._sequences: EventStream | None = None
        self._next = 0  # position of the next event to feed
        self._events: AsyncGenerator[tuple[int, Event | Tick]] | None = None
        self._end = 0  # position at which `_events` ends
        self._ahead: tuple[int, Event | Tick] | None = None  # read, and not fed

    async def read(self, deferred: DeferredTrigger) -> QueuedTrigger | None:
        """Return the trigger with its events; None if the journal cannot give its event, as it logs.

        Raises:
            EventJournalError: a file cannot be read; a later call tries again.
        """
        sequences = self._sequences
        if sequences is None or deferred.needed_from > self._next:  # what is before is not kept
            await self.aclose()
            sequences = self._sequences = self._new_sequences()
            sequences.restore_cut(deferred.cut_visits, deferred.position)
            self._next = deferred.needed_from
        arrival = deferred.came_s, deferred.arrived_s
        before = deferred.needed_from, deferred.cut_visits, deferred.cooldowns
        last = deferred.position - (deferred.timer is not None)  # a timer is due before the entry at its position
        fed = 0
        while (found := await self._event(last)) is not None:
            position, event = found
            if position > last:
                self._ahead = found
                break
            self._next = position + 1
            if isinstance(event, Tick):
                continue
            with contextlib.suppress(EventError):  # refused when it came, too
                visit, _ = sequences.feed(position, event)
                if position == deferred.position:
                    trigger = dataclasses.replace(
                        Trigger.of(event, position, visit, sequences, arrival), step=deferred.step
                    )
                    kept_bytes = sequences.last_size_bytes + sequences.recent_bytes + (visit.size_bytes if visit else 0)
                    return QueuedTrigger(trigger, deferred.came_s, *before, kept_bytes)
            fed += 1
            if fed % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        if deferred.timer is None:
            return None
        trigger, kept_bytes = timer_trigger(deferred.timer, deferred.position, deferred.step, sequences, arrival)
        return QueuedTrigger(trigger, deferred.came_s, *before, kept_bytes)

    async def aclose(self) -> None:
        """Forget the events that were read."""
        events, self._events, self._ahead = self._events, None, None
        if events is not None:
            await events.aclose()

    async def _event(self, upto: int) -> tuple[int, Event | Tick] | None:
        """Return the next event to feed, None if there is none up to position `upto`."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return ahead
        while True:
            if self._events is None:
                self._end = self._journal.next_position
                self._events = self._journal.replay(self._next)
            found = await anext(self._events, None)
            if found is not None:
                return found
            self._events = None
            if upto < self._end:
                return None
            self._next = max(self._next, self._end)
            if self._end >= self._journal.next_position:  # the event was never recorded
                return None
