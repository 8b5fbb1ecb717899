"""Runner of a sink: reads as a member of a consumer group, writes to the target, and commits what the target has.

Nothing is committed before the target has it, or the folder of rows that it refuses, so that a process that is killed
loses nothing. Rows wait in memory up to
`buffer_bytes` and one batch more. While the target fails, the member keeps its devices and tries again with backoff.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from walle.base.backoff import Backoff
from walle.base.clock import Clock, SystemClock
from walle.pipeline.ingest.store.consumer import Consumer, UploadBatch
from walle.pipeline.ingest.store.feature_reader import FeatureFilter
from walle.pipeline.ingest.store.upload_store import IngestError, Start, UploadStore
from walle.sinks.aside_folder import AsideFolder
from walle.sinks.sink import Sink, SinkError, SinkRow

_LOG = logging.getLogger(__name__)

_POLL_S = 0.5  # time of one look for a batch, and so the delay until a stop is noticed
_LAG_S = 5.0  # interval between two looks at the lag while there are uploads to send


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """The consumer group, the choice of uploads, and the bounds of a runner.

    Args:
        group: name of the consumer group; all its members have the same choice and target.
        wanted: the uploads to send; others are passed.
        start: the first upload of a group that does not exist yet, as of `UploadStore.consume`.
        flush_s: the longest time that rows wait for others before they are written; 0: each batch is written at once.
        flush_rows: rows that are written at once.
        buffer_bytes: bytes of payloads that are written at once.
        batch_limit: uploads of one read.
        lease_s: the time after which the devices of a killed process are read by another.
        grace_s: the time that a write may take after a stop.
    """

    group: str
    wanted: FeatureFilter = dataclasses.field(default_factory=FeatureFilter)
    start: Start = "earliest"
    flush_s: float = 0.0
    flush_rows: int = 50_000
    buffer_bytes: int = 32 << 20
    batch_limit: int = 1000
    lease_s: float = 30.0
    grace_s: float = 10.0


@dataclasses.dataclass(slots=True, kw_only=True)
class SinkStatus:
    """Counts since the start of a runner: rows that the target has, rows that were passed, failed attempts.

    `set_aside` counts rows that the target refuses alone, and that are in the folder for them. `error` is that of the
    latest attempt, "" if it succeeded. `lag` is the number of uploads that the group has not committed, with those that
    are passed, None before it is known.
    """

    sent: int = 0
    passed: int = 0
    set_aside: int = 0
    retries: int = 0
    commits: int = 0
    error: str = ""
    lag: int | None = None


class SinkRunner:
    """One run of a sink on a store that is open. `stop` ends it cleanly: what was not committed comes again.

    Rows that the target refuses alone go to the folder `aside`; without one, the run ends at the first with an error.
    """

    def __init__(
        self,
        store: UploadStore,
        sink: Sink,
        config: RunnerConfig,
        *,
        rng: random.Random,
        clock: Clock | None = None,
        aside: AsideFolder | None = None,
        on_status: Callable[[SinkStatus], None] = lambda _: None,
    ) -> None:
        self.status = SinkStatus()
        self._store = store
        self._sink = sink
        self._config = config
        self._clock = clock or SystemClock()
        self._aside = aside
        self._on_status = on_status
        self._backoff = Backoff(rng, first_s=0.25, most_s=30.0)
        self._stopping = asyncio.Event()
        self._rows: list[SinkRow] = []
        self._row_bytes = 0
        self._since_s = 0.0  # time at which the first of the rows was read
        self._newest: dict[int, int] = {}  # by partition: position of the last of the rows
        self._batches: list[UploadBatch] = []  # read and not committed, without uploads
        self._generation = store.generation
        self._lag_s = 0.0  # time of the last look at the lag

    def stop(self) -> None:
        """End the run as soon as the write in progress has ended, or `grace_s` later."""
        self._stopping.set()

    async def run(self, *, once: bool = False) -> bool:
        """Run until `stop`; with `once` until the group has sent all that was stored when the run began.

        Return whether it has, False after a stop.

        Raises:
            SinkError: the target refuses rows, and a retry would not help.
            IngestError: the store cannot be used, and a retry would not help.
        """
        work = asyncio.create_task(self._work(once=once))
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=self._config.grace_s)
        finally:
            for task in (work, stopped):
                task.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)
        return not work.cancelled() and work.result()

    async def _work(self, *, once: bool) -> bool:
        config = self._config
        until = await self._store.head() if once else 0
        topics = [config.wanted.topic] if config.wanted.topic else None
        consumer = self._store.consume(
            config.group, topics=topics, start=config.start, batch_limit=config.batch_limit, lease_s=config.lease_s
        )
        try:
            async with consumer:
                if self._aside is not None:
                    await self._aside.start()
                await self._tried(consumer, self._sink.start)
                while not self._stopping.is_set():
                    batch = await consumer.poll(_POLL_S)
                    self._forget_dropped(consumer)
                    if self._store.generation != self._generation:
                        await self._begin_again(consumer)
                    if batch is not None and batch.generation == self._generation:
                        self._add(batch)
                    is_read = once and (batch is None or batch.position >= until)
                    if self._batches and (is_read or self._is_flush_due):
                        await self._flush(consumer)
                    if batch is None or self._clock.monotonic() >= self._lag_s + _LAG_S:
                        await self._note_lag()
                    if is_read and await self._has_sent(until):
                        return True
                return False
        finally:
            await self._sink.close()

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _add(self, batch: UploadBatch) -> None:
        if not self._batches:
            self._since_s = self._clock.monotonic()
        for position, received in zip(batch.positions, batch.uploads, strict=True):
            row = SinkRow(position, received)
            if not self._config.wanted.matches(received):
                self.status.passed += 1
            elif position > self._newest.get(row.part, 0):  # one that was read again is there already
                self._newest[row.part] = position
                self._rows.append(row)
                self._row_bytes += len(received.payload)
        self._batches.append(dataclasses.replace(batch, uploads=[], positions=[]))

    async def _begin_again(self, consumer: Consumer) -> None:
        """Forget what was read from a store that another one, such as a backup, has replaced."""
        self._generation = self._store.generation
        self._clear_rows()
        self._batches.clear()
        await self._sink.close()
        await self._tried(consumer, self._sink.start)

    def _forget_dropped(self, consumer: Consumer) -> None:
        """Forget the rows of partitions that were lost: another member sends them, or they are read again."""
        if not (dropped := consumer.take_dropped()):
            return
        self._sink.note_moved(dropped)
        self._rows = [row for row in self._rows if row.part not in dropped]
        self._row_bytes = sum(len(row.received.payload) for row in self._rows)
        for part in dropped:
            self._newest.pop(part, None)
        kept = (dataclasses.replace(batch, parts=batch.parts - dropped) for batch in self._batches)
        self._batches = [batch for batch in kept if batch.parts]

    def _clear_rows(self) -> None:
        self._rows, self._row_bytes = [], 0
        self._newest.clear()

    @property
    def _is_flush_due(self) -> bool:
        config = self._config
        return (
            len(self._rows) >= config.flush_rows
            or self._row_bytes >= config.buffer_bytes
            or self._clock.monotonic() >= self._since_s + config.flush_s
        )

    async def _flush(self, consumer: Consumer) -> None:
        """Write all rows, and commit each partition as far as it was read."""
        self._rows.sort(key=lambda row: row.position)  # partitions with different positions are read in turn
        if not await self._tried(consumer, lambda: self._write(consumer)):
            return
        self._forget_dropped(consumer)
        self._clear_rows()
        self._since_s = self._clock.monotonic()
        pending, seen = list[UploadBatch](), set[int]()
        for batch in reversed(self._batches):
            parts = batch.parts - seen  # a later batch commits the others further
            seen |= parts
            # A position within what the target has as one must not be committed: see `Sink.written_up_to`.
            ahead = {part for part in parts if self._sink.written_up_to(part) > batch.position}
            if ahead:
                pending.append(dataclasses.replace(batch, parts=frozenset(ahead)))
            if parts - ahead:
                await dataclasses.replace(batch, parts=frozenset(parts - ahead)).commit()
                self.status.commits += 1
        self._batches = pending[::-1]
        self._on_status(self.status)

    async def _write(self, consumer: Consumer) -> None:
        """Write all rows, and set those aside that the target refuses alone."""
        while True:
            self._forget_dropped(consumer)  # repeated for each attempt: a target may be down for longer than a lease
            if not self._rows:
                return
            try:
                await self._sink.write(self._rows)
            except SinkError as error:
                self.status.sent += error.written - len(error.refused)
                self._rows = [*(row for row, _ in error.refused), *self._rows[error.written :]]
                if self._aside is None or not error.refused:
                    raise
                for refusal in error.refused:
                    await self._aside.put(refusal, self._sink.target)
                    del self._rows[0]
                    self.status.set_aside += 1
                    what = f"refuses {refusal.row.place}: {refusal.why}"
                    _LOG.warning("%s: %s; it is set aside in %s", self._sink.target, what, self._aside.name)
            else:
                self.status.sent += len(self._rows)
                return

    # --- attempts -----------------------------------------------------------------------------------------------------

    async def _tried(self, consumer: Consumer, call: Callable[[], Awaitable[None]]) -> bool:
        """Call until it succeeds, keeping the member's devices meanwhile; return False if the run is stopped before."""
        while True:
            work = asyncio.ensure_future(call())
            try:
                await self._renewing(consumer, work)
                work.result()
            except SinkError as error:
                if not error.may_pass:
                    raise
                await self._note_failure(consumer, error)
                if self._stopping.is_set():
                    return False
            else:
                if self._backoff.failures:
                    _LOG.warning("%s: works again after %d failures", self._sink.target, self._backoff.failures)
                self._backoff.worked()
                self.status.error = ""
                return True
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    async def _note_failure(self, consumer: Consumer, error: SinkError) -> None:
        wait_s = self._backoff.failed(error.wait_s)
        if self._backoff.failures == 1:
            _LOG.error("%s; trying again until it works", error)
        self.status.retries += 1
        self.status.error = str(error)
        self._on_status(self.status)
        waiting = asyncio.ensure_future(self._clock.sleep(wait_s))
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await self._renewing(consumer, waiting, stopped)
        finally:
            for task in (waiting, stopped):
                task.cancel()
            await asyncio.gather(waiting, stopped, return_exceptions=True)

    async def _renewing(self, consumer: Consumer, *tasks: "asyncio.Future[Any]") -> None:
        """Return when one of the tasks is done; renew the member's leases until then."""
        while True:
            done, _ = await asyncio.wait(
                tasks, timeout=min(1.0, self._config.lease_s / 3), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return
            await consumer.renew()

    # --- progress -----------------------------------------------------------------------------------------------------

    async def _note_lag(self) -> None:
        self._lag_s = self._clock.monotonic()
        with contextlib.suppress(IngestError):  # the consumer tells of a store that cannot be used
            found = (await self._store.group_lags()).get(self._config.group)
            self.status.lag = found.uploads if found else None
        self._on_status(self.status)

    async def _has_sent(self, until: int) -> bool:
        """Return whether the group, in all its members, has committed all up to a position."""
        head = await self._store.head()  # read before the lag, which counts from a later head
        found = (await self._store.group_lags()).get(self._config.group)
        return found is not None and head - found.uploads >= until
