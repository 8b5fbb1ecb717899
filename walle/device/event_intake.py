"""Intake of a device's events: the live source's policy and journal, then the stream engine and the longer history."""

import asyncio
import collections
import contextlib
import logging

from walle.clock import Clock
from walle.device.config import DeviceConfig
from walle.pipeline.event_history import EventHistory
from walle.pipeline.event_journal import EventJournal, EventJournalError
from walle.pipeline.events import Event, EventError
from walle.pipeline.live_source import LiveCounts, LiveSource
from walle.pipeline.store import FeatureStore
from walle.pipeline.stream_engine import StreamEngine

_LOG = logging.getLogger(__name__)

_JOURNAL = "events"  # folder of the event journal


class EventIntake:
    """The way of events into the stream, between `start` and `aclose`."""

    def __init__(
        self, config: DeviceConfig, clock: Clock, store: FeatureStore, stream: StreamEngine, history: EventHistory
    ) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._stream = stream
        self._history = history
        self._journal: EventJournal | None = None  # once there is an event without a position
        self._recorded: collections.deque[tuple[int, Event]] = collections.deque()  # in the journal, not taken yet
        self._live = LiveSource(config.live)
        self._live_turn = asyncio.Lock()

    @property
    def live_counts(self) -> LiveCounts:
        return self._live.counts

    # --- lifetime -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Replay the journal, if an earlier process left one.

        Raises:
            EventJournalError: it cannot be read or written.
        """
        if (self._config.folder / _JOURNAL).is_dir():
            await self._replay(await self._open_journal())

    async def aclose(self) -> None:
        """Sync and close the journal."""
        if self._journal is not None:
            with contextlib.suppress(EventJournalError):  # logged by the journal
                await self._journal.close()

    # --- events -------------------------------------------------------------------------------------------------------

    async def take(self, event: Event, position: int, *, can_wait: bool) -> None:
        """Take an event of a source that has positions; as `StreamEngine.on_event`."""
        await self._stream.on_event(event, position, can_wait=can_wait)
        self._history.add(position, event)

    async def take_live(self, event: Event, *, can_wait: bool) -> None:
        """Record an event of the live source in the journal, and take it; as `Device.on_event`."""
        async with self._live_turn:
            journal = self._journal or await self._open_journal()
            await self._take_recorded(can_wait=can_wait)
            self._live.note_clock(self._clock.time(), self._clock.monotonic())
            if self._live.check(event) is not None:
                return
            self._recorded.append((journal.append(event), event))
            self._live.take(event)
            await journal.synced()
            await self._take_recorded(can_wait=can_wait)
            journal.trim(self._store.state.resume_from)

    # --- internals ----------------------------------------------------------------------------------------------------

    async def _take_recorded(self, *, can_wait: bool) -> None:
        while self._recorded:
            position, event = self._recorded[0]
            await self._stream.on_event(event, position, can_wait=can_wait)  # cancelled, it has not taken the event
            self._recorded.popleft()
            self._history.add(position, event)

    async def _open_journal(self) -> EventJournal:
        config = self._config
        journal = EventJournal(config.folder / _JOURNAL, sync_interval_s=config.journal_sync_s, clock=self._clock)
        self._journal = await journal.start(self._store.position + 1)
        return journal

    async def _replay(self, journal: EventJournal) -> None:
        """Take the recorded events again that the last process may not have finished."""
        async for position, event in journal.replay(self._store.resume_from):
            self._live.restore(event)
            try:
                await self._stream.on_event(event, position, can_wait=True)
                self._history.add(position, event)
            except EventError as error:  # recorded by a walle with wider bounds
                _LOG.warning("%s: a recorded event is left out: %s", self._config.device_id, error)
