"""A SQLite file of the cloud for one event loop: its one connection is used by a thread, so that no call blocks.

A write is one step of that thread, so that no read of this process sees half of it.
"""

import asyncio
import concurrent.futures
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from walle.base.waiting import to_the_end
from walle.store.disk_space import free_bytes
from walle.store.errors import StateError, state_errors
from walle.store.file_connection import connect, file_query
from walle.store.lease import Grant, check_grant
from walle.store.sql import Action, Connection
from walle.store.sqlite_file import make_tables, reserve, transact
from walle.store.stored_texts import PlainTexts
from walle.store.tables import Table

_RESERVE_SHARE = 8  # a reserve is at most an eighth of the free space
_LOG = logging.getLogger(__name__)


class SqliteDatabase(PlainTexts):
    """The file at `path`, within `async with`, made where it is missing; see `walle.store.sql.Database`.

    `reserve_bytes` of the disk are kept for its writes. Where it is not `is_durable`, its latest writes may be undone
    by a power cut. `replaces_damaged`: a damaged file is set aside, and another one made.
    """

    def __init__(
        self,
        path: Path,
        tables: Sequence[Table],
        *,
        reserve_bytes: int = 0,
        is_durable: bool = True,
        replaces_damaged: bool = False,
    ) -> None:
        self.path = path
        self._tables = tables
        self._reserve_bytes = reserve_bytes
        self._synchronous = "FULL" if is_durable else "NORMAL"
        self._replaces_damaged = replaces_damaged
        self._db: sqlite3.Connection | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    async def __aenter__(self) -> Self:
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=self.path.name)
        try:
            await self._run(self._open)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            closing = asyncio.get_running_loop().run_in_executor(thread, self._close)
            await asyncio.wait([closing])
            if (error := closing.exception()) is not None:
                _LOG.warning("%s was not closed: %s", self.path, error)
        finally:
            thread.shutdown(wait=False)

    async def read(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query."""
        return await self._run(lambda: self._opened().execute(*file_query(query, values)).fetchall())

    async def write[T](
        self,
        action: Action[T],
        *,
        grant: Grant | None = None,
        durable: bool = True,  # noqa: ARG002 - the file's pragma decides for each write
    ) -> T:
        """Run an action in a transaction; see `walle.store.sql.Database`."""

        async def allowed(connection: Connection) -> T:
            if grant is not None:
                await check_grant(connection, grant)
            return await action(connection)

        return await self._run(lambda: transact(self._opened(), allowed))

    async def _run[T](self, call: Callable[[], T]) -> T:
        """Return what a call of the thread returns; one that has begun is finished where the caller is cancelled."""
        if self._thread is None:
            raise StateError(str(self.path), "is not open")
        return await to_the_end(asyncio.get_running_loop().run_in_executor(self._thread, self._called, call))

    def _called[T](self, call: Callable[[], T]) -> T:
        with state_errors(self.path):
            return call()

    def _opened(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def _open(self) -> None:
        try:
            self._db = self._connect()
        except sqlite3.DatabaseError as error:
            if not self._replaces_damaged or isinstance(
                error, sqlite3.OperationalError
            ):  # the file is locked, or the disk refuses
                raise
            damaged = self.path.with_suffix(".damaged")
            _LOG.error("%s is damaged (%s), is kept as %s, and begins again", self.path, error, damaged)
            self.path.replace(damaged)
            for ending in ("-wal", "-shm"):
                self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
            self._db = self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = connect(self.path, is_shared=True)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            make_tables(db, self._tables)
            if self._replaces_damaged and (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(found)  # noqa: TRY301 - as any other damage
            if self._reserve_bytes:
                self._reserve(db)
        except BaseException:
            db.close()
            raise
        return db

    def _reserve(self, db: sqlite3.Connection) -> None:
        if free_bytes(self.path.parent) < _RESERVE_SHARE * self._reserve_bytes:
            _LOG.error("%s has no reserve: the disk is nearly full. Free some, and restart", self.path)
        else:
            reserve(db, self.path, self._reserve_bytes)

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()
