"""The SQLite file of a device's features, outbox and stream position. Blocking; used by one thread.

Every write is one transaction over all three, so that they always agree. `synchronous` is FULL: a transaction is on the
medium before it counts as written. With NORMAL a power cut may undo transactions whose outbox rows the cloud has
already acknowledged; their numbers would be assigned again, and the cloud would drop the new rows.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from walle.errors import PipelineError
from walle.protocol import Upload

_SCHEMA_VERSION = 2
_APPLICATION_ID = 0x57414C4C  # "WALL"
_SCHEMA = """
CREATE TABLE features (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, ts_ms INTEGER NOT NULL, position INTEGER NOT NULL,
    payload BLOB NOT NULL, size_bytes INTEGER AS (length(topic) + length(payload) + 32));
CREATE INDEX features_by_topic ON features (topic, id);
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, created_ms INTEGER NOT NULL,
    size_bytes INTEGER AS (length(topic) + length(payload) + 32));
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), epoch TEXT NOT NULL, last_seq INTEGER NOT NULL,
    position INTEGER NOT NULL, resume_from INTEGER NOT NULL);
"""
_SCHEMA_2 = """
CREATE TABLE lagging (task TEXT PRIMARY KEY, position INTEGER NOT NULL);
CREATE TABLE cut_visits (position INTEGER NOT NULL, page_ids TEXT NOT NULL);
"""
ROW_OVERHEAD_BYTES = 32  # of a row beside its topic and payload, about; the schema has it too


class StoreError(PipelineError):
    """A request that the feature store cannot fulfil. `path` is its file."""

    def __init__(self, path: pathlib.Path, what: str) -> None:
        super().__init__(f"feature store {path}: {what}")
        self.path = path


class StoreFullError(StoreError):
    """The disk is full. What was put stays in memory and is written once there is room."""


class StoreCorruptError(StoreError):
    """The file is damaged, or is not a feature store. It is left unchanged."""


class StoreLockedError(StoreError):
    """Another process, or another store in this one, has the file open."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A stored output. `payload` is `walle.plain` bytes, `position` that of the event it came from, -1 for none."""

    id: int
    topic: str
    ts_ms: int
    position: int
    payload: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A feature to write; `upload` puts it into the outbox too."""

    topic: str
    payload: bytes
    ts_ms: int
    position: int
    upload: bool

    @property
    def size_bytes(self) -> int:
        return len(self.topic) + len(self.payload) + ROW_OVERHEAD_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayState:
    """The state of a stream that a replay from `resume_from` cannot restore.

    `lagging`: the tasks that are behind the stream's position, each with the position up to which its outputs are put.
    `cut_visits`: `PageSequence.cut_before` the position `cut_position`, None for the stream's next position.
    """

    lagging: Mapping[str, int] = dataclasses.field(default_factory=dict)
    cut_visits: Sequence[str] = ()
    cut_position: int | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class StoreState:
    """The file's state beside its rows."""

    epoch: str
    last_seq: int
    position: int
    resume_from: int
    outbox_bytes: int
    replay: ReplayState


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on the features that are kept; the transaction that exceeds one removes the oldest."""

    rows_per_topic: int = 10_000
    rows: int = 100_000
    size_bytes: int = 64 << 20


@dataclasses.dataclass(slots=True)
class _Kept:
    """Counts of the feature table."""

    rows: dict[str, int]  # by topic
    total_rows: int
    size_bytes: int

    def add(self, row: Row) -> None:
        self.rows[row.topic] = self.rows.get(row.topic, 0) + 1
        self.total_rows += 1
        self.size_bytes += row.size_bytes

    def remove(self, rows: Sequence[tuple[str, int]]) -> None:
        for topic, size_bytes in rows:
            self.rows[topic] -= 1
            if not self.rows[topic]:
                del self.rows[topic]
            self.size_bytes -= size_bytes
        self.total_rows -= len(rows)


class StoreDatabase:
    """One open file, until `close`.

    Raises:
        StoreLockedError, StoreCorruptError, StoreFullError: see each.
        StoreError: the file cannot be opened, or a newer walle made it.
    """

    def __init__(self, path: pathlib.Path, bounds: Bounds) -> None:
        self.path = path
        self._bounds = bounds
        with contextlib.ExitStack() as stack:
            self._lock = self._take_lock()
            stack.callback(os.close, self._lock)
            with self._clear_errors():
                # SQLite's own lock lasts one transaction; the lock file keeps others out between them.
                self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                stack.callback(self._db.close)
                self._prepare()
                self.state = self._read_state()
                self._kept = self._read_kept()
            stack.pop_all()

    def _take_lock(self) -> int:
        try:
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(self.path, f"cannot be opened ({error.strerror}); check that its folder exists") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise StoreLockedError(
                self.path, "is open elsewhere; stop the other process, or give this device another folder"
            ) from error
        return lock

    def _prepare(self) -> None:
        db = self._db
        version = db.execute("PRAGMA user_version").fetchone()[0]
        made_by = db.execute("PRAGMA application_id").fetchone()[0]
        empty = not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not empty and made_by != _APPLICATION_ID:
            raise StoreCorruptError(self.path, "is a database, but not a feature store; name another file")
        if not empty and not 1 <= version <= _SCHEMA_VERSION:
            raise StoreError(self.path, f"has format {version}, this walle reads {_SCHEMA_VERSION}; install its walle")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA journal_size_limit = 4194304")
        if empty:
            with self._transaction():
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO state VALUES (1, ?, 0, -1, 0)", (secrets.token_hex(16),))
                db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        if version < 2:
            with self._transaction():
                for statement in _SCHEMA_2.split(";"):
                    db.execute(statement)
                db.execute("PRAGMA user_version = 2")
        problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)

    def _read_state(self) -> StoreState:
        found = self._db.execute("SELECT epoch, last_seq, position, resume_from FROM state").fetchone()
        if found is None:
            raise sqlite3.DatabaseError("the state row is gone")
        outbox_bytes = self._db.execute("SELECT coalesce(sum(size_bytes), 0) FROM outbox").fetchone()[0]
        epoch, last_seq, position, resume_from = found
        return StoreState(
            epoch=epoch,
            last_seq=last_seq,
            position=position,
            resume_from=resume_from,
            outbox_bytes=outbox_bytes,
            replay=self._read_replay(),
        )

    def _read_replay(self) -> ReplayState:
        lagging = dict(self._db.execute("SELECT task, position FROM lagging").fetchall())
        cut_position, page_ids = self._db.execute("SELECT position, page_ids FROM cut_visits").fetchone() or (-1, "[]")
        return ReplayState(lagging, tuple(json.loads(page_ids)), None if cut_position < 0 else cut_position)

    def _read_kept(self) -> _Kept:
        found = self._db.execute("SELECT topic, count(*), sum(size_bytes) FROM features GROUP BY topic").fetchall()
        rows = {topic: count for topic, count, _ in found}
        return _Kept(rows, sum(rows.values()), sum(size_bytes for _, _, size_bytes in found))

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Convert SQLite's errors into StoreError."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise StoreFullError(self.path, f"cannot be written ({error}); make room on its disk") from error
            if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                raise StoreError(self.path, f"cannot be read or written ({error}); check its disk") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreLockedError(self.path, f"is held by another program ({error}); close it") from error
            raise StoreCorruptError(
                self.path,
                f"is damaged ({error}); to start empty, move it away with its -wal file (unsent uploads are in it)",
            ) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def write(
        self,
        rows: Sequence[Row],
        position: int,
        resume_from: int,
        forget_upto: int,
        replay: ReplayState | None = None,
    ) -> None:
        """Add the rows, move the positions, and drop outbox rows up to and with `forget_upto`, in one transaction."""
        uploads = [row for row in rows if row.upload]
        first_seq = self.state.last_seq + 1
        last_seq = self.state.last_seq + len(uploads)
        kept = dataclasses.replace(self._kept, rows=dict(self._kept.rows))
        for row in rows:
            kept.add(row)
        with self._clear_errors(), self._transaction():
            db = self._db
            db.executemany(
                "INSERT INTO features (topic, ts_ms, position, payload) VALUES (?, ?, ?, ?)",
                [(row.topic, row.ts_ms, row.position, row.payload) for row in rows],
            )
            db.executemany(
                "INSERT INTO outbox VALUES (?, ?, ?, ?)",
                [(first_seq + index, row.topic, row.payload, row.ts_ms) for index, row in enumerate(uploads)],
            )
            forgotten = db.execute(
                "SELECT coalesce(sum(size_bytes), 0) FROM outbox WHERE seq <= ?", (forget_upto,)
            ).fetchone()[0]
            db.execute("DELETE FROM outbox WHERE seq <= ?", (forget_upto,))
            self._retain(kept, {row.topic for row in rows})
            if replay is not None and replay != self.state.replay:
                db.execute("DELETE FROM lagging")
                db.executemany("INSERT INTO lagging VALUES (?, ?)", replay.lagging.items())
                db.execute("DELETE FROM cut_visits")
                position_or_none = -1 if replay.cut_position is None else replay.cut_position
                db.execute("INSERT INTO cut_visits VALUES (?, ?)", (position_or_none, json.dumps(replay.cut_visits)))
            db.execute(
                "UPDATE state SET last_seq = ?, position = ?, resume_from = ?", (last_seq, position, resume_from)
            )
        self._kept = kept
        self.state.last_seq = last_seq
        self.state.position = position
        self.state.resume_from = resume_from
        if replay is not None:
            self.state.replay = replay
        self.state.outbox_bytes += sum(row.size_bytes for row in uploads) - forgotten

    def _retain(self, kept: "_Kept", touched: set[str]) -> None:
        """Remove the oldest rows beyond the bounds, inside the transaction, and update `kept`."""
        for topic in touched:
            excess = kept.rows[topic] - self._bounds.rows_per_topic
            if excess > 0:
                removed = self._db.execute(
                    "DELETE FROM features WHERE id IN (SELECT id FROM features WHERE topic = ? ORDER BY id LIMIT ?)"
                    " RETURNING topic, size_bytes",
                    (topic, excess),
                ).fetchall()
                kept.remove(removed)
        oldest = self._db.execute("SELECT id, topic, size_bytes FROM features ORDER BY id")
        last_removed = None
        while kept.size_bytes > self._bounds.size_bytes or kept.total_rows > self._bounds.rows:
            last_removed, topic, size_bytes = oldest.fetchone()
            kept.remove([(topic, size_bytes)])
        oldest.close()
        if last_removed is not None:
            self._db.execute("DELETE FROM features WHERE id <= ?", (last_removed,))

    def query(self, topic: str, since_ms: int, limit: int) -> list[Feature]:
        """Return the latest `limit` features of a topic from `since_ms` on, in the order they were put."""
        with self._clear_errors():
            found = self._db.execute(
                "SELECT id, topic, ts_ms, position, payload FROM features WHERE topic = ? AND ts_ms >= ?"
                " ORDER BY id DESC LIMIT ?",
                (topic, since_ms, limit),
            ).fetchall()
        names = ("id", "topic", "ts_ms", "position", "payload")
        return [Feature(**dict(zip(names, row, strict=True))) for row in reversed(found)]

    def counts(self) -> tuple[int, int]:
        """Return how many features are kept, and how many uploads are not acknowledged yet."""
        with self._clear_errors():
            query = "SELECT (SELECT count(*) FROM features), (SELECT count(*) FROM outbox)"
            features, uploads = self._db.execute(query).fetchone()
        return features, uploads

    def uploads(self, after_seq: int, limit: int, max_bytes: int) -> list[Upload]:
        """Return outbox rows after `after_seq`, oldest first, at most `limit`; one, or as many as fit `max_bytes`."""
        batch: list[Upload] = []
        size_bytes = 0
        with self._clear_errors():
            cursor = self._db.execute(
                "SELECT seq, topic, payload, created_ms FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?",
                (after_seq, limit),
            )
            for row in cursor:
                size_bytes += len(row[1]) + len(row[2]) + ROW_OVERHEAD_BYTES
                if batch and size_bytes > max_bytes:
                    break
                batch.append(Upload(*row))
            cursor.close()
        return batch

    def close(self) -> None:
        """Close the file and release its lock."""
        try:
            with self._clear_errors():
                self._db.close()
        finally:
            os.close(self._lock)
