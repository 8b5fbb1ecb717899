"""Durable, de-duplicated receipt of uploads in the cloud: each feature once, on disk before it is acknowledged.

One SQLite file holds the features and, for each (device, epoch), the highest stored number and the chain value there.
Both change in one transaction per batch, so that uploads that a device repeats after a crash on either side are
recognised and dropped. A device that starts a new epoch repeats its unsent uploads in it: those that are stored already
under the older epoch are dropped too. What was lost on either side is in `Ingest.losses`.
SQLite runs in its own thread; a batch costs one hop to it. Queries run in another, on a connection of their own: in WAL
mode they delay no commit. `synchronous=FULL`: an acknowledged feature survives a power cut.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol, Self, cast

from walle.clock import Clock, SystemClock
from walle.errors import PipelineError
from walle.pipeline.checksums import CHAIN_MODULUS, first_link, next_link, row_checksum
from walle.pipeline.losses import LOSS_TOPIC, Loss, LossCause, LossError
from walle.pipeline.tunnel.server import Received, ResumePoint
from walle.protocol import MAX_SEQ, Hello, Origin, ProtocolError, origins_from_text

_LOG = logging.getLogger(__name__)

type StreamKey = tuple[str, str]  # device_id, epoch

_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    stream INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, highest INTEGER NOT NULL,
    chain INTEGER NOT NULL, moved INTEGER NOT NULL DEFAULT 0,
    UNIQUE (device_id, epoch)
);
CREATE TABLE IF NOT EXISTS origins (
    stream INTEGER NOT NULL, origin INTEGER NOT NULL, seq_offset INTEGER NOT NULL, upto INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS origins_by_stream ON origins (stream);
CREATE INDEX IF NOT EXISTS origins_by_origin ON origins (origin);
CREATE TABLE IF NOT EXISTS uploads (
    position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq INTEGER NOT NULL, topic TEXT NOT NULL,
    payload BLOB NOT NULL, sent_ms INTEGER NOT NULL, received_ms INTEGER NOT NULL,
    UNIQUE (stream, seq)
);
CREATE TABLE IF NOT EXISTS losses (
    loss INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, first_seq INTEGER NOT NULL,
    last_seq INTEGER, cause TEXT NOT NULL, recorded_ms INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS losses_once ON losses (device_id, epoch, first_seq, ifnull(last_seq, -1), cause);
CREATE INDEX IF NOT EXISTS uploads_by_topic ON uploads (topic);
"""
_FORMAT = 2  # of this schema, in PRAGMA user_version
_ROWS_PER_STATEMENT = 32
_STREAMS_KEPT = 50_000  # in memory
_TRANSIENT = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY}


class IngestError(PipelineError):
    """The file of received uploads cannot be read or written.

    `may_pass`: the disk is full or busy; a retry may succeed.
    """

    def __init__(self, path: Path, what: str, *, may_pass: bool = False) -> None:
        super().__init__(f"received uploads in {path}: {what}")
        self.path = path
        self.may_pass = may_pass


class Accepted(NamedTuple):
    """The result of one batch: numbers to acknowledge, and the uploads that are new, in order."""

    highest: dict[StreamKey, int]
    fresh: list[Received]


class RecordedLoss(NamedTuple):
    """A loss of a device's uploads, and when this file recorded it, by the cloud's clock."""

    device_id: str
    loss: Loss
    recorded_ms: int


@dataclasses.dataclass(slots=True)
class _Stream:
    """The row of one (device, epoch). Uploads up to `moved` may be stored already under numbers of other epochs."""

    number: int
    highest: int
    chain: int
    moved: int


