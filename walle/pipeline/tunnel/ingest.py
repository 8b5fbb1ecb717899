"""Durable, de-duplicated receipt of uploads in the cloud: each feature once, on disk before it is acknowledged.

One SQLite file holds the features and, for each (device, epoch), the highest stored number. Both change in one
transaction per batch, so that uploads that a device repeats after a crash on either side are recognised and dropped.
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
from walle.pipeline.tunnel.server import Received

_LOG = logging.getLogger(__name__)

type StreamKey = tuple[str, str]  # device_id, epoch

_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    stream INTEGER PRIMARY KEY, device_id TEXT NOT NULL, epoch TEXT NOT NULL, highest INTEGER NOT NULL,
    UNIQUE (device_id, epoch)
);
CREATE TABLE IF NOT EXISTS uploads (
    position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq INTEGER NOT NULL, topic TEXT NOT NULL,
    payload BLOB NOT NULL, sent_ms INTEGER NOT NULL, received_ms INTEGER NOT NULL,
    UNIQUE (stream, seq)
);
CREATE INDEX IF NOT EXISTS uploads_by_topic ON uploads (topic);
"""
_FORMAT = 1  # of this schema, in PRAGMA user_version
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


class Ingest:
    """The received uploads in one SQLite file at `path`, which is created if it does not exist.

    Used within `async with`, or between `start` and `close`. A cancelled call may still take effect; a batch is stored
    whole or not at all. One process at a time may have the file open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # The thread ends with the object or the program. SQLite requires that one thread uses a connection.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="walle-ingest")
        self._database: sqlite3.Connection | None = None
        self._reader_thread = ThreadPoolExecutor(1, thread_name_prefix="walle-ingest-reader")
        self._reader: sqlite3.Connection | None = None  # made by the first query
        self._streams: dict[StreamKey, tuple[int, int]] = {}  # row number and highest seq, as committed

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
        dropped; those after a missing one are not stored. `highest` has every (device, epoch) of the batch.

        Raises:
            IngestError: nothing of the batch is stored.
        """
        return await self._run(lambda database: self._accept(database, batch))

    async def acked(self, device_id: str, epoch: str) -> int:
        """Return the highest durable number, 0 if there is none."""
        query = "SELECT highest FROM streams WHERE device_id = ? AND epoch = ?"
        row = await self._run(lambda database: database.execute(query, (device_id, epoch)).fetchone())
        return cast("int", row[0]) if row else 0

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
            self._check_format(database)
            with _transaction(database):
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {_FORMAT}")
        except BaseException:
            database.close()
            raise
        self._database = database
        self._streams.clear()

    def _check_format(self, database: sqlite3.Connection) -> None:
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found not in (0, _FORMAT):
            raise IngestError(self.path, f"has format {found}, this version of walle reads {_FORMAT}")

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _accept(self, database: sqlite3.Connection, batch: Sequence[Received]) -> Accepted:
        highest: dict[StreamKey, int] = {}
        streams: dict[StreamKey, int] = {}
        fresh: list[Received] = []
        rows: list[tuple[object, ...]] = []
        with _transaction(database):
            for received in batch:
                key = received[:2]
                if key not in streams:
                    streams[key], highest[key] = self._streams.get(key) or _stream(database, key)
                if received.seq == highest[key] + 1:
                    highest[key] += 1
                    fresh.append(received)
                    rows.append((streams[key], *received[2:]))
            _insert(database, rows)
            database.executemany(
                "UPDATE streams SET highest = ? WHERE stream = ?", [(highest[key], streams[key]) for key in streams]
            )
        if len(self._streams) > _STREAMS_KEPT:
            self._streams.clear()
        self._streams.update((key, (streams[key], highest[key])) for key in streams)
        return Accepted(highest, fresh)


def _insert(database: sqlite3.Connection, rows: list[tuple[object, ...]]) -> None:
    """Insert uploads, _ROWS_PER_STATEMENT in each statement.

    SQLite releases the interpreter lock around each statement, and the server's thread holds it most of the time.
    """
    insert = "INSERT INTO uploads (stream, seq, topic, payload, sent_ms, received_ms) VALUES "
    whole = len(rows) - len(rows) % _ROWS_PER_STATEMENT
    for first in range(0, whole, _ROWS_PER_STATEMENT):
        values = list(itertools.chain.from_iterable(rows[first : first + _ROWS_PER_STATEMENT]))
        database.execute(insert + ", ".join(["(?, ?, ?, ?, ?, ?)"] * _ROWS_PER_STATEMENT), values)
    database.executemany(insert + "(?, ?, ?, ?, ?, ?)", rows[whole:])


def _stream(database: sqlite3.Connection, key: StreamKey) -> tuple[int, int]:
    """Return the row number and the highest seq of a (device, epoch); insert a new one."""
    row = database.execute("SELECT stream, highest FROM streams WHERE device_id = ? AND epoch = ?", key).fetchone()
    if row:
        return cast("tuple[int, int]", row)
    added = database.execute("INSERT INTO streams (device_id, epoch, highest) VALUES (?, ?, 0)", key)
    return cast("int", added.lastrowid), 0


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
