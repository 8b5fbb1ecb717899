"""The event journal: a device's own record of the events of a live source, which cannot send them again (§5.1).

An event is in the journal before it is processed, so that a killed process loses none: the next one replays the journal
from the store's `resume_from`. Appending writes to the operating system's cache, which survives the process; what a
power cut may lose is bounded by `sync_interval_s`. A longer interval costs less flash, since each sync writes whole
pages.

Segments are files `events-<position of the first event>.log`: MAGIC, then for each event its length and checksum (two
uint32, little-endian) and its encoding as plain data. The checksum is CRC-32 of the encoding, started with the low 32
bits of the position. The recorded form of an event with arrays (`walle.pipeline.events.transient_events`) has a fifth
field, True. A tick (`walle.pipeline.events.ticks`) has one field, its time; an older walle counts it as damaged.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import struct
import zlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Self

from walle.base import plain
from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import make_folders, sync_folder, write_all
from walle.errors import PipelineError
from walle.pipeline.events.event import MAX_EVENT_BYTES, Event, EventError
from walle.pipeline.events.ticks import Tick
from walle.pipeline.events.transient_events import RecordedEvent

_LOG = logging.getLogger(__name__)

MAGIC = b"WALLEEV1"
_HEAD = struct.Struct("<II")  # length and checksum of an encoded event


class EventJournalError(PipelineError):
    """A journal that cannot be read or written. `path` is its folder or the file in question.

    `recorded` is True if the events of the call are in the journal nevertheless: they are not to be passed again.
    """

    def __init__(self, path: Path, what: str, *, recorded: bool = False) -> None:
        super().__init__(f"event journal {path}: {what}")
        self.path = path
        self.recorded = recorded


class EventJournalFullError(EventJournalError):
    """A journal at its bound; `trim` makes room once events are not needed any more."""


@dataclasses.dataclass(slots=True, kw_only=True)
class JournalCounts:
    """Counts since the start; of what an earlier process left, `damaged` and `torn_bytes` could not be read."""

    events: int = 0
    bytes: int = 0
    syncs: int = 0
    failed_syncs: int = 0
    damaged: int = 0  # events whose checksum is wrong, and those behind them in a segment that cannot be delimited
    missing: int = 0  # positions without an event: lost in a power cut, or of events that were not recorded here
    torn_bytes: int = 0  # bytes of an incomplete write, cut off by a power cut, at the end of the last segment


@dataclasses.dataclass(slots=True)
class _Segment:
    """A file of the journal: events from position `first` up to `end`, excluded; `end` -1 while not known."""

    path: Path
    first: int
    end: int
    size_bytes: int


class EventJournal:
    """The journal in `folder`, between `start` and `close`; starts once. One process uses a folder at a time.

    Args:
        folder: is made if it does not exist.
        sync_interval_s: the longest time between an event and its sync to disk, and so what a power cut may lose. 0:
            `synced` returns after the sync; calls at the same time share one.
        segment_bytes: size at which the next file begins. Space is freed by whole files.
        max_bytes: size of all files at which `append` fails. Only events that a task still needs are kept that long.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sync_interval_s: float = 1.0,
        segment_bytes: int = 1 << 20,
        max_bytes: int = 64 << 20,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder
        self.counts = JournalCounts()
        self._sync_interval_s = sync_interval_s
        self._segment_bytes = segment_bytes
        self.max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._segments: list[_Segment] = []
        self._handle: int | None = None  # open file of the last segment
        self._ended: list[int] = []  # handles of files before it that are not synced yet
        self._has_new_file = False  # the last segment's name is not synced yet
        self._counted = 0  # position before which no damaged or missing event is counted any more
        self._synced = 0  # the position of the first event that is not synced
        self._syncing: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None

    # --- lifetime -----------------------------------------------------------------------------------------------------

    async def start(self, next_position: int = 0) -> Self:
        """Open the folder, and cut an event off the end whose write was interrupted.

        `next_position` is the least that the next event may get: one more than the store's, which can be ahead of a
        journal that lost its end to a power cut.

        Raises:
            EventJournalError: the folder cannot be read or written, or holds files of another format.
        """
        await asyncio.to_thread(self._open, next_position)
        return self

    async def close(self) -> None:
        """Sync and close. A second call does nothing.

        Raises:
            EventJournalError: the last events could not be synced.
        """
        if self._handle is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self.sync()
        finally:
            _close_all([*self._ended, self._handle])
            self._ended, self._handle = [], None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def next_position(self) -> int:
        """The position of the next event."""
        return self._segments[-1].end if self._segments else 0

    @property
    def first_position(self) -> int:
        """The position of the oldest event that is kept."""
        return self._segments[0].first if self._segments else 0

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def is_half_full(self) -> bool:
        """True if the files take half of what they may, or more."""
        return 2 * self.size_bytes >= self.max_bytes

    def has(self, position: int) -> bool:
        """Return whether the event at this position was recorded here and is kept."""
        return self.first_position <= position < self.next_position

    # --- write --------------------------------------------------------------------------------------------------------

    def append(self, event: Event | Tick) -> int:
        """Record the event and return its position; as `append_all`."""
        return self.append_all((event,))

    def append_all(self, events: Sequence[Event | Tick]) -> int:
        """Record the events, all or none, and return the position of the first one; the others follow it.

        `synced` bounds what a power cut may lose.

        Raises:
            EventError: as `Event.encode`; no event is recorded.
            EventJournalFullError: the journal has no room for them; no event is recorded.
            EventJournalError: the journal is closed, or the disk cannot be written; no event is recorded.
        """
        position = self._write(events)
        if self._sync_interval_s > 0 and (self._timer is None or self._timer.done()):
            self._timer = asyncio.create_task(self._sync_later())
        return position

    def skip_to(self, position: int) -> None:
        """Give the next event at least this position: those before it are of events that are not recorded here.

        Raises:
            EventJournalError: the disk cannot be written.
        """
        if position <= self.next_position or self._handle is None:
            return
        before = self._segments[-1]
        try:
            self._begin_segment(position)
        except OSError as error:
            raise self._write_error(error) from error
        before.end = position

    async def synced(self) -> None:
        """Return once the events so far are as durable as `sync_interval_s` promises: at once, unless it is 0.

        Raises:
            EventJournalError: as `sync`.
        """
        if self._sync_interval_s <= 0:
            await self.sync()

    async def sync(self) -> None:
        """Return once every event recorded before this call survives a power cut.

        Raises:
            EventJournalError: the disk reports an error; the events are in the files, but may not survive a power cut.
        """
        upto = self.next_position
        while self._handle is not None and self._synced < upto:
            if self._syncing is None or self._syncing.done():
                self._syncing = asyncio.create_task(self._sync_now())
            await asyncio.shield(self._syncing)

    def trim(self, before: int) -> None:
        """Remove files that hold only events before this position. The last file stays.

        A file that cannot be removed is logged; a later call tries again.
        """
        while len(self._segments) > 1 and self._segments[1].first <= before:
            try:
                self._segments[0].path.unlink(missing_ok=True)
            except OSError as error:
                _LOG.warning("event journal %s cannot be removed (%s); check its disk", self._segments[0].path, error)
                break
            del self._segments[0]
        while len(self._ended) >= len(self._segments) > 0:  # handles of removed files need no sync
            os.close(self._ended.pop(0))

    # --- read ---------------------------------------------------------------------------------------------------------

    async def replay(self, start: int, *, needed_from: int | None = None) -> AsyncGenerator[tuple[int, Event | Tick]]:
        """Yield (position, event) from position `start` on, up to the last event at the time of the call.

        Events may be appended meanwhile.

        Damaged events are left out, logged and counted, and so are those that are not there any more. What an earlier
        call has counted is not counted again, and nothing before `needed_from` is, by default `start`: those events are
        done.

        Raises:
            EventJournalError: a file cannot be read.
        """
        end = self.next_position
        self._counted = max(self._counted, start if needed_from is None else needed_from)
        if start < self.first_position:
            self._count_missing(self.folder, start, self.first_position)
        for segment in list(self._segments):
            if segment.end <= start or segment.first >= end:
                continue
            segment_end = min(segment.end, end)  # what is appended meanwhile may be half a record in the data
            try:
                data = await asyncio.to_thread(segment.path.read_bytes)
            except OSError as error:
                raise EventJournalError(segment.path, f"cannot be read ({error.strerror}); check its disk") from error
            for position, event in self._decode_all(segment, segment_end, data):
                if start <= position:
                    yield position, event

    # --- internals ----------------------------------------------------------------------------------------------------

    def _open(self, next_position: int) -> None:
        try:
            make_folders(self.folder, mode=0o700)
            for path in sorted(self.folder.glob("events-*.log")):
                digits = path.stem.removeprefix("events-")
                if not digits.isdecimal():
                    raise EventJournalError(path, "is not a segment of a journal; move it away")
                self._segments.append(_Segment(path, int(digits), -1, path.stat().st_size))
            for segment, following in zip(self._segments, self._segments[1:], strict=False):
                segment.end = following.first
            if self._segments:
                self._repair(self._segments[-1])
            if not self._segments or self._segments[-1].end < next_position:
                if self._segments:
                    self._segments[-1].end = next_position  # events between are lost, which a replay reports
                self._begin_segment(next_position)
            else:
                self._handle = os.open(self._segments[-1].path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._synced = self.next_position
        except OSError as error:
            raise EventJournalError(self.folder, f"cannot be opened ({error.strerror}); check its disk") from error

    def _repair(self, last: _Segment) -> None:
        """Find the end of the last segment, and cut off what is behind its last whole event."""
        data = last.path.read_bytes()
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise EventJournalError(last.path, "has another format; this walle cannot read it")
        whole, last.end = min(len(MAGIC), len(data)), last.first
        for end, (_, offset, is_sound) in enumerate(_records(data, last.first), last.first + 1):
            if is_sound:
                whole, last.end = offset, end
        if whole < len(data):
            self.counts.torn_bytes += len(data) - whole
            _LOG.warning(
                "%s: its last %d bytes are of an interrupted write and are cut off", last.path, len(data) - whole
            )
            os.truncate(last.path, whole)
        if whole < len(MAGIC):
            last.path.write_bytes(MAGIC)
        last.size_bytes = max(whole, len(MAGIC))

    def _begin_segment(self, first: int) -> None:
        path = self.folder / f"events-{first:020d}.log"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            write_all(handle, MAGIC)
        except BaseException:
            os.close(handle)
            path.unlink(missing_ok=True)
            raise
        if self._segments and self._segments[-1].path == path:  # the file held half an event only, and begins again
            self._segments.pop()
            if self._handle is not None:
                os.close(self._handle)
        elif self._handle is not None:
            self._ended.append(self._handle)
        self._handle = handle
        self._has_new_file = True
        self._segments.append(_Segment(path, first, first, len(MAGIC)))

    def _write(self, events: Sequence[Event | Tick]) -> int:
        if self._handle is None:
            raise EventJournalError(self.folder, "is not open")
        position = self.next_position
        records = b"".join([_record(event, number) for number, event in enumerate(events, position)])
        if self.size_bytes + len(records) > self.max_bytes:
            what = (
                f"is full: {self.size_bytes} bytes from position {self.first_position} on are still needed, and"
                f" {len(records)} more would exceed {self.max_bytes}; pass fewer events at once, or again later"
            )
            raise EventJournalFullError(self.folder, what)
        try:
            if self._segments[-1].size_bytes >= self._segment_bytes:
                self._begin_segment(position)
            segment = self._segments[-1]
            try:
                write_all(self._handle, records)
            except OSError:
                self._cut_end(segment)
                raise
        except OSError as error:
            raise self._write_error(error) from error
        segment.end += len(events)
        segment.size_bytes += len(records)
        self.counts.events += len(events)
        self.counts.bytes += len(records)
        return position

    def _cut_end(self, segment: _Segment) -> None:
        """Cut off what an interrupted write left behind the last whole event of the open segment."""
        if self._handle is None:
            return
        try:
            os.truncate(self._handle, segment.size_bytes)
        except OSError:
            # The next event begins a new file, so that none follows half an event.
            segment.size_bytes = max(segment.size_bytes, self._segment_bytes)
            raise

    def _write_error(self, error: OSError) -> EventJournalError:
        return EventJournalError(self.folder, f"cannot be written ({error.strerror}); make room on its disk")

    async def _sync_later(self) -> None:
        await self._clock.sleep(self._sync_interval_s)
        self._timer = None
        with contextlib.suppress(EventJournalError):  # logged and counted; the next event tries again
            await self.sync()

    async def _sync_now(self) -> None:
        if self._handle is None:
            return
        upto = self.next_position
        ended, self._ended = self._ended, []
        folder, self._has_new_file = self.folder if self._has_new_file else None, False
        try:
            open_handle = os.dup(self._handle)  # a copy: a new file may replace it meanwhile
            await asyncio.to_thread(_sync_all, ended, open_handle, folder)
        except OSError as error:
            self._ended = ended + self._ended  # the next sync tries them again
            self._has_new_file = self._has_new_file or folder is not None
            self.counts.failed_syncs += 1
            _LOG.error("event journal %s: not synced: %s", self.folder, error)
            what = f"cannot be synced ({error.strerror}); check its disk"
            raise EventJournalError(self.folder, what, recorded=True) from error
        self._synced = upto
        self.counts.syncs += 1

    def _decode_all(self, segment: _Segment, end: int, data: bytes) -> Iterator[tuple[int, Event | Tick]]:
        """Yield the segment's events before position `end`."""
        position, whole_bytes = segment.first, 0
        if data.startswith(MAGIC):
            whole_bytes = len(MAGIC)
            for payload, offset, is_sound in _records(data, segment.first):
                if position >= end:
                    return
                whole_bytes = offset
                event = _decode(payload) if is_sound else None
                if event is not None:
                    yield position, event
                else:
                    self._count_damage(segment, position, position + 1)
                position += 1
        if position < end and whole_bytes == len(data):
            self._count_missing(segment.path, position, end)
        elif position < end:
            self._count_damage(segment, position, end)

    def _uncounted(self, first: int, end: int) -> tuple[int, int]:
        """Return the first position that is not counted yet, and how many are from there up to `end`; note them."""
        first = max(first, self._counted)
        self._counted = max(end, self._counted)
        return first, max(end - first, 0)

    def _count_missing(self, path: Path, first: int, end: int) -> None:
        position, events = self._uncounted(first, end)
        if not events:
            return
        self.counts.missing += events
        what = "%s: %d positions from %d on have no event: they were lost, removed as done, or not recorded here"
        _LOG.warning(what, path, events, position)

    def _count_damage(self, segment: _Segment, first: int, end: int) -> None:
        position, events = self._uncounted(first, end)
        if not events:
            return
        self.counts.damaged += events
        _LOG.error("%s: %d events from position %d on are damaged and are left out", segment.path, events, position)


def _sync_all(ended: list[int], open_handle: int, folder: Path | None) -> None:
    """Sync the files, and the folder, if given. Closes the handles; after an error, not those of `ended`."""
    try:
        for handle in (*ended, open_handle):
            os.fdatasync(handle)
        if folder is not None:
            sync_folder(folder)
    finally:
        os.close(open_handle)
    _close_all(ended)


def _close_all(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)


def _records(data: bytes, first: int) -> Iterator[tuple[bytes, int, bool]]:
    """Yield (payload, offset behind it, whether its checksum holds), until a length cannot be right."""
    offset, position = len(MAGIC), first
    while offset + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, offset)
        end = offset + _HEAD.size + length
        if length > MAX_EVENT_BYTES or end > len(data):
            return
        payload = data[offset + _HEAD.size : end]
        yield payload, end, _checksum(payload, position) == checksum
        offset, position = end, position + 1


def _record(event: Event | Tick, position: int) -> bytes:
    data = plain.encode((event.ts_ms,)) if isinstance(event, Tick) else event.encode()
    if type(event) is RecordedEvent:
        data = plain.encode((event.event_id, event.page_id, event.ts_ms, event.contents, True))
    return _HEAD.pack(len(data), _checksum(data, position)) + data


def _checksum(payload: bytes, position: int) -> int:
    return zlib.crc32(payload, position & 0xFFFFFFFF)


def _decode(payload: bytes) -> Event | Tick | None:
    try:
        fields = plain.decode(payload)
        if len(fields) == 1:
            return Tick(*fields)
        return RecordedEvent(*fields[:4]) if len(fields) == 5 else Event(*fields)
    except (plain.PlainDataError, EventError, TypeError):
        return None
