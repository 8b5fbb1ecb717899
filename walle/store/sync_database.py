"""A cloud's database for code that blocks: its connections are those of an event loop in a separate thread."""

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from walle.store.postgres_database import (
    RETRY_S,
    Action,
    DatabaseError,
    PostgresDatabase,
    without_password,
)
from walle.store.stored_texts import JsonTexts

_END_S = 1.0  # time for calls under way when it is closed


class SyncDatabase(JsonTexts):
    """The database at a URL, opened at the first call, which any thread may make. `close` it, or let it be collected.

    Calls raise as those of `PostgresDatabase`; those that wait when it is closed end with DatabaseError.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def open(self) -> None:
        """Bring the schema up to date."""
        self.read("SELECT 1")

    def read(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query."""
        return self._call(lambda database: database.read(query, *values))

    def write[T](self, action: Action[T], *, durable: bool = True, limit_s: float = RETRY_S) -> T:
        """Run `action` in a transaction; see `PostgresDatabase.write`."""
        return self._call(lambda database: database.write(action, durable=durable, limit_s=limit_s))

    def keep_room(self, reserve_bytes: int) -> None:
        """Do nothing: the disk is the server's."""

    def leave_room(self) -> None:
        """Do nothing, as `keep_room`."""

    def _call[T](self, make: Callable[[PostgresDatabase], Awaitable[T]]) -> T:
        with self._lock:
            if self._worker is None:
                self._worker = _Worker(self._dsn)
                self._end = weakref.finalize(self, self._worker.close)
            worker = self._worker
        return worker.call(make)

    def hurry(self, limit_s: float) -> None:
        """End calls in `limit_s` that wait for the database: it is closed next."""
        with self._lock:
            if self._worker is not None:
                self._worker.hurry(limit_s)

    def close(self) -> None:
        """Close the connections, in some seconds at most. A later call opens them again."""
        with self._lock:
            end, self._worker, self._end = self._end, None, None
        if end is not None:
            end()


class _Worker:
    """A thread with an event loop, and the database, which its first call opens."""

    def __init__(self, dsn: str) -> None:
        self._place = without_password(dsn)
        self._database = PostgresDatabase(dsn, connections=2)
        self._loop = asyncio.new_event_loop()
        self._opening = asyncio.Lock()
        self._is_open = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="cloud database", daemon=True)
        self._thread.start()

    def call[T](self, make: Callable[[PostgresDatabase], Awaitable[T]]) -> T:
        work = self._made(make)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (concurrent.futures.CancelledError, RuntimeError) as error:  # RuntimeError: of a closed loop
            work.close()
            if not self._is_closed:
                raise
            raise DatabaseError(self._place, "was closed", may_pass=True) from error

    async def _made[T](self, make: Callable[[PostgresDatabase], Awaitable[T]]) -> T:
        async with self._opening:
            if not self._is_open:
                await self._database.__aenter__()
                self._is_open = True
        return await make(self._database)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()

    def hurry(self, limit_s: float) -> None:
        self._loop.call_soon_threadsafe(self._database.hurry, limit_s)

    async def _ended(self) -> None:
        self._database.hurry(_END_S)
        if calls := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(calls, timeout=_END_S)
        await self._database.__aexit__()

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
