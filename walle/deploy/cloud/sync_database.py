"""A cloud's database for code that blocks: its connections are those of an event loop in a thread of its own."""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

from walle.deploy.cloud.postgres_database import Action, PostgresDatabase


class SyncDatabase:
    """The database at a URL, opened at the first call, which any thread may make. `close` it, or let it be collected.

    Calls raise as those of `PostgresDatabase`.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._database: PostgresDatabase | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def read(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query."""
        loop, database = self._opened()
        return _run(loop, database.read(query, *values))

    def write[T](self, action: Action[T], *, durable: bool = True) -> T:
        """Run `action` in a transaction; see `PostgresDatabase.write`."""
        loop, database = self._opened()
        return _run(loop, database.write(action, durable=durable))

    def close(self) -> None:
        """Close the connections. A later call opens them again."""
        with self._lock:
            if self._end is not None:
                self._end()
            self._loop = self._database = self._end = None

    def _opened(self) -> tuple[asyncio.AbstractEventLoop, PostgresDatabase]:
        with self._lock:
            if self._loop is None or self._database is None:
                loop, database = asyncio.new_event_loop(), PostgresDatabase(self._dsn, connections=2)
                thread = threading.Thread(target=_serve, args=(loop,), name="cloud database", daemon=True)
                thread.start()
                try:
                    _run(loop, database.__aenter__())
                except BaseException:
                    _stop(loop, thread)
                    raise
                self._loop, self._database = loop, database
                self._end = weakref.finalize(self, _close, loop, database, thread)
            return self._loop, self._database


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _run[T](loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def _close(loop: asyncio.AbstractEventLoop, database: PostgresDatabase, thread: threading.Thread) -> None:
    if thread.is_alive():
        _run(loop, database.__aexit__())
    _stop(loop, thread)


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
