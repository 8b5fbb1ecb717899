"""Longer history of a device's events (§5.1), for tasks with [history] in task.toml: a separate SQLite file.

Events are buffered and written in batches, by a separate thread: they are not in the way of features and uploads.
`keep_up` holds a source that is faster than the disk, so that a batch is written before the time-level sequence drops
its events: those that a killed process had buffered are replayed. A power cut may lose the latest batches. A file that
is damaged is removed: it holds copies only.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import logging
import pathlib
import sqlite3
from collections.abc import Callable
from typing import Any

from walle.base import plain
from walle.base.clock import Clock
from walle.engine_ext._core import packed_values
from walle.errors import PipelineError
from walle.pipeline.events.event import MAX_TS_MS, Event, EventError
from walle.pipeline.stream.events import encode_events
from walle.protocol import HistoryPolicy

_LOG = logging.getLogger(__name__)

_BATCH_ROWS = 256
_BATCH_BYTES = 64 << 10
_MAX_AHEAD_ROWS = 512  # events that are not written, at which `keep_up` waits: half of the time-level sequence
_MAX_AHEAD_BYTES = 512 << 10
_MAX_BUFFER_BYTES = 1 << 20  # memory for events while the file cannot be written; above, the oldest are dropped
_RETRY_S = 10.0  # pause between attempts to write a batch, while the file cannot be written
_MAX_LIMIT = 10_000  # events of one query
MAX_ANSWER_BYTES = 4 << 20  # limit of one query, encoded; one event is smaller
MAX_ANSWER_VALUES = 1 << 19  # limit of one query, with values in containers: an empty list is 1 byte, in Python 72
_DAY_MS = 86_400_000
# `number` and `total_bytes` count from the first event ever: the bounds are then found without a sum over the table.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (position INTEGER PRIMARY KEY, number INTEGER NOT NULL, total_bytes INTEGER NOT NULL,
    arrived_ms INTEGER NOT NULL, ts_ms INTEGER NOT NULL, event_id TEXT NOT NULL, page_id TEXT NOT NULL,
    data BLOB NOT NULL)
"""
_INDEX = "CREATE INDEX IF NOT EXISTS events_by_arrival ON events (arrived_ms)"


class EventHistoryError(PipelineError):
    """A history that cannot be read. `path` is its file."""

    def __init__(self, path: pathlib.Path, error: Exception) -> None:
        super().__init__(f"event history {path} cannot be read ({error}); check its disk")
        self.path = path


type _Row = tuple[int, int, int, str, str, bytes]  # position, arrived_ms, ts_ms, event_id, page_id, encoded event


