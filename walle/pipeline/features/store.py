"""The feature store, with collective storage (§5.1): outputs are buffered and reach SQLite in one transaction.

A transaction starts at a threshold of rows, on a read, on a timer, and at shutdown. It holds the features, their outbox
rows and the stream position they came from (ARCHITECTURE.md).
"""

import asyncio
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from walle.base.clock import Clock, SystemClock
from walle.pipeline.features.database import Batch, Feature, StoreDatabase, StoreError
from walle.pipeline.features.kept_features import Bounds
from walle.pipeline.features.put import MAX_FEATURE_BYTES, Put, check_topic
from walle.pipeline.features.store_report import StoreCounts, StoreReport
from walle.pipeline.features.store_schema import ROW_OVERHEAD_BYTES, ReplayState, StoreState
from walle.pipeline.features.store_thread import StoreThread
from walle.pipeline.features.task_states import TaskState, TaskStates

_POSITION_EVERY = 1000  # events that put nothing before the position alone is worth a transaction
_FORGET_S = 600.0  # age of acknowledged rows deleted by themselves: a transaction of outputs rewrites the same pages
_RETRY_S = 1.0  # pause between attempts of the timer while the file cannot be written


class OutboxFullError(StoreError):
    """An output to upload for which only acknowledgements of the cloud can make room. Its call put nothing."""


class StoreClosedError(StoreError):
    """The store is closed, or was never opened."""


