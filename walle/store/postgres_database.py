"""A cloud's state in PostgreSQL: connections, transactions that are applied once, and retries.

The answer to a commit is lost with its connection: the write may be in the database, or not. So each write has a key,
which its transaction stores beside what it changes. It is tried again with the same key, waits for the transaction
that may still run on the server, and finds its result where that was committed.

A server that restarts delays a call. One that stays away fails it after `retry_s`, and the caller hears of it; later
calls fail at once, but for one a second, until the server answers (`walle.store.postgres_connection.Outage`).
"""

import asyncio
import contextlib
import json
import logging
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Self, cast

from walle.base.backoff import Backoff
from walle.base.clock import Clock, SystemClock
from walle.base.extras import install_hint
from walle.base.waiting import to_the_end
from walle.store.errors import StateError
from walle.store.lease import Grant, check_grant
from walle.store.stored_texts import JsonTexts

try:
    import asyncpg

    from walle.store.postgres_connection import (
        DISK_FULL,
        ERRORS,
        TRY_S,
        Pool,
        ServerError,
        check_pooling,
        close_pool,
        explained,
        is_away,
        lent,
        may_pass,
        open_pool,
        outage_of,
        without_password,
    )
    from walle.store.postgres_schema import MIGRATIONS, Migration, NewerSchemaError, migrate
except ImportError as _error:
    raise StateError("PostgreSQL", f"asyncpg is missing; install it with: {install_hint('postgres')}") from _error

__all__ = ["Connection", "DatabaseError", "PostgresDatabase", "is_database_url", "without_password"]

type Connection = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
type Action[T] = Callable[["Connection"], Awaitable[T]]

CONNECTIONS = 4
RETRY_S = 15.0
_CLOSE_S = 1.0
_RETRY_AFTER_S = 5  # seconds that a client is told to wait
_WRITES_KEPT = "1 hour"  # far longer than a write is tried
_FORGET_EVERY = 1000  # writes
_SETTINGS = {
    "application_name": "walle",
    "search_path": "walle",
    "synchronous_commit": "on",
    "statement_timeout": "20s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",  # a process that was stopped must not keep a lease's row locked
}
_LOG = logging.getLogger(__name__)


class DatabaseError(StateError):
    """The database cannot be used, or refused a write. `path` is its URL without a password.

    Over HTTP: 503; 507 where its disk is full. `may_pass`: the same call may succeed later.
    """

    disk = "the database's disk"
    retry_after_s = _RETRY_AFTER_S

    def __init__(self, path: str, why: str, is_full: bool = False, may_pass: bool = False) -> None:
        super().__init__(path, why, is_full)
        self.status = 507 if is_full else 503
        self.may_pass = may_pass or is_full

    def __str__(self) -> str:
        return f"the cloud's database {self.path}: {self.why}"


