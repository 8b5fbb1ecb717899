"""Connections to a PostgreSQL server: the host that takes writes, limits of time, and the errors that may pass.

A URL may name several hosts, one of which takes writes at a time: each is tried for CONNECT_S, from the one that worked
last. A server that does not answer keeps a connection busy until its call's limit, at which its socket is closed.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast, override
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import asyncpg

type Pool = "asyncpg.Pool[asyncpg.Record]"
type PooledConnection = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"

CONNECT_S = 4.0  # timeout of a connection to one host
TRY_S = 5.0  # time for an attempt at a server that has been away for long
TRY_AGAIN_S = 1.0  # pause from a failure to the next such attempt
_LOGGED_S = 0.5
_FULL_S = 60.0
OLDEST = 130000  # server_version_num
ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
READ_ONLY = "25006"
DISK_FULL = "53100"
_TRANSIENT_CLASSES = {
    "08",  # connection
    "40",  # rolled back: serialization, deadlock
    "53",  # insufficient resources: disk full, out of memory, too many connections
    "55",  # lock not available
    "57",  # shut down, crashed, cannot connect now, cancelled
    "58",  # system error
}
_TRANSIENT = {READ_ONLY, "25P03"}  # 25P03: the transaction was idle for too long
_LOOKS = 5  # looks of a check for a pooler: another client may take the session between two
_SECRETS = {"password", "sslpassword"}  # parameters of a URL's query
_PROTOCOL = "08P01"  # what a pooler refuses
_AWAY_CLASSES = {"08", "57", "58"}
_AWAY = {READ_ONLY, "53300"}  # 53300: too many connections
_POOLED_BY_TRANSACTION = (
    "a pooler before it gives each transaction another session (pool_mode transaction or statement);"
    " have it keep a session for each connection (pgbouncer: pool_mode = session), or name the server itself"
)
_ADVICE = {
    "28P01": "give the password in PGPASSWORD, ~/.pgpass or the URL",
    "28000": "let pg_hba.conf of the server admit this role from this machine",
    "3D000": "make it: CREATE DATABASE name ENCODING 'UTF8'",
    "42501": "let the role make a schema: GRANT CREATE ON DATABASE name TO role",
}
_LOG = logging.getLogger(__name__)


class ServerError(Exception):
    """A server that cannot keep a cloud's state. `may_pass`: it may at another time, such as a standby."""

    def __init__(self, what: str, *, may_pass: bool = False) -> None:
        super().__init__(what)
        self.may_pass = may_pass


class NoConnectionError(TimeoutError):
    """All connections of a pool are in use."""


def may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed: the server restarts, is full, is not reached or does not take writes."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state != _PROTOCOL and (state[:2] in _TRANSIENT_CLASSES or state in _TRANSIENT)
    if isinstance(error, ServerError):
        return error.may_pass
    # ValueError: a URL or a value that is wrong. Else InterfaceError of a lost connection, OSError, TimeoutError.
    return isinstance(error, ERRORS) and not isinstance(error, ValueError | OverflowError)


def is_away(error: Exception) -> bool:
    """Return whether an error says that the server cannot be used now, whatever is asked."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return may_pass(error) and (state[:2] in _AWAY_CLASSES or state in _AWAY)
    return may_pass(error) and not isinstance(error, NoConnectionError)


def explained(error: Exception, dsn: str) -> str:
    """Return an error as text, without the URL's passwords, and with what to do where that is known."""
    text = str(error) or type(error).__name__
    for secret in _passwords(dsn):
        text = text.replace(secret, "***")
    advice = _ADVICE.get(getattr(error, "sqlstate", None) or "", "")
    return f"{text}; {advice}" if advice else text


def without_password(dsn: str) -> str:
    """Return the URL of a database without its password, and without that of a TLS key."""
    parts = urlsplit(dsn)
    user, at, host = parts.netloc.rpartition("@")
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] not in _SECRETS], safe="/:,")
    return _joined(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=query))