class EventHistory:
    """The events in the file `path`, for the tasks that ask for them; no file while none does.

    The greatest bounds of all tasks bound the file, and each task sees its own part. `position` is that of the stream:
    later events in the file come again, or belong to a stream that went back to a restored feature store.
    """

    def __init__(self, path: pathlib.Path, clock: Clock, *, position: int = 1 << 62) -> None:
        self.path = path
        self._position = position
        self.dropped = 0  # events that could not be written
        self.damages = 0  # times that the file was damaged and began again
        self._clock = clock
        self._policies: dict[str, HistoryPolicy] = {}
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "history")
        self._db: sqlite3.Connection | None = None  # used in the thread only
        self._buffer: collections.deque[_Row] = collections.deque()
        self._buffer_bytes = 0
        self._batch = (0, 0)  # rows and bytes of the write under way
        self._writing: asyncio.Task[None] | None = None
        self._retry_s = 0.0  # time of the next attempt, by the monotonic clock

    def set_policy(self, task: str, policy: HistoryPolicy | None) -> None:
        """Keep events for a task within its bounds; None: keep none for it."""
        if policy is not None:
            self._policies[task] = policy
        else:
            self._policies.pop(task, None)

    def add(self, position: int, event: Event) -> None:
        """Buffer an event of the stream, if a task keeps a history. A position that is known changes nothing."""
        if not self._policies:
            return
        data = event.encode()
        arrived_ms = int(self._clock.time() * 1000)
        self._buffer.append((position, arrived_ms, event.ts_ms, event.event_id, event.page_id, data))
        self._buffer_bytes += len(data)
        if len(self._buffer) >= _BATCH_ROWS or self._buffer_bytes >= _BATCH_BYTES:
            if self._clock.monotonic() >= self._retry_s:
                self._start_write()
            self._drop_excess()  # events that wait for the write under way have a limit

    @property
    def is_ahead(self) -> bool:
        """True if many events wait for the write under way, so that `keep_up` waits for it."""
        if self._writing is None or self._writing.done():
            return False
        rows, size_bytes = self._batch
        return (
            rows + len(self._buffer) >= _MAX_AHEAD_ROWS or size_bytes + self._buffer_bytes >= _MAX_AHEAD_BYTES
        ) and self._clock.monotonic() >= self._retry_s

    async def keep_up(self) -> None:
        """Return once the events that are not written are few; call it before `add`.

        A file that cannot be written is not waited for.
        """
        while self.is_ahead and self._writing is not None:
            await asyncio.shield(self._writing)

    async def query(
        self, task: str, upto: int, event_id: str = "", page_id: str = "", since_ms: int = 0, limit: int = 1000
    ) -> bytes | list[dict[str, Any]]:
        """Return a task's latest events with these ids and times up to position `upto`, oldest first.

        They are encoded by `encode_events`: at most `limit` events, 10,000, MAX_ANSWER_BYTES and MAX_ANSWER_VALUES, the
        latest that fit.

        Raises:
            EventError: an argument is of the wrong type.
            EventHistoryError: the file cannot be read.
        """
        for name, value, kind in (
            ("event_id", event_id, str),
            ("page_id", page_id, str),
            ("since_ms", since_ms, int),
            ("limit", limit, int),
        ):
            if type(value) is not kind:
                raise EventError(name, f"of a query must be {kind.__name__}, is {type(value).__name__}")
        policy = self._policies.get(task)
        if policy is None:
            return encode_events(())
        await self.flush()
        policy = self._policies.get(task)
        if policy is None:  # meanwhile: a read behind the removal of the file would open a new one
            return encode_events(())
        oldest_ms = int(self._clock.time() * 1000) - policy.days * _DAY_MS
        limit = max(0, min(limit, _MAX_LIMIT))
        since_ms = max(0, min(since_ms, MAX_TS_MS + 1))

        def read(db: sqlite3.Connection) -> bytes | list[dict[str, Any]]:
            first = self._first_position(db, policy, upto)
            found = db.execute(
                # By position, not by the index: rows come in this order, and the search ends at a bound.
                "SELECT data FROM events WHERE position BETWEEN ? AND ? AND +arrived_ms >= ? AND ts_ms >= ?"
                " AND ? IN ('', event_id) AND ? IN ('', page_id) ORDER BY position DESC LIMIT ?",
                (first, upto, oldest_ms, since_ms, event_id, page_id, limit),
            )
            rows, size_bytes, values = [], 0, 0
            for (data,) in found:
                if type(data) is not bytes:  # a damaged row, as below
                    continue
                size_bytes += len(data)
                values += packed_values(data)
                if size_bytes > MAX_ANSWER_BYTES or values > MAX_ANSWER_VALUES:
                    break
                rows.append(data)
            events = [_read_event(data) for data in reversed(rows)]
            return encode_events([event for event in events if event is not None])

        try:
            return await self._in_thread(read)
        except (sqlite3.Error, OSError) as error:
            raise EventHistoryError(self.path, error) from error

    async def flush(self) -> None:
        """Return once the events so far are written, or cannot be."""
        while self._writing is not None and not self._writing.done():
            await asyncio.shield(self._writing)
        if self._buffer:
            self._start_write()
            if self._writing is not None:
                await asyncio.shield(self._writing)

    async def aclose(self) -> None:
        """Write what is buffered, and close the file. Events that cannot be written are lost with the process."""
        await self.flush()
        self._drop_excess(keep_bytes=0)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)

    async def remove_unused(self) -> None:
        """Remove the file if no task keeps a history. One that cannot be removed is logged, and stays."""
        if self._policies:
            return
        self._buffer.clear()
        self._buffer_bytes = 0
        while self._writing is not None and not self._writing.done():
            await asyncio.shield(self._writing)
        if not self._policies and self.path.exists():
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._remove_file)
            except OSError as error:
                _LOG.warning("event history %s cannot be removed (%s); check its disk", self.path, error)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _start_write(self) -> None:
        if self._writing is None or self._writing.done():
            rows, self._batch = list(self._buffer), (len(self._buffer), self._buffer_bytes)
            self._buffer, self._buffer_bytes = collections.deque(), 0
            self._writing = asyncio.create_task(self._write(rows))

    async def _write(self, rows: list[_Row]) -> None:
        policies = list(self._policies.values())
        try:
            await self._in_thread(lambda db: self._write_rows(db, rows, policies))
        except (sqlite3.Error, OSError) as error:  # the latter where a damaged file cannot be removed
            _LOG.warning("event history %s cannot be written (%s); check its disk", self.path, error)
            self._retry_s = self._clock.monotonic() + _RETRY_S
            if not self._policies:
                return
            self._buffer.extendleft(reversed(rows))
            self._buffer_bytes = sum(len(row[-1]) for row in self._buffer)
            self._drop_excess()

    def _drop_excess(self, keep_bytes: int = _MAX_BUFFER_BYTES) -> None:
        before = self.dropped
        while self._buffer_bytes > keep_bytes:
            self._buffer_bytes -= len(self._buffer.popleft()[-1])
            self.dropped += 1
        if before.bit_length() != self.dropped.bit_length():  # logged whenever the count has doubled
            _LOG.warning("event history %s: %d events could not be written and are dropped", self.path, self.dropped)

    def _write_rows(self, db: sqlite3.Connection, rows: list[_Row], policies: list[HistoryPolicy]) -> None:
        with db:
            position, number, total_bytes = self._last(db)
            numbered = []
            for row in rows:
                if row[0] > position:  # else it is replayed
                    number += 1
                    total_bytes += len(row[-1])
                    numbered.append((row[0], number, total_bytes, *row[1:]))
            db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", numbered)
            if policies:
                oldest_ms = int(self._clock.time() * 1000) - max(policy.days for policy in policies) * _DAY_MS
                first = min(self._first_position(db, policy, rows[-1][0]) for policy in policies)
                db.execute("DELETE FROM events WHERE position < ?", (first,))
                db.execute("DELETE FROM events WHERE arrived_ms < ?", (oldest_ms,))

    def _first_position(self, db: sqlite3.Connection, policy: HistoryPolicy, upto: int) -> int:
        """Return the position of the oldest event within a policy's rows and bytes, by bisection.

        The numbers and the sums of bytes grow with the positions.
        """
        last, number, total_bytes = self._last(db, upto)
        after_number, from_bytes = number - policy.rows, total_bytes - policy.size_bytes
        low = db.execute("SELECT position FROM events ORDER BY position LIMIT 1").fetchone()
        first, end = (last + 1 if low is None else low[0]), last + 1
        while first < end:
            middle = (first + end) // 2
            position, number, total_before = db.execute(
                "SELECT position, number, total_bytes - length(data) FROM events WHERE position >= ?"
                " ORDER BY position LIMIT 1",
                (middle,),
            ).fetchone()
            if number > after_number and total_before >= from_bytes:
                end = middle
            else:
                first = position + 1
        return first

    def _last(self, db: sqlite3.Connection, upto: int = 1 << 62) -> tuple[int, int, int]:
        """Return position, number and total bytes of the latest event up to a position."""
        query = "SELECT position, number, total_bytes FROM events WHERE position <= ? ORDER BY position DESC LIMIT 1"
        row: tuple[int, int, int] | None = db.execute(query, (upto,)).fetchone()
        return row or (-1, 0, 0)

    async def _in_thread[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._done(work))

    def _done[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return `work(db)`; if it meets damage, it is done again in a new file."""
        try:
            return work(self._opened())
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # 0: of a wrong argument
            if code not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise
            _LOG.error("event history %s is damaged (%s) and begins again", self.path, error)
            self._remove_file()
            self.damages += 1
            return work(self._opened())

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = self._connect()
        return self._db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(_SCHEMA)
            db.execute(_INDEX)
            with db:
                db.execute("DELETE FROM events WHERE position > ?", (self._position,))
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def _remove_file(self) -> None:
        self._disconnect()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _read_event(data: bytes) -> Event | None:
    """Return an event, None of a damaged row."""
    try:
        return Event(*plain.decode(data))
    except (TypeError, EventError):
        return None
