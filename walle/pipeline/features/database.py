"""The SQLite file of a device's features, outbox and stream position. Blocking; used by one thread.

Every write is one transaction over all three, so that they always agree. `synchronous` is FULL: a transaction is on the
medium before it counts as written. With NORMAL a power cut may undo transactions whose outbox rows the cloud has
already acknowledged; their numbers would be assigned again, and the cloud would drop the new rows.
"""

import collections
import contextlib
import copy
import dataclasses
import logging
import pathlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence

from walle.engine_ext._core import RowBatch, packed_values
from walle.errors import PipelineError
from walle.pipeline.features import epochs, salvage, store_schema, store_statements, task_states
from walle.pipeline.features.kept_features import Bounds, KeptFeatures, read_kept
from walle.pipeline.features.losses import Loss, LossCause
from walle.pipeline.features.store_lock import Mark, StoreLock
from walle.pipeline.features.store_schema import (
    APPLICATION_ID,
    FORMAT,
    ROW_OVERHEAD_BYTES,
    DamageError,
    ReplayState,
    StoreState,
    is_sound,
    is_sound_feature,
)
from walle.pipeline.features.task_states import TaskState
from walle.protocol import Upload

_LOG = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 4 << 20  # limit of one query, encoded, with ROW_OVERHEAD_BYTES a row; one feature is smaller
# Of one query, those in containers too; one feature alone may have more. On its way into a VM a value of one byte, an
# empty list, takes up to 160 bytes, in Python and in the native core.
MAX_ANSWER_VALUES = 1 << 18
# Of statements that are constants: these errors mean that the file holds other contents than a store wrote.
_DAMAGE = {
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_FORMAT,
}


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
    """A stored output. `payload` is plain data as bytes, `position` that of the event it came from, -1 for none."""

    id: int
    topic: str
    ts_ms: int
    position: int
    payload: bytes


@dataclasses.dataclass(slots=True)
class Batch:
    """The contents of one transaction, beside the stream's positions."""

    rows: RowBatch = dataclasses.field(default_factory=lambda: RowBatch(0, 0, 0, 0, 0))
    states: dict[tuple[str, int], TaskState | None] = dataclasses.field(default_factory=dict)  # None: removed

    def take(self, later: "Batch") -> None:
        """Move the contents of `later` to the end."""
        self.rows.take(later.rows)
        self.states |= later.states
        later.clear()

    def clear(self) -> None:
        """Remove the contents, and keep memory for the next ones."""
        self.rows.clear()
        self.states = {}


