"""Leases in a SQLite file, between processes of one machine.

The end of a lease is a time of the machine's monotonic clock, which all of its processes share, and which nobody sets.
A holder keeps a file locked beside the database, one for each fencing number. The kernel unlocks it however the process
ends: the lease of a process that was killed is free at once, that of one that was stopped when it has ended.
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from walle.base.clock import Clock, SystemClock
from walle.store.errors import StateError, state_errors
from walle.store.file_connection import FileConnection, connect, run_now
from walle.store.lease import Grant, LeaseState, check_grant

SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, holder TEXT NOT NULL, fence INTEGER NOT NULL, until_s REAL NOT NULL) STRICT;
"""
_STATE = "SELECT holder, fence, until_s FROM leases WHERE name = ?"
_RELEASE = "UPDATE leases SET until_s = 0, holder = '' WHERE name = ? AND holder = ? AND fence = ?"


class SqliteLeases:
    """The leases in the file at `path`, which is made where it is missing; see `walle.store.lease.Leases`."""

    decides_later = False

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._locks: dict[Grant, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def acquire(self, name: str, holder: str, life_s: float) -> Grant | None:
        return await asyncio.to_thread(self._acquire, name, holder, life_s)

    async def renew(self, grant: Grant, life_s: float) -> None:
        await asyncio.to_thread(self._renew, grant, life_s)

    async def release(self, grant: Grant) -> None:
        await asyncio.to_thread(self._release, grant)

    async def state(self, name: str) -> LeaseState | None:
        return await asyncio.to_thread(self._state, name)

    def _acquire(self, name: str, holder: str, life_s: float) -> Grant | None:
        with self._writing() as db:
            row = db.execute(_STATE, (name,)).fetchone()
            if row is not None and self._is_held(Grant(name, row[0], row[1]), until_s=row[2]):
                return None
            grant = Grant(name, holder, 1 if row is None else row[1] + 1)
            lock = os.open(self._lock_path(grant), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                db.execute(
                    "INSERT INTO leases VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                    " holder = excluded.holder, fence = excluded.fence, until_s = excluded.until_s",
                    (name, holder, grant.fence, self._clock.monotonic() + life_s),
                )
            except BaseException:
                os.close(lock)
                raise
            self._locks[grant] = lock
        if row is not None:
            self._lock_path(Grant(name, row[0], row[1])).unlink(missing_ok=True)
        return grant

    def _is_held(self, grant: Grant, *, until_s: float) -> bool:
        """Return whether the lease has not ended, and the process that has it may still run."""
        if until_s <= self._clock.monotonic():
            return False
        try:
            lock = os.open(self._lock_path(grant), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # a file of a backup, or of another machine's folder
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _renew(self, grant: Grant, life_s: float) -> None:
        try:
            with self._writing() as db:
                run_now(check_grant(FileConnection(db), grant))
                until_s = self._clock.monotonic() + life_s
                db.execute("UPDATE leases SET until_s = ? WHERE name = ?", (until_s, grant.name))
        except StateError as error:
            if not error.is_full:
                raise
            # Nobody can write that they have taken it, and rollbacks must continue.
            with state_errors(self.path), contextlib.closing(_connect(self.path)) as db:
                run_now(check_grant(FileConnection(db), grant))

    def _release(self, grant: Grant) -> None:
        try:
            with self._writing() as db:
                db.execute(_RELEASE, (grant.name, grant.holder, grant.fence))
        finally:
            if (lock := self._locks.pop(grant, None)) is not None:
                self._lock_path(grant).unlink(missing_ok=True)
                os.close(lock)

    def _state(self, name: str) -> LeaseState | None:
        with self._writing() as db:
            row = db.execute(_STATE, (name,)).fetchone()
        return None if row is None else LeaseState(row[0], row[1], max(0.0, row[2] - self._clock.monotonic()))

    def _lock_path(self, grant: Grant) -> Path:
        return self.path.with_name(f"{self.path.name}-{grant.name}-{grant.fence}.lock")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with state_errors(self.path), contextlib.closing(_connect(self.path)) as db:
            db.executescript(SCHEMA)
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


def _connect(path: Path) -> sqlite3.Connection:
    db = connect(path)
    db.execute("PRAGMA synchronous = FULL")  # a fencing number is never given twice
    return db
