"""Intake of a device's events: the live source's policy and journal, then the stream engine and the longer history."""

import asyncio
import collections
import contextlib
import logging
from collections.abc import Sequence

from walle.base.clock import Clock
from walle.device.config import DeviceConfig
from walle.device.live_time import LiveTime
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_journal import EventJournal, EventJournalError, EventJournalFullError
from walle.pipeline.events.live_source import LiveCounts, LiveSource
from walle.pipeline.events.ticks import Tick
from walle.pipeline.events.transient_events import RecordedEvent, TransientEvent, transient
from walle.pipeline.features.database import StoreError
from walle.pipeline.features.store import FeatureStore, StoreClosedError
from walle.pipeline.stream.event_history import EventHistory
from walle.pipeline.trigger.stream_engine import PositionError, StreamEngine, TakenEvent

_LOG = logging.getLogger(__name__)

_JOURNAL = "events"  # folder of the event journal
_KEPT_SHARE = 4  # a quarter of the journal's bound, up to which events that are done are kept for their ids


class EventIntake:
    """The way of events into the stream, between `start` and `aclose`; one event after the other.

    `journal_bytes` is the bound on the journal's files.
    """

    def __init__(
        self,
        config: DeviceConfig,
        clock: Clock,
        store: FeatureStore,
        stream: StreamEngine,
        history: EventHistory,
        *,
        journal_bytes: int = 64 << 20,
    ) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._stream = stream
        self._history = history
        self._journal_bytes = journal_bytes
        self._journal: EventJournal | None = None  # once there is an event without a position
        self._opening: asyncio.Task[EventJournal] | None = None
        self._recorded: collections.deque[tuple[int, Event | Tick]] = (
            collections.deque()
        )  # events and ticks in the journal that are not taken yet
        self._live = LiveSource(config.live)
        self._time = LiveTime(clock, stream)
        self._has_live_events = False  # true once this process has recorded a live event
        self._refused_in_replay = 0
        self._turn = asyncio.Lock()
        self._is_closed = False

    @property
    def live_counts(self) -> LiveCounts:
        return self._live.counts

    def losses(self) -> list[str]:
        """Return a line for each kind of loss in the journal of an earlier process."""
        if self._journal is None:
            return []
        counts, lines = self._journal.counts, []
        if counts.damaged:
            lines.append(f"{counts.damaged} events of the journal were damaged and are left out")
        if counts.torn_bytes:
            lines.append(f"the last {counts.torn_bytes} bytes of the journal were half an event, of a power cut")
        if self._refused_in_replay:
            lines.append(f"{self._refused_in_replay} events of the journal exceed the limits of this version of walle")
        return lines

    # --- lifetime -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Replay the journal, if an earlier process left one.

        Raises:
            EventJournalError: it cannot be read or written.
        """
        if (self._config.folder / _JOURNAL).is_dir():
            last = await self._replay(await self._open_journal())
            if last == self._stream.next_position - 1:  # the source was live
                self._time.begin()

    async def run_timers(self) -> None:
        """Record a tick and take it whenever a timer of a live source is due, until the device is closed."""
        await self._time.run(self.take_tick)

    async def aclose(self) -> None:
        """Sync and close the journal; later events are refused."""
        self._is_closed = True
        if self._opening is not None:
            with contextlib.suppress(EventJournalError):  # logged by the journal, or raised by the call that opened it
                journal = await asyncio.shield(self._opening)
                await journal.close()

    # --- events -------------------------------------------------------------------------------------------------------

    async def take(self, event: Event | Tick, position: int, *, can_wait: bool) -> TakenEvent:
        """Take an event or a tick of a source that has positions; as `Device.on_event`."""
        if not isinstance(event, Tick):
            event = transient(event) or event
        async with self._turn:
            self._check_open()
            if self._has_live_events:
                last = self._stream.next_position - 1
                what = (
                    "the device has live events, whose positions are its own; pass this event without a position,"
                    " or play its log after a restart of the device, or on a device with another folder"
                )
                raise PositionError(position, last, what)
            if self._history.is_ahead:
                await self._history.keep_up()
            self._time.end()
            taken = await self._stream.on_event(event, position, can_wait=can_wait)
            self._add_to_history(position, event)
            return taken

    async def take_live(self, event: Event, *, can_wait: bool) -> TakenEvent | None:
        """Record an event of the live source in the journal, and take it; as `Device.on_event`."""
        event = transient(event) or event
        async with self._turn:
            journal = await self._begin_live(can_wait=can_wait)
            recorded = _recorded(event)
            if self._live.check(recorded) is not None:
                return None
            await self._record(journal, (*self._time.ticks_before(recorded), event))
            self._live.take(recorded)
            return await self._finish_live(journal, can_wait=can_wait)

    async def take_all_live(self, events: Sequence[Event]) -> None:
        """Record events of the live source in the journal, all or none, and take them; as `Device.on_json`."""
        if len(events) < 2:
            for event in events:
                await self.take_live(event, can_wait=False)
            return
        async with self._turn:
            journal = await self._begin_live(can_wait=False)
            live, chosen = self._live, list[Event]()
            with live.undone_on_error():  # events that are not recorded come again
                for event in events:
                    if live.check(event) is None:
                        live.take(event)
                        chosen.append(event)
                if chosen:
                    await self._record(journal, [*self._time.ticks_before(_recorded(chosen[0])), *chosen])
            await self._finish_live(journal, can_wait=False)

    async def take_tick(self, ts_ms: int) -> TakenEvent | None:
        """Record a tick of the live source in the journal, and take it; as `Device.on_time`."""
        tick = Tick(ts_ms)
        async with self._turn:
            journal = await self._begin_live(can_wait=True)
            await self._record(journal, (tick,))
            return await self._finish_live(journal, can_wait=True)

    # --- live events --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(self._store.path, "is not open: the device is closed")

    async def _begin_live(self, *, can_wait: bool) -> EventJournal:
        self._check_open()
        journal = self._journal or await self._open_journal()
        await self._take_recorded(can_wait=can_wait)  # a call that was cancelled may have left some
        self._live.note_clock(self._clock.time(), self._clock.monotonic())
        return journal

    async def _record(self, journal: EventJournal, events: Sequence[Event | Tick]) -> None:
        """Record the events, all or none."""
        try:
            self._append(journal, events)
        except EventJournalFullError:
            try:  # the stored position decides which files are still needed
                await self._store.flush()
            except StoreError as error:
                _LOG.warning("%s: the journal of events stays full: %s", self._config.device_id, error)
            self._trim(journal)
            self._append(journal, events)

    def _append(self, journal: EventJournal, events: Sequence[Event | Tick]) -> None:
        journal.skip_to(self._stream.next_position)  # behind events of a source that has positions
        first = journal.append_all([_recorded(event) for event in events])
        self._has_live_events = True
        self._recorded.extend(enumerate(events, first))

    async def _finish_live(self, journal: EventJournal, *, can_wait: bool) -> TakenEvent | None:
        """Take the recorded events, and return the place of the last one."""
        if not all(isinstance(event, TransientEvent) for _, event in self._recorded):
            await journal.synced()
        try:
            taken = await self._take_recorded(can_wait=can_wait)
            self._trim(journal)
        except StoreClosedError:
            return None  # the device closes; its next start takes them from the journal
        return taken

    async def _take_recorded(self, *, can_wait: bool) -> TakenEvent | None:
        history, taken = self._history, None
        while self._recorded:
            position, event = self._recorded[0]
            if history.is_ahead:
                await history.keep_up()
            try:
                taken = await self._stream.on_event(event, position, can_wait=can_wait)  # cancelled: it is not taken
            except StoreClosedError:
                raise
            except Exception:
                self._recorded.popleft()  # an event that the stream refuses must not hold up those after it
                raise
            self._recorded.popleft()
            self._add_to_history(position, event)
        self._time.note()
        return taken

    def _add_to_history(self, position: int, event: Event | Tick) -> None:
        if not isinstance(event, TransientEvent | RecordedEvent | Tick):
            self._history.add(position, event)

    def _trim(self, journal: EventJournal) -> None:
        """Remove events that are done, but for the latest ones, of which the next process must know duplicates."""
        before = self._store.state.resume_from
        if _KEPT_SHARE * journal.size_bytes < self._journal_bytes:
            before = min(before, journal.next_position - self._live.remembered)
        journal.trim(before)

    async def _open_journal(self) -> EventJournal:
        """Open the journal. The next call waits for an opening whose call was cancelled: a second one could truncate
        the file that events are recorded in.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._start_journal())
        try:
            journal = await asyncio.shield(self._opening)
        except EventJournalError:
            self._opening = None  # the next call tries again
            raise
        self._check_open()  # the device may have closed, and the journal with it
        self._journal = journal
        return journal

    async def _start_journal(self) -> EventJournal:
        config = self._config
        journal = EventJournal(
            config.folder / _JOURNAL,
            sync_interval_s=config.journal_sync_s,
            max_bytes=self._journal_bytes,
            clock=self._clock,
        )
        await journal.start(self._store.position + 1)
        self._stream.use_journal(journal)
        return journal

    async def _replay(self, journal: EventJournal) -> int | None:
        """Take the recorded events again that the last process may not have finished; return the last one's place."""
        position, start = None, self._store.resume_from
        begin = min(start, max(journal.first_position, journal.next_position - self._live.remembered))
        async for place, event in journal.replay(begin, needed_from=start):
            if not isinstance(event, Tick):
                self._live.restore(event)
            if place < start:  # the event is done
                continue
            position = place
            await self._history.keep_up()
            try:
                await self._stream.on_event(event, position, can_wait=True)
                self._add_to_history(position, event)
            except EventError as error:  # recorded by a walle with wider bounds
                self._refused_in_replay += 1
                _LOG.warning("%s: a recorded event is left out: %s", self._config.device_id, error)
        return position


def _recorded[E: (Event, Event | Tick)](event: E) -> E:
    """Return what the journal keeps of an event."""
    return event.recorded if isinstance(event, TransientEvent) else event
