"""A cloud's state in PostgreSQL: connections, transactions that are applied once, and retries.

The answer to a commit is lost with its connection: the write may be in the database, or not. So each write has a key,
which its transaction stores beside what it changes. It is tried again with the same key, waits for the transaction
that may still run on the server, and finds its result where that was committed. A server that restarts delays a write;
one that stays away fails it after `retry_s`, and the caller hears of it.
"""

import asyncio
import contextlib
import json
import logging
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Self, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from walle.backoff import Backoff
from walle.clock import Clock, SystemClock
from walle.deploy.cloud.journal import JournalError
from walle.deploy.cloud.lease import Grant, check_grant

try:
    import asyncpg

    from walle.deploy.cloud.postgres_schema import MIGRATIONS, Migration, NewerSchemaError, migrate
except ImportError as _error:
    raise JournalError("PostgreSQL", "asyncpg is not installed; install walle[postgres]") from _error

type Connection = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
type Action[T] = Callable[["Connection"], Awaitable[T]]

CONNECTIONS = 4
RETRY_S = 15.0
_CALL_S = 30.0
_CLOSE_S = 5.0
_WRITES_KEPT = "1 hour"  # far longer than a write is tried
_FORGET_EVERY = 1000  # writes
_SETTINGS = {
    "application_name": "walle",
    "synchronous_commit": "on",
    "statement_timeout": "20s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",  # a process that was stopped must not keep a lease's row locked
}
_TRANSIENT_CLASSES = {
    "08",  # connection
    "40",  # rolled back: serialization, deadlock
    "53",  # insufficient resources: out of memory, too many connections
    "55",  # lock not available
    "57",  # shut down, crashed, cannot connect now, cancelled
    "58",  # system error
}
_DISK_FULL = "53100"
_IDLE_IN_TRANSACTION = "25P03"
_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
_LOG = logging.getLogger(__name__)


class DatabaseError(JournalError):
    """The database cannot be used, or refused a write. `path` is its URL without a password.

    Over HTTP: 503; 507 where its disk is full.
    """

    def __init__(self, path: str, why: str, is_full: bool = False) -> None:
        super().__init__(path, why, is_full)
        self.status = 507 if is_full else 503

    def __str__(self) -> str:
        return f"the cloud's database {self.path}: {self.why}"


class PostgresDatabase:
    """The database at a URL, `postgresql://USER@HOST:PORT/NAME`, within `async with`; of one event loop.

    A password is that of the URL, of PGPASSWORD or of ~/.pgpass. Entering makes the schema, or brings it up to date.

    Raises, from every call:
        DatabaseError: the database does not answer for `retry_s` seconds, or refuses.
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
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._writes = 0

    async def __aenter__(self) -> Self:
        self._pool = await self._retrying(self._open, self._retry_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await _close(pool)

    async def _open(self) -> "asyncpg.Pool[asyncpg.Record]":
        pool = await asyncpg.create_pool(
            self._dsn,
            min_size=1,
            max_size=self._connections,
            timeout=_CALL_S,
            command_timeout=_CALL_S,
            server_settings=_SETTINGS,
        )
        try:
            async with pool.acquire() as connection:
                encoding = await connection.fetchval("SHOW server_encoding")
                if encoding != "UTF8":
                    what = f"has the encoding {encoding}; make one with ENCODING 'UTF8'"
                    raise DatabaseError(self.place, what)  # noqa: TRY301 - as any other fault
                await migrate(cast("asyncpg.Connection[asyncpg.Record]", connection), self._migrations)
        except BaseException:
            await _close(pool)
            raise
        return pool

    async def read(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query."""

        async def attempt() -> list[Any]:
            async with self._connection() as connection:
                return list(await connection.fetch(query, *values))

        return await self._retrying(attempt, self._retry_s)

    async def write[T](
        self, action: Action[T], *, grant: Grant | None = None, durable: bool = True, retry_s: float | None = None
    ) -> T:
        """Run `action` in a transaction and return its result, which JSON must hold; it takes effect once.

        The transaction refuses a `grant` whose lease another holder has. One that is not `durable` may be undone where
        the server loses its power. A write that has begun is finished where the caller is cancelled.

        Raises:
            LeaseLostError: another holder has the lease; nothing was written by this attempt.
        """
        key = uuid.uuid4()

        async def attempt() -> T:
            return await self._transaction(key, action, grant, durable=durable)

        work = asyncio.ensure_future(self._retrying(attempt, self._retry_s if retry_s is None else retry_s))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            if not work.cancelled():
                work.exception()
            raise

    async def _transaction[T](self, key: uuid.UUID, action: Action[T], grant: Grant | None, *, durable: bool) -> T:
        async with self._connection() as connection, connection.transaction():
            if not durable:
                await connection.execute("SET LOCAL synchronous_commit = off")
            if grant is not None:  # the row stays locked, so that nobody takes the lease before the commit
                query = "SELECT holder, fence FROM walle.leases WHERE name = $1 FOR SHARE"
                check_grant(await connection.fetchrow(query, grant.name), grant)
            insert = "INSERT INTO walle.writes (key) VALUES ($1) ON CONFLICT DO NOTHING RETURNING TRUE"
            if not await connection.fetchval(insert, key):  # committed before, and its answer was lost
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

    async def _retrying[T](self, attempt: Callable[[], Awaitable[T]], retry_s: float) -> T:
        until_s = self._clock.monotonic() + retry_s
        backoff = Backoff(random.Random(), first_s=0.1, most_s=2.0)
        while True:
            try:
                return await attempt()
            except (*_ERRORS, ValueError, NewerSchemaError) as error:
                if not _may_pass(error) or self._clock.monotonic() >= until_s:
                    raise self._failure(error) from error
                if backoff.failures == 0:
                    _LOG.warning("%s; trying again", self._failure(error))
            await self._clock.sleep(0.02 + backoff.failed())

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        if self._pool is None:
            raise DatabaseError(self.place, "is not open")
        async with self._pool.acquire() as connection:
            yield connection

    def _failure(self, error: Exception) -> DatabaseError:
        text = str(error) or type(error).__name__
        for secret in _passwords(self._dsn):
            text = text.replace(secret, "***")
        return DatabaseError(self.place, text, getattr(error, "sqlstate", None) == _DISK_FULL)


async def _close(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    try:
        async with asyncio.timeout(_CLOSE_S):
            await pool.close()
    except _ERRORS:
        pool.terminate()


def _may_pass(error: Exception) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state != _DISK_FULL and (state[:2] in _TRANSIENT_CLASSES or state == _IDLE_IN_TRANSACTION)
    # DataError and other ValueErrors: of a value, or of a URL that is wrong
    return not isinstance(error, ValueError | NewerSchemaError)


def is_database_url(text: str) -> bool:
    """Return whether `text` is the URL of a PostgreSQL database."""
    return text.startswith(("postgresql://", "postgres://"))


def without_password(dsn: str) -> str:
    """Return the URL of a database without its password."""
    parts = urlsplit(dsn)
    user, at, host = parts.netloc.rpartition("@")
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] != "password"], safe="/:")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=query))


def _passwords(dsn: str) -> list[str]:
    parts = urlsplit(dsn)
    user = parts.netloc.rpartition("@")[0]
    found = [user.partition(":")[2], *(value for name, value in parse_qsl(parts.query) if name == "password")]
    return [secret for one in found for secret in {one, unquote(one)} if secret]
