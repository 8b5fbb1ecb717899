"""A SQLite file of the cloud in which each call has a separate connection: several processes may have it open.

Each change is one transaction that holds the write lock from its first read.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from walle.store.errors import StoreError

_BUSY_S = 5.0


class SqliteFile:
    """The file at `path`. Calls block; what SQLite and the system refuse is raised as `error`."""

    def __init__(self, path: Path, error: type[StoreError], *pragmas: str) -> None:
        self.path = path
        self._error = error
        self._pragmas = ("synchronous = FULL", *pragmas)  # what was written survives a power cut

    def make(self, schema: str) -> None:
        """Make what is absent."""
        with self.errors():
            self.path.touch(mode=0o600)  # before SQLite makes it; its other files get the same permissions
        with self.reading() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(schema)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._error.of_file(self.path, error) from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection for the block."""
        with self.errors(), contextlib.closing(self.connect()) as db:
            yield db

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection with the write lock; commit at the end of the block, or roll back at an error."""
        with self.reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                if db.in_transaction:  # a full disk has ended it
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def connect(self, *, is_shared: bool = False) -> sqlite3.Connection:
        """Return a connection, for several threads if it `is_shared`.

        Raises:
            sqlite3.Error: the file cannot be opened.
        """
        db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=not is_shared)
        db.row_factory = sqlite3.Row
        try:
            for pragma in self._pragmas:
                db.execute(f"PRAGMA {pragma}")
        except BaseException:
            db.close()
            raise
        return db
