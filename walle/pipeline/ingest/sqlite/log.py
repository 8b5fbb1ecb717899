"""Write-ahead log of the SQLite store: it is checkpointed, and made longer, when no commit waits for it.

SQLite's own checkpoint runs in a commit, and delays it for as long as the disk takes to write the whole log.

The log cannot begin again while some program reads the file in one transaction. The store's own reads are short. Where
another program's is not, the log has a bound, above which nothing is stored until that transaction ends: devices keep
their uploads meanwhile, and the disk does not fill.
"""

import contextlib
import logging
import sqlite3
from pathlib import Path

from walle.pipeline.features.store_thread import StoreThread
from walle.pipeline.ingest.sqlite.schema import transaction
from walle.pipeline.ingest.sqlite.wal_reserve import WalReserve

_LOG = logging.getLogger(__name__)

_CHECKPOINT_PAGES = 8000  # 32 MB: a checkpoint delays commits by milliseconds, so it should be rare
_CHECKPOINT_STEP = 1000  # pages between two attempts
_CHECKPOINT_WAIT_MS = 10  # wait for other processes' commits, and for queries
_MOST_PAGES = 4 * _CHECKPOINT_PAGES  # SQLite checkpoints by itself, and delays a commit
MAX_LOG_BYTES = 1 << 30  # another program's long read keeps the log from beginning again; it grows to this
_RESERVED_PAGES = _CHECKPOINT_PAGES + 2000  # batches that come before the checkpoint may pass the bound


class UploadLog:
    """The log of `database`, the file at `path`; its work is posted to `thread`, which uses the same connection.

    `is_full`: it has reached `max_bytes`, as `check` and `make_room` saw it last.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, thread: StoreThread, max_bytes: int) -> None:
        self.is_full = False
        self._path = path
        self.database = database
        self._thread = thread
        self._checkpoint_pages = _CHECKPOINT_PAGES  # length of the log at which the next checkpoint begins
        database.execute(f"PRAGMA wal_autocheckpoint = {_MOST_PAGES}")
        page_bytes = database.execute("PRAGMA page_size").fetchone()[0]
        limit_bytes = (page_bytes + 24) * _RESERVED_PAGES
        database.execute(f"PRAGMA journal_size_limit = {limit_bytes}")  # a longer file is cut once the log begins again
        self._reserve = WalReserve(Path(f"{path.resolve()}-wal"), page_bytes=page_bytes, limit_bytes=limit_bytes)
        self._max_pages = max_bytes // (page_bytes + 24)
        self._is_closed = False

    @property
    def size_bytes(self) -> int:
        """The bytes of the log's file, with its reserve; 0 where there is none."""
        try:
            return Path(f"{self._path.resolve()}-wal").stat().st_size
        except OSError:
            return 0

    def check(self) -> None:
        """Make the log longer before it is used up, and checkpoint it once it is long, both in the thread."""
        if self._reserve.is_low:
            self._thread.post(self.grow_reserve)
        if not self._reserve.is_used_to(_CHECKPOINT_PAGES):
            self._checkpoint_pages = _CHECKPOINT_PAGES
        elif self._reserve.is_used_to(self._checkpoint_pages):
            self._checkpoint_pages += _CHECKPOINT_STEP  # a query may keep the log from beginning again
            self._thread.post(self.checkpoint)
        self.is_full = self.is_full or self._reserve.is_used_to(self._max_pages)

    def make_room(self) -> bool:
        """Try to let a full log begin again, in the thread; return whether uploads may be stored."""
        self.database.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
        try:
            is_busy = self.database.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0]
        finally:
            self.database.execute("PRAGMA busy_timeout = 0")
        self.is_full = bool(is_busy) and self._reserve.is_used_to(self._max_pages)
        return not self.is_full

    def close(self) -> None:
        """Stop, before the connection is closed. What is posted does nothing any more."""
        self._is_closed = True
        self._reserve.close()

    def grow_reserve(self) -> None:
        """Make the log longer under the write lock, unless another process holds it for long."""
        if not self._is_closed:
            with contextlib.suppress(sqlite3.Error), transaction(self.database, durable=False):
                if self._reserve.is_low:  # else another process has made it longer meanwhile
                    self._reserve.grow()

    def checkpoint(self) -> None:
        """Move the log's contents into the file, so that the log begins again."""
        if self._is_closed:
            return
        try:
            self.database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            # Other processes went on writing. The rest is moved under the write lock: else the log never ends.
            self.database.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
            try:
                self.database.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            finally:
                self.database.execute("PRAGMA busy_timeout = 0")
        except (sqlite3.Error, OSError) as error:
            _LOG.warning("received uploads in %s: the log grows: %s", self._path, error)