class PostgresDatabase(JsonTexts):
    """The database at a URL, `postgresql://USER@HOST:PORT/NAME`, within `async with`; of one event loop.

    A password is that of the URL, of PGPASSWORD or of ~/.pgpass. Of several hosts, the one that takes writes is used.
    Entering makes the schema, or brings it up to date.

    Raises, from every call:
        DatabaseError: the database has not answered for `retry_s` seconds, or refuses.
    """

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = CONNECTIONS,
        retry_s: float = RETRY_S,
        clock: Clock | None = None,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        self.place = without_password(dsn)
        self._dsn = dsn
        self._connections = connections
        self._retry_s = retry_s
        self._clock = clock or SystemClock()
        self._migrations = migrations
        self._outage = outage_of(self.place)
        self._pool: Pool | None = None
        self._end_s: float | None = None  # monotonic time at which all calls end
        self._ending: asyncio.TimerHandle | None = None
        self._writes = 0

    async def __aenter__(self) -> Self:
        self._pool = await self._retrying(self._open, self._retry_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await close_pool(pool, 0.0 if self._outage.is_on else _CLOSE_S)
        if self._ending is not None:
            self._ending.cancel()

    async def check_pooling(self) -> None:
        """Refuse a pooler that gives each transaction another session; before the database is entered."""

        async def attempt(_: float) -> None:
            await check_pooling(self._dsn)

        await self._retrying(attempt, self._retry_s)

    def hurry(self, limit_s: float) -> None:
        """End all calls, those under way and those that begin, in `limit_s`: for a node that stops."""
        if self._end_s is None:
            self._end_s = self._clock.monotonic() + limit_s
            self._ending = asyncio.get_running_loop().call_later(limit_s, self._cut)

    def _cut(self) -> None:
        if self._pool is not None:
            self._pool.terminate()

    async def _open(self, limit_s: float) -> Pool:
        pool = await open_pool(self._dsn, connections=self._connections, settings=_SETTINGS)
        try:
            async with lent(pool, limit_s) as connection:
                encoding = await connection.fetchval("SHOW server_encoding")
                if encoding != "UTF8":
                    what = f"has the encoding {encoding}; make one with ENCODING 'UTF8'"
                    raise DatabaseError(self.place, what)  # noqa: TRY301 - as any other fault
                await migrate(cast("asyncpg.Connection[asyncpg.Record]", connection), self._migrations)
        except BaseException:
            await close_pool(pool, _CLOSE_S)
            raise
        return pool

    async def read(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query."""

        async def attempt(limit_s: float) -> list[Any]:
            async with self._connection(limit_s) as connection:
                return list(await connection.fetch(query, *values))

        return await self._retrying(attempt, self._retry_s)

    async def write[T](
        self,
        action: Action[T],
        *,
        grant: Grant | None = None,
        durable: bool = True,
        retry_s: float | None = None,
        limit_s: float = RETRY_S,
    ) -> T:
        """Run `action` in a transaction and return its result, which JSON must hold; it takes effect once.

        The transaction refuses a `grant` whose lease another holder has. One that is not `durable` may be undone where
        the server loses its power. A write that has begun is finished where the caller is cancelled. One attempt takes
        `limit_s` at most.

        Raises:
            LeaseLostError: another holder has the lease; nothing was written by this attempt.
        """
        key = uuid.uuid4()

        async def attempt(limit_s: float) -> T:
            return await self._transaction(key, action, grant, limit_s, durable=durable)

        retry_s = self._retry_s if retry_s is None else retry_s
        return await to_the_end(self._retrying(attempt, retry_s, limit_s))

    async def _transaction[T](
        self, key: uuid.UUID, action: Action[T], grant: Grant | None, limit_s: float, *, durable: bool
    ) -> T:
        async with self._connection(limit_s) as connection, connection.transaction():
            if not durable:
                await connection.execute("SET LOCAL synchronous_commit = off")
            if grant is not None:  # the row stays locked, so that nobody takes the lease before the commit
                await check_grant(connection, grant)
            insert = "INSERT INTO walle.writes (key) VALUES ($1) ON CONFLICT DO NOTHING RETURNING TRUE"
            if not await connection.fetchval(insert, key):  # an attempt before was committed, and its answer was lost
                stored = await connection.fetchval("SELECT result FROM walle.writes WHERE key = $1", key)
                return cast("T", None if stored is None else json.loads(stored))
            result = await action(connection)
            if result is not None:
                update = "UPDATE walle.writes SET result = $2 WHERE key = $1"
                await connection.execute(update, key, json.dumps(result))
            if self._writes % _FORGET_EVERY == 0:
                await connection.execute(
                    f"DELETE FROM walle.writes WHERE at < clock_timestamp() - interval '{_WRITES_KEPT}'"  # noqa: S608
                )
            self._writes += 1
            return result

    async def _retrying[T](
        self, attempt: Callable[[float], Awaitable[T]], retry_s: float, limit_s: float = RETRY_S
    ) -> T:
        """Return what an attempt gives, which takes `limit_s` at most; try it again for `retry_s`."""
        outage, began_s = self._outage, self._clock.monotonic()
        until_s, is_long = began_s + retry_s, limit_s > RETRY_S
        if (lasted_s := outage.lasts_s()) > 0.0:  # time that others have waited counts
            until_s = max(began_s, until_s - lasted_s)
            if until_s <= began_s:
                if not outage.may_try():
                    what = f"has not answered for {lasted_s:.0f} s: {outage.error}"
                    raise DatabaseError(self.place, what, may_pass=True)
                limit_s = min(limit_s, TRY_S)
        backoff = Backoff(random.Random(), first_s=0.1, most_s=1.0)
        while True:
            if self._end_s is not None:
                left_s = max(0.01, self._end_s - self._clock.monotonic())
                until_s, limit_s = min(until_s, self._end_s), min(limit_s, left_s)
            try:
                result = await attempt(limit_s)
            except (*ERRORS, ValueError, NewerSchemaError, ServerError) as error:
                failure = self._failure(error)
                if is_away(error) and not self._is_ending:
                    outage.failed(failure.why)
                if failure.is_full:
                    outage.full()
                if not failure.may_pass or failure.is_full or self._clock.monotonic() >= until_s or self._is_ending:
                    raise failure from error
                if backoff.failures == 0 and not is_away(error):
                    _LOG.warning("%s; trying again", failure)
            else:
                outage.answered()
                return result
            await self._clock.sleep(0.02 + backoff.failed())
            if not is_long:
                limit_s = max(TRY_S, min(limit_s, until_s - self._clock.monotonic()))

    @property
    def _is_ending(self) -> bool:
        return self._end_s is not None and self._clock.monotonic() >= self._end_s

    @contextlib.asynccontextmanager
    async def _connection(self, limit_s: float) -> AsyncIterator[Connection]:
        if self._pool is None:
            raise DatabaseError(self.place, "is not open")
        async with lent(self._pool, limit_s) as connection:
            yield connection

    def _failure(self, error: Exception) -> DatabaseError:
        is_full = getattr(error, "sqlstate", None) == DISK_FULL
        return DatabaseError(self.place, explained(error, self._dsn), is_full, may_pass(error))


def is_database_url(text: str) -> bool:
    """Return whether `text` is the URL of a PostgreSQL database."""
    return text.startswith(("postgresql://", "postgres://"))