def _joined(parts: SplitResult) -> str:
    """Return a URL; `urlunsplit` leaves the slashes out where no host is named."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{parts.query and '?'}{parts.query}"


def _passwords(dsn: str) -> list[str]:
    parts = urlsplit(dsn)
    user = parts.netloc.rpartition("@")[0]
    found = [user.partition(":")[2], *(value for name, value in parse_qsl(parts.query) if name in _SECRETS)]
    return [secret for one in found for secret in {one, unquote(one)} if secret]


def hosts_of(dsn: str) -> list[str]:
    """Return one URL for each host that a URL names, in its order; the URL itself where it names one or none."""
    parts = urlsplit(dsn)
    user, at, named = parts.netloc.rpartition("@")
    query = [pair for pair in parse_qsl(parts.query) if pair[0] != "target_session_attrs"]
    asked = dict(query)
    ports = asked.get("port", "").split(",")
    hosts = asked["host"].split(",") if "host" in asked else []
    found = []
    if hosts:
        for number, host in enumerate(hosts):
            port = ports[number] if len(ports) == len(hosts) else ports[0]
            changed = {**asked, "host": host, **({"port": port} if port else {})}
            found.append(parts._replace(query=urlencode(changed, safe="/:,")))
    else:
        found = [
            parts._replace(netloc=f"{user}{at}{host}", query=urlencode(query, safe="/:,")) for host in named.split(",")
        ]
    return [_joined(one) for one in found]


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that keeps its settings when it goes back to its pool."""

    @override
    def get_reset_query(self) -> str:
        return ""


class Connector:
    """Connects to the host of a URL that takes writes, with session settings. A pool's `connect`."""

    def __init__(self, dsn: str, settings: Mapping[str, str]) -> None:
        self._hosts = hosts_of(dsn)
        self._settings = dict(settings)
        self._latest = 0  # the host that worked last

    async def __call__(self, _dsn: str | None = None, **options: Any) -> "asyncpg.Connection[asyncpg.Record]":
        """Return a connection.

        Raises:
            ServerError: the server is too old, or takes no writes.
            ERRORS, ValueError: as `asyncpg.connect`; of several hosts, an error that does not pass goes first.
        """
        errors: list[Exception] = []
        for number in range(len(self._hosts)):
            at = (self._latest + number) % len(self._hosts)
            try:
                connection = await self._connect(self._hosts[at], options)
            except (*ERRORS, ValueError, ServerError) as error:
                errors.append(error)
            else:
                self._latest = at
                return connection
        raise next((error for error in errors if not may_pass(error)), errors[0])

    async def _connect(self, dsn: str, options: Mapping[str, Any]) -> "asyncpg.Connection[asyncpg.Record]":
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await asyncpg.connect(dsn, **options)
        except TimeoutError as error:
            raise TimeoutError(f"the server does not answer within {CONNECT_S:g} s") from error
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._prepare(connection)
        except TimeoutError as error:
            connection.terminate()
            raise TimeoutError(f"the server does not answer within {CONNECT_S:g} s") from error
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _prepare(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        query = (
            "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),"
            " current_setting('transaction_read_only')"
        )
        version, is_standby, read_only = await connection.fetchrow(query)
        if version < OLDEST:
            what = f"PostgreSQL {version // 10_000} is too old; {OLDEST // 10_000} or newer is needed"
            raise ServerError(what)
        if is_standby:
            what = (
                "is a standby, which refuses writes until it is promoted; name the primary too: postgresql://a,b/name"
            )
            raise ServerError(what, may_pass=True)
        if read_only == "on":
            raise ServerError("refuses writes (default_transaction_read_only is on)", may_pass=True)
        await connection.fetch(
            "SELECT set_config(name, value, FALSE) FROM unnest($1::text[], $2::text[]) AS s (name, value)",
            list(self._settings),
            list(self._settings.values()),
        )


async def open_pool(dsn: str, *, connections: int, settings: Mapping[str, str] | None = None) -> Pool:
    """Return a pool of connections to the host of a URL that takes writes. None is made before it is asked for."""
    return cast(
        "Pool",
        await asyncpg.create_pool(
            dsn,
            min_size=0,  # else the pool tries to connect, and logs each failure with a traceback
            max_size=connections,
            connect=Connector(dsn, settings or {}),
            connection_class=_Connection,
        ),
    )


@contextlib.asynccontextmanager
async def lent(pool: Pool, limit_s: float) -> AsyncIterator[PooledConnection]:
    """Give a connection of a pool for `limit_s` seconds at most, the wait for it included.

    Then its socket is closed, and what waits for its server ends. A connection is not used again after a cancelled
    call, or one that says that its server is not to be used.

    Raises:
        TimeoutError: the limit; and what connecting raises.
    """
    loop = asyncio.get_running_loop()
    due_s = loop.time() + limit_s
    try:
        connection = await pool.acquire(timeout=limit_s)
    except TimeoutError as late:
        if str(late):  # the connector's own timeout has a text
            raise
        raise NoConnectionError(f"no connection is free within {limit_s:.3g} s") from late
    is_late = False

    def close() -> None:
        nonlocal is_late
        is_late = True
        connection.terminate()

    timer = loop.call_at(due_s, close)
    try:
        yield connection
    except BaseException as raised:
        error = _root(raised)
        if not isinstance(error, Exception) or is_away(error):
            _terminate(connection)
        if is_late and isinstance(error, ERRORS):
            raise TimeoutError(f"the server does not answer within {limit_s:.3g} s") from raised
        if error is not raised:
            raise error from None
        raise
    finally:
        try:
            with contextlib.suppress(*ERRORS):
                await pool.release(connection)
        finally:
            timer.cancel()


def _root(error: BaseException) -> BaseException:
    """Return the error after which a transaction could not be ended, for the one that says so."""
    while isinstance(error, asyncpg.InterfaceError) and isinstance(error.__context__, ERRORS):
        error = error.__context__
    return error


def _terminate(connection: PooledConnection) -> None:
    with contextlib.suppress(asyncpg.InterfaceError):  # the pool has it back already
        connection.terminate()


async def close_pool(pool: Pool, limit_s: float) -> None:
    """Close a pool; connections whose server does not answer within `limit_s` are cut, at once where that is 0."""
    if not limit_s:
        pool.terminate()
        return
    try:
        async with asyncio.timeout(limit_s):
            await pool.close()
    except ERRORS:
        pool.terminate()


async def check_pooling(dsn: str) -> None:
    """Refuse a pooler that gives each transaction another session: a lock or a setting would be another client's.

    Raises:
        ServerError: there is such a pooler.
    """
    connector = Connector(dsn, {})
    async with contextlib.AsyncExitStack() as undo:
        try:
            ends = []
            for _ in range(2):
                connection = await connector()
                undo.callback(connection.terminate)
                ends.append(connection)
            one, other = ends
            async with asyncio.timeout(CONNECT_S):
                for _ in range(_LOOKS):
                    first = await one.fetchval("SELECT pg_backend_pid()")
                    async with other.transaction():  # a pooler gives it the session that was free last
                        if await other.fetchval("SELECT pg_backend_pid()") == first:
                            raise ServerError(_POOLED_BY_TRANSACTION)
        except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError) as error:
            raise ServerError(_POOLED_BY_TRANSACTION) from error
        except ERRORS as error:
            if "pooling mode" in str(error):  # pgbouncer says so, and ends the connection
                raise ServerError(_POOLED_BY_TRANSACTION) from error
            raise