class FeatureStore:
    """One device's features, outbox and stream position in the file `path`, between `start` and `close`; starts once.

    Args:
        path: the SQLite file; it and its lock file `path.lock` are created if they do not exist. Its folder must exist.
        threshold: buffered rows at which a transaction starts.
        interval_s: the longest time that a row waits in memory for others.
        max_buffer_bytes: buffered bytes at which `put` blocks until a transaction ends.
        max_outbox_bytes: bytes not yet acknowledged by the cloud at which `put` with upload blocks until
            `Outbox.forget`. What a task does then is its policy (`StreamEngine.add_task`).
        keep: bounds on kept features, uploaded or not; the oldest go first. The outbox has its own copy of an upload.
    """

    def __init__(
        self,
        path: str | pathlib.Path,
        *,
        threshold: int = 64,
        interval_s: float = 0.02,
        max_buffer_bytes: int = 4 << 20,
        max_outbox_bytes: int = 64 << 20,
        keep: Bounds | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = pathlib.Path(path)
        self.counts = StoreCounts()
        self.last_error: StoreError | None = None
        self._threshold = threshold
        self._interval_s = interval_s
        self._max_buffer_bytes = max_buffer_bytes
        self._max_outbox_bytes = max_outbox_bytes
        self._keep = keep or Bounds()
        self.clock: Clock = clock or SystemClock()
        self._thread: StoreThread | None = None
        self._database: StoreDatabase | None = None
        self.task_states = TaskStates()  # those in the buffer included
        self._state = StoreState.new()  # the database's, as it was when its last call ended
        self._buffer = Batch()
        self._writing = Batch()  # the contents of the running transaction; empty without one
        self._position = -1
        self._resume_from = 0
        self._replay = ReplayState()
        self._forget = ("", 0)  # an epoch and the highest acknowledged number in it
        self._unwritten_positions = 0
        self._is_dirty = False  # the next transaction has something beside the buffer: positions, acknowledgements
        self._generation = 0  # the number of the transaction that takes the buffer
        self._written = -1  # number of the latest transaction in the file
        self._writer: asyncio.Future[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._forget_timer: asyncio.Task[None] | None = None
        self._outbox_is_full = False  # true for a call that waits, or waited since the last transaction
        self._progress = asyncio.Event()  # replaced at every transaction, after it is set
        self._closing = False

    # --- lifetime -----------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Open or create the file.

        Raises:
            StoreLockedError, StoreCorruptError, StoreFullError, StoreError: see each.
        """
        if self._thread is not None:
            raise StoreError(self.path, "was started before; make another FeatureStore")
        self._thread = StoreThread(f"store {self.path.name}")
        opening = self._in_thread(lambda: StoreDatabase(self.path, self._keep, self._now_ms))
        try:
            self._database = await asyncio.shield(opening)
        except BaseException:
            await asyncio.wait([opening])
            if opening.exception() is None:  # cancelled; the file must not stay open
                await self._in_thread(opening.result().close)
            self._thread.close()
            raise
        self._state = self._database.state
        self._position = self._state.position
        self._resume_from = self._state.resume_from
        self._replay = self._state.replay
        self._set_limits()
        self.task_states = TaskStates(self._database.task_states)
        return self

    async def close(self) -> None:
        """Write the buffered rows and close the file. A second call does nothing.

        Raises:
            StoreError: the last transaction failed, and its rows are lost with the process. The file is closed.
        """
        if self._database is None or self._closing:
            return
        self._closing = True
        self._set_limits()
        self._pulse()
        self._stop_timers()
        try:
            await self._flush()
        finally:
            if self._writer is not None:
                await asyncio.wait([self._writer])
            database, self._database = self._database, None
            await asyncio.shield(self._in_thread(database.close))
            if self._thread is not None:
                self._thread.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> StoreState:
        """The state of the file. It changes in the event loop only, never between two steps of one task.

        Raises:
            StoreClosedError: the store is not open.
        """
        self._opened()
        return self._state

    @property
    def report(self) -> StoreReport:
        """The losses of this store's file since it was opened."""
        database = self._opened()
        return StoreReport(
            tuple(database.losses),
            tuple(database.set_asides),
            database.damaged_features,
            database.lost_commits,
            database.damaged_states,
            database.undecodable_features,
            database.last_undecodable,
        )

    @property
    def unsent(self) -> int:
        """The number of uploads in the file that the cloud has not acknowledged."""
        state = self.state
        acked = self._forget[1] if self._forget[0] == state.epoch else 0
        return state.last_seq - max(state.acked, acked)

    @property
    def position(self) -> int:
        """The position of the last event that was taken, -1 before the first; lagging tasks are not as far."""
        return self._position

    @property
    def replay(self) -> ReplayState:
        """The state that a replay needs beside the events."""
        return self._replay

    @property
    def resume_from(self) -> int:
        """The position at which the event source starts again after a crash.

        Events up to `position` restore open pages and what lagging tasks wait for.
        """
        return self._resume_from

    # --- write --------------------------------------------------------------------------------------------------------

    async def put(self, topic: str, payload: object, *, upload: bool = True) -> None:
        """Buffer one plain value under `topic`; see `Put.of` and `put_all`."""
        check_topic(topic)
        since_s = self.clock.time()
        is_due = self._buffer.rows.append_value(topic, payload, upload, since_s, -1, MAX_FEATURE_BYTES)
        if is_due is None:  # no room, or a value that takes Python to encode
            await self._append_later([Put.of(topic, payload, upload=upload)], since_s, -1)
            self._start_due_write()
        elif is_due:
            self._start_due_write()

    async def put_all(
        self,
        puts: Sequence[Put],
        *,
        position: int | None = None,
        resume_from: int | None = None,
        since_s: float | None = None,
    ) -> None:
        """Buffer the outputs of one event together with its position: one transaction has all of it or nothing.

        `since_s` is when the event came, by the store's clock, None for now. It is the timestamp of the rows, so that
        the cloud can measure the age of a feature when it arrives.

        Blocks while the buffer or the outbox is at its byte bound. Cancelled while it blocks, it has put nothing.

        Raises:
            StoreClosedError: the store is not open, or is closed while this blocks.
            StoreError: the buffer is at its bound and cannot be written, as on a full disk; this call put nothing.
        """
        since_s = self.clock.time() if since_s is None else since_s
        place = -1 if position is None else position
        if not puts:
            self._opened()
            is_due: bool | None = False
        else:
            is_due = self._buffer.rows.append_all(puts, since_s, place)
            if is_due is None:
                await self._append_later(puts, since_s, place)
        if position is not None:
            self.advance(position, position + 1 if resume_from is None else resume_from)
        if is_due is not False:
            self._start_due_write()

    async def put_outputs(
        self,
        puts: Sequence[Put],
        *,
        position: int,
        since_s: float,
        state: TaskState | None = None,
        on_put: Callable[[], None] | None = None,
    ) -> None:
        """Buffer the outputs of one run at an event's position, and its task's new state; else as `put_all`.

        `on_put` is called once they are in the buffer, so that an `advance` in it is in the same transaction.

        Raises:
            OutboxFullError: the outbox is full, in place of blocking until the cloud acknowledges uploads.
        """
        if not puts:
            self._opened()
        elif self._buffer.rows.append_all(puts, since_s, position) is None:
            await self._append_later(puts, since_s, position, wait_for_cloud=False)
        if state is not None:
            self._buffer.states |= self.task_states.activate(state)
        if on_put is not None:
            on_put()
        self._start_due_write()

    def activate_state(self, state: TaskState) -> None:
        """Make this the active state of its task with the next transaction."""
        self._opened()
        if state is not self.task_states.active(state.task):
            self._buffer.states |= self.task_states.activate(state)
            self._start_due_write()

    def remove_states(self, task: str) -> None:
        """Remove the states of a task with the next transaction."""
        self._opened()
        if changes := self.task_states.remove(task):
            self._buffer.states |= changes
            self._start_due_write()

    def advance(
        self, position: int, resume_from: int, replay: ReplayState | None = None, *, state: TaskState | None = None
    ) -> None:
        """Move the stream's positions with the next transaction; `replay` None leaves that unchanged.

        `state` is activated in the same transaction.
        """
        self._opened()
        if state is not None:
            self._buffer.states |= self.task_states.activate(state)
        self._position = position
        self._resume_from = resume_from
        if replay is not None:
            self._replay = replay
        self._unwritten_positions += 1
        self._is_dirty = True
        if self._unwritten_positions >= _POSITION_EVERY:
            self._start_due_write()

    def outbox_has_room(self, puts: Sequence[Put]) -> bool:
        """Return whether the outputs that are to be uploaded fit into the outbox now."""
        self._opened()
        return not self._exceeds_outbox(_upload_bytes(puts))

    async def wait_for_progress(self) -> None:
        """Return after the next transaction, or when the store closes."""
        await self._progress.wait()

    async def _append_later(
        self, puts: Sequence[Put], since_s: float, position: int, *, wait_for_cloud: bool = True
    ) -> None:
        """Buffer the outputs once there is room."""
        await self._wait_for_room(_upload_bytes(puts), wait_for_cloud=wait_for_cloud)
        self._buffer.rows.append_all(puts, since_s, position, True)

    def _set_limits(self) -> None:
        """Pass the bounds to the buffer, which refuses a row beyond them; a store that is not open has no room.

        A row is due for `_start_due_write` at the threshold, or at once while no timer runs.
        """
        if self._database is None or self._closing:
            self._buffer.rows.set_limits(0, 0, 0, 0, 0)
            return
        used = self._state.outbox_bytes + self._writing.rows.upload_bytes
        room_bytes = self._max_buffer_bytes - self._writing.rows.size_bytes
        due_rows = 0 if self._timer is None else self._threshold
        self._buffer.rows.set_limits(self._threshold, room_bytes, used, self._max_outbox_bytes, due_rows)

    def _start_due_write(self) -> None:
        waiting = len(self._buffer.rows)
        due = waiting >= self._threshold or self._unwritten_positions >= _POSITION_EVERY
        if due and self.last_error is None:  # after an error the timer retries, not every put
            self._start_writer()
        elif (waiting or self._buffer.states) and self._timer is None:
            self._start_timer(self._interval_s)

    def _exceeds_outbox(self, upload_bytes: int) -> bool:
        if not upload_bytes:
            return False
        outbox_bytes = self._state.outbox_bytes + self._buffer.rows.upload_bytes + self._writing.rows.upload_bytes
        # A single output larger than a bound is accepted once there is nothing else.
        return bool(outbox_bytes) and outbox_bytes + upload_bytes > self._max_outbox_bytes

    def _has_room(self, upload_bytes: int) -> bool:
        self._opened()
        return self._buffer_bytes < self._max_buffer_bytes and not self._exceeds_outbox(upload_bytes)

    async def _wait_for_room(self, upload_bytes: int, *, wait_for_cloud: bool) -> None:
        if self._writer is not None and len(self._buffer.rows) >= self._threshold:
            # Two threads that share the GIL take longer than one after the other.
            await asyncio.wait([self._writer])
        waited = False
        while not self._has_room(upload_bytes):
            self.counts.waits += not waited
            waited = True
            self._outbox_is_full = True
            if self._forget_timer is not None:
                self._start_timer(self._interval_s)
            if self._buffer_bytes:  # only rows in the file can be sent and acknowledged, which makes room
                await asyncio.shield(self._start_writer())
            elif wait_for_cloud:
                await self._progress.wait()
            else:
                raise OutboxFullError(self.path, f"its outbox is full with {self._max_outbox_bytes} bytes; go online")

    @property
    def _buffer_bytes(self) -> int:
        return self._buffer.rows.size_bytes + self._writing.rows.size_bytes

    async def flush(self) -> None:
        """Return once everything put before this call is in the file.

        Raises:
            StoreError: the rows could not be written; they stay in memory, and the next flush retries.
        """
        self._opened()
        await self._flush()

    def forget(self, upto_seq: int) -> None:
        """Remove outbox rows of this epoch up to and with `upto_seq` with the next transaction, within 10 minutes."""
        epoch = self.state.epoch
        if epoch == self._forget[0] and upto_seq <= self._forget[1]:
            return
        self._forget = (epoch, upto_seq)
        self._is_dirty = True
        if self._outbox_is_full or 2 * self._state.outbox_bytes > self._max_outbox_bytes:
            self._start_timer(self._interval_s)
        elif self._forget_timer is None:
            self._forget_timer = asyncio.create_task(self._write_later(_FORGET_S))

    # --- read ---------------------------------------------------------------------------------------------------------

    async def query(self, topic: str, since_ms: int = 0, limit: int = 100, skip: int = 0) -> list[Feature]:
        """Return the latest features of a topic from `since_ms` on, in the order they were put.

        At most `limit`, and fewer where they are more than MAX_ANSWER_BYTES or MAX_ANSWER_VALUES. For older
        ones, pass the number of those returned so far as `skip`, until none is returned.

        Flushes first, so that every earlier put is included.
        """
        database = self._opened()
        if self._buffer_bytes:
            await self._flush()
        return await self._in_thread(lambda: database.query(topic, since_ms, limit, skip))

    async def remove_undecodable(self, faults: Mapping[int, str]) -> None:
        """Remove features that a reader could not decode, by number; the values are the reasons, for the report."""
        database = self._opened()
        await self._in_thread(lambda: database.remove_undecodable(faults))

    async def wait_for_seq(self, after_seq: int) -> None:
        """Return once an outbox row after `after_seq` is in the file, or a new epoch begins."""
        epoch = self.state.epoch
        while (state := self.state).last_seq <= after_seq and state.epoch == epoch:
            await self._progress.wait()

    async def call[T](self, function: Callable[[StoreDatabase], T]) -> T:
        """Return `function(database)`; it runs in the store's thread, between transactions."""
        database = self._opened()
        return await self._in_thread(lambda: function(database))

    # --- internals ----------------------------------------------------------------------------------------------------

    def _opened(self) -> StoreDatabase:
        if self._database is None or self._closing:
            raise StoreClosedError(self.path, "is not open")
        return self._database

    def _now_ms(self) -> int:
        return int(self.clock.time() * 1000)

    def _in_thread[T](self, function: Callable[[], T]) -> asyncio.Future[T]:
        if self._thread is None:
            raise StoreClosedError(self.path, "is not open")
        running = self._thread.submit(function)
        running.add_done_callback(self._take_state)  # the state is current before the callbacks of callers run
        return running

    def _take_state(self, _: asyncio.Future[Any]) -> None:
        if self._database is None:
            return
        epoch, self._state = self._state.epoch, self._database.state
        if self._state.epoch != epoch:
            self._set_limits()
            self._pulse()

    def _pulse(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _start_timer(self, delay_s: float) -> None:
        if not self._closing and (self._timer is None or self._timer.done()):
            self._timer = asyncio.create_task(self._write_later(delay_s))
            self._set_limits()

    async def _write_later(self, delay_s: float) -> None:
        await self.clock.sleep(delay_s)
        if asyncio.current_task() is self._timer:
            self._timer = None
            self._set_limits()
        else:
            self._forget_timer = None
        if not self._closing:
            self._start_writer()

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._forget_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._forget_timer = None

    async def _flush(self) -> None:
        is_waiting = bool(self._buffer.rows or self._buffer.states or self._is_dirty)
        goal = self._generation if is_waiting else self._generation - 1
        while self._written < goal:
            await asyncio.shield(self._start_writer())

    def _start_writer(self) -> asyncio.Future[None]:
        """Return the running transaction, or start one.

        It is a future, not a task, so that a cancellation cannot leave open whether it was written. It is done after
        the buffer and the counts are updated: if there is no writer, the buffer holds only unwritten rows.
        """
        if self._writer is not None:
            return self._writer
        database = self._database
        if database is None:
            raise StoreClosedError(self.path, "is not open")
        self._stop_timers()
        self._writing, self._buffer = self._buffer, self._writing
        self._set_limits()
        batch, position, resume_from, forget, replay = (
            self._writing,
            self._position,
            self._resume_from,
            self._forget,
            self._replay,
        )
        self._unwritten_positions, self._is_dirty = 0, False
        generation = self._generation
        self._generation += 1
        self._writer = asyncio.get_running_loop().create_future()
        running = self._in_thread(lambda: database.write(batch, position, resume_from, forget, replay))
        running.add_done_callback(lambda done: self._after_write(done.exception(), generation))
        return self._writer

    def _after_write(self, error: BaseException | None, generation: int) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            raise AssertionError("a transaction ended that was not started")
        if error is not None:
            self._writing.take(self._buffer)
            self._writing, self._buffer = self._buffer, self._writing
            self._is_dirty = True
            self._set_limits()
            self.counts.failed_transactions += 1
            self.last_error = error if isinstance(error, StoreError) else StoreError(self.path, repr(error))
            self._start_timer(_RETRY_S)
            writer.set_exception(self.last_error)
            writer.exception()  # marks it as retrieved in case no call awaits it
        else:
            self.counts.rows += len(self._writing.rows)
            self.counts.transactions += 1
            self._writing.clear()
            self.last_error = None
            self._written = generation
            self._outbox_is_full = False
            self._set_limits()
            writer.set_result(None)
            if len(self._buffer.rows) >= self._threshold:
                self._start_writer()
            elif self._buffer.rows or self._buffer.states:
                self._start_timer(self._interval_s)
        self._pulse()


def _upload_bytes(puts: Sequence[Put]) -> int:
    return sum(len(put.topic) + len(put.payload) + ROW_OVERHEAD_BYTES for put in puts if put.upload)
