"""The journal in one SQLite file; see `walle.deploy.releases.journal`.

A rollback must be written also when the disk is full. So the file and its write-ahead log are made larger than they
are when they are opened: what is freed within them takes no more of the disk.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiosqlite

from walle.deploy.releases.journal import PendingEffect, Transition
from walle.deploy.releases.release import Effect, Release, ReleaseEvent
from walle.deploy.releases.table import TaskRow
from walle.errors import ConfigError
from walle.store.disk_space import free_bytes, is_full
from walle.store.errors import StateError, state_errors
from walle.store.lease import Grant, check_grant
from walle.store.sqlite_leases import grant_query

_LOG = logging.getLogger(__name__)

RESERVE_BYTES = 2 << 20  # a rollback takes about 50 KiB
_RESERVE_SHARE = 8  # of the free space: a smaller disk has better uses for it
JOURNAL_SCHEMA = """
CREATE TABLE IF NOT EXISTS releases (id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, release TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS transitions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, release_id TEXT NOT NULL, at_s REAL NOT NULL,
    event TEXT NOT NULL, details TEXT NOT NULL, state TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS transitions_of ON transitions (release_id);
CREATE TABLE IF NOT EXISTS effects (
    number INTEGER PRIMARY KEY AUTOINCREMENT, release_id TEXT NOT NULL, effect TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS table_rows (task TEXT PRIMARY KEY, task_row TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS evidence (release_id TEXT PRIMARY KEY, evidence TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, device_id TEXT NOT NULL, batch_id TEXT NOT NULL) STRICT;
"""


class SqliteJournal:
    """The journal in the file at `path`, which is made where it is missing. `grant` is of a lease in the same file."""

    def __init__(self, path: Path, *, grant: Grant | None = None, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.path = path
        self._grant = grant
        self._reserve_bytes = reserve_bytes
        self._db: aiosqlite.Connection | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        with state_errors(self.path):
            await asyncio.to_thread(self._probe)
            connecting = asyncio.ensure_future(self._connect())
            try:
                db = await asyncio.shield(connecting)
            except asyncio.CancelledError:
                await (await connecting).close()  # aiosqlite cannot cancel an opening, so wait for it
                raise
            try:
                await db.execute("PRAGMA journal_mode = WAL")
                await db.execute("PRAGMA synchronous = FULL")  # a transition must survive a power cut
                await db.execute("PRAGMA busy_timeout = 5000")
                await db.executescript(JOURNAL_SCHEMA)
                await self._reserve(db)
            except BaseException:
                await db.close()
                raise
        self._db = db
        return self

    async def _reserve(self, db: aiosqlite.Connection) -> None:
        """Make the file and its log larger by the reserve: pages that are written and deleted stay theirs."""
        if free_bytes(self.path.parent) < _RESERVE_SHARE * self._reserve_bytes:
            _LOG.error("release journal %s has no reserve: the disk is nearly full. Free some, and restart", self.path)
            return
        try:
            await db.execute("CREATE TABLE IF NOT EXISTS reserve (bytes BLOB NOT NULL) STRICT")
            await db.execute("INSERT INTO reserve VALUES (zeroblob(?))", (self._reserve_bytes,))
            await db.execute("DROP TABLE reserve")
            await db.execute_fetchall("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
            _LOG.error("release journal %s has no reserve: the disk is full. Free some space, and restart", self.path)

    async def _connect(self) -> aiosqlite.Connection:
        return await aiosqlite.connect(self.path, isolation_level=None)

    async def __aexit__(self, *_: object) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            await db.close()

    async def confirm(self) -> None:
        async def write(db: aiosqlite.Connection) -> None:
            pass

        await self._write(write)

    # --- releases ---

    async def record(
        self, release: Release, event: ReleaseEvent | None, effects: tuple[Effect, ...]
    ) -> tuple[PendingEffect, ...]:
        pending: list[PendingEffect] = []
        details = json.dumps(dataclasses.asdict(event) if event else {})
        name = type(event).__name__ if event else "Create"

        async def write(db: aiosqlite.Connection) -> None:
            await db.execute(
                "INSERT INTO releases VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET release = excluded.release",
                (release.id, release.number, json.dumps(release.to_plain())),
            )
            await db.execute(
                "INSERT INTO transitions (release_id, at_s, event, details, state) VALUES (?, ?, ?, ?, ?)",
                (release.id, release.updated_s, name, details, release.state.value),
            )
            for effect in effects:
                cursor = await db.execute(
                    "INSERT INTO effects (release_id, effect) VALUES (?, ?)", (release.id, effect.value)
                )
                pending.append(PendingEffect(cursor.lastrowid or 0, release.id, effect))

        await self._write(write)
        return tuple(pending)

    async def releases(self) -> list[Release]:
        rows = await self._read("SELECT release FROM releases ORDER BY number")
        return [Release.from_plain(json.loads(text)) for (text,) in rows]

    async def history(self, release_id: str) -> list[Transition]:
        rows = await self._read(
            "SELECT at_s, event, details, state FROM transitions WHERE release_id = ? ORDER BY number", release_id
        )
        return [Transition(at_s, event, json.loads(details), state) for at_s, event, details, state in rows]

    async def pending(self) -> list[PendingEffect]:
        rows = await self._read("SELECT number, release_id, effect FROM effects ORDER BY number")
        return [PendingEffect(number, release_id, Effect(effect)) for number, release_id, effect in rows]

    async def strike(self, effect: PendingEffect) -> None:

        async def write(db: aiosqlite.Connection) -> None:
            await db.execute("DELETE FROM effects WHERE number = ?", (effect.number,))

        await self._write(write)

    # --- rows of the release table ---

    async def draw(self, counter: str, count: int = 1) -> int:
        last = 0

        async def write(db: aiosqlite.Connection) -> None:
            nonlocal last
            rows = await db.execute_fetchall(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"
                " RETURNING value",
                (counter, count),
            )
            ((last,),) = rows

        await self._write(write)
        return last - count + 1

    async def save_row(self, row: TaskRow) -> None:
        text = json.dumps(row.to_plain())

        async def write(db: aiosqlite.Connection) -> None:
            await db.execute(
                "INSERT INTO table_rows VALUES (?, ?) ON CONFLICT (task) DO UPDATE SET task_row = excluded.task_row",
                (row.task, text),
            )

        await self._write(write)

    async def rows(self) -> list[TaskRow]:
        return [
            TaskRow.from_plain(json.loads(text))
            for (text,) in await self._read("SELECT task_row FROM table_rows ORDER BY task")
        ]

    # --- evidence of the monitor ---

    async def save_evidence(
        self, evidence: Mapping[str, Any], batches: Sequence[tuple[str, str]] = (), *, keep: int = 0
    ) -> None:
        values = [(release_id, json.dumps(plain)) for release_id, plain in evidence.items()]

        async def write(db: aiosqlite.Connection) -> None:
            await db.executemany(
                "INSERT INTO evidence VALUES (?, ?)"
                " ON CONFLICT (release_id) DO UPDATE SET evidence = excluded.evidence",
                values,
            )
            if batches:
                await db.executemany("INSERT INTO batches (device_id, batch_id) VALUES (?, ?)", batches)
                await db.execute("DELETE FROM batches WHERE number <= (SELECT max(number) FROM batches) - ?", (keep,))

        await self._write(write)

    async def batches(self) -> list[tuple[str, str]]:
        rows = await self._read("SELECT device_id, batch_id FROM batches ORDER BY number")
        return [(device_id, batch_id) for device_id, batch_id in rows]

    async def evidence(self) -> dict[str, Any]:
        return {
            release_id: json.loads(text)
            for release_id, text in await self._read("SELECT release_id, evidence FROM evidence ORDER BY release_id")
        }

    # --- the file ---

    async def _write(self, action: Callable[[aiosqlite.Connection], Awaitable[None]]) -> None:
        """Run `action` as one transaction; where the caller is cancelled, it still ends whole before another begins."""
        async with self._lock:
            work = asyncio.ensure_future(self._transaction(action))
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                if not work.cancelled():
                    work.exception()
                raise

    async def _transaction(self, action: Callable[[aiosqlite.Connection], Awaitable[None]]) -> None:
        db = self._opened()
        with state_errors(self.path):
            await db.execute("BEGIN IMMEDIATE")
            try:
                if self._grant is not None:
                    async with db.execute(*grant_query(self._grant)) as cursor:
                        check_grant(await cursor.fetchone(), self._grant)
                await action(db)
                await db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # on some errors, such as a full disk, SQLite has rolled back already
                    await db.execute("ROLLBACK")
                raise

    def _probe(self) -> None:
        """Raise if the file cannot be opened. aiosqlite would too, but leaks a thread that outlives its event loop."""
        sqlite3.connect(self.path).close()

    async def _read(self, sql: str, *values: object) -> list[Any]:
        with state_errors(self.path):
            return list(await self._opened().execute_fetchall(sql, values))

    def _opened(self) -> aiosqlite.Connection:
        if self._db is None:
            raise StateError(str(self.path), "is not open")
        return self._db


def read_releases(path: Path) -> list[Release]:
    """Return the releases in a journal that another process may write. Raises ConfigError where it cannot be read."""
    if not path.exists():
        return []
    uri = f"{path.absolute().as_uri()}?mode=rw"  # a reader of a write-ahead log writes its index
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as database:
            rows = database.execute("SELECT release FROM releases ORDER BY number").fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"release journal {path}: {error}") from error
    return [Release.from_plain(json.loads(text)) for (text,) in rows]
