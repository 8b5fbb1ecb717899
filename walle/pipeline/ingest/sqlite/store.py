"""Store of uploads in one SQLite file, the default.

The file holds the features, each with its number in its (device, epoch) and the chain value there. A batch is stored in
one transaction, so that uploads that a device repeats after a crash on either side are recognised and dropped. That
transaction writes nothing else: the index follows (`index.py`). A device that starts a new epoch repeats its unsent
uploads in it: those that are stored already under the older epoch are dropped too. What was lost on either side is in
`losses`.
SQLite runs in its own thread; a batch costs one hop to it. A few uploads are committed on the event loop, while nothing
else waits and the disk is quick (`CommitPace`). Queries run in another thread, on a separate connection: in WAL
mode they delay no commit. A file that is put in the place of this one, such as a restored backup, is opened at the next
call. `synchronous=FULL`: an acknowledged feature survives a power cut. Claims of devices and positions of
consumers are not synced: a power cut may undo the latest, and then a device connects again and a consumer gets uploads
again.
"""

import asyncio
import contextlib
import functools
import logging
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import cast, override

from walle.base.clock import Clock, SystemClock
from walle.pipeline.features.checksums import first_link
from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.features.store_thread import StoreThread
from walle.pipeline.ingest.sqlite import columns as sqlite_columns
from walle.pipeline.ingest.sqlite import groups as sqlite_groups
from walle.pipeline.ingest.sqlite import index as sqlite_index
from walle.pipeline.ingest.sqlite import lone as sqlite_lone
from walle.pipeline.ingest.sqlite import losses as sqlite_losses
from walle.pipeline.ingest.sqlite import quarantine as sqlite_quarantine
from walle.pipeline.ingest.sqlite import streams as sqlite_streams
from walle.pipeline.ingest.sqlite.commit_pace import CommitPace
from walle.pipeline.ingest.sqlite.connection import SqliteConnection
from walle.pipeline.ingest.sqlite.known_streams import KnownStreams
from walle.pipeline.ingest.sqlite.log import MAX_LOG_BYTES
from walle.pipeline.ingest.sqlite.reader import ReplacedError, SqliteReader
from walle.pipeline.ingest.sqlite.row_statements import RowStatements
from walle.pipeline.ingest.sqlite.schema import transaction
from walle.pipeline.ingest.store.packed_payload import DamagedPayloadError
from walle.pipeline.ingest.store.quarantine import refused_upload
from walle.pipeline.ingest.store.quota import PART_QUERY, StoredPart, stored_part
from walle.pipeline.ingest.store.receipt import (
    Accepted,
    LossTotal,
    RecordedLoss,
    RefusedUpload,
    SortedBatch,
    StoredStream,
    check_epochs,
    check_hello,
    moved_places,
    sort_batch,
)
from walle.pipeline.ingest.store.upload_columns import UploadColumns
from walle.pipeline.ingest.store.upload_store import GroupLag, IngestError, Start, TopicSize, Trimmed, UploadStore
from walle.pipeline.tunnel.received import Received, ResumePoint
from walle.protocol import Hello, Origin

_LOG = logging.getLogger(__name__)

_INSERT = RowStatements(
    "INSERT INTO uploads (stream, seq, chain, sent_ms, received_ms, topic, stored_payload, packed, version)"
    " VALUES {rows}",
    9,
)
_INDEX_UPLOADS = 1000  # uploads stored before the index follows: it delays commits by 2 ms
_LOG_CHECK_BYTES = 64 << 10  # payload bytes after which the log's length is checked
_LOOP_UPLOADS = 4  # largest batch that is committed on the event loop: many devices cost less in larger batches
_LOOP_BYTES = 64 << 10
_TRANSIENT = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY}
_FAULTS = (sqlite3.Error, UnicodeError, OverflowError, OSError)
_OF_CONTENTS = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}


class _ReadsNeededError(Exception):
    """Another process has written, so that a batch cannot be stored without reading."""


