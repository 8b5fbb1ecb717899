"""Connection of queries to the SQLite store, in a separate thread: in WAL mode they delay no commit."""

import sqlite3
from collections.abc import Callable

from walle.pipeline.features.store_thread import StoreThread
from walle.pipeline.ingest.sqlite.connection import SqliteConnection
from walle.pipeline.ingest.sqlite.file import OpenedFile
from walle.pipeline.ingest.store.upload_store import IngestError


class ReplacedError(Exception):
    """Another file is at the store's path."""


class SqliteReader:
    """A connection to the file that `connection` has open, made by the first query. Its calls are in `thread`."""

    def __init__(self, connection: SqliteConnection) -> None:
        self.thread = StoreThread("walle-ingest-reader")
        self._connection = connection
        self._database: sqlite3.Connection | None = None
        self._opened: OpenedFile | None = None  # the file of `_database`

    def query[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` returns, which changes nothing.

        Raises:
            IngestError: the store is not open, or its file has another format now.
            ReplacedError: the store has to open the file that is at its path now.
        """
        opened = self._connection.opened
        if self._connection.database is None or opened is None:
            raise IngestError(self._connection.path, "is not open")
        if not opened.is_current:
            raise ReplacedError
        if self._database is None or self._opened is not opened:
            self.close()
            self._database = sqlite3.connect(self._connection.path, isolation_level=None, timeout=5.0)
            self._database.execute("PRAGMA query_only = ON")
            self._opened = opened
        with self._connection.of_own_format(self._database):
            return work(self._database)

    def close(self) -> None:
        """Close the connection; a later query makes another one."""
        database, self._database = self._database, None
        if database is not None:
            database.close()