class Ingest:
    """The received uploads in one SQLite file at `path`, which is created if it does not exist.

    Used within `async with`, or between `start` and `close`. A cancelled call may still take effect; a batch is stored
    whole or not at all. One process at a time may have the file open.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        # The thread ends with the object or the program. SQLite requires that one thread uses a connection.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="walle-ingest")
        self._database: sqlite3.Connection | None = None
        self._reader_thread = ThreadPoolExecutor(1, thread_name_prefix="walle-ingest-reader")
        self._reader: sqlite3.Connection | None = None  # made by the first query
        # Rows as committed. A transaction takes those that it changes out, so that none of a failed one stays.
        self._streams: dict[StreamKey, _Stream] = {}

    async def start(self) -> None:
        """Open the file. Raises IngestError if it cannot be opened or has another format."""
        await self._in_thread(self._open)

    async def close(self) -> None:
        """Wait for running calls and close the file. May be called twice; `start` may follow."""
        await self._in_thread(self._close_reader, self._reader_thread)
        await self._in_thread(self._close)

    async def reopen(self) -> None:
        """Close the file and open what is at its path now. Raises IngestError as `start`."""
        with contextlib.suppress(IngestError):
            await self.close()
        await self.start()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def accept(self, batch: Sequence[Received]) -> Accepted:
        """Store the new uploads of `batch` in one transaction and return the numbers to acknowledge.

        In each (device, epoch), numbers go up by one from the highest stored. Lower ones are duplicates and are
        dropped; those after a missing one are not stored. `highest` has every (device, epoch) of the batch. Reports of
        lost uploads are recorded, and are not among the new uploads.

        Raises:
            IngestError: nothing of the batch is stored.
        """
        return await self._run(lambda database: self._accept(database, batch))

    async def acked(self, device_id: str, epoch: str) -> int:
        """Return the highest durable number, 0 if there is none."""
        query = "SELECT highest FROM streams WHERE device_id = ? AND epoch = ?"
        row = await self._run(lambda database: database.execute(query, (device_id, epoch)).fetchone())
        return cast("int", row[0]) if row else 0

    async def resume(self, hello: Hello) -> ResumePoint:
        """Return where a device's uploads continue: its highest durable number, and the chain value there.

        If this file went back in time, so that the device's uploads up to `hello.acked` are not all here, they are
        recorded as lost, and the numbers continue after them. If the device went back to before an epoch that this file
        knows, that epoch's uploads are recorded as lost: the device makes them again, or does not have them.

        Raises:
            ProtocolError: the Hello holds values that no device sends.
            IngestError: the file cannot be read or written.
        """
        origins = origins_from_text(hello.origins)
        if not 0 <= hello.acked <= MAX_SEQ or not 0 <= hello.acked_chain < CHAIN_MODULUS:
            raise ProtocolError("hello.acked", f"{hello.acked} with chain {hello.acked_chain} is out of range")
        return await self._run(lambda database: self._resume(database, hello, origins))

    async def losses(self, device_id: str | None = None) -> list[RecordedLoss]:
        """Return the recorded losses, of one device or of all, oldest first."""
        query = "SELECT device_id, epoch, first_seq, last_seq, cause, recorded_ms FROM losses"
        values = [] if device_id is None else [device_id]
        query += " WHERE device_id = ?" * len(values) + " ORDER BY loss"
        rows = await self._read(lambda database: database.execute(query, values).fetchall())
        return [RecordedLoss(row[0], Loss(row[1], row[2], row[3], LossCause(row[4])), row[5]) for row in rows]

    async def count(self) -> int:
        """Return how many uploads are stored."""
        row = await self._read(lambda database: database.execute("SELECT count(*) FROM uploads").fetchone())
        return cast("int", row[0])

    async def query(
        self, *, device_id: str | None = None, topic: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[tuple[int, Received]]:
        """Return at most `limit` uploads after position `after`, with their positions, in the order they were stored.

        To continue, pass the last position as `after`.
        """
        of_device = " AND stream IN (SELECT stream FROM streams WHERE device_id = ?)" * (device_id is not None)
        of_topic = " AND topic = ?" * (topic is not None)
        # CROSS JOIN keeps the order of the loops: the index of `uploads` first, which yields the positions in order.
        query = (
            "SELECT position, device_id, epoch, seq, topic, payload, sent_ms, received_ms"  # noqa: S608 - made of constants
            f" FROM uploads CROSS JOIN streams USING (stream) WHERE position > ?{of_device}{of_topic}"
            " ORDER BY position LIMIT ?"
        )
        values = [value for value in (after, device_id, topic, limit) if value is not None]
        return await self._read(
            lambda database: [(row[0], Received(*row[1:])) for row in database.execute(query, values)]
        )

    # --- in the threads ---

    async def _run[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        def on_open_database() -> T:
            if self._database is None:
                raise IngestError(self.path, "is not open")
            return work(self._database)

        return await self._in_thread(on_open_database)

    async def _read[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        def on_reader() -> T:
            if self._database is None:
                raise IngestError(self.path, "is not open")
            if self._reader is None:
                self._reader = sqlite3.connect(self.path, isolation_level=None, timeout=5.0)
                self._reader.execute("PRAGMA query_only = ON")
            return work(self._reader)

        return await self._in_thread(on_reader, self._reader_thread)

    async def _in_thread[T](self, work: Callable[[], T], thread: ThreadPoolExecutor | None = None) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread or self._thread, work)
        except sqlite3.Error as error:
            primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # an extended code's low byte
            raise IngestError(self.path, str(error), may_pass=primary in _TRANSIENT) from error

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, isolation_level=None, timeout=5.0)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            # 32 MB: a checkpoint delays commits by milliseconds, so it should be rare.
            database.execute("PRAGMA wal_autocheckpoint = 8000")
            found = self._check_format(database)
            with _transaction(database):
                if found == 1:
                    _migrate(database)
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {_FORMAT}")
        except BaseException:
            database.close()
            raise
        self._database = database
        self._streams.clear()

    def _check_format(self, database: sqlite3.Connection) -> int:
        found = cast("int", database.execute("PRAGMA user_version").fetchone()[0])
        if not 0 <= found <= _FORMAT:
            raise IngestError(self.path, f"has format {found}, this version of walle reads 1 to {_FORMAT}")
        return found

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _accept(self, database: sqlite3.Connection, batch: Sequence[Received]) -> Accepted:
        streams: dict[StreamKey, _Stream] = {}
        fresh: list[Received] = []
        rows: list[tuple[object, ...]] = []
        with _transaction(database):
            for received in batch:
                key = received[:2]
                stream = streams.get(key)
                if stream is None:
                    stream = streams[key] = self._take(database, key)
                if received.seq != stream.highest + 1:
                    continue
                stream.highest += 1
                checksum = row_checksum(received.topic, received.payload, received.sent_ms)
                stream.chain = next_link(stream.chain, checksum)
                if received.topic == LOSS_TOPIC:
                    self._record_report(database, received)
                    continue
                if received.seq <= stream.moved:
                    _insert(database, rows)  # the upload may be in this batch under its older number
                    if _has_elsewhere(database, stream.number, received):
                        continue
                fresh.append(received)
                rows.append((stream.number, *received[2:]))
            _insert(database, rows)
            database.executemany(
                "UPDATE streams SET highest = ?, chain = ? WHERE stream = ?",
                [(stream.highest, stream.chain, stream.number) for stream in streams.values()],
            )
        if len(self._streams) > _STREAMS_KEPT:
            self._streams.clear()
        self._streams.update(streams)
        return Accepted({key: stream.highest for key, stream in streams.items()}, fresh)

    def _take(self, database: sqlite3.Connection, key: StreamKey) -> _Stream:
        """Remove a row from those in memory and return it; else read it, or add a new one."""
        if key in self._streams:
            return self._streams.pop(key)
        return _find(database, key) or _add(database, key)

    def _resume(self, database: sqlite3.Connection, hello: Hello, origins: Sequence[Origin]) -> ResumePoint:
        key = (hello.device_id, hello.epoch)
        stream = _find(database, key)
        if stream is None and not origins and hello.acked == 0:  # stored with its first upload
            return ResumePoint(0, first_link(hello.epoch))
        abandoned = self._abandoned(database, hello, origins)
        if stream is None or stream.highest < hello.acked or abandoned:
            self._streams.pop(key, None)
            with _transaction(database):
                if stream is None:
                    stream = _add(database, key)
                    self._link_origins(database, stream, hello.device_id, origins)
                for loss in abandoned:
                    self._record(database, hello.device_id, loss, int(self._clock.time() * 1000))
                if stream.highest < hello.acked:
                    self._record_restore(database, hello.device_id, hello.epoch, stream.highest, hello.acked)
                    stream.highest, stream.chain = hello.acked, hello.acked_chain
                    database.execute(
                        "UPDATE streams SET highest = ?, chain = ? WHERE stream = ?",
                        (stream.highest, stream.chain, stream.number),
                    )
        return ResumePoint(stream.highest, stream.chain)

    def _abandoned(self, database: sqlite3.Connection, hello: Hello, origins: Sequence[Origin]) -> list[Loss]:
        """Return the losses of epochs that continue one of this Hello's and are not among them, if not recorded yet.

        The device had them, and went back to before they began. Uploads that they took over are known by contents.
        """
        epochs = [hello.epoch, *(origin.epoch for origin in origins)]
        marks = ", ".join("?" * len(epochs))
        query = (
            "SELECT epoch, max(upto) FROM origins JOIN streams USING (stream)"  # noqa: S608 - made of constants
            f" WHERE origin IN (SELECT stream FROM streams WHERE device_id = ? AND epoch IN ({marks}))"
            f" AND epoch NOT IN ({marks}) GROUP BY epoch"
        )
        losses = [
            Loss(epoch, upto + 1, None, LossCause.DEVICE_RESTORED)
            for epoch, upto in database.execute(query, (hello.device_id, *epochs, *epochs))
        ]
        known = "SELECT 1 FROM losses WHERE device_id = ? AND epoch = ? AND first_seq <= ? AND last_seq IS NULL"
        return [
            loss
            for loss in losses
            if database.execute(known, (hello.device_id, loss.epoch, loss.first_seq)).fetchone() is None
        ]

    def _link_origins(
        self, database: sqlite3.Connection, stream: _Stream, device_id: str, origins: Sequence[Origin]
    ) -> None:
        """Note which stored uploads a new stream may repeat, and record acknowledged ones that this file lacks.

        A device that goes back to the older epoch repeats them under their older numbers.
        """
        for origin in origins:
            older = _find(database, (device_id, origin.epoch))
            highest = older.highest if older else 0
            if highest < origin.acked:
                self._record_restore(database, device_id, origin.epoch, highest, origin.acked)
            # Uploads of the older epoch may have arrived and not be stored yet.
            older = older or _add(database, (device_id, origin.epoch))
            values = (stream.number, older.number, origin.offset, origin.upto)
            database.execute("INSERT INTO origins VALUES (?, ?, ?, ?)", values)
            stream.moved = max(stream.moved, origin.upto)
            if origin.upto:
                self._streams.pop((device_id, origin.epoch), None)
                moved = max(older.moved, origin.offset + origin.upto)
                database.execute("UPDATE streams SET moved = ? WHERE stream = ?", (moved, older.number))
        database.execute("UPDATE streams SET moved = ? WHERE stream = ?", (stream.moved, stream.number))

    def _record_restore(
        self, database: sqlite3.Connection, device_id: str, epoch: str, highest: int, acked: int
    ) -> None:
        loss = Loss(epoch, highest + 1, acked, LossCause.CLOUD_RESTORED)
        self._record(database, device_id, loss, int(self._clock.time() * 1000))

    def _record_report(self, database: sqlite3.Connection, received: Received) -> None:
        try:
            loss = Loss.decode(received.payload)
        except LossError as error:
            _LOG.warning("device %r: %s", received.device_id, error)
        else:
            self._record(database, received.device_id, loss, received.received_ms)

    def _record(self, database: sqlite3.Connection, device_id: str, loss: Loss, now_ms: int) -> None:
        values = (device_id, loss.epoch, loss.first_seq, loss.last_seq, loss.cause.value, now_ms)
        added = database.execute(
            "INSERT OR IGNORE INTO losses (device_id, epoch, first_seq, last_seq, cause, recorded_ms)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            values,
        )
        if added.rowcount:
            _LOG.error("received uploads in %s: device %r: %s", self.path, device_id, loss)


def _find(database: sqlite3.Connection, key: StreamKey) -> _Stream | None:
    query = "SELECT stream, highest, chain, moved FROM streams WHERE device_id = ? AND epoch = ?"
    row = database.execute(query, key).fetchone()
    return _Stream(*row) if row else None


def _add(database: sqlite3.Connection, key: StreamKey) -> _Stream:
    chain = first_link(key[1])
    insert = "INSERT INTO streams (device_id, epoch, highest, chain) VALUES (?, ?, 0, ?)"
    return _Stream(cast("int", database.execute(insert, (*key, chain)).lastrowid), 0, chain, 0)


def _has_elsewhere(database: sqlite3.Connection, stream: int, received: Received) -> bool:
    """Return whether an upload of the same place in another epoch has the same contents.

    That is an origin of this epoch, an epoch that continues it, or one that continues the same origin.
    """
    same = "topic = ?3 AND payload = ?4 AND sent_ms = ?5"
    query = (
        "SELECT 1 FROM origins JOIN uploads ON uploads.stream = origin AND seq = seq_offset + ?1"  # noqa: S608 - constants
        f" WHERE origins.stream = ?2 AND upto >= ?1 AND {same}"
        " UNION ALL SELECT 1 FROM origins AS later JOIN uploads ON uploads.stream = later.stream"
        f" AND seq = ?1 - later.seq_offset AND seq <= later.upto WHERE later.origin = ?2 AND {same}"
        " UNION ALL SELECT 1 FROM origins AS own JOIN origins AS other ON other.origin = own.origin"
        " JOIN uploads ON uploads.stream = other.stream AND seq = ?1 + own.seq_offset - other.seq_offset"
        f" AND seq <= other.upto WHERE own.stream = ?2 AND own.upto >= ?1 AND other.stream != ?2 AND {same}"
    )
    values = (received.seq, stream, received.topic, received.payload, received.sent_ms)
    return database.execute(query, values).fetchone() is not None


def _insert(database: sqlite3.Connection, rows: list[tuple[object, ...]]) -> None:
    """Insert uploads, _ROWS_PER_STATEMENT in each statement, and empty the list.

    SQLite releases the interpreter lock around each statement, and the server's thread holds it most of the time.
    """
    insert = "INSERT INTO uploads (stream, seq, topic, payload, sent_ms, received_ms) VALUES "
    whole = len(rows) - len(rows) % _ROWS_PER_STATEMENT
    for first in range(0, whole, _ROWS_PER_STATEMENT):
        values = list(itertools.chain.from_iterable(rows[first : first + _ROWS_PER_STATEMENT]))
        database.execute(insert + ", ".join(["(?, ?, ?, ?, ?, ?)"] * _ROWS_PER_STATEMENT), values)
    database.executemany(insert + "(?, ?, ?, ?, ?, ?)", rows[whole:])
    rows.clear()


def _migrate(database: sqlite3.Connection) -> None:
    """Bring a file of format 1 to this format: compute the chain values, which it lacks, from all uploads."""
    database.execute("ALTER TABLE streams ADD COLUMN chain INTEGER NOT NULL DEFAULT 0")
    database.execute("ALTER TABLE streams ADD COLUMN moved INTEGER NOT NULL DEFAULT 0")
    for stream, epoch in database.execute("SELECT stream, epoch FROM streams").fetchall():
        chain = first_link(epoch)
        query = "SELECT topic, payload, sent_ms FROM uploads WHERE stream = ? ORDER BY seq"
        for topic, payload, sent_ms in database.execute(query, (stream,)):
            chain = next_link(chain, row_checksum(topic, payload, sent_ms))
        database.execute("UPDATE streams SET chain = ? WHERE stream = ?", (chain, stream))


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # a full disk may have rolled back already
            database.execute("ROLLBACK")
        raise


@dataclasses.dataclass(kw_only=True)
class PumpStatus:
    """The state of a pump. `error` is the reason why uploads are not stored now, empty while they are."""

    is_running: bool = False
    error: str = ""
    failures: int = 0  # since the latest stored batch
    total_failures: int = 0
    stored: int = 0  # new uploads

    @property
    def is_storing(self) -> bool:
        return self.is_running and not self.error

    def failed(self, error: BaseException) -> None:
        self.error = str(error) or type(error).__name__
        self.failures += 1
        self.total_failures += 1

    def succeeded(self, uploads: int) -> None:
        self.error = ""
        self.failures = 0
        self.stored += uploads


class UploadSource(Protocol):
    """The interface of a tunnel server that `pump` uses."""

    async def arrived(self, limit: int) -> list[Received]: ...
    def put_back(self, batch: list[Received]) -> None: ...
    async def acknowledge(self, device_id: str, epoch: str, seq: int) -> None: ...
    async def disconnect(self, device_id: str, epoch: str, code: str, message: str, retry_s: float) -> None: ...


async def pump(
    server: UploadSource,
    ingest: Ingest,
    *,
    consumer: Callable[[list[Received]], Awaitable[None]] | None = None,
    batch_limit: int = 1000,
    retry_s: float = 1.0,
    clock: Clock | None = None,
    status: PumpStatus | None = None,
) -> None:
    """Store what arrives, acknowledge it, then pass new uploads to `consumer`; return when the server is closed.

    Everything that arrives during one commit goes into the next, up to `batch_limit`. While the disk is full nothing is
    acknowledged, the server's queue fills, devices wait, and the batch is retried every `retry_s`. A consumer gets an
    upload once, and not again after a crash: `Ingest.query` returns what it missed. An exception of the consumer is
    logged; a slow consumer slows the devices down. On cancellation or failure, what was not stored is put back.
    `status` is kept true.

    Raises:
        IngestError: the file cannot be used, and a retry would fail too.
    """
    clock = clock or SystemClock()
    status = status or PumpStatus()
    while batch := await server.arrived(batch_limit):
        try:
            accepted = await _store(ingest, batch, retry_s, clock, status)
        except BaseException:
            server.put_back(batch)
            raise
        status.succeeded(len(accepted.fresh))
        sent = {received[:2]: received.seq for received in batch}
        for (device_id, epoch), highest in accepted.highest.items():
            await server.acknowledge(device_id, epoch, highest)
            if highest < sent[device_id, epoch]:  # a batch was lost between the server and the file
                what = f"uploads after {highest} were lost here before they were stored; send them again"
                await server.disconnect(device_id, epoch, "lost", what, 0.0)
        if consumer is not None and accepted.fresh:
            try:
                await consumer(accepted.fresh)
            except Exception:  # noqa: BLE001 - a failing consumer does not stop the storing
                _LOG.exception("the consumer of uploads failed at %d of them", len(accepted.fresh))


async def _store(ingest: Ingest, batch: list[Received], retry_s: float, clock: Clock, status: PumpStatus) -> Accepted:
    tries = 0
    while True:
        try:
            accepted = await ingest.accept(batch)
        except IngestError as error:
            if not error.may_pass:
                raise
            if tries == 0:
                _LOG.error("%s; nothing is acknowledged, trying again every %s s", error, retry_s)
            tries += 1
            status.failed(error)
            await clock.sleep(retry_s)
        else:
            if tries:
                _LOG.warning("received uploads are stored again after %d tries", tries)
            return accepted
