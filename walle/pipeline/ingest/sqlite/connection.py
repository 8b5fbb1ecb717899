"""Connection of the SQLite store to the file at its path: opening, format, and other files that take its place.

A file that is put in the place of the open one, such as a restored backup, is opened at the next call; the one before
does not change any more. A file that a newer walle has brought to its format while it was open is not written.
"""

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from walle.pipeline.features.store_thread import StoreThread
from walle.pipeline.ingest.sqlite import index as sqlite_index
from walle.pipeline.ingest.sqlite.file import OpenedFile
from walle.pipeline.ingest.sqlite.log import UploadLog
from walle.pipeline.ingest.sqlite.schema import FORMAT, execute_when_free, finish_schema, make_schema, transaction
from walle.pipeline.ingest.store.upload_store import IngestError

_LOG = logging.getLogger(__name__)

_SQLITE_VERSION = (3, 33, 0)  # the first with UPDATE ... FROM
_WHAT_TO_OPEN = "name the uploads.db of a cloud's folder, or a postgresql:// URL; create=True makes a new store"


class SqliteConnection:
    """The connection that writes, None in `database` before `open` and after `close`.

    `opened` is the file that was opened last, and `log` its write-ahead log, whose work is posted to `thread`. Without
    `create` a file that does not exist is an error.
    `on_open(is_replaced)` is called after each opening, with True where another file was open before.
    """

    def __init__(
        self, path: Path, thread: StoreThread, on_open: Callable[[bool], None], max_log_bytes: int, *, create: bool
    ) -> None:
        self.path = path
        self._create = create
        self.database: sqlite3.Connection | None = None
        self.opened: OpenedFile | None = None
        self.log: UploadLog | None = None
        self._thread = thread
        self._on_open = on_open
        self._max_log_bytes = max_log_bytes

    def current(self) -> sqlite3.Connection:
        """Return the connection to the file that is at the path now.

        Raises:
            IngestError: it is not open; no file is there; or the log of a replaced one is, which does not belong to the
                new one.
        """
        if self.database is None or self.opened is None:
            raise IngestError(self.path, "is not open")
        if not self.opened.is_current:
            before = self.database
            self.open_again()
            before.close()
            _LOG.warning(
                "received uploads in %s: the file was replaced, and the new one is used from now on", self.path
            )
        return self.database

    def open_again(self) -> None:
        """Open the file at the path, also after `close`; raises as `current` and `open`."""
        self._check_place()
        self.open(is_replaced=self.opened is not None and not self.opened.is_current)

    def open(self, *, is_replaced: bool = False) -> None:
        """Open the file and bring it to the present format; with `create`, make it if it does not exist.

        Raises:
            IngestError: it does not exist or has no uploads, and `create` is False; it has a newer format, was replaced
                meanwhile, or this Python's SQLite is too old.
        """
        if sqlite3.sqlite_version_info < _SQLITE_VERSION:
            needed = ".".join(map(str, _SQLITE_VERSION))
            what = f"need SQLite {needed}, and this Python has {sqlite3.sqlite_version}; use another, or PostgreSQL"
            raise IngestError(self.path, what)
        if self._create:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        else:
            self._check_is_store()
        self.path.touch(mode=0o600)  # SQLite would use the umask; its other files get the permissions of this one
        self.path.chmod(0o600)  # an earlier walle made it readable to others
        # The event loop uses it too, while no call is in the thread.
        database = sqlite3.connect(self.path, isolation_level=None, timeout=5.0, check_same_thread=False)
        try:
            connected = OpenedFile(self.path)
            execute_when_free(database, "PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            if self._check_format(database) < FORMAT:
                make_schema(database)
            database.execute("PRAGMA busy_timeout = 0")  # `transaction` waits by itself
            finish_schema(database, self.path)
            sqlite_index.prepare(database)
            opened = OpenedFile(self.path)  # the logs exist now, and are compared too
            if not connected.is_current:  # reading a long log takes a while
                what = "was replaced while it was opened"
                raise IngestError(self.path, what, may_pass=True)  # noqa: TRY301 - closed as after other errors
        except BaseException:
            database.close()
            raise
        self.database, self.opened = database, opened
        if self.log is not None:
            self.log.close()
        self.log = UploadLog(self.path, database, self._thread, self._max_log_bytes)
        self._on_open(is_replaced)

    def close(self, last_statement: str, *values: object) -> None:
        """Close the connection, after a statement that is not synced; it is left out where another file is in place."""
        database, self.database = self.database, None
        if database is None:
            return
        if self.log is not None:
            self.log.close()
        try:
            if self.opened is not None and self.opened.is_current:
                with contextlib.suppress(sqlite3.Error), transaction(database, durable=False):
                    database.execute(last_statement, values)
        finally:
            database.close()

    def check_not_migrated(self, database: sqlite3.Connection) -> None:
        """Raise IngestError where a newer walle has changed the format of the open file: this one must not write it."""
        found = cast("int", database.execute("PRAGMA user_version").fetchone()[0])
        if found != FORMAT:
            what = (
                f"was converted to format {found} by another version of walle while this process had it open,"
                f" which uses format {FORMAT}; stop this process, or start it again with that version"
            )
            raise IngestError(self.path, what)

    @contextlib.contextmanager
    def of_own_format(self, database: sqlite3.Connection) -> Iterator[None]:
        """Run the block; where SQLite refuses its statements because the file has another format now, say that."""
        try:
            yield
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self.check_not_migrated(database)
            raise

    def _check_place(self) -> None:
        """Raise IngestError if no file is at the path, or the log of the file that was open, which is another's."""
        if self.opened is None or self.opened.is_current:
            return
        if self.opened.is_removed:
            what = "was removed while it was in use; put it back, or restart the cloud to begin with an empty one"
            raise IngestError(self.path, what, may_pass=True)
        if logs := self.opened.logs_left():
            what = f"was replaced, but {' and '.join(logs)} of the file before it are still there; remove them"
            raise IngestError(self.path, what, may_pass=True)

    def _check_is_store(self) -> None:
        """Raise IngestError where the path has no store; the file there and its permissions are not changed."""
        if not self.path.is_file():
            raise IngestError(self.path, f"this file does not exist; {_WHAT_TO_OPEN}")
        with contextlib.closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            try:
                found = self._check_format(database)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                    raise
                found = 0
        if found == 0:  # an empty file, or of another program
            raise IngestError(self.path, f"this file has no uploads; {_WHAT_TO_OPEN}")

    def _check_format(self, database: sqlite3.Connection) -> int:
        found = cast("int", database.execute("PRAGMA user_version").fetchone()[0])
        if not 0 <= found <= FORMAT:
            raise IngestError(self.path, f"has format {found}, this version of walle reads 1 to {FORMAT}")
        return found