class SqliteUploadStore(UploadStore):
    """The received uploads in one SQLite file at `path`. One that does not exist is made, without `create` an error.

    Its write-ahead log has about `max_log_bytes` at most: see `walle.pipeline.ingest.sqlite.log`.
    """

    def __init__(
        self, path: Path, *, clock: Clock | None = None, max_log_bytes: int = MAX_LOG_BYTES, create: bool = True
    ) -> None:
        super().__init__()
        self.path = path
        self.clock = clock or SystemClock()
        self._owner = secrets.token_hex(8)  # name of this process at the devices that resumed here
        self._thread = StoreThread("walle-ingest")  # SQLite requires that one thread uses a connection
        self._connection = SqliteConnection(path, self._thread, self._note_open, max_log_bytes, create=create)
        self._reader = SqliteReader(self._connection)
        self._pace = CommitPace(self.clock)
        self._is_turn_due = False  # a batch was stored, and other tasks have had no turn since
        self._unnoted: list[list[Received]] = []  # new uploads, until the next turn
        self._unchecked_bytes = 0  # stored since the log's length was looked at
        self._unindexed = 0  # uploads stored here since the index was last brought up to date
        self._known = KnownStreams(self._connection, self._owner)

    @override
    async def start(self) -> None:
        """Open the file. Raises IngestError if it cannot be opened or has another format."""
        await self._in_thread(self._connection.open)

    @override
    async def close(self) -> None:
        await self._in_thread(self._reader.close, self._reader.thread)
        await self._in_thread(self._close)
        self._reader.thread.close()
        self._thread.close()

    @override
    async def reopen(self) -> None:
        with contextlib.suppress(IngestError):
            await self.close()
        await self._in_thread(self._connection.open_again)

    # --- receipt ---

    @override
    async def store_batch(
        self, batch: Sequence[Received], foreign_topics: frozenset[tuple[str, str]] = frozenset()
    ) -> Accepted:
        if (log := self._connection.log) is not None and log.is_full:
            await self._run(self._check_room)
        accepted = None
        if not foreign_topics and self._thread.is_idle and self._pace.is_quick and not self._is_turn_due:
            accepted = self._accept_here(batch)
        if accepted is None:
            accepted = await self._run(lambda database: self._accept(database, batch, foreign_topics))
        if accepted.fresh:
            self._unnoted.append(accepted.fresh)
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._on_turn)  # the acknowledgements leave first
        return accepted

    def _check_room(self, _: sqlite3.Connection) -> None:
        """Raise IngestError while the log is full."""
        log = self._connection.log
        if log is not None and not log.make_room():
            what = (
                f"its write-ahead log has {log.size_bytes:,} bytes, because another program reads the file in one"
                f" transaction; end it (lsof {self.path}-wal names it): nothing is stored until then, and devices wait"
            )
            raise IngestError(self.path, what, may_pass=True)

    @property
    @override
    def log_bytes(self) -> int:
        log = self._connection.log
        return 0 if log is None else log.size_bytes

    def _on_turn(self) -> None:
        """Let the event loop commit again: other tasks have had a turn. Do what no acknowledgement has to wait for."""
        self._is_turn_due = False
        if not self._unnoted:
            return
        unnoted, self._unnoted = self._unnoted, []
        self._notify()
        for fresh in unnoted:
            self._unchecked_bytes += sum(len(received.packed or received.payload) for received in fresh)
            self._unindexed += len(fresh)
        if self._unindexed >= _INDEX_UPLOADS:
            self._unindexed = 0
            self._thread.post(self._index)
        if self._unchecked_bytes >= _LOG_CHECK_BYTES and (log := self._connection.log) is not None:
            self._unchecked_bytes = 0
            log.check()

    def _accept_here(self, batch: Sequence[Received]) -> Accepted | None:
        """Store a small batch on the event loop; return None if that may take long, which changes nothing.

        That is if its devices' streams are not in memory, or if another process writes.
        """
        database, opened = self._connection.database, self._connection.opened
        if database is None or opened is None or len(batch) > _LOOP_UPLOADS:
            return None
        lone: StoredStream | None = None
        size_bytes = 0
        for received in batch:
            lone = self._known.find(received[:2])
            if lone is None:
                return None
            size_bytes += len(received.packed or received.payload)
        if size_bytes > _LOOP_BYTES:
            return None
        try:
            if not opened.is_current:
                return None
            if len(batch) == 1 and lone is not None and sqlite_lone.is_next(lone, batch[0]):
                return self._accept_lone(database, lone, batch[0])
            return self._accept(database, batch, here=True)
        except _ReadsNeededError:
            return None
        except _FAULTS as error:
            if isinstance(error, sqlite3.Error) and _primary_code(error) == sqlite3.SQLITE_BUSY:
                return None
            raise self._fault(error) from error

    def _accept_lone(self, database: sqlite3.Connection, stream: StoredStream, received: Received) -> Accepted | None:
        """Store the upload that comes next in `stream`; return None if another process has written."""
        key = received[:2]
        self._known.remove(key)  # nothing of a transaction that fails stays in memory
        with self._pace.timed():
            if not sqlite_lone.commit_next(database, stream, received, self._known.data_version):
                return None
        self._known.keep({key: stream})
        return Accepted({key: received.seq}, [received])

    @override
    async def acked(self, device_id: str, epoch: str) -> int:
        query = "SELECT highest FROM streams WHERE device_id = ? AND epoch = ?"

        def find(database: sqlite3.Connection) -> int:
            _bring_up_to_date(database)
            row = database.execute(query, (device_id, epoch)).fetchone()
            return cast("int", row[0]) if row else 0

        return await self._run(find)

    @override
    async def _streams_of(self, device_id: str) -> list[int]:
        query = "SELECT stream FROM streams WHERE device_id = ? ORDER BY stream"
        rows = await self._read(lambda database: database.execute(query, (device_id,)).fetchall())
        return [stream for (stream,) in rows]

    @override
    async def _stream_part(self, stream: int, after: int, limit: int) -> tuple[StoredPart, int | None]:
        uploads = "places JOIN uploads USING (position, stream, seq)"
        query = PART_QUERY.format("?", "?", "?", payload="stored_payload", uploads=uploads)
        rows = await self._read_indexed(lambda database: database.execute(query, (stream, after, limit)).fetchall())
        return stored_part(rows, limit)

    @override
    async def resume(self, hello: Hello) -> ResumePoint:
        origins = check_hello(hello)
        return await self._run(lambda database: self._resume(database, hello, origins))

    @override
    async def set_aside(self, received: Received, reason: str) -> Accepted | None:
        return await self._run(lambda database: self._set_aside(database, received, reason))

    @override
    async def refused(self) -> list[RefusedUpload]:
        return await self._read(sqlite_quarantine.read)

    @override
    async def refused_count(self) -> int:
        return await self._read(sqlite_quarantine.count)

    @override
    async def forget_refused(self, device_id: str | None = None) -> None:
        await self._write(lambda database: sqlite_quarantine.forget(database, device_id))

    @override
    async def losses(self, device_id: str | None = None) -> list[RecordedLoss]:
        return await self._read(lambda database: sqlite_losses.read(database, device_id))

    @override
    async def loss_totals(self, device_id: str | None = None) -> dict[LossCause, LossTotal]:
        return await self._read(lambda database: sqlite_losses.totals(database, device_id))

    @override
    async def count(self) -> int:
        query = "SELECT ifnull(sum(uploads), 0) FROM topics"
        return cast("int", await self._read_indexed(lambda database: database.execute(query).fetchone()[0]))

    @override
    async def query(
        self, *, device_id: str | None = None, topic: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[tuple[int, Received]]:
        if device_id is None and topic is None:
            return await self._read_uploads(lambda database: sqlite_groups.after(database, after, limit))
        await self._run(_bring_up_to_date)
        return await self._read_uploads(
            lambda database: sqlite_groups.matching(database, device_id, topic, after, limit)
        )

    # --- consumer groups and retention ---

    @override
    async def join_group(self, group: str, start: Start) -> None:
        await self._write(lambda database: sqlite_groups.join(database, group, start))

    @override
    async def balance(
        self, group: str, member: str, *, busy: Collection[int], now_ms: int, lease_ms: int
    ) -> dict[int, int]:
        return await self._write(
            lambda database: sqlite_groups.balance(database, group, member, busy, now_ms, lease_ms)
        )

    @override
    async def leave_group(self, group: str, member: str) -> None:
        await self._write(lambda database: sqlite_groups.leave(database, group, member))

    @override
    async def head(self) -> int:
        return await self._read(sqlite_groups.head)

    @override
    async def read(
        self, partitions: Collection[int], topics: Collection[str] | None, after: int, upto: int, limit: int
    ) -> list[tuple[int, Received]]:
        return await self._read_uploads(
            lambda database: sqlite_groups.read(database, partitions, topics, after, upto, limit)
        )

    @override
    async def columns(self, after: int, upto: int, limit: int, max_bytes: int) -> UploadColumns:
        return await self._read_uploads(lambda database: sqlite_columns.read(database, after, upto, limit, max_bytes))

    @override
    async def commit(self, group: str, member: str, positions: Mapping[int, int], generation: int) -> set[int]:
        def commit(database: sqlite3.Connection) -> set[int]:
            return sqlite_groups.commit(database, group, member, positions if generation == self.generation else {})

        return await self._write(commit)

    @override
    async def group_lags(self) -> dict[str, GroupLag]:
        return await self._read(sqlite_groups.lags)

    @override
    async def forget_group(self, group: str) -> None:
        await self._write(lambda database: sqlite_groups.forget(database, group))

    @override
    async def topics(self, *, after: str | None = None, limit: int | None = None) -> dict[str, TopicSize]:
        query = "SELECT topic, uploads, bytes FROM topics WHERE ?1 IS NULL OR topic > ?1 ORDER BY topic LIMIT ?2"
        values = (after, -1 if limit is None else limit)
        rows = await self._read_indexed(lambda database: database.execute(query, values).fetchall())
        return {topic: TopicSize(uploads, size_bytes) for topic, uploads, size_bytes in rows}

    @override
    async def largest_topics(self, limit: int) -> tuple[dict[str, TopicSize], TopicSize]:
        largest = "SELECT topic, uploads, bytes FROM topics ORDER BY bytes DESC, topic LIMIT ?"
        total = "SELECT ifnull(sum(uploads), 0), ifnull(sum(bytes), 0) FROM topics"
        rows, sums = await self._read_indexed(
            lambda database: (database.execute(largest, (limit,)).fetchall(), database.execute(total).fetchone())
        )
        return {topic: TopicSize(uploads, size_bytes) for topic, uploads, size_bytes in rows}, TopicSize(*sums)

    @override
    async def trim(
        self,
        topic: str,
        *,
        before_ms: int | None,
        now_ms: int,
        over_bytes: int,
        keep_unconsumed: bool,
        limit: int,
    ) -> Trimmed:
        def trim(database: sqlite3.Connection) -> Trimmed:
            sqlite_index.catch_up(database)
            return sqlite_groups.trim(database, topic, before_ms, now_ms, over_bytes, limit, keep=keep_unconsumed)

        return await self._write(trim)

    # --- in the threads ---

    async def _run[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        def on_open_database() -> T:
            database = self._connection.current()
            with self._connection.of_own_format(database):
                return work(database)

        return await self._in_thread(on_open_database)

    async def _write[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction that is not synced."""

        def in_transaction(database: sqlite3.Connection) -> T:
            with transaction(database, durable=False):
                self._connection.check_not_migrated(database)
                return work(database)

        return await self._run(in_transaction)

    async def _read[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        def on_reader() -> T:
            return self._reader.query(work)

        try:
            return await self._in_thread(on_reader, self._reader.thread)
        except ReplacedError:
            await self._in_thread(self._connection.current)
        try:
            return await self._in_thread(on_reader, self._reader.thread)
        except ReplacedError:
            raise IngestError(self.path, "is being replaced by another file", may_pass=True) from None

    async def _read_uploads[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query of uploads. One that is damaged is set aside, so that it keeps nobody from those behind it."""
        set_aside = set[int]()
        while True:
            try:
                return await self._read(work)
            except IngestError as error:
                damaged = error.__cause__
                if not isinstance(damaged, DamagedPayloadError) or damaged.position in set_aside:
                    raise
            set_aside.add(damaged.position)
            await self._run(functools.partial(self._set_damaged_aside, damaged))

    async def _read_indexed[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query that uses the index: it finds all uploads that are stored now."""
        await self._run(_bring_up_to_date)
        return await self._read(work)

    async def _in_thread[T](self, work: Callable[[], T], thread: StoreThread | None = None) -> T:
        try:
            return await (thread or self._thread).run(work)
        except _FAULTS as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> IngestError:
        if isinstance(error, sqlite3.Error):
            code = _primary_code(error)
            return IngestError(self.path, str(error), may_pass=code in _TRANSIENT, of_contents=code in _OF_CONTENTS)
        # An OSError is of a look at the folder, which a disk or a mount may refuse for a while; the others are of the
        # sqlite3 module, before SQLite sees the value.
        is_of_folder = isinstance(error, OSError)
        return IngestError(self.path, str(error), may_pass=is_of_folder, of_contents=not is_of_folder)

    def _note_open(self, is_replaced: bool) -> None:
        self._known.forget()
        self.generation += is_replaced

    def _close(self) -> None:
        self._connection.close("DELETE FROM owners WHERE owner = ?", self._owner)

    def _accept(
        self,
        database: sqlite3.Connection,
        batch: Sequence[Received],
        foreign_topics: frozenset[tuple[str, str]] = frozenset(),
        *,
        here: bool = False,
    ) -> Accepted:
        """Store a batch. `here`, on the event loop, raise _ReadsNeededError or SQLITE_BUSY rather than take long."""
        keys = dict.fromkeys(received[:2] for received in batch)
        with self._pace.timed(), transaction(database, wait=not here):
            if self._known.forget_if_changed(database) and here:
                raise _ReadsNeededError
            foreign = frozenset(key for key in keys if not self._known.is_owned(database, key[0]))
            streams = self._known.take(database, [key for key in keys if key not in foreign])
            stored = sqlite_streams.stored_at(database, moved_places(batch, streams))
            sorted_batch = sort_batch(batch, streams, stored, foreign_topics=foreign_topics)
            _INSERT.execute(database, _values(sorted_batch))
            for recorded in (*sorted_batch.losses, *sqlite_streams.made_again(database, sorted_batch.made_again)):
                self._record(database, recorded)
            # The index takes the state of a stream from its latest row; reports and repeated uploads have none.
            latest = {number: one[2] for number, one in zip(sorted_batch.streams, sorted_batch.fresh, strict=True)}
            sqlite_streams.move_on(
                database, [stream for stream in streams.values() if latest.get(stream.number) != stream.highest]
            )
        self._known.keep(streams)
        highest = {key: stream.highest for key, stream in streams.items()}
        return Accepted(highest, sorted_batch.fresh, foreign, refused=sorted_batch.refused)

    def _index(self) -> None:
        """Let the index follow the uploads, or log why it cannot."""
        database = self._connection.database
        if database is None:
            return
        try:
            _bring_up_to_date(database)
        except sqlite3.Error as error:
            _LOG.warning("received uploads in %s: the index does not follow: %s", self.path, error)

    def _set_aside(self, database: sqlite3.Connection, received: Received, reason: str) -> Accepted | None:
        key, now_ms = received[:2], int(self.clock.time() * 1000)
        with transaction(database):
            self._known.forget_if_changed(database)
            if not self._known.is_owned(database, received.device_id):
                return Accepted({}, [], frozenset([key]))
            streams = self._known.take(database, [key])
            stored = sqlite_streams.stored_at(database, moved_places([received], streams))
            found = sort_batch([received], streams, stored)
            if found.fresh or found.losses:
                if not sqlite_quarantine.has_room(database, received.device_id):
                    return None
                sqlite_quarantine.add(database, refused_upload(received, reason, now_ms))
                loss = Loss(received.epoch, received.seq, received.seq, LossCause.REFUSED)
                self._record(database, RecordedLoss(received.device_id, loss, now_ms))
            sqlite_streams.move_on(database, streams.values())
        return Accepted({key: streams[key].highest}, [], is_set_aside=bool(found.fresh or found.losses))

    def _set_damaged_aside(self, damaged: DamagedPayloadError, database: sqlite3.Connection) -> None:
        with transaction(database):
            self._known.forget_if_changed(database)
            loss = sqlite_quarantine.set_damaged_aside(database, damaged.position, int(self.clock.time() * 1000))
            if loss is not None:
                self._record(database, loss)
        if loss is not None:
            what = "received uploads in %s: device %r: %s; it is set aside, and those behind it are read"
            _LOG.error(what, self.path, loss.device_id, damaged)

    def _resume(self, database: sqlite3.Connection, hello: Hello, origins: Sequence[Origin]) -> ResumePoint:
        row = database.execute("SELECT owner FROM owners WHERE device_id = ?", (hello.device_id,)).fetchone()
        is_claimed = row is not None and row[0] == self._owner
        if not is_claimed or sqlite_index.is_behind(database):
            with transaction(database, durable=False):
                if not is_claimed:
                    database.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (hello.device_id, self._owner))
                sqlite_index.catch_up(database)
        key = (hello.device_id, hello.epoch)
        stream = sqlite_streams.find(database, key)
        if stream is None:
            epochs = "SELECT count(*) FROM streams WHERE device_id = ?"
            check_epochs(database.execute(epochs, (hello.device_id,)).fetchone()[0])
        if stream is None and not origins and hello.acked == 0:  # stored with its first upload
            return ResumePoint(0, first_link(hello.epoch))
        abandoned = sqlite_streams.abandoned(database, hello, origins)
        # A stream that another one named as its origin, after this file went back in time, has no links.
        is_linked = not origins or (stream is not None and sqlite_streams.has_links(database, stream.number))
        if stream is None or not is_linked or stream.highest < hello.acked or abandoned:
            self._known.remove(key)
            with transaction(database):
                stream = sqlite_streams.find(database, key) or sqlite_streams.add(database, key)
                if not is_linked:
                    self._link_origins(database, stream, hello.device_id, origins)
                for loss in abandoned:
                    self._record(database, RecordedLoss(hello.device_id, loss, int(self.clock.time() * 1000)))
                if stream.highest < hello.acked:
                    self._record_restore(database, hello.device_id, hello.epoch, stream.highest, hello.acked)
                    stream.highest, stream.chain = hello.acked, hello.acked_chain
                    sqlite_streams.move_on(database, [stream])
        return ResumePoint(stream.highest, stream.chain)

    def _link_origins(
        self, database: sqlite3.Connection, stream: StoredStream, device_id: str, origins: Sequence[Origin]
    ) -> None:
        """Note which stored uploads a new stream may repeat, and record acknowledged ones that this file lacks.

        A device that goes back to the older epoch repeats them under their older numbers.
        """
        for origin in origins:
            older = sqlite_streams.find(database, (device_id, origin.epoch))
            highest = older.highest if older else 0
            if highest < origin.acked:
                self._record_restore(database, device_id, origin.epoch, highest, origin.acked)
            # Uploads of the older epoch may have arrived and not be stored yet.
            older = older or sqlite_streams.add(database, (device_id, origin.epoch))
            values = (stream.number, older.number, origin.offset, origin.upto)
            database.execute("INSERT INTO origins VALUES (?, ?, ?, ?)", values)
            stream.moved = max(stream.moved, origin.upto)
            if origin.upto:
                moved = max(older.moved, origin.offset + origin.upto)
                database.execute("UPDATE streams SET moved = ? WHERE stream = ?", (moved, older.number))
        if origins:
            self._known.remove_all()  # others are related to this one now
        database.execute("UPDATE streams SET moved = ? WHERE stream = ?", (stream.moved, stream.number))

    def _record_restore(
        self, database: sqlite3.Connection, device_id: str, epoch: str, highest: int, acked: int
    ) -> None:
        loss = Loss(epoch, highest + 1, acked, LossCause.CLOUD_RESTORED)
        self._record(database, RecordedLoss(device_id, loss, int(self.clock.time() * 1000)))

    def _record(self, database: sqlite3.Connection, recorded: RecordedLoss) -> None:
        if sqlite_losses.record(database, recorded):
            _LOG.error("received uploads in %s: device %r: %s", self.path, recorded.device_id, recorded.loss)


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # an extended code's low byte


def _bring_up_to_date(database: sqlite3.Connection) -> None:
    """Index all uploads, in a transaction that is not synced."""
    if sqlite_index.is_behind(database):
        with transaction(database, durable=False):
            sqlite_index.catch_up(database)


def _values(batch: SortedBatch) -> list[object]:
    """Return the values of `_INSERT`: the payload is behind the others, so that they are read without it."""
    values: list[object] = []
    for stream, chain, topic, received in zip(batch.streams, batch.chains, batch.topics, batch.fresh, strict=True):
        _, _, seq, _, payload, sent_ms, received_ms, packed, version = received
        values += (stream, seq, chain, sent_ms, received_ms, topic, packed or payload, 1 if packed else 0, version)
    return values