class StoreDatabase:
    """One open file, until `close`.

    A file that went back in time, as its lock file shows, starts a new epoch. A damaged file is set aside, and its
    readable rows go into a new one, at the opening or by the call that meets the damage. `losses` has all reports since
    the opening, and `set_asides` the damaged files.

    Raises:
        StoreLockedError, StoreCorruptError, StoreFullError: see each.
        StoreError: the file cannot be opened, or a newer walle made it.
    """

    def __init__(self, path: pathlib.Path, bounds: Bounds, now_ms: Callable[[], int]) -> None:
        self.path = path
        self.losses: list[Loss] = []
        self.set_asides: list[salvage.Salvage] = []
        self.damaged_features = 0  # rows that failed their checksum when they were read, and were removed
        self.damaged_states = 0  # tasks that lost their state and begin with an empty one
        self.undecodable_features = 0  # sound rows that are not plain data, and were removed
        self.last_undecodable = ""  # topic, position and reason of the latest undecodable feature
        self.lost_commits = 0  # transactions that the file lacks, as its lock file shows
        self._bounds = bounds
        self._now_ms = now_ms
        self.state: StoreState
        self.task_states: list[TaskState]  # states as they were when the store was opened
        self._kept: KeptFeatures
        with contextlib.ExitStack() as stack:
            self._lock = self._take_lock()
            stack.callback(self._lock.close)
            self._db: sqlite3.Connection | None = None
            self._is_open = False
            self._damage: Exception | None = None  # error of a damaged file that is not replaced yet
            stack.callback(self._disconnect)
            with self._clear_errors():
                salvage.finish(path)
                try:
                    self._open(self._lock.found)
                except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                    if not _is_damage(error) or not self._is_ours():
                        raise
                    self._replace(error)
            stack.pop_all()

    # --- opening ------------------------------------------------------------------------------------------------------

    def _take_lock(self) -> StoreLock:
        try:
            return StoreLock(self.path.with_name(f"{self.path.name}.lock"))
        except BlockingIOError as error:
            raise StoreLockedError(
                self.path, "is open elsewhere; stop the other process, or give this device another folder"
            ) from error
        except OSError as error:
            raise StoreError(self.path, f"cannot be opened ({error.strerror}); check that its folder exists") from error

    def _open(self, mark: Mark | None) -> None:
        self._db = db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        # The lock file keeps other stores out already. Exclusive before the first access, SQLite has the index of the
        # write-ahead log in memory in place of a mapped file: a tenth of a phone's flash writes, and no locks to take.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.text_factory = lambda data: data.decode("utf-8", "replace")  # a damaged text then fails its checksum
        self._prepare(db, mark)
        self.state = store_schema.read_state(db)
        if mark is not None and mark.epoch == self.state.epoch and mark.commits > self.state.commits:
            self.lost_commits += mark.commits - self.state.commits
            _LOG.error("feature store %s: the last %d transactions are missing", self.path, self.lost_commits)
        losses = epochs.rolled_back(self.state, mark)
        if losses:
            self._start_epoch(losses)
        self._kept = read_kept(db)
        self.task_states, damaged = task_states.read_states(db)
        self.damaged_states += damaged
        self._lock.write(self.state.mark())
        self._is_open = True

    def _prepare(self, db: sqlite3.Connection, mark: Mark | None) -> None:
        """Check the file, and create or migrate its tables."""
        version = db.execute("PRAGMA user_version").fetchone()[0]
        made_by = db.execute("PRAGMA application_id").fetchone()[0]
        empty = not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not empty and mark is not None and (made_by, version) != (APPLICATION_ID, FORMAT):
            # The lock file says that this walle wrote the file last.
            raise DamageError(f"its header names application {made_by:#x} and format {version}")
        if not empty and made_by != APPLICATION_ID:
            raise StoreCorruptError(self.path, "is a database, but not a feature store; name another file")
        if version not in range(0 if empty else 1, FORMAT + 1):
            raise StoreError(self.path, f"has format {version}, this walle reads 1 to {FORMAT}; install its walle")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        # More than 1,000 pages and a large transaction: a log that is cut off has to allocate the same blocks again.
        db.execute("PRAGMA journal_size_limit = 8388608")
        # Pages of 4 MiB of features and their outbox rows stay in memory until their transaction ends: those that the
        # cache, of 2 MB, spills before that are written twice.
        db.execute("PRAGMA cache_spill = 2560")
        if empty:
            with self._transaction():
                store_schema.create(db, StoreState.new())
        problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise DamageError(problem)
        if not empty:
            with self._transaction():
                store_schema.add_versions(db)
        if not empty and version < FORMAT:
            self._start_epoch([], lambda: store_schema.migrate(db))

    # --- damage and new epochs ----------------------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """Return whether a file that cannot be read is known to be a feature store of this format."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            header = file.read(100)
            ours = (FORMAT.to_bytes(4, "big"), APPLICATION_ID.to_bytes(4, "big"))
            return self._lock.found is not None or (header[60:64], header[68:72]) == ours
        return False

    def _replace(self, error: Exception) -> None:
        """Set the damaged file aside and continue with a new one that has its readable rows."""
        self._disconnect()
        self._damage = error
        known: StoreState | None = None
        is_replay_known = True
        if self._is_open:
            known = self.state
        elif self._lock.found is not None:
            known = StoreState.from_mark(self._lock.found)
            is_replay_known = self._lock.found.replay is not None
        try:
            salvaged = salvage.salvage(self.path, known, self._now_ms(), is_replay_known=is_replay_known)
        except OSError as failure:
            raise StoreCorruptError(
                self.path, f"is damaged ({error}), and no new file can be written ({failure}); check its disk"
            ) from error
        self.set_asides.append(salvaged)
        self.damaged_states += salvaged.lost_states
        _LOG.error(
            "feature store %s was damaged (%s): it is now %s; %d features and %d unsent uploads of it could be read",
            self.path,
            error,
            salvaged.set_aside.name,
            salvaged.features,
            salvaged.uploads,
        )
        self._note(salvaged.losses)
        self._open(known.mark() if known else None)
        self._damage = None

    def _mended[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return `work(connection)`. If it meets damage, it is done again in the file that replaces the damaged one."""
        with self._clear_errors():
            if self._damage is not None:  # an earlier call could not replace the file, as on a full disk
                self._replace(self._damage)
            try:
                return work(self._connection)
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if not _is_damage(error):
                    raise
                self._replace(error)
            return work(self._connection)

    def _start_epoch(self, losses: Sequence[Loss], migrate: Callable[[], StoreState] | None = None) -> None:
        with self._transaction():
            before = migrate() if migrate else self.state
            started, found = epochs.start_epoch(self._connection, before, losses, self._now_ms())
        self.state = started
        self._lock.write(started.mark())
        self._note(found)
        what = "feature store %s: epoch %s continues as %s with %d unsent uploads"
        _LOG.warning(what, self.path, before.epoch, started.epoch, started.last_seq)

    def _note(self, losses: Sequence[Loss]) -> None:
        self.losses += losses
        for loss in losses:
            _LOG.error("feature store %s: %s", self.path, loss)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreError(self.path, "is not open")
        return self._db

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Convert SQLite's errors into StoreError."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            code = _code(error)
            if code == sqlite3.SQLITE_FULL:
                raise StoreFullError(self.path, f"cannot be written ({error}); make room on its disk") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreLockedError(self.path, f"is held by another program ({error}); close it") from error
            if not _is_damage(error):
                raise StoreError(self.path, f"cannot be read or written ({error}); check its disk") from error
            raise StoreCorruptError(
                self.path,
                f"is damaged ({error}); to start empty, move it away with its -wal file (unsent uploads are in it)",
            ) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        db = self._connection
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    # --- write --------------------------------------------------------------------------------------------------------

    def write(
        self,
        batch: Batch,
        position: int,
        resume_from: int,
        forget: tuple[str, int],
        replay: ReplayState | None = None,
    ) -> None:
        """Add the rows, move the positions, and drop acknowledged outbox rows, in one transaction.

        `forget` is an epoch and the highest acknowledged number in it; it has no effect in a later epoch.
        """
        self._mended(lambda db: self._write(db, batch, position, resume_from, forget, replay))

    def _write(
        self,
        db: sqlite3.Connection,
        batch: Batch,
        position: int,
        resume_from: int,
        forget: tuple[str, int],
        replay: ReplayState | None,
    ) -> None:
        rows = batch.rows
        state = copy.copy(self.state)
        if replay is not None:
            state.replay = replay
        state.position, state.resume_from = position, resume_from
        state.commits += 1
        state.produced += rows.uploads
        state.outbox_bytes += rows.upload_bytes
        added = collections.Counter(rows.topics())
        with self._transaction():
            for first, count in store_statements.chunks(rows.uploads):
                one_topic, parameters, state.last_seq, state.last_chain = rows.upload_parameters(
                    first, count, state.last_seq, state.last_chain
                )
                db.execute(store_statements.UPLOADS[one_topic, count], parameters)
            for first, count in store_statements.chunks(len(rows)):
                one_topic, parameters = rows.feature_parameters(first, count)
                db.execute(store_statements.FEATURES[one_topic, count], parameters)
            if batch.states:
                task_states.write_states(db, batch.states)
            if forget[0] == state.epoch and forget[1] > state.acked:
                self._forget(db, state, forget[1])
            removed, removed_bytes = self._kept.retain(db, added, rows.size_bytes, self._bounds)
            store_schema.write_state(db, state)
        self._kept.add(added, len(rows), rows.size_bytes)
        if removed:
            self._kept.add(removed, removed.total(), removed_bytes)
        self.state = state
        self._lock.write(state.mark())

    def _forget(self, db: sqlite3.Connection, state: StoreState, upto_seq: int) -> None:
        found = db.execute("SELECT chain FROM outbox WHERE seq = ?", (upto_seq,)).fetchone()
        if found is None:
            raise DamageError(f"upload {upto_seq} is missing from the outbox")
        sizes = "SELECT coalesce(sum(size_bytes), 0) FROM outbox WHERE seq <= ?"
        state.outbox_bytes -= db.execute(sizes, (upto_seq,)).fetchone()[0]
        db.execute("DELETE FROM outbox WHERE seq <= ?", (upto_seq,))
        state.acked, state.acked_chain = upto_seq, found[0]

    def reconcile(self, acked: int, chain: int) -> bool:
        """Compare the cloud's highest number and its chain value there with the outbox; return whether they agree.

        If they do not, this file or the cloud's went back in time. If it was this one, a new epoch begins.
        """
        return self._mended(lambda db: self._reconcile(db, acked, chain))

    def _reconcile(self, db: sqlite3.Connection, acked: int, chain: int) -> bool:
        state = self.state
        if acked < state.acked:  # the next Hello tells the cloud what it lacks
            return False
        if acked == state.acked:
            known = state.acked_chain
        elif acked <= state.last_seq:
            found = db.execute("SELECT chain FROM outbox WHERE seq = ?", (acked,)).fetchone()
            if found is None:
                raise DamageError(f"upload {acked} is missing from the outbox")
            known = found[0]
        else:
            known = None
        if known == chain:
            return True
        # Uploads that were made since the file went back may have reused any number after the acknowledged ones.
        self._start_epoch([Loss(state.epoch, state.acked + 1, None, LossCause.DEVICE_RESTORED)])
        return False

    # --- read ---------------------------------------------------------------------------------------------------------

    def query(self, topic: str, since_ms: int, limit: int, skip: int = 0) -> list[Feature]:
        """Return features of a topic from `since_ms` on, in the order they were put.

        They are the latest without the last `skip`: at most `limit`, and as many as fit MAX_ANSWER_BYTES and
        MAX_ANSWER_VALUES. Rows that fail their checksum are removed, counted and left out.
        """
        return self._mended(lambda db: self._query(db, topic, since_ms, limit, skip))

    def _query(self, db: sqlite3.Connection, topic: str, since_ms: int, limit: int, skip: int) -> list[Feature]:
        cursor = db.execute(
            "SELECT id, topic, ts_ms, position, payload, checksum FROM features WHERE topic = ? AND ts_ms >= ?"
            " ORDER BY id DESC LIMIT ? OFFSET ?",
            (topic, since_ms, limit, skip),
        )
        features: list[Feature] = []
        damaged = []
        size_bytes = values = 0
        for id_, *row, payload, checksum in cursor:
            row_topic, ts_ms, position = row
            if not is_sound_feature(row_topic, payload, ts_ms, position, checksum):
                damaged.append(id_)
                continue
            size_bytes += len(row_topic) + len(payload) + ROW_OVERHEAD_BYTES
            values += packed_values(payload)
            if features and (size_bytes > MAX_ANSWER_BYTES or values > MAX_ANSWER_VALUES):
                break
            features.append(Feature(id=id_, topic=row_topic, ts_ms=ts_ms, position=position, payload=payload))
        cursor.close()
        features.reverse()
        if damaged:
            self._remove_damaged(db, damaged)
        return features

    def _remove_damaged(self, db: sqlite3.Connection, ids: list[int]) -> None:
        with self._transaction():
            db.executemany("DELETE FROM features WHERE id = ?", [(id_,) for id_ in ids])
        self._kept = read_kept(db)
        self.damaged_features += len(ids)
        _LOG.error("feature store %s: %d features failed their checksum and were removed", self.path, len(ids))

    def remove_undecodable(self, faults: Mapping[int, str]) -> None:
        """Remove features by number and count them; `faults` has the reason of each."""
        return self._mended(lambda db: self._remove_undecodable(db, faults))

    def _remove_undecodable(self, db: sqlite3.Connection, faults: Mapping[int, str]) -> None:
        rows = []
        with self._transaction():
            for id_ in faults:
                query = "DELETE FROM features WHERE id = ? RETURNING id, topic, position"
                rows += db.execute(query, (id_,)).fetchall()
        self._kept = read_kept(db)
        for id_, topic, position in rows:
            self.undecodable_features += 1
            self.last_undecodable = f"topic {topic!r}, of the event at position {position}: {faults[id_]}"
        if rows:
            what = "%d features could not be decoded and were removed; the last: %s"
            _LOG.error(f"feature store %s: {what}", self.path, len(rows), self.last_undecodable)

    def last_feature_id(self) -> int:
        """Return the number of the latest feature, 0 if there is none."""
        return int(self._mended(lambda db: db.execute("SELECT coalesce(max(id), 0) FROM features").fetchone()[0]))

    def counts(self) -> tuple[int, int]:
        """Return how many features are kept, and how many uploads are not acknowledged yet."""
        query = "SELECT (SELECT count(*) FROM features), (SELECT count(*) FROM outbox)"
        features, uploads = self._mended(lambda db: db.execute(query).fetchone())
        return features, uploads

    def uploads(self, after_seq: int, limit: int, max_bytes: int) -> list[Upload]:
        """Return outbox rows after `after_seq`, oldest first, at most `limit`; one, or as many as fit `max_bytes`.

        A row that is missing or fails its checksum starts a new epoch, in which the report of its loss has its place.
        The result is then empty.
        """
        return self._mended(lambda db: self._uploads(db, after_seq, limit, max_bytes))

    def _uploads(self, db: sqlite3.Connection, after_seq: int, limit: int, max_bytes: int) -> list[Upload]:
        batch: list[Upload] = []
        size_bytes = 0
        due = max(after_seq, self.state.acked)
        sound = True
        cursor = db.execute(
            "SELECT seq, topic, payload, created_ms, checksum, version, version_checksum FROM outbox WHERE seq > ?"
            " ORDER BY seq LIMIT ?",
            (after_seq, limit),
        )
        for row in cursor:
            due += 1
            sound = row[0] == due and is_sound(*row[1:5])
            if not sound:
                break
            size_bytes += len(row[1]) + len(row[2]) + ROW_OVERHEAD_BYTES
            if batch and size_bytes > max_bytes:
                break
            batch.append(Upload(row[0], row[1], row[2], row[3], store_schema.sound_version(*row[5:])))
        cursor.close()
        if not sound or (not batch and self.state.last_seq > due):
            self._start_epoch([])
            return []
        return batch

    def close(self) -> None:
        """Close the file and release its lock."""
        try:
            with self._clear_errors():
                self._disconnect()
        finally:
            self._lock.close()


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF  # an extended code's low byte


def _is_damage(error: Exception) -> bool:
    # A UnicodeDecodeError comes of an error message that quotes damaged text.
    return isinstance(error, DamageError | UnicodeDecodeError) or _code(error) in _DAMAGE
