"""A SQLite file of the cloud in which each call has a separate connection: several processes may have it open.

Each change is one transaction that holds the write lock from its first read.
"""

import contextlib
import logging
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from walle.store.disk_space import is_full
from walle.store.errors import StateError, state_errors
from walle.store.file_connection import FileConnection, connect, file_query, run_now
from walle.store.sql import Action
from walle.store.stored_texts import PlainTexts
from walle.store.tables import Table, file_schema

_COUNTER = (
    "INSERT INTO counters AS c SELECT ?, seq FROM sqlite_sequence WHERE name = ?"
    " ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE excluded.value > c.value"
)
_LOG = logging.getLogger(__name__)


class SqliteFile(PlainTexts):
    """The file at `path`; see `walle.store.sql.BlockingDatabase`. `upgrade` is SQL that runs when it is opened."""

    def __init__(self, path: Path, tables: Sequence[Table], *pragmas: str, upgrade: str = "") -> None:
        self.path = path
        self._tables = tables
        self._upgrade = upgrade
        self._pragmas = ("synchronous = FULL", *pragmas)  # what was written survives a power cut
        self._let_go: Callable[[], object] | None = None  # ends what `keep_room` keeps
        self._keeping = threading.Lock()  # a node that is closed while it starts does so in another thread
        self._is_closed = False

    def open(self) -> None:
        with state_errors(self.path):
            self.path.touch(mode=0o600)  # SQLite's other files get the permissions of this one
        with self._connection() as db:
            db.execute("PRAGMA journal_mode = WAL")
            make_tables(db, self._tables)
            db.executescript(self._upgrade)

    def read(self, query: str, *values: object) -> list[Any]:
        with self._connection() as db:
            return db.execute(*file_query(query, values)).fetchall()

    def write[T](self, action: Action[T], *, durable: bool = True) -> T:  # noqa: ARG002 - each write is durable
        with self._connection() as db:
            return transact(db, action)

    def keep_room(self, reserve_bytes: int) -> None:
        """Keep the file's space and its log until `leave_room`.

        Pages that are written and deleted stay the file's, and a log is removed with the last connection.
        """
        with self._keeping, state_errors(self.path):
            if self._is_closed:
                return
            kept = self.connect(is_shared=True)
            self._let_go = weakref.finalize(self, kept.close)
            reserve(kept, self.path, reserve_bytes)

    def leave_room(self) -> None:
        with self._keeping:
            self._is_closed = True
            if self._let_go is not None:
                self._let_go()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with state_errors(self.path), contextlib.closing(self.connect()) as db:
            yield db

    def connect(self, *, is_shared: bool = False) -> sqlite3.Connection:
        """Return a connection, for several threads if it `is_shared`.

        Raises:
            sqlite3.Error: the file cannot be opened.
        """
        db = connect(self.path, is_shared=is_shared)
        try:
            for pragma in self._pragmas:
                db.execute(f"PRAGMA {pragma}")
        except BaseException:
            db.close()
            raise
        return db


def make_tables(db: sqlite3.Connection, tables: Sequence[Table]) -> None:
    """Make the tables that a file lacks, and add columns that later steps gave to those that it has.

    Raises:
        StateError: the disk is full, and the file, which a former version made, lacks a table.
        sqlite3.Error: the file refuses it for another reason.
    """
    if any(column.since for table in tables for column in table.columns):
        with _transaction(db):
            for table in tables:
                known = {row[0] for row in db.execute("SELECT name FROM pragma_table_info(?)", (table.local,))}
                for column in table.columns:
                    if known and column.name not in known:
                        db.execute(f"ALTER TABLE {table.local} ADD COLUMN {column.file_sql}")
    found = {row[0] for row in db.execute("SELECT name FROM sqlite_schema")}
    added = [table.local for table in tables if table.local not in found]
    try:
        db.executescript(file_schema(tables))  # comes after the columns, as an index may be on one
    except sqlite3.Error as error:
        if not (found and added and is_full(error)):
            raise
        path = db.execute("PRAGMA database_list").fetchone()[2]
        why = f"{error}, so that {', '.join(added)} cannot be added, which this version of walle needs"
        raise StateError(path, why, is_full=True) from error
    for table in tables:
        if table.counter:  # files of former versions have no such counter
            db.execute(_COUNTER, (table.counter, table.local))


def transact[T](db: sqlite3.Connection, action: Action[T]) -> T:
    """Run an action in a transaction with the write lock; commit at its end, or roll back at an error."""
    with _transaction(db):
        return run_now(action(FileConnection(db)))


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # false on a full disk: SQLite has rolled back already
            db.execute("ROLLBACK")
        raise


def reserve(db: sqlite3.Connection, path: Path, size_bytes: int) -> None:
    """Make a file and its log larger by a reserve: pages that are written and deleted stay theirs.

    Raises:
        sqlite3.Error: another one than that of a full disk, which is logged.
    """
    try:
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # any read makes the log and its index
        db.execute("CREATE TABLE IF NOT EXISTS reserve (bytes BLOB NOT NULL) STRICT")
        db.execute("INSERT INTO reserve VALUES (zeroblob(?))", (size_bytes,))
        db.execute("DROP TABLE reserve")
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except sqlite3.Error as error:
        if not is_full(error):
            raise
        _LOG.error("%s has no reserve: the disk is full. Free some space, and restart", path)