class Outage:
    """Failures of the database at a URL since it answered last, as its callers in this process found.

    One that lasts is logged, once, and so is its end; connections that are lost and made again are not.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.error = ""
        self.since_s: float | None = None  # monotonic time of the first failure, None while it answers
        self._next_s = 0.0  # monotonic time from which on it is to be tried again
        self._is_logged = False
        self._full_s: float | None = None  # monotonic time of the latest write that its disk had no space for
        self._lock = threading.Lock()

    def failed(self, what: str) -> None:
        """Take note of a call for which the server could not be used."""
        with self._lock:
            now_s = time.monotonic()
            self.error, self._next_s = what, now_s + TRY_AGAIN_S
            self.since_s = self.since_s or now_s
            is_new = not self._is_logged and now_s - self.since_s >= _LOGGED_S
            self._is_logged |= is_new
        if is_new:
            _LOG.warning("database %s: %s; trying again", self.place, what)

    def answered(self) -> None:
        """Take note of a call that the server answered."""
        if self.since_s is None:
            return
        with self._lock:
            since_s, self.since_s, self.error = self.since_s, None, ""
            was_logged, self._is_logged = self._is_logged, False
        if since_s is not None and was_logged:
            _LOG.warning("database %s: answers again after %.1f s", self.place, time.monotonic() - since_s)

    def full(self) -> None:
        """Take note of a write that the server's disk had no space for; others may have fitted."""
        self._full_s = time.monotonic()

    @property
    def is_full(self) -> bool:
        """Return whether its disk had no space for a write of the last minute."""
        return self._full_s is not None and time.monotonic() - self._full_s < _FULL_S

    @property
    def is_on(self) -> bool:
        """Return whether it did not answer at the latest call."""
        return self.since_s is not None

    def lasts_s(self) -> float:
        """Return the seconds since its first failure, 0 while it answers."""
        since_s = self.since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def may_try(self) -> bool:
        """Return whether it is time for another attempt, which the caller is to make in TRY_S; others wait for it."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._next_s:
                return False
            self._next_s = now_s + TRY_S
            return True


_OUTAGES: dict[str, Outage] = {}


def outage_of(place: str) -> Outage:
    """Return what is known of the database at `place`, the same for all callers of this process."""
    return _OUTAGES.setdefault(place, Outage(place))
